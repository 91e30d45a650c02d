"""Properties of every turn, whatever the line brings in whatever order."""

from collections.abc import Sequence
from typing import get_args

from hypothesis import assume, given
from hypothesis import strategies as st

from turngap.core.budget import OUTCOMES, TurnEnd, outcome_of
from turngap.core.clock import ns_to_ms
from turngap.core.events import (
    AgentSilence,
    AgentSpeech,
    Event,
    Flush,
    Marks,
    ReplyText,
    TrackedTurn,
    Transcript,
    TurnBroken,
    TurnEnded,
    UserSpeech,
)
from turngap.core.stages import MARKS, UNATTRIBUTED
from turngap.core.turns import TurnTracker

# Few turns, few instants, coarse: so that events meet, coincide and cross.
TURNS = st.integers(1, 4)
INSTANTS = st.integers(0, 60).map(lambda n: n * 100_000_000)
REASONS: st.SearchStrategy[TurnEnd] = st.sampled_from(get_args(TurnEnd))
MARK_SETS = st.dictionaries(st.sampled_from([*MARKS, "unheard_of"]), INSTANTS, max_size=6)
WORDS = st.sampled_from(["", " ", "yes", "no "])

SPEECHES = st.builds(
    lambda turn, start, length, over, budget: UserSpeech(turn, start, start + length, over, budget),
    TURNS,
    INSTANTS,
    INSTANTS,
    st.booleans(),
    st.sampled_from([300.0, 800.0]),
)
AGENT_SPEECHES = st.builds(
    lambda onset, early, lead: AgentSpeech(onset, max(0, onset - early), lead),
    INSTANTS,
    INSTANTS,
    INSTANTS,
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    SPEECHES,
    AGENT_SPEECHES,
    AGENT_SPEECHES,
    st.builds(AgentSilence, INSTANTS),
    st.builds(Flush, at_ns=INSTANTS),
    st.builds(Marks, TURNS, MARK_SETS),
    st.builds(TurnBroken, INSTANTS, WORDS),
    st.builds(Transcript, WORDS, at_ns=INSTANTS),
    st.builds(ReplyText, WORDS, at_ns=INSTANTS),
    st.builds(TurnEnded, TURNS, INSTANTS, REASONS),
)


@st.composite
def courses(draw: st.DrawFn) -> list[Event]:
    """Any events, and somewhere after its announcement an end for every announced turn."""
    events = draw(st.lists(EVENTS, min_size=draw(st.sampled_from([0, 20])), max_size=40))
    announced = {e.turn for e in events if isinstance(e, UserSpeech)}
    for turn in sorted(announced):
        first = next(
            i for i, e in enumerate(events) if isinstance(e, UserSpeech) and e.turn == turn
        )
        end = TurnEnded(turn, draw(INSTANTS | st.just(10**12)), draw(REASONS))
        events.insert(draw(st.integers(first + 1, len(events))), end)
    return events


def play(events: Sequence[Event]) -> list[TrackedTurn]:
    tracker = TurnTracker()
    return [turn for event in events for turn in tracker.feed(event)]


@given(courses())
def test_every_announced_and_ended_turn_comes_out_once(events: list[Event]) -> None:
    announced = {e.turn for e in events if isinstance(e, UserSpeech)}
    turns = play(events)
    assert sorted(t.turn for t in turns) == sorted(announced)


@given(courses())
def test_every_turn_has_the_one_outcome_that_its_gap_and_end_make(events: list[Event]) -> None:
    budgets: dict[int, float] = {}
    tracker = TurnTracker()
    for event in events:
        if isinstance(event, UserSpeech):
            budgets[event.turn] = event.budget_ms
        for turn in tracker.feed(event):
            gap = None if turn.gap_ns is None else ns_to_ms(turn.gap_ns)
            assert turn.outcome in OUTCOMES
            failed = turn.error is not None
            assert turn.outcome == outcome_of(gap, budgets[turn.turn], turn.ended, failed=failed)


@given(courses())
def test_a_gap_is_missing_just_where_no_onset_was_heard_and_says_why(events: list[Event]) -> None:
    for turn in play(events):
        assert (turn.gap_ns is None) == (turn.onset_ns is None) == (turn.why_no_gap is not None)
        if turn.onset_ns is not None:
            assert turn.gap_ns == turn.onset_ns - turn.user_end_ns
            assert turn.user_start_ns <= turn.onset_ns <= turn.ended_ns


@given(courses())
def test_stages_sum_to_the_gap(events: list[Event]) -> None:
    for turn in play(events):
        assert sum(s.ns for s in turn.stages) == (turn.gap_ns or 0)
        assert bool(turn.stages) == (turn.gap_ns is not None)
        assert all(s.ns >= 0 or turn.outcome in ("cut_in", "error") for s in turn.stages)
        assert all(s.name in turn.marks or s.name == UNATTRIBUTED for s in turn.stages)


@given(courses())
def test_an_onset_was_heard_and_answers_one_turn_only(events: list[Event]) -> None:
    announced = {e.turn: e.start_ns for e in events if isinstance(e, UserSpeech)}
    assume(len(set(announced.values())) == len(announced))
    heard = {e.onset_ns for e in events if isinstance(e, AgentSpeech)}
    # A turn that ends before a later one is announced cannot know of it.
    facts = [e for e in events if not isinstance(e, TurnEnded)]
    ends = [e for e in events if isinstance(e, TurnEnded)]
    onsets = [t.onset_ns for t in play([*facts, *ends]) if t.onset_ns is not None]
    assert set(onsets) <= heard
    assert len(onsets) == len(set(onsets))


@given(courses())
def test_yield_and_lead_are_durations_within_what_they_are_parts_of(events: list[Event]) -> None:
    for turn in play(events):
        assert turn.yield_ns is None or turn.yield_ns >= 0
        if turn.lead_ns is not None:
            assert turn.gap_ns is not None
            assert 0 <= turn.lead_ns <= turn.gap_ns


@given(courses())
def test_the_order_in_which_facts_arrive_is_free(events: list[Event]) -> None:
    announced = [e for e in events if isinstance(e, UserSpeech)]
    facts = [e for e in events if not isinstance(e, UserSpeech | TurnEnded | Marks)]
    ends = [e for e in events if isinstance(e, TurnEnded)]
    onsets = [e.onset_ns for e in facts if isinstance(e, AgentSpeech)]
    assume(len(set(onsets)) == len(onsets))
    in_order = play([*announced, *sorted(facts, key=_instant), *ends])
    as_drawn = play([*facts, *announced, *ends])
    assert as_drawn == in_order


def _instant(event: Event) -> int:
    return event.onset_ns if isinstance(event, AgentSpeech) else getattr(event, "at_ns", 0)


@given(courses())
def test_asking_is_always_allowed_and_changes_nothing(events: list[Event]) -> None:
    asked, silent = TurnTracker(), TurnTracker()
    for event in events:
        assert asked.feed(event) == silent.feed(event)
        for turn in range(6):
            onset = asked.onset_of(turn)
            assert onset is None or onset >= 0
            asked.has_heard_marks(turn)
        assert asked.agent_speaking in (True, False)
