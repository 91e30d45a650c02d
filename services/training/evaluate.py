"""Held-out accuracy of a saved model: by skill, with numbers of turns and intervals.

A turn is answered from the grammar's own replies to the turns before it, so that one early error
does not fail a whole dialogue; whole dialogues are counted separately, in the model's own words.
Decoding is greedy, by CTranslate2, which takes the saved weights: bfloat16 values in float32
arithmetic for a directory of transformers' format, int8 for one of the backend `small`.
"""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import argparse
import itertools
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ctranslate2
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from training.export import convert
from training.grammar.dialogue import HELD_OUT_SEED, SKILLS, Dialogue, make_dialogues
from training.grammar.score import exact, right

_BATCH = 64
_LONGEST_REPLY = 64
# Held-out dialogues that the shipped models' figures are of.
DIALOGUES = 600

Messages = list[dict[str, str]]


@dataclass
class Count:
    """Turns of one skill."""

    n: int = 0
    exact: int = 0
    right: int = 0

    def as_json(self) -> dict[str, Any]:
        """Shares with 95 % Wilson intervals."""
        return {
            "n": self.n,
            "exact": round(self.exact / self.n, 4),
            "right": round(self.right / self.n, 4),
            "right_interval_95": [round(x, 4) for x in wilson(self.right, self.n)],
        }


@dataclass
class Tally:
    """Right turns of a set of dialogues; `right_of_each`: which turns, dialogue by dialogue."""

    skills: dict[str, Count] = field(default_factory=lambda: defaultdict(Count))
    dialogues: int = 0
    dialogues_right: int = 0
    right_of_each: list[list[bool]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Dump all turns, each skill, whole dialogues."""
        every = Count(
            sum(c.n for c in self.skills.values()),
            sum(c.exact for c in self.skills.values()),
            sum(c.right for c in self.skills.values()),
        )
        low, high = wilson(self.dialogues_right, self.dialogues)
        return {
            "turns": every.as_json(),
            "skills": {s: self.skills[s].as_json() for s in SKILLS if s in self.skills},
            "whole_dialogues": {
                "n": self.dialogues,
                "right": round(self.dialogues_right / self.dialogues, 4),
                "right_interval_95": [round(low, 4), round(high, 4)],
            },
        }


class Speaker:
    """A saved model that replies to many conversations at once."""

    def __init__(self, directory: Path, *, compute_type: str) -> None:
        self._generator = ctranslate2.Generator(
            str(directory), compute_type=compute_type, inter_threads=1, intra_threads=1
        )
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._template = PreTrainedTokenizerFast.from_pretrained(directory)

    def reply(self, conversations: list[Messages]) -> list[str]:
        """Generate the greedy reply to each conversation."""
        prompts: list[list[str]] = []
        for messages in conversations:
            text = self._template.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            prompts.append(self._tokenizer.encode(str(text), add_special_tokens=False).tokens)
        results = self._generator.generate_batch(
            prompts,
            max_batch_size=_BATCH,
            max_length=_LONGEST_REPLY,
            include_prompt_in_result=False,
            sampling_topk=1,
        )
        return [self._tokenizer.decode(result.sequences_ids[0]) for result in results]


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Compute the 95 % Wilson interval of a share."""
    z = 1.959964
    share, scale = hits / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def held_out_dialogues(count: int) -> list[Dialogue]:
    """Make the dialogues that test accuracy: every content in them was kept out of training."""
    return list(itertools.islice(make_dialogues(HELD_OUT_SEED, holding=True), count))


def evaluate(speaker: Speaker, dialogues: list[Dialogue]) -> Tally:
    """Answer every scored turn of `dialogues`, and every dialogue as a whole."""
    tally = Tally(dialogues=len(dialogues), right_of_each=[[] for _ in dialogues])
    asked = [
        (number, index)
        for number, dialogue in enumerate(dialogues)
        for index, turn in enumerate(dialogue.turns)
        if turn.content is not None
    ]
    histories = [_until(dialogues[number], index) for number, index in asked]
    for (number, index), reply in zip(asked, speaker.reply(histories), strict=True):
        turn = dialogues[number].turns[index]
        count = tally.skills[turn.skill]
        count.n += 1
        count.exact += exact(turn, reply)
        fine = right(turn, reply)
        count.right += fine
        tally.right_of_each[number].append(fine)
    tally.dialogues_right = sum(_whole(speaker, dialogues))
    return tally


def _until(dialogue: Dialogue, index: int) -> Messages:
    system = 1 if dialogue.system else 0
    return dialogue.messages()[: system + 2 * index + 1]


def _whole(speaker: Speaker, dialogues: list[Dialogue]) -> Iterator[bool]:
    """Yield whether each whole dialogue was right, with the model's own earlier replies in it."""
    said: list[Messages] = [
        [{"role": "system", "content": d.system}] if d.system else [] for d in dialogues
    ]
    fine = [True] * len(dialogues)
    for index in range(max(len(d.turns) for d in dialogues)):
        at = [k for k, d in enumerate(dialogues) if index < len(d.turns) and fine[k]]
        for k in at:
            said[k].append({"role": "user", "content": dialogues[k].turns[index].user})
        for k, reply in zip(at, speaker.reply([said[k] for k in at]), strict=True):
            said[k].append({"role": "assistant", "content": reply})
            fine[k] = right(dialogues[k].turns[index], reply)
    yield from fine


def paired(one: Tally, other: Tally) -> dict[str, Any]:
    """Test whether `one` is more often right than `other`, over the same dialogues.

    The sign test is over dialogues and not over turns, because the turns of a dialogue have a
    system prompt in common and are right or wrong together.
    """
    each = zip(one.right_of_each, other.right_of_each, strict=True)
    pairs = [(sum(mine), sum(its)) for mine, its in each]
    more, fewer = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    n = more + fewer
    tail = sum(math.comb(n, k) for k in range(min(more, fewer) + 1)) / 2**n
    return {
        "dialogues_with_more_right": more,
        "dialogues_with_fewer_right": fewer,
        "two_sided_p": min(1.0, round(2 * tail, 6)),
    }


def evaluate_directory(directory: Path, count: int) -> Tally:
    """Compute the held-out accuracy of a directory in transformers' or in CTranslate2's format."""
    dialogues = held_out_dialogues(count)
    if (directory / "model.bin").exists():
        return evaluate(Speaker(directory, compute_type="int8"), dialogues)
    with tempfile.TemporaryDirectory() as scratch:
        convert(directory, Path(scratch), quantization=None)
        return evaluate(Speaker(Path(scratch), compute_type="float32"), dialogues)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Held-out accuracy of a model as it was saved.")
    parser.add_argument("directory", type=Path, help="a model in either format")
    parser.add_argument("--dialogues", type=int, default=DIALOGUES, help="held-out dialogues")
    arguments = parser.parse_args()
    tally = evaluate_directory(arguments.directory, arguments.dialogues)
    print(json.dumps(tally.as_json(), indent=2))


if __name__ == "__main__":
    main()
