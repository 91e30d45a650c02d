"""Where a person's turns begin and end."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.live.finding import FoundTurn, TurnFinder
from turngap.live.wire import AgentStretch


class Talk:
    """Events by their ms; what was found, in order."""

    def __init__(self) -> None:
        self.finder = TurnFinder()
        self.found: list[FoundTurn] = []

    def user(self, start_ms: float, end_ms: float) -> "Talk":
        self.found += self.finder.user_started(ms_to_ns(start_ms))
        self.found += self.finder.tick(ms_to_ns(min(start_ms + 250, end_ms)))
        self.found += self.finder.user_stopped(ms_to_ns(end_ms))
        return self

    def agent(self, onset_ms: float, end_ms: float | None = None) -> "Talk":
        onset_ns = ms_to_ns(onset_ms)
        self.found += self.finder.agent_started(
            AgentStretch(onset_ns=onset_ns, received_ns=onset_ns)
        )
        return self if end_ms is None else self.quiet(end_ms)

    def quiet(self, ms: float) -> "Talk":
        self.found += self.finder.agent_stopped(ms_to_ns(ms))
        return self

    def does(
        self, method: Callable[[TurnFinder], Callable[[int], list[FoundTurn]]], ms: float
    ) -> "Talk":
        self.found += method(self.finder)(ms_to_ns(ms))
        return self

    def at(self, ms: float) -> "Talk":
        self.found += self.finder.tick(ms_to_ns(ms))
        return self

    @property
    def turns(self) -> list[tuple[float, float, str]]:
        return [(ns_to_ms(t.start_ns), ns_to_ms(t.end_ns), t.ended) for t in self.found]


def test_a_reply_ends_when_the_agent_has_been_quiet() -> None:
    talk = Talk().user(0, 1000).agent(1400, 2000).at(3400)
    assert talk.turns == []
    assert talk.at(3501).turns == [(0, 1000, "reply_done")]


def test_sooner_when_the_agent_calls_it_done() -> None:
    talk = Talk().user(0, 1000).agent(1400, 2000).does(lambda f: f.called_done, 1950).at(2201)
    assert talk.turns == [(0, 1000, "reply_done")]
    # What was called done before this reply says nothing of it.
    early = Talk().does(lambda f: f.called_done, 900).user(0, 1000).agent(1400, 2000).at(2300)
    assert early.turns == []


def test_no_reply_is_waited_for_six_seconds() -> None:
    talk = Talk().user(0, 1000).at(6990)
    assert talk.turns == []
    assert talk.at(7001).turns == [(0, 1000, "timeout")]


@pytest.mark.parametrize(("pause_ms", "turns"), [(900, 1), (1100, 2)])
def test_a_pause_is_within_a_turn_until_it_is_too_long(pause_ms: float, turns: int) -> None:
    talk = Talk().user(0, 1000).user(1000 + pause_ms, 3000).agent(3400, 4000).at(5600)
    assert len(talk.found) == turns
    assert talk.found[-1].end_ns == ms_to_ns(3000)
    if turns == 2:
        assert talk.turns[0] == (0, 1000, "interrupted")


def test_who_goes_on_as_the_agent_sets_in_was_cut_off() -> None:
    talk = Talk().user(0, 1000).agent(1400).user(1550, 2500).quiet(2600).agent(2900, 3500).at(5100)
    assert talk.turns == [(0, 2500, "reply_done")]
    assert [ns_to_ms(s.onset_ns) for s in talk.found[0].agent] == [1400, 2900]


def test_who_speaks_over_the_reply_begins_another_turn() -> None:
    talk = Talk().user(0, 1000).agent(1400).user(2000, 3000)
    assert talk.turns == [(0, 1000, "interrupted")]
    assert talk.found[0].ended_ns == ms_to_ns(2000)
    talk.quiet(2150).does(lambda f: f.flushed, 2150).agent(3300, 4000).at(5600)
    second = talk.found[1]
    assert second.over_reply
    assert [(s.onset_ns, s.end_ns) for s in second.agent] == [
        (ms_to_ns(1400), ms_to_ns(2150)),
        (ms_to_ns(3300), ms_to_ns(4000)),
    ]


def test_who_speaks_after_the_reply_ends_the_turn_before() -> None:
    talk = Talk().user(0, 1000).agent(1400, 2000).user(2500, 3000)
    assert talk.turns == [(0, 1000, "reply_done")]


def test_a_cough_is_no_turn() -> None:
    assert Talk().user(0, 150).at(9000).turns == []
    over_it = Talk().user(0, 1000).agent(1400).user(2000, 2100).quiet(2600).at(4200)
    assert over_it.turns == [(0, 1000, "reply_done")]


def test_an_agent_that_cut_in_and_fell_silent_is_waited_for() -> None:
    talk = Talk().user(0, 1000).agent(1100, 1300).user(1250, 2500).at(8400)
    assert talk.turns == []
    assert talk.at(8501).turns == [(0, 2500, "reply_done")]


def test_a_reply_whose_end_is_told_late_is_told_again_with_it() -> None:
    talk = Talk().user(0, 1000).agent(1400).user(2000, 3000)
    talk.quiet(1950)  # silence is told when it has lasted
    talk.agent(3300, 4000).at(5600)
    ends = [[s.end_ns for s in turn.agent] for turn in talk.found]
    assert ends == [[None], [ms_to_ns(1950), ms_to_ns(4000)]]


def test_an_agent_that_yields_before_the_speech_is_one_was_spoken_over() -> None:
    talk = Talk().user(0, 1000).agent(1400)
    talk.found += talk.finder.user_started(ms_to_ns(2000))
    talk.quiet(2120).at(2250)
    talk.found += talk.finder.user_stopped(ms_to_ns(3000))
    talk.agent(3300, 4000).at(5600)
    first, second = talk.found
    assert (first.ended, second.over_reply) == ("interrupted", True)
    assert [s.end_ns for s in second.agent] == [ms_to_ns(2120), ms_to_ns(4000)]


def test_a_greeting_is_nobodys_reply() -> None:
    talk = Talk().agent(0, 1500).user(2000, 3000).agent(3300, 4000).at(5600)
    assert talk.turns == [(2000, 3000, "reply_done")]
    assert [ns_to_ms(s.onset_ns) for s in talk.found[0].agent] == [3300]


def test_what_was_on_its_way_before_the_turn_is_not_its_reply() -> None:
    talk = Talk().user(0, 1000)
    talk.found += talk.finder.user_started(ms_to_ns(3000))
    talk.at(3300)
    late = AgentStretch(onset_ns=ms_to_ns(3400), received_ns=ms_to_ns(2900))
    talk.found += talk.finder.agent_started(late)
    talk.quiet(3600).does(lambda f: f.user_stopped, 4000).at(9900)
    assert talk.turns == [(0, 1000, "interrupted")]
    assert talk.at(10_100).turns[1] == (3000, 4000, "timeout")


def test_a_typed_turn_interrupts_as_a_spoken_one_does() -> None:
    talk = Talk().user(0, 1000).agent(1400).does(lambda f: f.typed, 2000)
    assert talk.turns == [(0, 1000, "interrupted")]
    talk.quiet(2050).agent(2500, 3000).at(4600)
    assert talk.found[1].typed
    assert talk.turns[1] == (2000, 2000, "reply_done")


def test_a_cancelled_reply_ends_its_turn_and_nothing_else_does() -> None:
    assert Talk().does(lambda f: f.cancelled, 10).turns == []
    before = Talk().user(0, 1000).does(lambda f: f.cancelled, 1200)
    assert before.turns == [(0, 1000, "interrupted")]
    during = Talk().user(0, 1000).agent(1400).does(lambda f: f.cancelled, 1600)
    assert during.turns == [(0, 1000, "interrupted")]
    after = Talk().user(0, 1000).agent(1400, 1500).does(lambda f: f.cancelled, 1600)
    assert after.turns == []


def test_what_was_noise_is_no_turn() -> None:
    talk = Talk().does(lambda f: f.user_started, 0).at(300)
    talk.finder.was_noise()
    assert talk.at(9000).turns == []
    after = Talk().user(0, 1000)
    after.finder.was_noise()  # of something that began later
    assert after.at(7001).turns == [(0, 1000, "timeout")]


def test_at_the_end_a_heard_reply_counts_and_an_unanswered_turn_does_not() -> None:
    assert Talk().user(0, 1000).agent(1400).does(lambda f: f.finish, 1600).turns == [
        (0, 1000, "reply_done")
    ]
    assert Talk().user(0, 1000).does(lambda f: f.finish, 1600).turns == []
    assert Talk().user(0, 1000).does(lambda f: f.lost, 1600).turns == [(0, 1000, "line_lost")]
    assert Talk().does(lambda f: f.lost, 1600).turns == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["user", "stop", "agent", "quiet", "flush", "done", "type", "tick", "cancel"]
        ),
        st.integers(0, 3000),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_turns_never_overlap_whatever_happens(steps: list[tuple[str, int]]) -> None:
    finder, now_ns = TurnFinder(), 0
    found: list[FoundTurn] = []
    does = {
        "user": finder.user_started,
        "stop": finder.user_stopped,
        "agent": lambda ns: finder.agent_started(AgentStretch(onset_ns=ns, received_ns=ns)),
        "quiet": finder.agent_stopped,
        "flush": finder.flushed,
        "done": finder.called_done,
        "type": finder.typed,
        "tick": finder.tick,
        "cancel": finder.cancelled,
    }
    for name, wait_ms in steps:
        now_ns += ms_to_ns(wait_ms)
        found += does[name](now_ns)
    found += finder.lost(now_ns)
    for turn in found:
        assert turn.start_ns <= turn.end_ns <= turn.ended_ns
    for before, after in pairwise(found):
        assert before.ended_ns <= after.ended_ns
        assert before.start_ns <= after.start_ns
        assert before.end_ns <= after.start_ns
