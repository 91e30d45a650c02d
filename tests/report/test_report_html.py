import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from html_page import Page
from made_records import every_outcome, make_record, make_run, make_turn, scaled

from turngap.core.errors import InputError
from turngap.core.stored import AudioRecord, BackchannelRecord
from turngap.report.charts import Agent, gap_chart
from turngap.report.run import render, write_html
from turngap.store.runs import Run, read_run
from turngap.store.writer import RunWriter

SCRIPT = "<script>alert(1)</script>"
ATTRIBUTE = '" onload="alert(1)" x=\''


def stored(tmp_path: Path, turns) -> Run:
    record = make_record(planned_turns=len(turns))
    with RunWriter.create(tmp_path, "replay", record) as writer:
        silence = np.zeros(16_000, np.int16)
        writer.write_audio("001", silence, silence, 16_000)
        for turn in turns:
            writer.append_turn(turn)
        writer.finish(record)
    return read_run(writer.path)


def test_nothing_is_fetched_from_anywhere():
    run = make_run(every_outcome(), agent={"url": "https://agent.example.org/ws", "stack": "x"})
    page = Page(render(run))
    assert "https://agent.example.org/ws" in page.text  # shown, not linked
    page.assert_safe()


def test_a_browser_is_told_to_fetch_nothing_and_to_run_one_script_alone():
    page = Page(render(make_run([])))
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    content = policy["content"] or ""
    assert content.startswith("default-src 'none'")
    assert content.count("script-src") == 1
    assert "unsafe-inline" not in content.split("script-src")[1]
    page.assert_safe()


@pytest.mark.parametrize("attack", [SCRIPT, ATTRIBUTE, "{{ 7 * 7 }}", "&lt;b&gt; </style><b>"])
def test_everything_a_run_holds_is_text(attack):
    turn = make_turn(
        scenario=attack,
        say=attack,
        transcript=attack,
        reply=attack,
        faults=(attack,),
        backchannels=(BackchannelRecord(say=attack, start_ms=1, reply_stopped=True),),
        audio=AudioRecord(file=attack, user_start_ms=1, user_end_ms=2, onset_ms=None),
    )
    stages = tuple(replace(s, name=attack) for s in turn.stages)
    turns = [
        turn.model_copy(update={"stages": stages}),
        make_turn(marks_ms=None, ended="timeout", why_no_gap=attack),
    ]
    run = make_run(
        turns,
        name=attack,
        agent={"stack": attack, attack: attack},
        settings={attack: {attack: [attack]}},
        valid=False,
        why_invalid=(attack,),
        failure=attack,
        commit=attack,
        started_utc=attack,
    )
    run = Run(run.record, run.turns, run.path, (attack,))
    page = Page(render(run))
    plain = Page(render(make_run(every_outcome())))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in plain.tags} | {"strong"}
    allowed = {name for _, attrs in plain.tags for name in attrs}
    assert {name for _, attrs in page.tags for name in attrs} <= allowed
    assert page.text.count(attack) >= 15


def test_page_is_written_beside_the_run_and_replaces_an_older_one(tmp_path):
    run = stored(tmp_path, [make_turn()])
    (run.path / "report.html").write_text("old")
    file = write_html(run)
    assert file == run.path / "report.html"
    assert Page(file.read_text(encoding="utf-8")).all("article")
    assert not list(run.path.glob(".report*"))


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        write_html(make_run([make_turn()], tmp_path / "gone"))


def test_players_play_their_turn_of_the_recording(tmp_path):
    run = stored(tmp_path, [make_turn(turn=1), make_turn(turn=2)])
    players = Page(render(run)).all("audio")
    assert [p["src"] for p in players] == ["audio/001.wav#t=0.70,2.00", "audio/001.wav#t=1.70"]
    assert all("controls" in p and p["aria-label"] for p in players)


@pytest.mark.parametrize("file", ["audio/404.wav", "../other/001.wav", "/etc/hostname"])
def test_no_player_for_what_is_not_in_the_folder(tmp_path, file):
    audio = AudioRecord(file=file, user_start_ms=1, user_end_ms=2, onset_ms=None)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "001.wav").write_bytes(b"")
    page = Page(render(stored(tmp_path, [make_turn(audio=audio)])))
    assert not page.all("audio")
    assert "is not in the run's folder" in page.text


def test_turn_without_a_recording_has_no_player(tmp_path):
    page = Page(render(stored(tmp_path, [make_turn(audio=None)])))
    assert not page.all("audio")
    assert "is not in the run's folder" not in page.text


def test_half_a_surrogate_pair_does_not_stop_the_page(tmp_path):
    (tmp_path / "r").mkdir()
    assert write_html(make_run([make_turn(reply="\ud83d x")], tmp_path / "r")).stat().st_size


def test_curve_stands_at_the_hit_rate_at_the_budget():
    turns = [make_turn(marks_ms=scaled(n / 5)) for n in range(1, 15)] + every_outcome()[2:6]
    plot = gap_chart([Agent(turns)], 800.0, "")
    hits = sum(t.outcome == "answered" for t in turns)
    steps = re.findall(r"H([\d.]+)V([\d.]+)", plot.paths[0].d)
    level = [float(y) for x, y in steps if float(x) <= plot.rules[0].at * 10][-1]
    assert 1 - level / 170 == pytest.approx(hits / len(turns), abs=1e-4)
