"""A run over a line: its section in every report, and the drawing of a turn at both ends."""

from dataclasses import replace

import numpy as np
import pytest
from html_page import Page
from made_records import make_record, make_run, make_turn
from test_evidence import RATE, heights, tone

from turngap.core.results import Turn
from turngap.core.run_record import DeadPeerRecord, LineRecord
from turngap.core.stages import Stage
from turngap.core.stored import AudioRecord, DryRecord, LineTurn, StallRecord
from turngap.report.ci import markdown, run_junit
from turngap.report.evidence import PLACES
from turngap.report.line import crossing_words, dead_words, drawing
from turngap.report.run import render, run_report, summary_block
from turngap.store.runs import Run, read_run
from turngap.store.writer import RunWriter

USER_END_MS, GAP_MS, UP_MS, DOWN_MS = 1500.0, 800.0, 200.0, 100.0
LINE = LineRecord(text="lte|moving", settings={"up": {"delay_ms": 50.0}, "down": {}})
CROSSED = LineTurn(
    up_ms=UP_MS,
    down_ms=DOWN_MS,
    plain_gap_ms=480.0,
    dry=(DryRecord(at_ms=200.0, ms=300.0, in_word=True),),
    stalls=(StallRecord(way="up", at_ms=-100.0, ms=300.0),),
    lag_ms=300.0,
)


def crossing(file: str = "audio/001.wav") -> Turn:
    parts = {"line_up": UP_MS, "endpoint": 500.0, "line_down": DOWN_MS}
    return make_turn(
        marks_ms={"agent_onset": GAP_MS},
        stages=tuple(Stage(name, round(ms * 1e6), ms) for name, ms in parts.items()),
        line=CROSSED,
        speech_ms=1200.0,
        audio=AudioRecord(
            file=file,
            user_start_ms=300.0,
            user_end_ms=USER_END_MS,
            onset_ms=USER_END_MS + GAP_MS,
        ),
    )


@pytest.fixture
def stored(tmp_path) -> Run:
    """A turn of 1.2 s whose last 150 ms stalled, and a reply of 1 s with a hole of 300 ms in it."""
    record = make_record(planned_turns=1, line=LINE)
    with RunWriter.create(tmp_path, "replay", record) as writer:
        at_ms = USER_END_MS + GAP_MS
        heard = tone(at_ms, at_ms + 200) + tone(at_ms + 500, at_ms + 1300)
        file = writer.write_audio("001", tone(300, USER_END_MS), heard, RATE)
        writer.append_turn(crossing(file))
        writer.finish(record)
    return read_run(writer.path)


def spans(path: str, chart_ms: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the stretches of a track that are loud, in ms from the person's end."""
    first, last = chart_ms
    at = [0, *(h > 0 for h in heights(path)), 0]
    edges = np.flatnonzero(np.diff(np.array(at, dtype=int))).tolist()
    found = [first + (last - first) * edge / PLACES for edge in edges]
    return list(zip(found[::2], found[1::2], strict=True))


def test_a_turn_is_drawn_at_both_ends_of_the_line(stored) -> None:
    chart = drawing(stored, stored.turns[0])
    assert chart is not None
    extent = (-1200.0, 2500.0)
    sent, got, reply, heard = (spans(path.d, extent) for path in chart.paths if path.area)

    def near(*pairs: tuple[float, float]):
        return [pytest.approx(pair, abs=40) for pair in pairs]

    assert sent == near((-1200, 0))
    # Up to the stall it is 50 ms later; the rest came at once when the stall had ended.
    assert got == near((-1150, -100), (200, 220))
    assert heard == near((GAP_MS, GAP_MS + 200), (GAP_MS + 500, GAP_MS + 1300))
    assert reply == near((GAP_MS - DOWN_MS, GAP_MS - DOWN_MS + 1000))
    titles = [bar.title for bar in chart.bars]
    assert titles[0] == "stall up: 300 ms"
    assert titles[-1] == "hole inside a word: 300 ms"
    assert [bar.style for bar in chart.bars] == ["unknown", "line", "think", "line", "bad"]


def test_a_page_shows_the_drawing_only_over_a_line(stored) -> None:
    page = Page(render(stored))
    page.assert_safe()
    page.assert_accessible()
    (drawn,) = (svg for svg in page.all("svg") if "The line: " in (svg.get("aria-label") or ""))
    assert "1 inside a word" in (drawn["aria-label"] or "")
    assert "The line: " not in render(make_run([make_turn()]))


def test_a_turn_says_what_the_line_did() -> None:
    assert crossing_words(make_turn()) == ""
    assert crossing_words(crossing()) == (
        "up 200 ms; down 100 ms; gap without it 480 ms; 1 hole of 300 ms, 1 inside a word; "
        "1 stall up of 300 ms; at its end the reply was 300 ms late"
    )


def test_every_report_names_the_line_and_escapes_it() -> None:
    run = make_run([crossing()], line=LINE)
    assert "over the line lte|moving" in summary_block(run, 100).plain
    assert "lte\\|moving" in markdown(run_report(run))
    assert b"lte|moving, seed 1" in run_junit(run)
    assert "The line" not in markdown(run_report(make_run([make_turn()])))


def test_a_peer_that_nobody_missed_is_not_called_quick() -> None:
    dead = DeadPeerRecord(scenario="x", repeat=1, caller_ms=9100.0, agent_ms=None)
    (said,) = dead_words(LINE.model_copy(update={"dead_peers": (dead,)}))
    assert said == "x: the caller noticed after 9.1 s, the agent was still there after 15 s"


def test_a_run_that_was_not_paired_says_so() -> None:
    alone = crossing().model_copy(update={"line": LineTurn(up_ms=10.0)})
    said = summary_block(make_run([alone], line=LINE), 100).plain
    assert "no difference: no turn was played without it" in said
    assert (
        "no difference: n=1, needs 5" in summary_block(make_run([crossing()], line=LINE), 100).plain
    )


@pytest.mark.parametrize("up", [{"delay_ms": "soon"}, "far", {}, None])
def test_a_line_of_a_damaged_run_is_drawn(stored, up) -> None:
    stall = StallRecord(way="up", at_ms=-1e308, ms=1.7e308)
    line = CROSSED.model_copy(
        update={"stalls": (stall, StallRecord(way="up", at_ms=1e308, ms=1e308))}
    )
    turn = stored.turns[0].model_copy(update={"line": line})
    record = stored.record.model_copy(
        update={"line": LINE.model_copy(update={"settings": {"up": up}})}
    )
    assert drawing(replace(stored, record=record), turn) is not None
