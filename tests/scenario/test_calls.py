"""Tools: the calls that were made against those that were expected."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.events import Marks, ToolCall, calls_of
from turngap.scenario.answers import Findings, find
from turngap.scenario.expectation import ToolsExpectation, call_text, same_value

CLOCK = ToolCall("clock", {})
TODAY = ToolCall("weather", {"day": "today"})
TOMORROW = ToolCall("weather", {"day": "Tomorrow", "unit": "celsius"})


def expects(**what: Any) -> ToolsExpectation:
    return ToolsExpectation.model_validate(what)


def wants(*calls: tuple[str, dict[str, Any]], **more: Any) -> ToolsExpectation:
    return expects(all_of=[{"name": name, "arguments": given} for name, given in calls], **more)


@pytest.mark.parametrize(
    ("expected", "made", "missing", "unwanted"),
    [
        (wants(("clock", {})), [CLOCK, TODAY], [], []),
        (
            wants(("clock", {})),
            [TODAY],
            ["tools: clock() was not called, but weather(day=today)"],
            [],
        ),
        (wants(("clock", {})), [], ["tools: clock() was not called, but nothing"], []),
        # Other arguments than those that are wanted may be there, in another spelling, too.
        (wants(("weather", {"day": "tomorrow"})), [TOMORROW], [], []),
        (
            wants(("weather", {"day": "tomorrow"})),
            [TODAY],
            ["tools: weather(day=tomorrow) was not called, but weather(day=today)"],
            [],
        ),
        # Each is a call of its own: one call is not two.
        (
            wants(("weather", {}), ("weather", {"day": "today"})),
            [TODAY],
            ["tools: weather(day=today) was not called, but weather(day=today)"],
            [],
        ),
        (wants(("weather", {}), ("weather", {"day": "today"})), [TODAY, TOMORROW], [], []),
        (wants(("clock", {}), ("weather", {}), in_order=True), [CLOCK, CLOCK, TODAY], [], []),
        (
            wants(("clock", {}), ("weather", {}), in_order=True),
            [TODAY, CLOCK],
            ["tools: not in the order clock(), then weather(), but weather(day=today), clock()"],
            [],
        ),
        (expects(none=True), [], [], []),
        (expects(none=True), [CLOCK], [], ["tools: clock() was called"]),
        (expects(forbid=[{"name": "weather"}]), [CLOCK], [], []),
        (
            expects(forbid=[{"name": "weather", "arguments": {"day": "today"}}]),
            [TODAY, TOMORROW],
            [],
            ["tools: weather(day=today) was called"],
        ),
    ],
)
def test_what_is_missing_and_what_is_too_much(
    expected: ToolsExpectation, made: list[ToolCall], missing: list[str], unwanted: list[str]
):
    assert find(expected, made) == Findings(tuple(missing), tuple(unwanted))


@given(st.data())
def test_wants_are_matched_in_any_order_whichever_call_could_meet_them(data: st.DataObject):
    days = data.draw(st.lists(st.sampled_from(["today", "tomorrow", None]), max_size=5))
    wanted = [("weather", {} if day is None else {"day": day}) for day in days]
    made = [ToolCall("weather", {"day": day or "sunday"}) for day in days]
    if not wanted:
        return
    expected = wants(*data.draw(st.permutations(wanted)))
    assert find(expected, data.draw(st.permutations(made))).missing == ()
    assert len(find(expected, data.draw(st.permutations(made))[1:]).missing) == 1


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("47192", 47192, True),
        (47192.0, 47192, True),
        ("four seven one nine two", "47192", True),
        ("47,192", 47192, True),
        ("47193", 47192, False),
        ("007", "7", False),
        (-3, 3, False),
        ("-3", "3", False),
        ("Lunch with Anna.", "lunch with anna", True),
        ("lunch with Anna and Ben", "lunch with Anna", False),
        ("13:00", "13:00", True),
        ("13:30", "13:00", False),
        ("…", "…", True),
        ("…", "!", False),
        (True, True, True),
        (True, 1, False),
        (None, None, True),
        (None, "", False),
        ({"a": 1, "b": 2}, {"a": "1"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1, "b"], ["1", "B"], True),
        ([1, 2], [2, 1], False),
        ([1], 1, False),
    ],
)
def test_arguments_are_compared_by_what_they_mean(given: Any, wanted: Any, same: bool):
    assert same_value(given, wanted) is same


def test_calls_are_those_of_all_answers_and_unknown_where_the_agent_does_not_tell():
    silent, none, one = (
        Marks(1, {}),
        Marks(2, {}, calls=()),
        Marks(3, {}, calls=(CLOCK,)),
    )
    assert calls_of([silent]) is None
    assert calls_of([]) is None
    assert calls_of([silent, none]) == ()
    assert calls_of([one, none, one]) == (CLOCK, CLOCK)


def test_a_call_reads_as_one():
    call = ToolCall("add", {"day": "friday", "n": 2, "all": True, "to": ["a"]})
    assert call_text(call) == 'add(day=friday, n=2, all=true, to=["a"])'
