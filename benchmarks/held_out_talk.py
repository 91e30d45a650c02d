r"""A scenario library of what the shipped models were never trained on, to compare them by.

The people of the shipped scenarios say what both models mostly know. Here they say dialogues of
the grammar's held-out side (docs/models.md): whichever come first from a fixed seed, but those that
need facts in the system prompt, which a library's people have in common. What makes a reply right
is the grammar's own. espeak-ng speaks, in voices by turns; the embedded agent's recogniser is made
from these sentences alone.

    python benchmarks/held_out_talk.py held-out
    turngap compare held-out --set "pipeline.system_prompt=$(< held-out/prompt.txt)" \
      --llm teacher=small,model=teacher --llm student=small,model=student
"""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from ruamel.yaml import YAML

from training.grammar.dialogue import BASE_PROMPT, HELD_OUT_SEED, Dialogue, make_dialogues
from training.grammar.turn import Turn
from training.whisper.speech import RATE, Voice, speak
from turngap.core.audio import LINE_FLOOR_DBFS, dbfs_to_amplitude
from turngap.scenario.label import label_file

# Those that pocketsphinx reads best (services/training/whisper/speech.py).
VOICES = ("edward", "michel", "Reed", "f2", "f3")
PACE = 1.05
LEAD_MS, TAIL_MS = 120, 200


def without_facts() -> Iterator[Dialogue]:
    """Held-out dialogues that every system prompt of a phone call suits."""
    for dialogue in make_dialogues(HELD_OUT_SEED, holding=True):
        if dialogue.system in ("", BASE_PROMPT):
            yield dialogue


def turn_of(turn: Turn, audio: str) -> dict[str, Any]:
    """Return a turn as a scenario has it."""
    made: dict[str, Any] = {"say": turn.user, "audio": audio, "reply": turn.reply}
    if turn.content is not None:
        made["expect"] = {"reply": expectation(turn)}
    return made


def expectation(turn: Turn) -> dict[str, Any]:
    """Return the expectation of a reply, as `training.grammar.score.right` has it.

    Raises:
        ValueError: two parts of the reply have several wordings each; a scenario has one such part.
    """
    choices = [list(group) for group in turn.must if len(group) > 1]
    if len(choices) > 1:
        raise ValueError(f"no scenario can say what is right for {turn.user!r}")
    whole = [] if turn.must else [turn.reply]
    wanted = {
        "all_of": [group[0] for group in turn.must if len(group) == 1] or whole,
        "any_of": choices[0] if choices else [],
        "forbid": list(turn.forbid),
    }
    return {key: phrases for key, phrases in wanted.items() if phrases}


def record(turn: Turn, voice: Voice, path: Path) -> None:
    """Speak the turn on a line that is never quite silent."""
    speech = speak(voice, turn.user, PACE)
    lead, tail = (np.zeros(RATE * ms // 1000) for ms in (LEAD_MS, TAIL_MS))
    whole = np.concatenate([lead, speech, tail])
    floor = np.random.default_rng(len(speech)).normal(
        0, dbfs_to_amplitude(LINE_FLOOR_DBFS), len(whole)
    )
    soundfile.write(path, np.rint(whole + floor).astype(np.int16), RATE, subtype="PCM_16")


def write(folder: Path, name: str, dialogue: Dialogue, voice: Voice) -> None:
    """One scenario with its recordings and their speech bounds."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    audio = [f"{name}/{number}.flac" for number in range(1, len(dialogue.turns) + 1)]
    for turn, file in zip(dialogue.turns, audio, strict=True):
        record(turn, voice, folder / file)
    turns = [turn_of(turn, file) for turn, file in zip(dialogue.turns, audio, strict=True)]
    path = folder / f"{name}.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(
            {"name": name, "tags": ["held-out"], "voices": "synthetic", "turns": turns}, file
        )
    label_file(path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the library to write")
    parser.add_argument("--dialogues", type=int, default=12, help="how many (default: 12)")
    arguments = parser.parse_args(argv)
    turns = judged = 0
    chosen = itertools.islice(without_facts(), arguments.dialogues)
    for number, dialogue in enumerate(chosen):
        voice = Voice("espeak-ng", f"en-us+{VOICES[number % len(VOICES)]}")
        write(arguments.folder, f"held-out-{number + 1:02d}", dialogue, voice)
        turns += len(dialogue.turns)
        judged += sum(turn.content is not None for turn in dialogue.turns)
    (arguments.folder / "prompt.txt").write_text(f"{BASE_PROMPT}\n", encoding="utf-8")
    print(f"{arguments.dialogues} scenarios, {turns} turns, {judged} of them to be judged")


if __name__ == "__main__":
    main()
