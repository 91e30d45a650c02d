"""Load tests as the player would store them, made up: the easy case and every hard one."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from made_records import make_record, make_turn, scaled

from turngap.core.stats import Percentile, percentile, proportion
from turngap.store.documents import encode, write_document
from turngap.store.folders import TURNS_FILE
from turngap.store.loads import LOAD_FILE, Certificate, LoadRecord, LoadTurn, StepFigures

BUDGET_MS = 800.0


def make_step(
    sessions: int | None = 8, turns: int = 120, late: int = 2, **changes: Any
) -> StepFigures:
    """A step in which so many turns were late; `None` sessions: calls at a rate."""
    refused_turns = changes.pop("refused_turns", 0)
    rng = random.Random(sessions or 0)
    slow = (sessions or 4) * 9.0
    gaps = [300 + slow + rng.random() * 200 for _ in range(turns - late - refused_turns)]
    gaps += [810 + slow * 4 + rng.random() * 200 for _ in range(late)]
    rate = proportion(turns - late - refused_turns, turns)
    outcomes = {"answered": turns - late - refused_turns, "late": late, "refused": refused_turns}
    values: dict[str, Any] = {
        "sessions": sessions,
        "offered_per_s": round((sessions or 4) / 17, 3),
        "seconds": 60.0,
        "calls": max(1, turns // 3),
        "turns": turns,
        "hit_rate": rate,
        "effective_n": turns * 0.7,
        "holds": rate.reaches(0.95),
        "gap_ms": {
            name: percentile(gaps, q, censored=refused_turns)
            for name, q in (("p50", 0.5), ("p95", 0.95))
        },
        "yield_ms": Percentile(180 + slow),
        "holes": max(0.0, (slow - 90) / 1000),
        "outcomes": {name: n for name, n in outcomes.items() if n},
        "refused": refused_turns // 3,
        "late_started": 0,
        "dropped": 0,
        "at_once": (float(sessions or 4), (sessions or 4) + 1),
        "caller_late_ms": 1.2,
    }
    return StepFigures(**(values | changes))


def make_load(steps: list[StepFigures] | None = None, **changes: Any) -> LoadRecord:
    """A search that certifies 8 sessions, unless it is changed."""
    about = make_record()
    values: dict[str, Any] = {
        "turngap_version": "0.1.0",
        "commit": "7ae7a1d",
        "name": "load",
        "started_utc": "2026-11-20T15:28:03.250+00:00",
        "finished_utc": "2026-11-20T15:36:51.000+00:00",
        "machine": about.machine,
        "agent": about.agent,
        "mode": "search",
        "arrivals": "held",
        "scenario_hashes": {"coffee-order": "ab12", "quick-questions": "cd34"},
        "voices": {"coffee-order": "synthetic", "quick-questions": "synthetic"},
        "stand_ins": ("simulated LLM", "synthetic voices"),
        "budget_ms": BUDGET_MS,
        "target": 0.95,
        "seed": 1,
        "warm_up_s": 20.0,
        "executor": "local",
        "workers": 2,
        "calibration": about.calibration,
        "steps": tuple(SEARCH if steps is None else steps),
        "capacity": CERTIFIED,
        "ended": "8 sessions are certified, and 9 are not",
        "settings": {"max_sessions": 32},
    }
    return LoadRecord(**(values | changes))


SEARCH = [
    make_step(1, 30, 0),
    make_step(32, 30, 22, dropped=2, refused_turns=3),
    make_step(16, 30, 9),
    make_step(8, 30, 0),
    make_step(12, 30, 4),
    make_step(10, 30, 1),
    make_step(10, 150, 11, confirms=True),
    make_step(9, 150, 8, confirms=True),
    make_step(8, 180, 2, confirms=True),
]
CERTIFIED = Certificate(
    sessions=8, hit_rate=0.989, turns=180, low=0.953, confidence=0.95, not_held=9,
    caller_late_ms=1.2,
)  # fmt: skip
NOTHING = Certificate(
    sessions=None, hit_rate=None, turns=0, low=None, confidence=0.95, not_held=1,
    caller_late_ms=1.2, why="not even one session holds: 41 of 60 turns were on time at 1",
)  # fmt: skip
LATE_CALLER = "the caller was late by 14.2 ms (p99), and 10 ms are accepted"


def hard_cases() -> dict[str, LoadRecord]:
    """Each case that a report has to show well, by its name."""
    missed = make_step(
        4, 60, 0, refused_turns=60, outcomes={"no_reply": 60}, refused=0, yield_ms=Percentile(
            None, why_none="no turn was interrupted"), holes=None, holds=False,
    )  # fmt: skip
    void = make_step(16, 90, 3, void=LATE_CALLER, caller_late_ms=14.2)
    late = {"capacity": None, "ended": LATE_CALLER}
    return {
        "search": make_load(),
        "nothing": make_load([make_step(1, 60, 19)], capacity=NOTHING, ended=NOTHING.why),
        "not-sure": make_load(
            [make_step(1, 30, 0), make_step(1, 20, 0, confirms=True)],
            capacity=Certificate(
                None, None, 20, None, 0.95, 1, 1.0,
                "20 turns say too little: 59 without a miss are the least",
            ),
            ended="the time was up",
        ),
        "void": make_load([*SEARCH[:2], void], **late),
        "all-void": make_load([void], **late),
        "refused": make_load(
            [make_step(12, 120, 3, refused_turns=30, refused=10, late_started=4)],
            mode="held", capacity=None, ended="the level was held",
        ),
        "all-missed": make_load([missed], mode="held", capacity=None, ended="the level was held"),
        "one-step": make_load([make_step(16, 214, 6)], mode="held", capacity=None, ended="done"),
        "ramp": make_load(
            [make_step(n, 90, max(0, n - 20)) for n in (1, 2, 4, 8, 16, 24, 32, 48, 64)],
            mode="ramp", capacity=None, ended="the last level was held",
        ),
        "rate": make_load(
            [make_step(None, 300, 5, offered_per_s=2.0, at_once=(34.2, 47))],
            mode="rate", arrivals="poisson", capacity=None, ended="the time was up",
        ),
        "interrupted": make_load(
            SEARCH[:3], capacity=None, ended="", finished_utc=None, failure="interrupted in step 4",
        ),
        "lost": make_load(
            [make_step(
                64, 300, 6, outcomes={"answered": 240, "late": 6, "worker_lost": 54},
                holds=None, void="worker 2 of 4 was lost: its node is gone",
            )],
            mode="held", capacity=None, executor="ray", workers=4, ended="the level was held",
        ),
        "nothing-played": make_load(
            [], capacity=None, ended="", finished_utc=None, failure="the agent cannot be reached"
        ),
    }  # fmt: skip


def load_turns(n: int = 9) -> Iterator[LoadTurn]:
    """Turns of a step: on time, waited for, late, refused and lost."""
    for number in range(1, n + 1):
        missed = {5: ("refused", "HTTP 503: busy"), 7: ("worker_lost", "its node is gone")}
        reason, why = missed.get(number, (None, None))
        yield LoadTurn.model_validate(
            {
                "step": 1,
                "call": (number + 2) // 3,
                "line": number % 2,
                "scenario": "coffee-order",
                "turn": number,
                "due_s": 2.5 * number,
                "counted": number > 1,
                "waited_ms": 150.0 if number == 4 else 0.0,
                "played": None if reason else make_turn(
                    turn=number, marks_ms=scaled(2.6 if number == 6 else 1.0)
                ),
                "missed": reason,
                "why": why,
                "node": "local-1",
            }
        )  # fmt: skip


def store_load(folder: Path, record: LoadRecord | None = None) -> Path:
    """Store a load test with a few turns."""
    folder.mkdir(parents=True, exist_ok=True)
    write_document(folder / LOAD_FILE, record or make_load())
    (folder / TURNS_FILE).write_bytes(b"".join(map(encode, load_turns())))
    return folder
