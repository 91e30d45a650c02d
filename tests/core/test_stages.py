import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.stages import (
    AGENT_MARKS,
    LINE_MARKS,
    MARKS,
    TOOL_MARKS,
    UNATTRIBUTED,
    USUAL_MARKS,
    Stage,
    stages_of,
    unmarked,
)

BETWEEN = MARKS[1:-1]
# Those of a turn without a line.
PLAIN = tuple(name for name in MARKS if name not in LINE_MARKS)


def stage(name: str, ns: int) -> Stage:
    return Stage(name, ns, ns / 1e6)


def marks_in_order(step: int = 10) -> dict[str, int]:
    return {name: i * step for i, name in enumerate(PLAIN)}


@st.composite
def any_marks(draw: st.DrawFn) -> dict[str, int]:
    """Any subset of the marks at any instants; only user end and agent onset are always there."""
    instants = st.integers(-(10**12), 10**12)
    some = draw(st.dictionaries(st.sampled_from(BETWEEN), instants))
    return {**some, "user_end": draw(instants), "agent_onset": draw(instants)}


@given(any_marks())
def test_stages_sum_to_the_gap_exactly(marks: dict[str, int]) -> None:
    assert sum(s.ns for s in stages_of(marks)) == marks["agent_onset"] - marks["user_end"]


@given(any_marks())
def test_no_stage_is_negative_unless_the_agent_cut_in(marks: dict[str, int]) -> None:
    stages = stages_of(marks)
    if marks["agent_onset"] < marks["user_end"]:
        assert stages == (stage(UNATTRIBUTED, marks["agent_onset"] - marks["user_end"]),)
    else:
        assert all(s.ns >= 0 for s in stages)


@given(any_marks())
def test_a_named_stage_has_both_its_marks(marks: dict[str, int]) -> None:
    absent = [pair for pair in (TOOL_MARKS, LINE_MARKS) if not pair & set(marks)]
    expected = [name for name in MARKS if not any(name in pair for pair in absent)]
    for stage in stages_of(marks):
        if stage.name != UNATTRIBUTED:
            assert {stage.name, expected[expected.index(stage.name) - 1]} <= set(marks)


@given(any_marks())
def test_stages_come_in_causal_order(marks: dict[str, int]) -> None:
    named = [MARKS.index(s.name) for s in stages_of(marks) if s.name != UNATTRIBUTED]
    assert named == sorted(named)
    assert len(named) == len(set(named))


@given(any_marks(), st.integers(-(10**9), 10**9))
def test_only_differences_count(marks: dict[str, int], shift: int) -> None:
    assert stages_of({name: at + shift for name, at in marks.items()}) == stages_of(marks)


def test_each_stage_is_named_by_the_mark_that_ends_it() -> None:
    assert stages_of(marks_in_order()) == tuple(stage(name, 10) for name in PLAIN[1:])


def test_a_turn_without_tools_has_no_stage_of_theirs():
    marks = {name: i * 10 for i, name in enumerate(USUAL_MARKS)}
    assert stages_of(marks) == tuple(stage(name, 10) for name in USUAL_MARKS[1:])


def test_a_line_takes_stages_of_its_own_with_or_without_the_agents_marks() -> None:
    marks = {name: i * 10 for i, name in enumerate(MARKS)}
    assert stages_of(marks) == tuple(stage(name, 10) for name in MARKS[1:])
    told = {"user_end": 0, "line_up": 50, "received": 400, "line_down": 450, "agent_onset": 460}
    assert [(s.name, s.ns) for s in stages_of(told)] == [
        ("line_up", 50),
        (UNATTRIBUTED, 350),
        ("line_down", 50),
        ("agent_onset", 10),
    ]
    assert unmarked(s.name for s in stages_of(told))


def test_work_done_ahead_of_time_is_a_stage_of_length_0() -> None:
    marks = marks_in_order() | {"transcript": 5, "llm_request": -40}
    stages = {s.name: s.ns for s in stages_of(marks)}
    assert (stages["endpoint"], stages["transcript"], stages["llm_request"]) == (10, 0, 0)
    assert stages["tool_call"] == 40 - 10  # all that was really waited for


def test_a_mark_after_the_onset_takes_what_is_left_and_no_more() -> None:
    marks = marks_in_order() | {"tts_first_audio": 10**6}
    stages = {s.name: s.ns for s in stages_of(marks)}
    assert stages["tts_first_audio"] == 120 - 70
    assert (stages["tts_first_audible"], stages["sent"], stages["agent_onset"]) == (0, 0, 0)


@pytest.mark.parametrize("missing", PLAIN[1:-1])
def test_what_a_missing_mark_would_explain_is_unattributed(missing: str) -> None:
    marks = marks_in_order()
    del marks[missing]
    follows = PLAIN[PLAIN.index(missing) + 1]
    expected = [
        stage(UNATTRIBUTED, 20) if name == follows else stage(name, 10)
        for name in PLAIN[1:]
        if name != missing
    ]
    assert stages_of(marks) == tuple(expected)


def test_without_the_agents_marks_all_but_the_callers_own_part_is_unattributed() -> None:
    marks = {"user_end": 0, "received": 90, "agent_onset": 100}
    assert stages_of(marks) == (stage(UNATTRIBUTED, 90), stage("agent_onset", 10))
    assert stages_of({"user_end": 0, "agent_onset": 100}) == (stage(UNATTRIBUTED, 100),)


def test_two_spans_can_be_unattributed() -> None:
    marks = marks_in_order()
    del marks["endpoint"], marks["sent"]
    names = [s.name for s in stages_of(marks)]
    assert names.count(UNATTRIBUTED) == 2
    assert (names[0], names[-2]) == (UNATTRIBUTED, UNATTRIBUTED)


@pytest.mark.parametrize("needed", ["user_end", "agent_onset"])
def test_there_is_no_gap_without_its_two_ends(needed: str) -> None:
    marks = marks_in_order()
    del marks[needed]
    with pytest.raises(KeyError, match=needed):
        stages_of(marks)


def test_the_agents_marks_are_those_between_the_callers() -> None:
    assert (AGENT_MARKS[0], AGENT_MARKS[-1]) == ("endpoint", "sent")
    assert not {"user_end", "received", "agent_onset"} & set(AGENT_MARKS)
