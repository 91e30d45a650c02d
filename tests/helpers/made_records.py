"""Turns and runs as a harness would store them, made up for tests of the run store and reports."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turngap.compare.figures import Side, backend_figures, chain_of, crossings, pairs_of
from turngap.core.budget import DEFAULT_BUDGET_MS, TurnEnd, outcome_of
from turngap.core.clock import ms_to_ns
from turngap.core.results import Turn
from turngap.core.run_record import (
    CalibrationRecord,
    MachineRecord,
    OffsetRecord,
    Quantiles,
    RunRecord,
)
from turngap.core.stages import AGENT_MARKS, Stage, stages_of
from turngap.core.stored import AudioRecord, MarkRecord, PacingRecord
from turngap.store.comparisons import ComparisonRecord
from turngap.store.documents import this_machine
from turngap.store.runs import Run

USER_END_NS = 5_000_000_000

# ms from the user's end, of a turn of 398.25 ms in which every mark was reported.
MARKS_MS: Mapping[str, float] = {
    "endpoint": 231.0,
    "transcript": 232.9,
    "llm_request": 233.1,
    "llm_first_token": 353.1,
    "tts_request": 361.6,
    "tts_first_audio": 362.0,
    "tts_first_audible": 372.0,
    "sent": 372.5,
    "received": 373.25,
    "agent_onset": 398.25,
}


def scaled(factor: float) -> dict[str, float]:
    """`MARKS_MS` of an agent that is so many times as slow."""
    return {name: at * factor for name, at in MARKS_MS.items()}


def make_turn(
    *,
    turn: int = 1,
    marks_ms: Mapping[str, float] | None = MARKS_MS,
    ended: TurnEnd = "reply_done",
    budget_ms: float = DEFAULT_BUDGET_MS,
    starved: bool = False,
    why_no_gap: str | None = "no audible reply before the caller stopped waiting",
    **changes: Any,
) -> Turn:
    """One turn; `marks_ms` holds its marks from the user's end, None for a turn without a reply."""
    instants = {"user_end": USER_END_NS}
    for name, at_ms in (marks_ms or {}).items():
        instants[name] = USER_END_NS + ms_to_ns(at_ms)
    stages = stages_of(instants) if marks_ms else ()
    gap_ns = instants["agent_onset"] - USER_END_NS if marks_ms else None
    gap_ms = None if gap_ns is None else gap_ns / 1e6
    values: dict[str, Any] = {
        "scenario": "coffee-order",
        "turn": turn,
        "repeat": 1,
        "say": "I'd like a large oat latte to go",
        "outcome": outcome_of(gap_ms, budget_ms, ended),
        "ended": ended,
        "budget_ms": budget_ms,
        "gap_ns": gap_ns,
        "gap_ms": gap_ms,
        "why_no_gap": why_no_gap if marks_ms is None else None,
        "stages": tuple(Stage(name=s.name, ns=s.ns, ms=s.ns / 1e6) for s in stages),
        "transcript": "I'd like a large oat latte to go",
        "reply": "A large oat latte, coming up." if marks_ms else "",
        "lead_ms": 10.0 if marks_ms else None,
        "yield_ms": None,
        "marks": tuple(
            MarkRecord(name=n, at_ns=at, vantage="agent" if n in AGENT_MARKS else "caller")
            for n, at in instants.items()
        ),
        "pacing": PacingRecord(packets=150, late_ms_p50=0.05, late_ms_max=0.4, starved=starved),
        "audio": AudioRecord(
            file="audio/001.wav",
            user_start_ms=1000.0 * turn,
            user_end_ms=1000.0 * turn + 500,
            onset_ms=1000.0 * turn + 500 + gap_ms if gap_ms is not None else None,
        ),
    }
    return Turn(**(values | changes))


def every_outcome() -> list[Turn]:
    """One turn of each outcome, and a lost line both before and after the reply began."""
    nothing = None
    return [
        make_turn(turn=1),
        make_turn(turn=2, marks_ms=scaled(2.6)),
        make_turn(turn=3, marks_ms=nothing, ended="timeout"),
        make_turn(turn=4, marks_ms={"agent_onset": -340.0}),
        make_turn(
            turn=5,
            marks_ms=nothing,
            ended="interrupted",
            why_no_gap="the next turn began before any reply",
        ),
        make_turn(
            turn=6,
            marks_ms=nothing,
            ended="line_lost",
            why_no_gap="the line was lost before any reply",
        ),
        make_turn(turn=7, ended="line_lost"),
    ]


def make_record(**changes: Any) -> RunRecord:
    """A finished, valid run's record."""
    values: dict[str, Any] = {
        "turngap_version": "0.1.0",
        "commit": "7ae7a1d",
        "name": "replay",
        "started_utc": "2026-11-20T15:28:03.250+00:00",
        "finished_utc": "2026-11-20T15:30:11.000+00:00",
        "machine": MachineRecord(
            system="Linux",
            python="3.11.7",
            cpu="A CPU at 2 GHz",
            cores=2,
            memory_gib=23.5,
            fingerprint="730e11888299",
        ),
        "agent": {"stack": "embedded", "stt": "pocketsphinx", "llm": "sim", "tts": "espeak"},
        "settings": {"repeat": 1, "llm": {"first_token_ms": 120, "api_key": "sk-123"}},
        "scenario_hashes": {"coffee-order": "ab12"},
        "planned_turns": 7,
        "budget_ms": DEFAULT_BUDGET_MS,
        "clock_offset": OffsetRecord(offset_ns=12_345, bound_ns=28_000, n=20),
        "calibration": CalibrationRecord(
            error_ms=Quantiles(n=40, p50=0.12, p95=0.61, p99=None, max=1.2), signed_p50_ms=0.1
        ),
    }
    return RunRecord(**(values | changes))


def make_run(turns: Sequence[Turn], path: Path = Path("runs/x"), **changes: Any) -> Run:
    """A run as `read_run` would give it."""
    changes.setdefault("planned_turns", len(turns))
    return Run(make_record(**changes), tuple(turns), path)


def make_comparison(sides: list[Side]) -> ComparisonRecord:
    """Several backends' turns, compared as `turngap compare` does."""
    backends = [
        backend_figures(s.name, s.turns, s.price, llm="a", run="r", valid=True) for s in sides
    ]
    return ComparisonRecord(
        turngap_version="0",
        commit=None,
        started_utc="2026-11-20T15:28:03+00:00",
        machine=this_machine(),
        agent="embedded",
        scenarios=("x",),
        rounds=1,
        budget_ms=800.0,
        backends=tuple(backends),
        pairs=pairs_of(sides),
        chain=chain_of(backends),
        crossings=tuple(crossings(sides)),
        settings={},
    )
