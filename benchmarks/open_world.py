"""Measure agents of published engines here, over the library and over people.

    tools/published-weights weights
    HF_HUB_CACHE=weights python benchmarks/open_world.py --voices DIR
    HF_HUB_CACHE=weights python benchmarks/open_world.py --part library --only local --rounds 3
    python benchmarks/open_world.py --table --write docs/open-world.md

The agents are played in turns (A B C, C B A) with nothing next to them. Parts: `library` (the
scenarios with synthetic voices), `people` (each recording in `--voices` a call of its own, as
`half_gap/people.py` describes them) and `calls` (the same recordings, several turns a call). The
table is of all that is in `--out`.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from endings import errors_told
from half_gap import people
from half_gap.contenders import Contender
from half_gap.figures import runs
from half_gap.playing import AS, Piece, play_in_real_time
from half_gap.table import ms, share
from pages import write
from rapidfuzz.distance import Levenshtein

from turngap import Run
from turngap.agent.stack import Stack, load_stack, override
from turngap.backends import Kind
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.stats import percentile
from turngap.core.summary import summarise
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import library_dir, scenario_paths
from turngap_services.text import spoken_words

BEGIN = "<!-- made by benchmarks/open_world.py -->"
PARTS = ("library", "people", "calls")
# Turns of a call in `calls`, in which the conversation grows.
TURNS_A_CALL = 8
LATE_TURN = 6
# Recogniser, language model and voice take both cores at times, and the caller's packets wait then.
# Each gap may be off by as many ms; a caller held up longer makes a run invalid.
STARVED_MS = 50.0
CAPTION = (
    "`stock` is pipecat's default agent (smart turn, whole sentences, no early answers) with the "
    "engines of `local`. WER is of what the agent heard while the person spoke. The first token is "
    f"counted from the end of the turn as decided, in turn {LATE_TURN} and later ones of a call. "
    f"Caller and agent share the machine; the caller was at most {STARVED_MS:.0f} ms late."
)


def agents() -> dict[str, Stack]:
    """Return the stacks that are compared, by name."""
    local = load_stack("local")
    prompt = local.pipeline.system_prompt
    own: dict[Kind, str | None] = {"llm": "llama"}
    engines: dict[Kind, str | None] = {"stt": "whisper", "llm": "llama", "tts": "piper"}
    stock = override(
        load_stack("stock"),
        engines,
        (
            "stt.model=tiny.en",
            "stt.while_speaking=false",
            f"tts.voice={local.tts.settings['voice']}",
            f"pipeline.system_prompt={json.dumps(prompt)}",
        ),
    )
    return {
        "embedded": load_stack("embedded"),
        "local": override(local, own, ()),
        "local, base": override(local, own, ("stt.model=base",)),
        "stock": stock,
    }


def contender(name: str, stack: Stack) -> Contender:
    slug = name.replace(", ", "-")
    return Contender(name, stack.model_copy(update={"name": slug}))


def piece(part: str, arguments: argparse.Namespace, scratch: Path) -> Piece:
    """Return the agents and scenarios of a part."""
    names = [name for name in agents() if name in (arguments.only or ("local", "stock"))]
    who = [contender(name, agents()[name]) for name in names]
    library = library_dir()
    if part != "library":
        if arguments.voices is None:
            raise InputError("voices.missing", f"part {part} needs recordings", hint="--voices DIR")
        library = scratch / part
        a_call = TURNS_A_CALL if part == "calls" else 1
        people.make_library(arguments.voices, "original", library, turns_a_call=a_call)
    scenarios = load_scenarios(scenario_paths(library, arguments.scenario))
    return Piece(part, who, scenarios, library, rounds=arguments.rounds, starved_ms=STARVED_MS)


def table(out: Path) -> str:
    """Write what was played, as Markdown.

    Raises:
        InputError: nothing was played, or on several machines.
    """
    head = (
        "recordings", "agent", "n", "gap p50, ms", "gap p95, ms", "within budget", "cut into",
        "WER", "first token p50, ms",
    )  # fmt: skip
    played: dict[tuple[str, str], list[Run]] = {}
    for run in runs(out):
        key = (str(run.record.settings["part"]), str(run.record.settings[AS]))
        played.setdefault(key, []).append(run)
    if not played:
        raise InputError("open_world.nothing", f"nothing was played in {out}", hint="play it")
    everything = [run for of in played.values() for run in of]
    machine = everything[0].record.machine
    if len({run.record.machine.fingerprint for run in everything}) > 1:
        raise InputError(
            "open_world.mixed",
            f"the runs in {out} are of several machines, which do not compare",
            hint="play them into a folder each: --out DIR",
        )
    order = sorted(played, key=lambda key: (PARTS.index(key[0]), key[1]))
    lines = [head, ("---",) * len(head), *(cells(key, played[key]) for key in order)]
    commits = sorted({run.record.commit or "unknown" for run in everything})
    notes = [
        f"- {part}, {name}, invalid: {'; '.join(run.record.why_invalid)}"
        for part, name in order
        for run in played[part, name]
        if not run.record.valid
    ]
    basis = f"{machine.cpu}, {machine.cores} cores; commit {', '.join(commits)}. {CAPTION}"
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join(block for block in (rows, basis, "\n".join(notes)) if block)


def cells(key: tuple[str, str], of: Sequence[Run]) -> tuple[str, ...]:
    """Return a row, with 95 % intervals in brackets."""
    turns = [turn for run in of for turn in run.turns]
    summary = summarise(turns)
    waits = [token_wait(turn) for turn in turns if turn.turn >= LATE_TURN]
    late = [wait for wait in waits if wait is not None]
    tokens = percentile(late, 0.5)
    return (
        *key,
        str(summary.turns),
        ms(summary.gap_ms["p50"]),
        ms(summary.gap_ms["p95"]),
        share(summary.hit_rate),
        share(summary.cut_ins),
        word_errors(turns),
        f"{tokens.value:.0f} (n={len(late)})" if tokens.value is not None else "–",
    )


def token_wait(turn: Turn) -> float | None:
    """Return the time from the turn's end, as the agent decided, to the first token; ms."""
    at = {mark.name: mark.at_ns for mark in turn.marks}
    if "endpoint" not in at or "llm_first_token" not in at:
        return None
    return max(at["llm_first_token"] - at["endpoint"], 0) / 1e6


def word_errors(turns: Sequence[Turn]) -> str:
    """Return the word error rate of the agent's transcripts, over turns that it reported."""
    wrong = words = 0
    for turn in turns:
        said, heard = spoken_words(turn.say), spoken_words(turn.transcript)
        wrong += Levenshtein.distance(said, heard)
        words += len(said)
    return f"{wrong / words:.1%} of {words}" if words else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", default=[], choices=PARTS)
    parser.add_argument("--only", action="append", default=[], choices=agents())
    parser.add_argument("--scenario", action="append", default=[], help="instead of the library")
    parser.add_argument("--voices", type=Path, metavar="DIR", help="recordings of people")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/open-world"))
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    arguments = parser.parse_args()
    if not arguments.table and "HF_HUB_CACHE" not in os.environ:
        parser.error("set HF_HUB_CACHE to the folder that tools/published-weights made")
    with errors_told(), TemporaryDirectory(prefix="open-world-") as scratch:
        for part in () if arguments.table else arguments.part or PARTS:
            asyncio.run(play_in_real_time(piece(part, arguments, Path(scratch)), arguments.out))
        text = table(arguments.out)
    print(text)
    if arguments.write is not None:
        write(arguments.write, BEGIN, text)


if __name__ == "__main__":
    main()
