"""The drawings of what was heard: one a turn, from its recording, all on one scale."""

import numpy as np
import pytest
from html_page import Page
from made_records import make_record, make_run, make_turn

from turngap.core.stored import AudioRecord, HoleRecord
from turngap.report.evidence import MOST_TURNS, PLACES, TRACK_PX, evidence
from turngap.report.run import render
from turngap.store.runs import Run, read_run
from turngap.store.writer import RunWriter

RATE = 16_000
USER_END_MS, GAP_MS = 1500.0, 398.25


def tone(from_ms: float, to_ms: float, of_ms: float = 4000) -> np.ndarray:
    t = np.arange(round(of_ms * RATE / 1000)) * 1000 / RATE
    loud = np.sin(t * 1.4) * 8000
    return np.where((t >= from_ms) & (t < to_ms), loud, 0).astype(np.int16)


@pytest.fixture
def stored(tmp_path) -> Run:
    """One turn of a person who ends at 1.5 s, and of an agent that answers for 1 s."""
    record = make_record(planned_turns=1)
    with RunWriter.create(tmp_path, "replay", record) as writer:
        onset_ms = USER_END_MS + GAP_MS
        person, agent = tone(300, USER_END_MS), tone(onset_ms, onset_ms + 1000)
        file = writer.write_audio("001", person, agent, RATE)
        about = {"user_start_ms": 300, "user_end_ms": USER_END_MS, "onset_ms": onset_ms}
        writer.append_turn(make_turn(audio=AudioRecord(file=file, **about)))
        writer.finish(record)
    return read_run(writer.path)


def heights(path: str) -> list[int]:
    """Return the height of a track's steps at each place, in pixels."""
    bottom, *steps = path.removeprefix("M0 ").removesuffix("z").split("V")
    found: list[int] = []
    for step in steps[:-1]:
        top, width = step.split("h")
        found += [int(bottom) - int(top)] * (int(width) * PLACES // 1000)
    return found


def test_a_drawing_shows_both_tracks_and_the_gap_on_one_axis(stored) -> None:
    (strip,) = evidence(stored, ["turn-1"]).strips
    assert (strip.anchor, strip.outcome) == ("turn-1", "✓ answered 398 ms")
    assert "first word at 398 ms" in strip.chart.spoken
    zero = strip.chart.rules[0].at
    (gap,) = [bar for bar in strip.chart.bars if bar.style == "good"]
    assert gap.x == zero
    assert strip.chart.dots[0].x == pytest.approx(gap.x + gap.width, abs=0.01)
    person, agent = (heights(path.d) for path in strip.chart.paths)
    assert len(person) == len(agent) == PLACES
    assert 0 < max(person) <= TRACK_PX
    # The person ends where the gap begins, and the agent begins where it ends.
    last = max(place for place, height in enumerate(person) if height) + 1
    first = next(place for place, height in enumerate(agent) if height)
    assert last * 100 / PLACES == pytest.approx(gap.x, abs=1)
    assert first * 100 / PLACES == pytest.approx(gap.x + gap.width, abs=1)


def test_holes_and_the_first_answer_are_where_they_were_heard(stored) -> None:
    hole = HoleRecord(at_ms=600, ms=300)
    turn = stored.turns[0].model_copy(update={"holes": (hole,), "first_answer_ms": GAP_MS + 900})
    (strip,) = evidence(Run(stored.record, (turn,), stored.path), ["turn-1"]).strips
    assert "first answer at 1298 ms, hole of 300 ms at 998 ms" in strip.chart.spoken
    (gap,) = [bar for bar in strip.chart.bars if bar.style == "good"]
    (hatched,) = [bar for bar in strip.chart.bars if bar.style == "hole"]
    each = gap.width / GAP_MS
    assert hatched.x == pytest.approx(gap.x + (GAP_MS + 600) * each, abs=0.01)
    assert hatched.width == pytest.approx(300 * each, abs=0.01)
    assert strip.chart.dots[-1].x == pytest.approx(hatched.x + hatched.width, abs=0.01)


def test_a_turn_without_its_recording_is_drawn_from_its_instants() -> None:
    outside = AudioRecord(file="../001.wav", user_start_ms=0, user_end_ms=900, onset_ms=None)
    for turn in (make_turn(audio=None), make_turn(audio=outside)):
        (strip,) = evidence(make_run([turn]), ["turn-1"]).strips
        assert strip.chart.paths == []
        assert [dot.style for dot in strip.chart.dots] == ["good"]


def test_a_long_run_makes_no_endless_page(stored) -> None:
    repeats = range(1, MOST_TURNS + 60)
    turns = tuple(stored.turns[0].model_copy(update={"repeat": n}) for n in repeats)
    one, many = (Page(render(Run(stored.record, t, stored.path))) for t in (turns[:1], turns))
    drawn = many.all("svg", **{"class": "evidence"})
    assert len(drawn) == MOST_TURNS
    assert "The first 200 of 259 turns" in many.text
    assert one.all("svg", **{"class": "evidence"})[0]["role"] == "img"
    many.assert_safe()
    one.assert_accessible()
    paths = sum(len(path["d"] or "") for path in many.all("path") if "area" in str(path["class"]))
    assert paths < MOST_TURNS * 4000
