from dataclasses import replace
from pathlib import Path

import pytest
from html_page import Page
from made_checks import (
    MACHINE,
    budgets_only_check,
    every_check,
    make_budget,
    make_metric,
    make_side,
    make_stages,
    make_turns,
    regressed_check,
    store,
)
from made_records import MARKS_MS, make_run, make_turn

from turngap.check.charts import (
    MOST_SHOWN,
    PAIRS_PX,
    heading,
    moved_in,
    paired,
    pairs_chart,
    stage_medians,
    worst,
)
from turngap.check.report import check_report
from turngap.core.stored import AudioRecord
from turngap.report import page
from turngap.store.runs import Run

SCRIPT = "<script>alert(1)</script>"
ATTRIBUTE = '" onload="alert(1)" x=\''
FOLDER = Path("runs/check")


def render(record, folder, candidate, reference) -> str:
    return page.render(check_report(record, candidate, reference, folder))


def page_of(record, candidate=None, reference=None) -> Page:
    """A page over made-up turns; with a reference where the record has one that was played."""
    slower = 41.0 if record.moved_stage else 0.0
    b = make_run(make_turns(60, slower_ms=slower) if candidate is None else candidate)
    played = record.reference is not None and record.reference.run is not None
    a = make_run(make_turns(60) if reference is None else reference) if played else None
    return Page(render(record, FOLDER, b, a))


@pytest.mark.parametrize("record", every_check())
def test_a_check_that_played_nothing_has_a_page(record):
    page_of(record, (), ()).assert_accessible()


@pytest.mark.parametrize("attack", [SCRIPT, ATTRIBUTE, "{{ 7 * 7 }}", "&lt;b&gt; </style><b>"])
def test_everything_a_check_holds_is_text(attack):
    turn = make_turn(
        scenario=attack,
        say=attack,
        transcript=attack,
        reply=attack,
        faults=(attack,),
        audio=AudioRecord(file=attack, user_start_ms=1, user_end_ms=2, onset_ms=None),
        marks_ms={name: at * 4 for name, at in MARKS_MS.items()},
    )
    turn = turn.model_copy(update={"stages": tuple(replace(s, name=attack) for s in turn.stages)})
    run = make_run([turn], agent={attack: attack}, settings={attack: attack}, commit=attack)
    run = Run(run.record, run.turns, run.path, (attack,))
    stage = replace(make_stages("sent")[0], name=attack)
    record = regressed_check(
        why=(attack,),
        started_utc=attack,
        machine=MACHINE.model_copy(update={"cpu": attack, "fingerprint": attack}),
        candidate=make_side(attack, agent={"stack": attack, attack: attack}),
        reference=make_side(attack, agent={"stack": attack + "!", attack: "!" + attack}),
        metrics=(make_metric(attack, why=attack),),
        budgets=(make_budget(name=attack),),
        stages=(stage,),
        moved_stage=attack,
    )
    shown = Page(render(record, FOLDER, run, run))
    plain = page_of(regressed_check(), make_turns(9, slower_ms=90), make_turns(9))
    assert {tag for tag, _ in shown.tags} <= {tag for tag, _ in plain.tags} | {"strong", "section"}
    allowed = {name for _, attrs in plain.tags for name in attrs} | {"src"}
    assert {name for _, attrs in shown.tags for name in attrs} <= allowed
    assert shown.text.count(attack) >= 15


def test_players_lead_to_both_recordings_by_a_relative_path(tmp_path):
    turns = make_turns(6, slower_ms=60), make_turns(6)
    b, a = (store(tmp_path, name, t) for name, t in zip(("b", "a"), turns, strict=True))
    shown = Page(render(regressed_check(), tmp_path, b, a))
    players = shown.all("audio")
    assert len(players) == 2 * len(shown.all("article")) > 0
    for player in players:
        link = (player["src"] or "").partition("#")[0]
        assert not link.startswith(("/", ".."))
        assert (tmp_path / link).is_file()
        assert "controls" in player
        assert player["aria-label"]
    assert {Path(p["src"] or "").parts[0] for p in players} == {a.path.name, b.path.name}


def test_no_player_for_a_recording_outside_the_check(tmp_path):
    (tmp_path / "check").mkdir()
    run = store(tmp_path, "elsewhere", make_turns(6, slower_ms=900))
    shown = Page(render(budgets_only_check(), tmp_path / "check", run, None))
    assert shown.all("article")
    assert not shown.all("audio")


def test_pairs_are_the_same_turn_of_the_same_repeat_and_phase():
    reference = [make_turn(turn=1), make_turn(turn=1, repeat=2), make_turn(turn=1, phase_ms=8.0)]
    candidate = [make_turn(turn=1, phase_ms=8.0), make_turn(turn=1), make_turn(turn=2)]
    pairs = paired(candidate, reference)
    assert [p.reference for p in pairs] == [reference[2], reference[0], None]
    assert pairs[0].shift_ms == 0.0
    assert pairs[2].shift_ms is None


def test_a_turn_without_a_gap_has_no_difference():
    silent = make_turn(marks_ms=None, ended="timeout")
    early = make_turn(marks_ms={"agent_onset": -300.0})
    for candidate in (silent, early):
        (pair,) = paired([candidate], [make_turn()])
        assert pair.shift_ms is None
        assert pair.worse_outcome
        assert heading(pair) == f"{candidate.outcome} (reference: answered)"


def test_worst_turns_are_failures_first_then_the_most_slowed():
    slow = {name: at + 300 for name, at in MARKS_MS.items()}
    slower = {name: at + 350 for name, at in MARKS_MS.items()}
    reference = [make_turn(turn=n) for n in range(1, 7)]
    silent = make_turn(turn=6, marks_ms=None, ended="timeout")
    candidate = [
        make_turn(turn=1),
        make_turn(turn=2, marks_ms=slow),
        make_turn(turn=3, marks_ms={"agent_onset": -300.0}),
        make_turn(turn=4, marks_ms=slower),
        make_turn(turn=5),
        silent,
    ]
    shown = worst(paired(candidate, reference))
    assert [p.candidate.turn for p in shown] == [6, 3, 4, 2]
    # As bad with the reference: not this change's doing.
    both = paired([silent], [make_turn(turn=6, marks_ms=None, ended="timeout")])
    assert worst(both) == []


def test_worst_turns_are_few():
    turns = [make_turn(turn=n + 1, marks_ms=None, ended="timeout") for n in range(40)]
    slow = [
        make_turn(turn=n, marks_ms={k: v + 99 for k, v in MARKS_MS.items()}) for n in range(50, 90)
    ]
    reference = [make_turn(turn=n) for n in [*range(1, 41), *range(50, 90)]]
    shown = worst(paired([*turns, *slow], reference))
    assert len(shown) == MOST_SHOWN
    assert {p.candidate.outcome for p in shown} == {"no_reply", "answered"}


def test_stages_that_moved_in_a_turn_are_named_largest_first():
    later = {
        name: at + (60 if name not in ("endpoint", "transcript") else 0)
        for name, at in MARKS_MS.items()
    }
    (pair,) = paired([make_turn(marks_ms=later)], [make_turn()])
    assert moved_in(pair) == "LLM asked +60 ms"
    assert heading(pair) == "60 ms slower than the reference"


def test_stage_medians_leave_failed_turns_out():
    turns = [make_turn(), make_turn(marks_ms={"agent_onset": -300.0})]
    assert stage_medians(turns)["endpoint"] == pytest.approx(231.0)
    assert "unattributed" not in stage_medians(turns)


def test_pairs_are_sorted_and_drawn_from_zero():
    pairs = paired(make_turns(60, slower_ms=10), make_turns(60))
    plot = pairs_chart(pairs)
    assert plot is not None
    (zero,) = [rule.at for rule in plot.rules]
    slower = [not bar.hollow for bar in plot.bars]
    assert set(slower) == {True, False}
    ends = [b.y if up else b.y + b.height for b, up in zip(plot.bars, slower, strict=True)]
    assert ends == sorted(ends, reverse=True)
    for bar, up in zip(plot.bars, slower, strict=True):
        edge = bar.y + bar.height if up else bar.y
        assert edge == pytest.approx(zero, abs=1.01)  # a hairline is widened to be seen
        assert 0 <= bar.x <= bar.x + bar.width <= 100
        assert -0.01 <= bar.y <= PAIRS_PX
    assert f"slower in {sum(slower)}" in plot.spoken
