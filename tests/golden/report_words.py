"""The words of every report, in each medium, against `tests/golden/words`.

`python tests/golden/report_words.py` writes them anew. Read the difference before you commit it.
"""

import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "words"
sys.path.insert(0, str(HERE.parents[1] / "helpers"))

from every_document import SIMULATED, curve  # noqa: E402
from html_page import Page  # noqa: E402
from made_checks import MACHINE, every_check, make_turns  # noqa: E402
from made_loads import hard_cases  # noqa: E402
from made_records import every_outcome, make_comparison, make_run, make_turn, scaled  # noqa: E402

import turngap.cli  # noqa: E402
from turngap.check.report import check_report, junit  # noqa: E402
from turngap.check.stored import compare_stored, diff_report  # noqa: E402
from turngap.compare.figures import Side  # noqa: E402
from turngap.compare.report import comparison_report  # noqa: E402
from turngap.core.events import ToolCall  # noqa: E402
from turngap.core.results import Turn  # noqa: E402
from turngap.core.stored import AnswerRecord, BackchannelRecord, JudgeRecord  # noqa: E402
from turngap.fleet.report import read_simulation, simulation_report  # noqa: E402
from turngap.history.kinds import Entry  # noqa: E402
from turngap.history.listing import list_report  # noqa: E402
from turngap.load.report import load_report  # noqa: E402
from turngap.report import page  # noqa: E402
from turngap.report.ci import markdown, run_junit  # noqa: E402
from turngap.report.console import run_blocks, turn_block  # noqa: E402
from turngap.report.run import run_report  # noqa: E402
from turngap.report.sections import Report  # noqa: E402
from turngap.report.terminal import block  # noqa: E402
from turngap.turns.report import read_turns, turns_report  # noqa: E402

WIDTH = 100
# So many reports of a kind are also written as Markdown and as a page.
MEDIA_OF = 2
SPEED = {"llm_ttft_ms": 153.0, "llm_tokens_per_s": 64.0, "llm_window_tokens": 8.0}


def eventful_turns() -> list[Turn]:
    """Return a turn of each outcome, then turns with all that a turn may have to say."""
    calls = (
        ToolCall(name="weather", arguments={"day": "today"}, ms=12.3, result='{"a": 1}'),
        ToolCall(name="order", ms=4.0, error="ValueError: no"),
        ToolCall(name="clock", error="cancelled"),
        ToolCall(name="slow"),
    )
    heard = (BackchannelRecord(say="mm-hm", start_ms=1, reply_stopped=True),)
    wrong = AnswerRecord(verdict="wrong", failed=('not said: "ten"',))
    cut = AnswerRecord(verdict="not_judged", heard="It's", why="broken off")
    misheard = AnswerRecord(verdict="wrong", heard="two pizzas", failed=("none_of: two",))
    judged = JudgeRecord(right=False, why="it promised nothing")
    return [
        *every_outcome(),
        make_turn(turn=8, yield_ms=243.0, starved=True, backchannels=heard, answer=wrong),
        make_turn(turn=9, calls=calls, faults=("stt: stream closed",), answer=cut),
        make_turn(turn=10, counts=SPEED, answer=AnswerRecord(verdict="right")),
        make_turn(turn=11, marks_ms={"endpoint": 200.0, "agent_onset": 612.0}),
        make_turn(turn=12, marks_ms={"received": 699.7, "agent_onset": 700.0}),
        make_turn(turn=13, counts={**SPEED, "llm_cold": 1}, transcribed=misheard, judged=judged),
    ]


def runs() -> Iterator[tuple[str, Report]]:
    stand_ins = ("simulated LLM", "closed-domain recogniser", "synthetic voices")
    invalid = {"valid": False, "why_invalid": ("caller starved",), "failure": "it went away"}
    unknown = {"calibration": None, "clock_offset": None, "starved_ms": 40.0}
    silent = [make_turn(marks_ms={"received": 699.7, "agent_onset": 700.0}) for _ in range(3)]
    made = {
        "everything that a turn may say": make_run(eventful_turns(), stand_ins=stand_ins),
        "two rounds": make_run([make_turn(turn=n, repeat=r) for n in range(1, 13) for r in (1, 2)]),
        "invalid": make_run([make_turn(), make_turn(turn=2, marks_ms=scaled(5))], **invalid),
        "no marks, not calibrated": make_run(silent, **unknown),
        "no turns": make_run([], name="", agent={}, settings={}),
    }
    for name, run in made.items():
        yield name, run_report(run, with_turns=True)


def checks() -> Iterator[tuple[str, Report]]:
    command = "turngap check coffee-order --agent embedded --rounds 2"
    for number, made in enumerate(every_check()):
        record = made.model_copy(update={"command": command})
        slower = 41.0 if record.moved_stage else 0.0
        played = record.reference is not None and record.reference.run is not None
        candidate = make_run(make_turns(60, slower_ms=slower))
        reference = make_run(make_turns(60)) if played else None
        yield f"{number} {record.verdict}", check_report(record, candidate, reference)


def differences_of_runs() -> Iterator[tuple[str, Report]]:
    reference, slower = make_run(make_turns(60)), make_run(make_turns(60, slower_ms=80.0))
    other = make_run(make_turns(60), starved_ms=40.0, valid=False, why_invalid=("no replies",))
    for name, candidate in (("slower", slower), ("not comparable", other)):
        at = {
            "started_utc": "2026-11-20T15:28:03+00:00",
            "finished_utc": "2026-11-20T15:28:03+00:00",
        }
        record = compare_stored(reference, candidate).model_copy(update=at)
        yield name, diff_report(record, reference, candidate, Path("runs"))


def lists() -> Iterator[tuple[str, Report]]:
    gap_ms = {"p50": 400.0, "p95": None}
    about: dict[str, Any] = {"kind": "replay", "status": "finished", "gap_ms": gap_ms, "n": 8}
    used = {"valid": True, "hits": 6, "cut_ins": 1, "commit": "7ae7a1d"}
    entries = [
        Entry(path="runs/one", **about, **used),
        Entry(path="runs/two", **about, **used, agent="mine", label="before the change"),
        Entry(path="runs/three", **about, valid=False, why=("the caller was starved",)),
        Entry(path="runs/four", **{**about, "status": "failed"}, valid=False, why=("no bot",)),
    ]
    yield "four runs", list_report(entries, Path("runs"))


def comparisons() -> Iterator[tuple[str, Report]]:
    right, wrong = AnswerRecord(verdict="right"), AnswerRecord(verdict="wrong")
    told = {"llm_prompt_tokens": 100.0, "llm_completion_tokens": 10.0, **SPEED}
    spoken = ({"event": "UserSpeech", "start_ns": 0}, {"event": "AgentSilence", "at_ns": 3 * 10**9})

    def side(name: str, n: int, factor: float, wrong_every: int = 0) -> Side:
        turns = [
            make_turn(
                scenario=f"s{i}",
                turn=i,
                marks_ms=scaled(factor),
                answer=wrong if wrong_every and i % wrong_every == 0 else right,
                counts=told,
                events=spoken,
            )
            for i in range(1, n + 1)
        ]
        return Side(name, turns, (5.0, 25.0) if factor > 1 else None)

    early = side("hasty", 40, 0.75)
    cut_into = make_turn(marks_ms={"agent_onset": -300.0}, answer=right)
    hasty = [t if t.turn % 3 else cut_into.model_copy(update={"turn": t.turn}) for t in early.turns]
    made = {
        "quicker and less often right": [side("one", 60, 1.0, 2), side("other", 60, 1.5)],
        "quick by cutting in": [side("one", 40, 1.0), replace(early, turns=hasty)],
        "too few turns": [side("one", 3, 1.0), side("two", 3, 1.5), side("three", 3, 1.2)],
    }
    for name, sides in made.items():
        record = make_comparison(sides).model_copy(update={"machine": MACHINE})
        yield name, comparison_report(record)


def loads() -> Iterator[tuple[str, Report]]:
    for name, record in hard_cases().items():
        yield name, load_report(record)


def curves() -> Iterator[tuple[str, Report]]:
    with tempfile.TemporaryDirectory() as folder:
        curve(Path(folder))
        record, runs = read_turns(Path(folder))
        yield "two values", turns_report(record.model_copy(update={"machine": MACHINE}), runs)


def simulations() -> Iterator[tuple[str, Report]]:
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            turngap.cli.app([*SIMULATED, "--out", folder], standalone_mode=False)
        (made,) = Path(folder).iterdir()
        fixed = {"machine": MACHINE, "started_utc": "2026-11-20T15:28:03+00:00", "wall_s": 2.5}
        fixed |= {"commit": "7ae7a1d"}
        yield "two loads", simulation_report(read_simulation(made).model_copy(update=fixed))


REPORTS: dict[str, Callable[[], Iterator[tuple[str, Report]]]] = {
    "run": runs,
    "check": checks,
    "compare": comparisons,
    "load": loads,
    "history": lists,
    "diff": differences_of_runs,
    "turns": curves,
    "simulate": simulations,
}


def words_of(kind: str) -> str:
    """Return what all reports of a kind say in the terminal, and the first in other media, too."""
    parts: list[str] = []
    for number, (name, report) in enumerate(REPORTS[kind]()):
        parts += [f"=== {kind}: {name}, terminal", block(report, WIDTH).plain]
        if number < MEDIA_OF:
            parts += [f"=== {kind}: {name}, Markdown", markdown(report)]
            parts += [f"=== {kind}: {name}, page", "\n".join(Page(page.render(report)).lines)]
    if kind == "run":
        parts += ["=== run, JUnit", run_junit(make_run(eventful_turns())).decode()]
        parts += [block.plain for block in run_blocks(make_run(eventful_turns()), WIDTH)[:-1]]
        parts += [turn_block(turn, WIDTH).plain for turn in eventful_turns()]
    if kind == "check":
        parts += [f"=== check, JUnit\n{junit(record, '').decode()}" for record in every_check()]
    lines = [line.rstrip() for part in parts for line in part.splitlines()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for kind in REPORTS:
        (HERE / f"{kind}.txt").write_text(words_of(kind), encoding="utf-8")
