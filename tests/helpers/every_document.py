"""One stored folder of each kind, as their commands write them, made without playing anything."""

import contextlib
import io
from pathlib import Path

from made_checks import make_check, make_turns, store
from made_loads import store_load
from made_records import make_comparison, make_record, make_turn

import turngap.cli
from turngap.check import baseline
from turngap.compare.figures import Side
from turngap.core.results import Turn
from turngap.core.stored import PauseRecord
from turngap.store.checks import CHECK_FILE, SideRecord
from turngap.store.comparisons import COMPARISON_FILE, TURNS_FILE, TurnsRecord
from turngap.store.documents import encode, this_machine, write_document
from turngap.turns.play import (
    GAP_MS,
    SHARE,
    measured_curve,
    point_figures,
    silence_curve,
    waiting_curve,
)

SIMULATED = (
    *("simulate", "--calls", "5,50", "--set", "turn.before_ms=250", "--set", "turn.after_ms=50"),
    *("--set", "turn.speech_ms=1500", "--set", "turn.reply_ms=2500"),
    *("--set", "turn.user_tokens=10", "--set", "turn.reply_tokens=25"),
    *("--set", "turn.opening_tokens=5", "--set", "call.system_tokens=100"),
    *("--set", "call.turns=4"),
)

EVENTS = (
    {"event": "UserSpeech", "start_ns": 3_000_000_000, "end_ns": 5_000_000_000},
    *({"event": "AgentText", "at_ns": 5_300_000_000 + n, "text": "word "} for n in range(3)),
    {"event": "AgentSpeech", "onset_ns": 5_400_000_000, "at_ns": 5_410_000_000},
    {"event": "AgentSilence", "at_ns": 90_000_000_000},
)


def every_document(root: Path) -> dict[str, Path]:
    """Store one of each kind: a run, a check, a load test and so on; returns each one's folder.

    The key `baseline` is that of a file.
    """
    root.mkdir(parents=True, exist_ok=True)
    run = store(root, "run", [t.model_copy(update={"events": EVENTS}) for t in make_turns(6)])
    return {
        "run": run.path,
        "check": _check(root / "check"),
        "compare": _comparison(root / "compare"),
        "turns": curve(root / "turns"),
        "simulate": _simulation(root / "simulate"),
        "load": store_load(root / "load"),
        "baseline": _baseline(root / "base.json"),
    }


def _check(folder: Path) -> Path:
    folder.mkdir()
    names = [store(folder, name, make_turns(6)).path.name for name in ("candidate", "reference")]
    record = make_check()
    assert record.reference is not None
    sides: list[SideRecord] = [
        side.model_copy(update={"run": name, "turns": 6})
        for side, name in zip((record.candidate, record.reference), names, strict=True)
    ]
    changed = record.model_copy(update={"candidate": sides[0], "reference": sides[1]})
    write_document(folder / CHECK_FILE, changed)
    return folder


def _comparison(folder: Path) -> Path:
    folder.mkdir()
    sides = [Side("one", make_turns(20), None), Side("two", make_turns(20, seed=1), (5.0, 25.0))]
    write_document(folder / COMPARISON_FILE, make_comparison(sides))
    return folder


def _baseline(file: Path) -> Path:
    baseline.save(file, make_record(), make_turns(6))
    return file


def _simulation(root: Path) -> Path:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        turngap.cli.app([*SIMULATED, "--out", str(root)], standalone_mode=False)
    (folder,) = root.iterdir()
    return folder


def turns_with_a_pause(gap_ms: float, cut_ins: int) -> list[Turn]:
    """Forty turns with a pause each, so many of which the agent cut in on."""
    pauses = (PauseRecord(start_ms=500, end_ms=1000),)
    return [
        make_turn(
            scenario=f"s{n}",
            turn=n,
            marks_ms={"received": at - 1, "agent_onset": at},
            speech_ms=2000.0,
            pauses=pauses,
        )
        for n in range(1, 41)
        for at in [-1300.0 if n <= cut_ins else gap_ms]
    ]


def curve(folder: Path) -> Path:
    """Store a curve of two values."""
    folder.mkdir(exist_ok=True)
    played = {"100": turns_with_a_pause(200, 10), "400": turns_with_a_pause(500, 1)}
    points = [
        point_figures(turns, value=value, run=f"run-{value}", valid=True)
        for value, turns in played.items()
    ]
    record = TurnsRecord(
        turngap_version="0",
        commit=None,
        started_utc="2026-11-20T15:28:03+00:00",
        machine=this_machine(),
        agent="embedded",
        setting="turn.hold_ms",
        scenarios=("x",),
        rounds=1,
        phases=1,
        virtual=True,
        recorded=40,
        labelled=40,
        share=SHARE,
        gap_ms=GAP_MS,
        points=tuple(points),
        measured=measured_curve(list(played.values())),
        waiting=waiting_curve(played["400"]),
        silence=silence_curve(played["400"]),
        stand_ins=("synthetic voices",),
        settings={},
    )
    write_document(folder / TURNS_FILE, record)
    for value, turns in played.items():
        run = folder / f"run-{value}"
        run.mkdir()
        write_document(run / "run.json", make_record())
        (run / "turns.jsonl").write_bytes(b"".join(map(encode, turns)))
    return folder
