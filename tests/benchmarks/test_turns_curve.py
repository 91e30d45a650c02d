"""The drawing and the table of several agents' curves."""

import re
from pathlib import Path

import pytest
import turns_curve
from made_records import make_record, make_turn

from turngap.core.errors import InputError
from turngap.core.results import PauseRecord, Turn
from turngap.store.documents import encode, write_document
from turngap.store.provenance import this_machine
from turngap.turns.figures import (
    GAP_MS,
    SHARE,
    Recordings,
    measured_curve,
    point_figures,
    silence_curve,
    waiting_curve,
)
from turngap.turns.record import TURNS_FILE, TurnsRecord


def turns_of(gap_ms: float, cut_ins: int) -> list[Turn]:
    pauses = (PauseRecord(start_ms=500, end_ms=1000),)
    return [
        make_turn(
            turn=n,
            marks_ms={"received": at - 1, "agent_onset": at},
            speech_ms=2000.0,
            pauses=pauses,
        )
        for n in range(1, 41)
        for at in [-1300.0 if n <= cut_ins else gap_ms]
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stored curve of two values."""
    played = {"100": turns_of(200, 10), "400": turns_of(500, 1)}
    recordings = Recordings(turn for turns in played.values() for turn in turns)
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
        measured=measured_curve(list(played.values()), recordings),
        waiting=waiting_curve(played["400"], recordings),
        silence=silence_curve(played["400"], recordings),
        stand_ins=("synthetic voices",),
        settings={},
    )
    write_document(tmp_path / TURNS_FILE, record)
    for value, turns in played.items():
        run = tmp_path / f"run-{value}"
        run.mkdir()
        write_document(run / "run.json", make_record())
        (run / "turns.jsonl").write_bytes(b"".join(map(encode, turns)))
    return tmp_path


def test_the_table_says_where_each_agent_lies_and_what_was_not_real(folder: Path):
    agents = [turns_curve.named(f"ours={folder}")]
    text = turns_curve.table(agents)
    assert "ours, `turn.hold_ms = 100` | 200 " in text
    assert "10 of 40, 25 %" in text
    # From 25 % at 200 ms to 2.5 % at 500 ms.
    assert re.search(r"ours, as measured \|.* 467 ms", text)
    assert "silence alone" in text
    said = turns_curve.about(agents)
    assert "synthetic voices" in said
    assert "lower bounds" in said


def test_the_drawing_has_every_point_and_is_whole(folder: Path):
    svg = turns_curve.drawn([turns_curve.named(f"a <b>={folder}")])
    assert svg.count("<circle") == 2
    assert "a &lt;b&gt;" in svg
    assert "<b>" not in svg
    assert svg.endswith("</svg>\n")


@pytest.mark.parametrize("text", ["runs/x", "ours=nowhere"])
def test_what_is_no_curve_is_refused(text: str):
    with pytest.raises(InputError):
        turns_curve.named(text)
