"""Measure how soon agents of open-domain engines answer here, over the library.

Where there are no weights, each engine is made with the *shape* of the published one: as many
layers, as wide, with random numbers in them. It calculates as the published one does, hears or says
what it was told to, and so a row says how long it takes and nothing about the words. The first row
is the built-in agent, whose words are real.

    python benchmarks/open_world.py                            # play all rows once
    python benchmarks/open_world.py --only embedded --repeat 3
    python benchmarks/open_world.py --table --write PAGE.md  # of all that was played

A row takes about three minutes, a large one more: an agent of its own for each, one after the
other, with nothing beside it. The models are made once, into `--out`.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from endings import errors_told
from half_gap.table import ms, share
from pages import write

import training.canned_llm as llm
from training.voices import random_vits
from training.whisper import canned as whisper
from turngap import Run, replay
from turngap.core.errors import InputError
from turngap.core.summary import counted_turns, summarise

BEGIN = "<!-- made by benchmarks/open_world.py -->"
# Makes what engines load, in a folder, and gives the settings of the agent that say so: backends by
# their kind, and `TABLE.KEY`.
Models = Callable[[Path], dict[str, str]]
# Each word may end a turn, as the last of what people say mostly does: `adaptive` asks the words
# how likely it is that the person has finished. No word comes twice, as the engines want it.
HEARD = (
    "table garden coffee museum letter window dinner river music doctor paper kitchen number "
    "summer station pepper ticket market weather minute butter winter finger engine basket"
)
# Recogniser, language model and voice take both cores at times, and the caller's packets wait then.
# As many ms may each gap be off; a caller held up longer makes a run invalid.
STARVED_MS = 50.0
CAPTION = (
    "`time only`: engines of the published shape with random weights, which hear and say what they "
    "are told to; nothing is claimed of their words. What they hear reads as finished after each "
    "word, so the hold of `adaptive` is not quite the one of real words. "
    f"The caller was at most {STARVED_MS:.0f} ms late."
)


@dataclass(frozen=True)
class Row:
    """An agent.

    Attributes:
        name: of the row.
        agent: a stack's name.
        models: of its engines.
        real: whether its words are real.
    """

    name: str
    agent: str
    models: Models
    real: bool = False

    @property
    def folder(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower())


def whisper_of(shape: str) -> Models:
    """Return the settings of a Whisper."""

    def models(out: Path) -> dict[str, str]:
        folder = out / f"whisper-{shape}"
        if not folder.is_dir():
            whisper.make_canned(
                folder,
                text=HEARD,
                shape=whisper.SHAPES[shape],
                room=whisper.WHISPER_PIECES,
            )
        return {"stt": "whisper", "stt.model": str(folder.resolve())}

    return models


def llm_of(shape: str) -> Models:
    """Return the settings of a language model in the agent's process."""

    def models(out: Path) -> dict[str, str]:
        folder = out / f"llm-{shape}"
        if not folder.is_dir():
            llm.make_canned(folder, shape=llm.SHAPES[shape])
        return {"llm": "small", "llm.model": str(folder.resolve())}

    return models


def piper(out: Path) -> dict[str, str]:
    """Return the settings of a voice of piper's quality `medium`."""
    file = out / "piper-medium.onnx"
    if not file.is_file():
        random_vits.make(file, "medium")
    return {"tts.voice": str(file.resolve())}


def together(*parts: Models) -> Models:
    """Return the settings of all of them."""
    return lambda out: {key: value for part in parts for key, value in part(out).items()}


def rows() -> list[Row]:
    """All rows, in the order of the table."""
    llms = ("smollm2-135m", "qwen2.5-0.5b")
    return [
        Row("embedded", "embedded", lambda _: {}, real=True),
        *(
            Row(f"whisper {size}, {name}", "local", together(whisper_of(size), llm_of(name), piper))
            for size in whisper.SHAPES
            if size != "toy"
            for name in llms
        ),
    ]


def play(row: Row, arguments: argparse.Namespace) -> None:
    """Play one row, and keep its run.

    Raises:
        TurngapError: the agent failed.
    """
    models = arguments.out / "models"
    models.mkdir(parents=True, exist_ok=True)
    print(f"{row.name}: making what it loads", flush=True)
    chosen = row.models(models)
    run = replay(
        row.agent,
        scenarios=arguments.scenario or None,
        repeat=arguments.repeat,
        sets=[f"{key}={value}" for key, value in chosen.items() if "." in key],
        out=arguments.out / row.folder,
        starved_ms=STARVED_MS,
        stt=chosen.get("stt"),
        llm=chosen.get("llm"),
    )
    print(f"  {run}", flush=True)


def table(out: Path, everybody: Sequence[Row]) -> str:
    """Write the rows that have runs, as Markdown.

    Raises:
        InputError: there are none.
    """
    head = (
        "agent", "n", "gap p50, ms", "gap p95, ms", "within budget", "cut into",
        "transcript p50 / p95, ms", "first token p50, ms", "right answers",
    )  # fmt: skip
    lines = [head, ("---",) * len(head)]
    runs: list[Run] = []
    notes: list[str] = []
    for row in everybody:
        of = [Run.load(file.parent) for file in sorted((out / row.folder).glob("*/run.json"))]
        valid = [run for run in of if run.record.valid and run.record.finished_utc]
        notes += [
            f"- left out as invalid: {row.name}: {'; '.join(run.record.why_invalid)}"
            for run in of
            if run not in valid
        ]
        if valid:
            runs += valid
            lines.append(cells(row, valid))
    if not runs:
        raise InputError("open_world.nothing", f"nothing valid was played in {out}", hint="play it")
    commits = sorted({run.record.commit or "unknown" for run in runs})
    machine = runs[0].record.machine
    if len({run.record.machine.fingerprint for run in runs}) > 1:
        raise InputError(
            "open_world.mixed",
            f"the runs in {out} are of several machines, which do not compare",
            hint="play them into a folder each: --out DIR",
        )
    basis = (
        f"Synthetic voices; {machine.cpu}, {machine.cores} cores, caller and agent on one machine; "
        f"commit {', '.join(commits)}. {CAPTION}"
    )
    blocks = ["\n".join(f"| {' | '.join(line)} |" for line in lines), basis, "\n".join(notes)]
    return "\n\n".join(block for block in blocks if block)


def cells(row: Row, runs: Sequence[Run]) -> tuple[str, ...]:
    """One row, with 95 % intervals in brackets."""
    turns = [turn for run in runs for turn in run.turns]
    summary = summarise(turns)
    spent = [
        stage.ms
        for turn in counted_turns(turns)
        for stage in turn.stages
        if stage.name == "transcript"
    ]
    tokens = summary.llm.ttft_ms if summary.llm else None
    return (
        row.name,
        str(summary.turns),
        ms(summary.gap_ms["p50"]),
        ms(summary.gap_ms["p95"]),
        share(summary.hit_rate),
        share(summary.cut_ins),
        f"{quantile(spent, 0.5)} / {quantile(spent, 0.95)}",
        "–" if tokens is None else f"{tokens:.0f}",
        share(summary.right) if row.real else "time only",
    )


def quantile(values: Sequence[float], q: float) -> str:
    """Write a percentile of values, or a dash."""
    return f"{np.quantile(values, q):.0f}" if values else "–"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], choices=[r.name for r in rows()])
    parser.add_argument("--scenario", action="append", default=[], help="instead of the library")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/open-world"))
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    arguments = parser.parse_args()
    everybody = rows()
    with errors_told():
        if not arguments.table:
            for row in everybody:
                if not arguments.only or row.name in arguments.only:
                    play(row, arguments)
        text = table(arguments.out, everybody)
    print(text)
    if arguments.write is not None:
        write(arguments.write, BEGIN, text)


if __name__ == "__main__":
    main()
