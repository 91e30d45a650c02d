"""Progress in pytest while a test plays."""

import pytest
from fake_agents import NEW, FakeAgents
from inner_runs import Inner, text_of
from made_records import make_turn

from turngap.core.clock import NS_PER_S
from turngap.pytest_plugin.fixture import Watched

pytest_plugins = ["pytester"]

CODE = f"""
def test_fast_enough(turngap):
    turngap.replay("{NEW}", scenarios=["quick-questions"], repeat=7, calibration=0)
"""


class Hand:
    """A clock that is set by hand."""

    s = 0.0

    def now_ns(self) -> int:
        return int(self.s * NS_PER_S)

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        raise AssertionError(deadline_ns)


def test_a_line_now_and_then_says_how_far_it_is_and_how_long_it_takes_yet() -> None:
    lines: list[str] = []
    clock = Hand()
    asked = {"agent": NEW, "scenarios": "quick-questions", "repeat": 7}
    watched = Watched(lines.append, "replay", asked, clock)
    for done in range(1, 22):
        clock.s = 6.0 * done
        watched.count(make_turn())
    assert lines[0] == "turngap: 21 turns in real time: about a minute"
    assert lines[1] == "turngap: 2 of 21 turns, about a minute left"
    assert lines[2] == "turngap: 4 of 21 turns, about a minute left"
    assert lines[-1] == "turngap: 20 of 21 turns, less than a minute left"
    assert len(lines) == 11


@pytest.mark.parametrize(
    "wrong", [{"repeat": "7"}, {"scenarios": ["none-such"]}, {"scenarios": 7}, {"library": 7}]
)
def test_what_cannot_be_counted_is_played_all_the_same(wrong: dict[str, object]) -> None:
    lines: list[str] = []
    Watched(lines.append, "replay", {"agent": NEW} | wrong, Hand()).count(make_turn())
    assert lines == ["turngap: replay plays in real time"]


@pytest.mark.parametrize(("flag", "shown"), [("-v", True), ("-q", False)])
def test_it_is_shown_past_pytests_capture_where_somebody_watches(
    inner: Inner, agents: FakeAgents, flag: str, shown: bool
) -> None:
    result = inner(CODE, flag)
    result.assert_outcomes(passed=1)
    assert ("turngap: 21 turns in real time: about" in text_of(result)) is shown
