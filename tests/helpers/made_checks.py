"""Checks as `turngap check` would store them, made up for tests of their reports."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from made_records import MARKS_MS, make_record, make_turn

from turngap.core.results import Turn
from turngap.core.stored import AudioRecord
from turngap.store.checks import (
    NOTHING_COMPARED,
    BaselineUse,
    BudgetRecord,
    CheckRecord,
    MetricVerdict,
    NoiseRecord,
    SaveRecord,
    SideRecord,
    StageShift,
)
from turngap.store.runs import Run, read_run
from turngap.store.writer import RunWriter

MACHINE = make_record().machine
STAGES = tuple(name for name in MARKS_MS)


def make_metric(name: str = "gap p50", **changes: Any) -> MetricVerdict:
    """A metric that passed."""
    values: dict[str, Any] = {
        "name": name,
        "unit": "ms",
        "verdict": "pass",
        "n": 60,
        "limit": 30.0,
        "difference": 1.2,
        "low": -4.1,
        "high": 6.3,
        "p_value": 0.31,
        "detectable": 28.0,
        "turns_needed": None,
        "why": None,
    }
    return MetricVerdict(**(values | changes))


def make_budget(**changes: Any) -> BudgetRecord:
    """A budget that holds."""
    values: dict[str, Any] = {
        "name": "gap",
        "budget_ms": 800.0,
        "target": 0.95,
        "verdict": "pass",
        "n": 120,
        "share": 0.992,
        "low": 0.954,
        "high": 0.9985,
    }
    return BudgetRecord(**(values | changes))


def make_stages(moved: str | None = None, by_ms: float = 41.0) -> tuple[StageShift, ...]:
    """Every stage, at most one of them moved."""
    return tuple(
        StageShift(
            name=name,
            n=60,
            shift_ms=by_ms if name == moved else (-1) ** i * 0.4,
            slowed=7 if name == moved else 0,
            p_value=0.00002 if name == moved else 0.7,
            moved=name == moved,
        )
        for i, name in enumerate(STAGES)
    )


def make_side(run: str | None = "20261120T170000Z-candidate", **changes: Any) -> SideRecord:
    """One side; played in this check where it has a run."""
    agent = {"stack": "embedded", "llm": {"backend": "sim", "settings": {"first_token_ms": 120}}}
    values: dict[str, Any] = {
        "agent": agent,
        "run": run,
        "valid": True if run else None,
        "turns": 60,
        "starved": 0,
        "caller_error_ms": None,
    }
    return SideRecord(**(values | changes))


def make_check(**changes: Any) -> CheckRecord:
    """A check that passed, against an agent at hand."""
    values: dict[str, Any] = {
        "verdict": "pass",
        "why": (),
        "started_utc": "2026-11-20T17:00:00.000+00:00",
        "finished_utc": "2026-11-20T17:03:11.250+00:00",
        "machine": MACHINE,
        "reference": make_side("20261120T170000Z-reference"),
        "candidate": make_side(),
        "scenarios": (),
        "rounds": 2,
        "phases": 1,
        "starved_ms": 10.0,
        "pairs": 60,
        "left_out": 0,
        "metrics": (
            make_metric(),
            make_metric("gap p95", limit=100.0, difference=-9.0, low=-51.0, high=44.0),
            make_metric(
                "hit rate", unit="share", limit=0.1, difference=0.017, low=-0.03, high=0.08,
                detectable=0.073,
            ),
        ),
        "stages": make_stages(),
        "moved_stage": None,
        "budgets": (make_budget(),),
        "noise": NoiseRecord(n=30, shift_p50_ms=-0.3, spread_p95_ms=11.7, verdict="pass"),
    }  # fmt: skip
    return CheckRecord(**(values | changes))


def regressed_check(**changes: Any) -> CheckRecord:
    """Slower by 41 ms in `llm_first_token`."""
    passed = make_check()
    slower = make_metric(verdict="regressed", difference=41.0, low=36.0, high=46.5, p_value=0.00025)
    values: dict[str, Any] = {
        "verdict": "regressed",
        "why": ("regressed: gap p50",),
        "metrics": (slower, *passed.metrics[1:]),
        "stages": make_stages("llm_first_token"),
        "moved_stage": "llm_first_token",
    }
    return make_check(**(values | changes))


def undecided_check(**changes: Any) -> CheckRecord:
    """Too noisy in p50, too few turns for p95, and a budget that may or may not hold."""
    noisy = make_metric(
        verdict="undecided", difference=12.0, low=-9.0, high=37.0, turns_needed=47,
        why="a regression of 30 ms is not excluded",
    )  # fmt: skip
    few = make_metric(
        "gap p95", verdict="undecided", n=12, limit=100.0, difference=None, low=None, high=None,
        p_value=None, detectable=None, turns_needed=8, why="n=12, needs 20",
    )  # fmt: skip
    values: dict[str, Any] = {
        "verdict": "undecided",
        "why": ("undecided: gap p50, gap p95",),
        "pairs": 12,
        "left_out": 2,
        "metrics": (noisy, few),
        "stages": (),
        "budgets": (make_budget(verdict="undecided", share=0.96, low=0.9, high=0.985),),
        "noise": None,
    }
    return make_check(**(values | changes))


def incomparable_check(**changes: Any) -> CheckRecord:
    """A baseline from elsewhere: there are figures, but they bear no verdict."""
    values: dict[str, Any] = {
        "verdict": "cannot_compare",
        "why": ("the baseline cannot be compared: it was saved on another machine",),
        "reference": make_side(None),
        "noise": None,
    }
    return regressed_check(**(values | changes))


def budgets_only_check(**changes: Any) -> CheckRecord:
    """No reference."""
    values: dict[str, Any] = {
        "reference": None,
        "pairs": 0,
        "metrics": (),
        "stages": (),
        "noise": None,
        "budgets": (
            make_budget(),
            make_budget(
                name="llm_first_token", budget_ms=450.0, verdict="regressed", share=0.5, low=0.4,
                high=0.6,
            ),
        ),
    }  # fmt: skip
    return make_check(**(values | changes))


def saved_check(**changes: Any) -> CheckRecord:
    """Nothing but `--save`."""
    values: dict[str, Any] = {
        "verdict": "cannot_compare",
        "why": (NOTHING_COMPARED,),
        "reference": None,
        "pairs": 0,
        "metrics": (),
        "stages": (),
        "budgets": (),
        "noise": None,
        "saved": SaveRecord(file="base.json", done=True),
    }
    return make_check(**(values | changes))


def beside_a_baseline(**changes: Any) -> CheckRecord:
    """A stored baseline that is too small, by a caller that was allowed to be late."""
    values: dict[str, Any] = {
        "reference": make_side(None, caller_error_ms=31.0),
        "candidate": make_side(caller_error_ms=12.0),
        "scenarios": ("coffee-order",),
        "rounds": 4,
        "phases": 2,
        "starved_ms": 40.0,
        "baseline": BaselineUse(unmatched=6, more_pairs=3, rejudged=2),
        "saved": SaveRecord(file="new.json", done=False, why_not="the verdict is undecided"),
    }
    return undecided_check(**(values | changes))


def every_check() -> list[CheckRecord]:
    """All verdicts, with and without a reference."""
    return [
        make_check(),
        regressed_check(),
        undecided_check(),
        incomparable_check(),
        budgets_only_check(),
        regressed_check(reference=make_side(None), noise=None),
        saved_check(),
        beside_a_baseline(),
    ]


def make_turns(n: int, *, slower_ms: float = 0.0, seed: int = 0) -> list[Turn]:
    """`n` turns whose gaps scatter; those of one seed pair up, but for a few ms."""
    rng, jitter = random.Random(seed), random.Random(f"{seed} {slower_ms}")
    turns: list[Turn] = []
    for i in range(n):
        factor = rng.lognormvariate(0.2, 0.25)
        marks = {name: at * factor for name, at in MARKS_MS.items()}
        moved = slower_ms + jitter.gauss(0, 9)
        late = [name for name in MARKS_MS if name not in ("endpoint", "transcript", "llm_request")]
        marks |= {name: marks[name] + moved for name in late}
        audio = AudioRecord(
            file=f"audio/{i + 1:03d}.wav", user_start_ms=500, user_end_ms=1500, onset_ms=1900
        )
        where = {"turn": i % 6 + 1, "repeat": i // 6 + 1, "audio": audio}
        turns.append(make_turn(marks_ms=marks, **where))
    return turns


def store(folder: Path, name: str, turns: Sequence[Turn]) -> Run:
    """A run with its recordings in `folder`."""
    record = make_record(name=name, planned_turns=len(turns))
    with RunWriter.create(folder, name, record) as writer:
        silence = np.zeros(16_000, np.int16)
        for turn in turns:
            if turn.audio is not None:
                writer.write_audio(Path(turn.audio.file).stem, silence, silence, 16_000)
            writer.append_turn(turn)
        writer.finish(record)
    return read_run(writer.path) if turns else Run(record, (), writer.path)
