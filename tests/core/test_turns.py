"""Hand-written courses of a conversation, in ms, as a real line produces them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from turngap.core.audio import UNPLACED_MS
from turngap.core.budget import Outcome, TurnEnd
from turngap.core.clock import ms_to_ns
from turngap.core.credits import HeardSpeech
from turngap.core.events import (
    AgentBed,
    AgentSilence,
    AgentSpeech,
    Event,
    Fault,
    Flush,
    Marks,
    NoReply,
    ReplyText,
    TrackedTurn,
    Transcript,
    TurnBroken,
    TurnEnded,
    TurnOver,
    UserSpeech,
)
from turngap.core.stages import AGENT_MARKS, UNATTRIBUTED, Slack
from turngap.core.turns import TurnTracker


def user(turn: int, start: float, end: float, *, over: bool = False) -> UserSpeech:
    return UserSpeech(turn, ms_to_ns(start), ms_to_ns(end), over)


def speaks(onset: float, *, received: float | None = None, lead: float = 0) -> AgentSpeech:
    arrival = onset if received is None else received
    return AgentSpeech(ms_to_ns(onset), ms_to_ns(arrival), ms_to_ns(lead))


def silent(at: float) -> AgentSilence:
    return AgentSilence(ms_to_ns(at))


def flushed(at: float) -> Flush:
    return Flush(at_ns=ms_to_ns(at))


def heard_as(at: float, text: str) -> Transcript:
    return Transcript(text, at_ns=ms_to_ns(at))


def says(at: float, text: str) -> ReplyText:
    return ReplyText(text, at_ns=ms_to_ns(at))


def marks(agent_turn: int, **at_ms: float) -> Marks:
    return Marks(agent_turn, {name: ms_to_ns(ms) for name, ms in at_ms.items()})


def failed(told: Marks, error: str = "no server") -> Marks:
    return Marks(told.agent_turn, told.marks, error=error)


def ended(turn: int, at: float, reason: TurnEnd = "reply_done") -> TurnEnded:
    return TurnEnded(turn, ms_to_ns(at), reason)


def play(*events: Event) -> list[TrackedTurn]:
    tracker = TurnTracker()
    return [turn for event in events for turn in tracker.feed(event)]


def outcomes(turns: Sequence[TrackedTurn]) -> list[Outcome]:
    return [turn.outcome for turn in turns]


def gap_ms(turn: TrackedTurn) -> float | None:
    return None if turn.gap_ns is None else turn.gap_ns / 1e6


def yield_ms(turn: TrackedTurn) -> float | None:
    return None if turn.yield_ns is None else turn.yield_ns / 1e6


# --- plain turns ------------------------------------------------------------------------------


def test_an_answered_turn() -> None:
    (turn,) = play(
        user(1, 0, 1000),
        heard_as(1050, " what time is it "),
        says(1200, "Ten"),
        says(1250, " past two. "),
        speaks(1400, received=1380, lead=15),
        silent(2400),
        ended(1, 2600),
    )
    assert (turn.turn, turn.outcome, turn.ended, gap_ms(turn)) == (1, "answered", "reply_done", 400)
    assert (turn.onset_ns, turn.user_end_ns) == (ms_to_ns(1400), ms_to_ns(1000))
    assert (turn.transcript, turn.reply) == ("what time is it", "Ten past two.")
    assert (turn.lead_ns, turn.yield_ns, turn.why_no_gap) == (ms_to_ns(15), None, None)


@pytest.mark.parametrize(("onset", "outcome"), [(1500, "answered"), (1500.001, "late")])
def test_a_turn_is_judged_by_its_own_budget(onset: float, outcome: Outcome) -> None:
    speech = UserSpeech(1, 0, ms_to_ns(1000), budget_ms=500.0)
    (turn,) = play(speech, speaks(onset), ended(1, 9000))
    assert turn.outcome == outcome


def test_each_turn_gets_the_reply_in_its_own_stretch() -> None:
    turns = play(
        *(user(1, 0, 1000), heard_as(1100, "one"), says(1200, "first")),
        *(speaks(1300), silent(2000), ended(1, 2200)),
        *(user(2, 2500, 3500), heard_as(3600, "two"), says(3700, "second")),
        *(speaks(4000), silent(5000), ended(2, 5200)),
    )
    assert [gap_ms(t) for t in turns] == [300, 500]
    assert [(t.transcript, t.reply) for t in turns] == [("one", "first"), ("two", "second")]


def test_a_reply_of_several_sentences_begins_with_the_first() -> None:
    (turn,) = play(
        user(1, 0, 1000),
        *(speaks(1400), silent(2000), speaks(2600), silent(3000)),
        ended(1, 4000),
    )
    assert gap_ms(turn) == 400


@pytest.mark.parametrize(
    ("reason", "outcome", "why"),
    [
        ("timeout", "no_reply", "no audible reply before the caller stopped waiting"),
        ("reply_done", "no_reply", "the reply held no audible speech"),
        ("interrupted", "abandoned", "the next turn began before any reply"),
        ("line_lost", "error", "the line was lost before any reply"),
    ],
)
def test_a_turn_without_a_reply_says_why(reason: TurnEnd, outcome: Outcome, why: str) -> None:
    (turn,) = play(user(1, 0, 1000), ended(1, 7000, reason))
    assert (turn.outcome, turn.gap_ns, turn.onset_ns, turn.why_no_gap) == (outcome, None, None, why)
    assert (turn.stages, turn.lead_ns, turn.yield_ns) == ((), None, None)


def test_a_first_word_that_cannot_be_placed_is_no_gap() -> None:
    bed, word = AgentBed(0, -30), replace(speaks(1400), spread_ns=ms_to_ns(UNPLACED_MS))
    (turn,) = play(user(1, 0, 1000), bed, word, silent(2400), ended(1, 2600))
    why = "the first word, near 400 ms, cannot be placed under the bed (-30 dBFS)"
    assert (turn.gap_ns, turn.onset_ns, turn.first_answer_ns, turn.why_no_gap) == (
        *(None,) * 3,
        why,
    )


def test_the_spread_covers_the_answer_after_a_hold_phrase() -> None:
    hold, answer = (
        replace(speaks(at), spread_ns=ms_to_ns(ms)) for at, ms in ((1400, 5), (4400, 40))
    )
    (turn,) = play(user(1, 0, 1000), hold, silent(1900), answer, silent(6000), ended(1, 8000))
    assert (gap_ms(turn), turn.first_answer_ns) == (400, ms_to_ns(3400))
    assert turn.onset_spread_ns == ms_to_ns(40)


def test_a_line_lost_in_the_middle_of_the_reply_is_an_error_that_keeps_its_gap() -> None:
    (turn,) = play(user(1, 0, 1000), speaks(1400), ended(1, 1500, "line_lost"))
    assert (turn.outcome, gap_ms(turn), turn.why_no_gap) == ("error", 400, None)
    assert sum(s.ns for s in turn.stages) == turn.gap_ns


def test_a_reply_that_comes_after_the_caller_stopped_waiting_is_none() -> None:
    turns = play(
        user(1, 0, 1000),
        ended(1, 7000, "timeout"),
        *(speaks(7100), silent(7900)),
        *(user(2, 8200, 9000), speaks(9400), silent(9900), ended(2, 9999)),
    )
    assert outcomes(turns) == ["no_reply", "answered"]
    assert gap_ms(turns[1]) == 400


def test_an_onset_that_was_still_to_be_played_when_the_turn_ended_is_none() -> None:
    (turn,) = play(
        user(1, 0, 1000), speaks(7050, received=6990), ended(1, 7000, "timeout"), silent(7900)
    )
    assert (turn.outcome, turn.gap_ns) == ("no_reply", None)


def test_only_the_silence_within_the_gap_is_lead() -> None:
    # Some agents send silence all the time.
    (turn,) = play(user(1, 0, 1000), speaks(1400, lead=9000), ended(1, 3000))
    assert turn.lead_ns == ms_to_ns(400)


# --- the agent cuts in ------------------------------------------------------------------------


def test_a_cut_in_has_a_negative_gap_that_no_stage_spent() -> None:
    (turn,) = play(
        user(1, 0, 1000),
        speaks(800, lead=100),
        marks(1, endpoint=500, sent=790),
        silent(2000),
        ended(1, 2300),
    )
    assert (turn.outcome, gap_ms(turn)) == ("cut_in", -200)
    assert [(s.name, s.ns) for s in turn.stages] == [(UNATTRIBUTED, ms_to_ns(-200))]
    assert turn.lead_ns is None  # there is no gap for it to be a part of


def test_a_cut_in_in_a_pause_stays_one_though_the_real_answer_follows() -> None:
    # "I'd like ... (pause) ... a large latte": answered in the pause, interrupted, answered again.
    (turn,) = play(
        user(1, 0, 3000),
        *(heard_as(1500, "I'd like"), says(1600, "What "), says(1650, "size?")),
        *(speaks(1700), flushed(2000), silent(1990)),
        *(heard_as(3100, "a large latte"), says(3300, "Coming up.")),
        *(speaks(3500), silent(4500)),
        ended(1, 4700),
    )
    assert (turn.outcome, gap_ms(turn)) == ("cut_in", -1300)
    assert turn.transcript == "I'd like a large latte"
    assert turn.reply == "What size? Coming up."


def test_a_premature_reply_that_was_flushed_unheard_is_no_cut_in() -> None:
    (turn,) = play(
        user(1, 0, 3000),
        speaks(2100, received=1900),  # behind 200 ms of silence that the flush cut short
        flushed(2000),
        *(speaks(3400), silent(4400)),
        ended(1, 4600),
    )
    assert (turn.outcome, gap_ms(turn)) == ("answered", 400)


def test_speaking_on_into_the_next_turn_is_no_answer_to_it() -> None:
    # Two replies to turn 1, the second of which is under way when the user speaks again.
    turns = play(
        *(user(1, 0, 1000), speaks(1400), silent(2000), ended(1, 3500)),
        speaks(3900),
        user(2, 4000, 6000),
        *(flushed(4300), silent(4290)),
        *(speaks(6500), silent(7000), ended(2, 7200)),
    )
    assert [gap_ms(t) for t in turns] == [400, 500]
    assert yield_ms(turns[1]) == 290


def test_a_second_reply_that_arrived_before_the_user_spoke_is_no_cut_in() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400), silent(2000), ended(1, 3500)),
        user(2, 4000, 6000),
        *(speaks(4020, received=3990), silent(4700)),
        *(speaks(6500), silent(7000), ended(2, 7200)),
    )
    assert [gap_ms(t) for t in turns] == [400, 500]


def test_a_second_reply_that_began_after_the_user_did_is_a_cut_in() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400), silent(2000), ended(1, 3500)),
        user(2, 4000, 6000),
        *(speaks(4300), silent(5400)),
        *(speaks(6500), silent(7000), ended(2, 7200)),
    )
    assert outcomes(turns) == ["answered", "cut_in"]
    assert gap_ms(turns[1]) == 4300 - 6000


# --- barge-in ---------------------------------------------------------------------------------


def test_barge_in_with_a_flush() -> None:
    turns = play(
        *(user(1, 0, 1000), says(1300, "A long"), speaks(1400)),
        user(2, 2000, 3000, over=True),
        ended(1, 2000, "interrupted"),
        says(2050, " story"),
        *(flushed(2400), silent(2395)),
        says(3300, "Fine."),
        *(speaks(3400), silent(4000), ended(2, 4200)),
    )
    assert outcomes(turns) == ["answered", "answered"]
    assert [gap_ms(t) for t in turns] == [400, 400]
    assert [yield_ms(t) for t in turns] == [None, 395]
    assert turns[1].reply == "Fine."  # not " story", which the agent had yet to drop


def test_barge_in_while_the_first_turn_is_still_open() -> None:
    # The caller leaves an interrupted turn open, for marks that come with its interruption.
    turns = play(
        *(user(1, 0, 1000), speaks(1400)),
        user(2, 2000, 3000, over=True),
        *(flushed(2400), silent(2395)),
        marks(1, endpoint=1200, sent=1390),
        *(marks(2, endpoint=3200, sent=3390), speaks(3400), silent(4000)),
        *(ended(1, 4200, "interrupted"), ended(2, 4200)),
    )
    assert [gap_ms(t) for t in turns] == [400, 400]
    assert [[a.agent_turn for a in t.agent_turns] for t in turns] == [[1], [2]]


def test_barge_in_without_a_flush_waits_until_the_old_reply_has_died_away() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400)),
        user(2, 2000, 2500, over=True),
        ended(1, 2000, "interrupted"),
        silent(2700),
        *(speaks(3100), silent(4000)),  # the next sentence of the old reply
        *(speaks(4600), silent(5000)),
        ended(2, 5200),
    )
    assert [gap_ms(t) for t in turns] == [400, 2100]
    assert yield_ms(turns[1]) is None  # it ended by itself


def test_after_a_flush_even_a_prompt_reply_is_a_new_one() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400)),
        user(2, 2000, 2300, over=True),  # "stop"
        ended(1, 2000, "interrupted"),
        *(flushed(2400), silent(2390)),
        *(speaks(2450), silent(3000), ended(2, 3200)),
    )
    assert gap_ms(turns[1]) == 150
    assert yield_ms(turns[1]) == 390


def test_barge_in_between_two_sentences() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400), silent(1900)),
        user(2, 2000, 3000, over=True),
        ended(1, 2000, "interrupted"),
        *(speaks(2200), flushed(2400), silent(2380)),
        *(speaks(3400), silent(4000), ended(2, 4200)),
    )
    assert [gap_ms(t) for t in turns] == [400, 400]
    assert yield_ms(turns[1]) == 380


def test_audio_that_waited_in_the_buffer_is_the_old_reply() -> None:
    # A reply sent all at once, its sentences far apart, and an agent that does not flush.
    turns = play(
        *(user(1, 0, 1000), speaks(1400, received=1390), silent(2000)),
        ended(1, 2000, "interrupted"),
        user(2, 2100, 4000),
        *(speaks(2900, received=1500), silent(3500)),
        *(speaks(4400, received=4390), silent(5000), ended(2, 5200)),
    )
    assert [gap_ms(t) for t in turns] == [400, 400]


def test_an_old_reply_that_stops_and_goes_on_in_the_next_turn_yields_in_each() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400), ended(1, 2000, "interrupted")),
        *(user(2, 2000, 2200, over=True), silent(2400), flushed(2410)),
        *(user(3, 2500, 3000, over=True), speaks(2600), silent(2700), flushed(2750)),
        *(ended(2, 2900, "interrupted"), speaks(3400), silent(4000), ended(3, 4200)),
    )
    assert outcomes(turns) == ["answered", "abandoned", "answered"]
    assert [yield_ms(t) for t in turns] == [None, 400, 200]


def test_the_text_of_a_turn_is_not_lost_to_a_flush_in_a_later_one() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400)),
        *(user(2, 2000, 2500, over=True), silent(2700), says(3000, "Well."), speaks(3300)),
        *(user(3, 4000, 4500, over=True), flushed(4300)),
        *(ended(1, 5000, "interrupted"), ended(2, 5000, "interrupted")),
    )
    assert turns[1].reply == "Well."


def test_an_agent_that_never_yields_has_no_yield_and_gives_no_answer() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400)),
        user(2, 2000, 3000, over=True),
        *(ended(1, 2000, "interrupted"), ended(2, 9000, "timeout")),
    )
    assert outcomes(turns) == ["answered", "no_reply"]
    assert turns[1].yield_ns is None


def test_an_old_reply_can_outlast_a_whole_turn() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1400)),
        *(user(2, 2000, 2200, over=True), ended(1, 2000, "interrupted")),
        *(user(3, 2500, 3000, over=True), ended(2, 2500, "interrupted")),
        *(flushed(2800), silent(2790)),
        *(speaks(3400), silent(4000), ended(3, 4200)),
    )
    assert outcomes(turns) == ["answered", "abandoned", "answered"]
    # It was still to be heard when turn 2 was over.
    assert [yield_ms(t) for t in turns] == [None, None, 290]


@pytest.mark.parametrize("ended_at", [1500, 3700])
def test_a_turn_that_nobody_answered_before_the_next_is_abandoned(ended_at: float) -> None:
    turns = play(
        *(user(1, 0, 1000), user(2, 1500, 2500)),
        *(speaks(2900), silent(3500)),
        *(ended(1, ended_at, "interrupted"), ended(2, 3700)),
    )
    assert outcomes(turns) == ["abandoned", "answered"]
    assert [t.waited_ns for t in turns] == [500 * 10**6, None]
    assert gap_ms(turns[1]) == 400


@pytest.mark.parametrize(("onset", "outcome"), [(1600, "no_reply"), (1900, "cut_in")])
def test_a_reply_to_an_abandoned_turn_that_sounds_in_the_next_may_be_a_cut_in(
    onset: float, outcome: Outcome
) -> None:
    # The caller cannot know what it answers; but nobody answers what they have hardly heard.
    turns = play(
        user(1, 0, 1000),
        user(2, 1500, 2500),
        *(ended(1, 1500, "interrupted"), speaks(onset), silent(2700), ended(2, 4000)),
    )
    assert outcomes(turns) == ["abandoned", outcome]
    assert bool(turns[1].ambiguous) == (outcome == "no_reply")


# --- backchannels -----------------------------------------------------------------------------


def test_a_backchannel_takes_no_turn_whatever_the_agent_makes_of_it() -> None:
    turns = play(
        *(user(1, 0, 1000), heard_as(1100, "tell me"), speaks(1400)),
        *(flushed(2200), silent(2190), heard_as(2300, "mm-hm")),  # it stops for it, and starts anew
        *(speaks(2700), silent(3500), ended(1, 3700)),
        *(user(2, 4000, 5000), speaks(5300), silent(6000), ended(2, 6200)),
    )
    assert outcomes(turns) == ["answered", "answered"]
    assert [gap_ms(t) for t in turns] == [400, 300]
    assert [yield_ms(t) for t in turns] == [None, None]


@pytest.mark.parametrize(("flushed_at", "outcome"), [(1950, "answered"), (1810, "cut_in")])
def test_a_flush_after_a_sound_of_assent_did_not_cut_it_off(
    flushed_at: float, outcome: Outcome
) -> None:
    (turn,) = play(
        *(user(1, 0, 4000), speaks(1500), silent(1800), flushed(flushed_at)),
        *(speaks(4500), silent(5500), ended(1, 5700)),
    )
    assert (turn.outcome, turn.backchannels_heard) == (outcome, int(outcome == "answered"))


@pytest.mark.parametrize(
    ("end", "told", "guessed"), [(990, (), 1), (1050, (), 1), (850, (), 0), (990, (1200.0,), 0)]
)
def test_a_short_word_at_the_persons_end_is_a_guess_unless_the_agent_decided_later(
    end: float, told: tuple[float, ...], guessed: int
) -> None:
    (turn,) = play(
        *(user(1, 0, 1000), speaks(600), silent(end), *(told_over(at) for at in told)),
        *(speaks(1700), silent(2500), ended(1, 2700)),
    )
    assert (turn.outcome, gap_ms(turn), turn.backchannels_heard) == ("answered", 700, 1)
    assert (len(turn.guesses), turn.ambiguous) == (guessed, ())


# --- the agent's marks ------------------------------------------------------------------------

FULL = {name: 1000.0 + 24 * i for i, name in enumerate(AGENT_MARKS, start=1)}  # sent at 1240


def test_the_agents_marks_cut_the_gap_into_stages() -> None:
    (turn,) = play(user(1, 0, 1000), marks(7, **FULL), speaks(1300, received=1250), ended(1, 3000))
    assert [(s.name, s.ns / 1e6) for s in turn.stages] == [
        *((name, 24) for name in AGENT_MARKS),
        ("received", 10),
        ("agent_onset", 50),
    ]
    assert turn.agent_turns == (marks(7, **FULL),)


def test_marks_may_come_in_pieces() -> None:
    names = list(FULL)
    (turn,) = play(
        user(1, 0, 1000),
        marks(7, **{n: FULL[n] for n in names[:3]}),
        speaks(1300, received=1250),
        marks(7, **{n: FULL[n] for n in names[3:]}),
        ended(1, 3000),
    )
    assert turn.agent_turns == (marks(7, **FULL),)
    assert UNATTRIBUTED not in [s.name for s in turn.stages]


def test_without_marks_the_gap_is_unattributed() -> None:
    (turn,) = play(user(1, 0, 1000), speaks(1300, received=1250), ended(1, 3000))
    assert [(s.name, s.ns / 1e6) for s in turn.stages] == [(UNATTRIBUTED, 250), ("agent_onset", 50)]


def test_marks_that_come_after_the_turns_end_change_neither_it_nor_the_next() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1300), silent(2000), ended(1, 2200)),
        user(2, 2500, 3500),
        marks(1, **FULL),
        *(speaks(3900), silent(4500), ended(2, 4700)),
    )
    assert [t.agent_turns for t in turns] == [(), ()]


def test_of_two_agent_turns_in_one_user_turn_the_heard_one_explains_the_gap() -> None:
    # A false endpoint in a pause: its reply was dropped before it sounded.
    false_endpoint = marks(1, endpoint=900, transcript=910, sent=1990)
    answer = marks(2, endpoint=3100, transcript=3110, sent=3390)
    (turn,) = play(
        user(1, 0, 3000),
        *(false_endpoint, flushed(2000), answer),
        *(speaks(3400, received=3395), silent(4000), ended(1, 4200)),
    )
    assert turn.agent_turns == (false_endpoint, answer)
    assert turn.marks["endpoint"] == ms_to_ns(3100)


def test_the_heard_one_is_the_first_when_the_second_was_sent_too_late_for_it() -> None:
    first, second = marks(1, endpoint=1100, sent=1390), marks(2, endpoint=1500, sent=1800)
    (turn,) = play(
        user(1, 0, 1000), *(second, first), speaks(1750, received=1700, lead=350), ended(1, 4000)
    )
    assert turn.marks["endpoint"] == ms_to_ns(1100)
    assert turn.agent_turns == (first, second)


def test_an_agent_turn_that_was_sent_after_what_was_heard_does_not_explain_it() -> None:
    (turn,) = play(
        user(1, 0, 1000), speaks(1300), marks(2, endpoint=1500, sent=1800), ended(1, 4000)
    )
    assert "endpoint" not in turn.marks
    assert turn.stages[0].name == UNATTRIBUTED


# --- an agent that fails ----------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["timeout", "reply_done", "interrupted"])
def test_an_agent_that_says_it_could_not_answer_is_an_error_with_its_reason(
    reason: TurnEnd,
) -> None:
    told = failed(marks(1, llm_request=1100))
    (turn,) = play(user(1, 0, 1000), told, ended(1, 7000, reason))
    assert (turn.outcome, turn.error) == ("error", "no server")
    assert turn.why_no_gap == "the agent failed: no server"


def test_a_reply_that_fails_on_the_way_is_an_error_that_keeps_its_gap() -> None:
    (turn,) = play(
        *(user(1, 0, 1000), failed(marks(1, llm_request=1100)), speaks(1400)),
        *(marks(1, sent=1390), silent(1900), ended(1, 2400)),
    )
    assert (turn.outcome, turn.error, gap_ms(turn)) == ("error", "no server", 400)
    assert turn.why_no_gap is None
    assert turn.marks["llm_request"] == ms_to_ns(1100)


def test_an_attempt_that_failed_before_the_one_that_was_heard_is_no_error() -> None:
    first = failed(marks(1, llm_request=600))
    heard = marks(2, llm_request=1100, sent=1390)
    (turn,) = play(user(1, 0, 1000), first, heard, speaks(1400), silent(1900), ended(1, 2400))
    assert (turn.outcome, turn.error) == ("answered", None)


def test_a_failure_is_of_the_turn_in_which_it_happened() -> None:
    turns = play(
        *(user(1, 0, 1000), failed(marks(1, llm_request=1100)), ended(1, 7000, "timeout")),
        *(user(2, 8000, 9000), marks(2, llm_request=9100, sent=9300), speaks(9310)),
        *(silent(9900), ended(2, 10_000)),
    )
    assert outcomes(turns) == ["error", "answered"]


def reports(at: float, error: str = "no voice") -> Fault:
    return Fault(error, at_ns=ms_to_ns(at))


def test_an_error_told_in_a_message_counts_as_one_told_with_marks() -> None:
    """Check a reply that never came, and one that was heard but may not be whole."""
    (silent_turn,) = play(user(1, 0, 1000), reports(1500), ended(1, 7000, "timeout"))
    assert (silent_turn.outcome, silent_turn.error) == ("error", "no voice")
    assert silent_turn.why_no_gap == "the agent failed: no voice"
    heard = (speaks(1400), silent(1900), ended(1, 2400))
    for at in (1200, 1600):
        (turn,) = play(user(1, 0, 1000), reports(at), *heard)
        assert (turn.outcome, turn.error, gap_ms(turn)) == ("error", "no voice", 400)
        with_marks = failed(marks(1, llm_request=1100, sent=1390), "no voice")
        (turn,) = play(user(1, 0, 1000), with_marks, *heard)
        assert (turn.outcome, turn.error, gap_ms(turn)) == ("error", "no voice", 400)


def test_errors_before_the_agents_turns_are_each_of_the_turn_they_were_told_in() -> None:
    told = [Marks(0, {}, error="stt: gone", told_ns=ms_to_ns(at)) for at in (1500, 9500)]
    first = user(1, 0, 1000), told[0], ended(1, 7000, "timeout")
    second = user(2, 8000, 9000), told[1], ended(2, 15_000, "timeout")
    assert [t.error for t in play(*first, *second)] == ["stt: gone", "stt: gone"]


def test_an_agent_that_has_nothing_to_say_gave_no_reply_and_its_reason_is_kept() -> None:
    told = NoReply("llm: the reply is empty", at_ns=ms_to_ns(1500))
    (turn,) = play(user(1, 0, 1000), told, ended(1, 7000, "timeout"))
    assert (turn.outcome, turn.error) == ("no_reply", None)
    assert str(turn.why_no_gap).endswith(": llm: the reply is empty")
    (turn,) = play(user(1, 0, 1000), told, reports(2000), ended(1, 7000, "timeout"))
    assert (turn.outcome, turn.error) == ("error", "no voice")
    (turn,) = play(user(1, 0, 1000), told, speaks(1700), silent(1900), ended(1, 2400))
    assert (turn.outcome, turn.why_no_gap) == ("answered", None)


def test_a_message_of_an_attempt_that_nobody_missed_is_no_error() -> None:
    """It came while the person still spoke, and the reply to the whole turn was heard."""
    (turn,) = play(
        *(user(1, 0, 1000), reports(700), speaks(1400), silent(1900), ended(1, 2400)),
    )
    assert (turn.outcome, turn.error) == ("answered", None)


def test_a_message_is_of_the_turn_in_which_it_came() -> None:
    turns = play(
        *(user(1, 0, 1000), reports(1500), ended(1, 7000, "timeout")),
        *(user(2, 8000, 9000), speaks(9310), silent(9900), ended(2, 10_000)),
    )
    assert outcomes(turns) == ["error", "answered"]


def test_marks_say_which_attempt_failed_so_they_decide_where_there_are_any() -> None:
    """A tool that failed is told in a message, too, and the answer was whole all the same."""
    heard = marks(1, llm_request=1100, sent=1390)
    (turn,) = play(
        *(user(1, 0, 1000), reports(1200), heard, speaks(1400), silent(1900), ended(1, 2400)),
    )
    assert (turn.outcome, turn.error) == ("answered", None)


def test_marks_without_an_error_do_not_hide_a_message_where_nothing_was_heard() -> None:
    (turn,) = play(
        *(user(1, 0, 1000), marks(1, llm_request=1100), reports(1200)),
        ended(1, 7000, "timeout"),
    )
    assert (turn.outcome, turn.error) == ("error", "no voice")


def test_an_agent_whose_marks_do_not_say_what_it_sent_has_its_errors_counted() -> None:
    told = failed(marks(1, llm_request=1100))
    (turn,) = play(user(1, 0, 1000), told, speaks(1400), silent(1900), ended(1, 2400))
    assert (turn.outcome, turn.error) == ("error", "no server")


def test_an_error_that_the_agent_takes_back_is_none() -> None:
    """It was late, and went on."""
    said = marks(1, llm_request=1100, sent=1390)
    late, on = failed(said, "llm: no token for 1 s"), failed(said, "")
    (turn,) = play(
        *(user(1, 0, 1000), late, on, marks(1, sent=1390), speaks(1400), silent(1900)),
        ended(1, 2400),
    )
    assert (turn.outcome, turn.error) == ("answered", None)


def test_a_clock_offset_somewhat_off_does_not_lose_the_marks() -> None:
    (turn,) = play(
        user(1, 0, 1000), marks(1, endpoint=1200, sent=1320), speaks(1300), ended(1, 4000)
    )
    assert turn.marks["sent"] == ms_to_ns(1320)
    assert sum(s.ns for s in turn.stages) == turn.gap_ns


def test_an_agent_turn_that_was_never_heard_is_kept() -> None:
    aborted = marks(1, endpoint=1100, transcript=1110, llm_request=1120)
    (turn,) = play(user(1, 0, 1000), aborted, ended(1, 7000, "timeout"))
    assert turn.agent_turns == (aborted,)
    assert turn.marks == {"user_end": ms_to_ns(1000)}


def test_the_callers_own_marks_are_not_the_agents_to_say() -> None:
    claims = marks(1, user_end=1299, agent_onset=1001, received=1, sent=1250, other=5)
    (turn,) = play(user(1, 0, 1000), claims, speaks(1300, received=1280), ended(1, 4000))
    assert turn.marks == {
        "user_end": ms_to_ns(1000),
        "sent": ms_to_ns(1250),
        "received": ms_to_ns(1280),
        "agent_onset": ms_to_ns(1300),
    }


# --- what a line should not do, and does ------------------------------------------------------


def test_events_without_a_turn_are_no_trouble() -> None:
    stray = (
        silent(5),
        flushed(6),
        speaks(7),
        silent(8),
        marks(1),
        marks(2, sent=8),
        heard_as(9, "x"),
        says(9, "y"),
    )
    assert play(*stray, ended(4, 10)) == []
    (turn,) = play(*stray, user(1, 1000, 2000), speaks(2300), silent(2500), ended(1, 3000))
    assert (turn.outcome, turn.transcript, turn.reply) == ("answered", "", "")


def test_no_turn_is_returned_twice() -> None:
    first = (user(1, 0, 1000), speaks(1300), ended(1, 2000))
    assert len(play(*first, ended(1, 2100), user(1, 0, 1000), ended(1, 2200))) == 1


def test_a_finished_turn_announced_again_takes_nothing_from_the_others() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1300), silent(1500), ended(1, 2000), user(2, 2500, 3500)),
        user(1, 3600, 3700),
        *(speaks(3900), ended(2, 5000)),
    )
    assert [gap_ms(t) for t in turns] == [300, 400]


def test_a_turn_announced_again_is_what_was_announced_last() -> None:
    (turn,) = play(user(1, 0, 1000), user(1, 10, 1010), speaks(1300), ended(1, 2000))
    assert (turn.user_start_ns, gap_ms(turn)) == (ms_to_ns(10), 290)


def test_speech_whose_end_was_missed_ends_with_the_next() -> None:
    turns = play(
        *(user(1, 0, 1000), speaks(1300), speaks(2000), silent(2500), ended(1, 2700)),
        *(user(2, 3000, 4000), speaks(4300), ended(2, 5000)),
    )
    assert [gap_ms(t) for t in turns] == [300, 300]


# --- what the caller asks meanwhile -----------------------------------------------------------


def test_the_onset_is_known_as_soon_as_it_is_heard() -> None:
    tracker = TurnTracker()
    assert tracker.onset_of(1) is None
    tracker.feed(user(1, 0, 1000))
    assert tracker.onset_of(1) is None
    tracker.feed(speaks(1300))
    assert tracker.onset_of(1) == ms_to_ns(1300)
    tracker.feed(ended(1, 2000))
    assert tracker.onset_of(1) is None


def test_whether_the_agent_speaks() -> None:
    tracker = TurnTracker()
    said: list[bool] = []
    for event in (user(1, 0, 9), speaks(10), silent(20), speaks(30), flushed(40), silent(35)):
        tracker.feed(event)
        said.append(tracker.agent_speaking)
    assert said == [False, True, False, True, False, False]


def test_whether_the_heard_replys_marks_have_come() -> None:
    tracker = TurnTracker()
    tracker.feed(user(1, 0, 1000))
    assert not tracker.has_heard_marks(1)
    tracker.feed(marks(1, endpoint=1100))
    assert not tracker.has_heard_marks(1)
    tracker.feed(marks(1, sent=1290))
    assert tracker.has_heard_marks(1)
    tracker.feed(ended(1, 2000))
    assert not tracker.has_heard_marks(1)
    assert not tracker.has_heard_marks(2)


# --- when the agent took the turn to be over ------------------------------------------------------


def endpoints_ms(turn: TrackedTurn) -> list[float] | None:
    return None if turn.endpoints_ns is None else [ns / 1e6 for ns in turn.endpoints_ns]


def told_over(at: float) -> TurnOver:
    return TurnOver(at_ns=ms_to_ns(at))


def test_endpoints_are_those_of_answers_never_heard_too() -> None:
    (turn,) = play(
        user(1, 0, 2000),
        marks(1, endpoint=700, llm_request=700),
        marks(2, endpoint=2200, sent=2390),
        speaks(2400),
        ended(1, 4000),
    )
    assert endpoints_ms(turn) == [700, 2200]


def test_what_the_protocol_says_of_the_turns_end_counts_where_there_are_no_marks() -> None:
    told = (told_over(2200), told_over(700))
    (turn,) = play(user(1, 0, 2000), *told, speaks(2400), ended(1, 4000))
    assert endpoints_ms(turn) == [700, 2200]
    marked = (marks(1, endpoint=2150, sent=2390),)
    (turn,) = play(user(1, 0, 2000), *told, *marked, speaks(2400), ended(1, 4000))
    assert endpoints_ms(turn) == [2150]


def test_each_turn_has_the_endpoints_of_its_own_stretch() -> None:
    turns = play(
        *(user(1, 0, 1000), told_over(1200), speaks(1300), silent(2000), ended(1, 2200)),
        *(user(2, 2500, 3500), told_over(2900), told_over(3700), speaks(4000), ended(2, 5200)),
    )
    assert [endpoints_ms(turn) for turn in turns] == [[1200], [2900, 3700]]


def test_who_replied_without_saying_when_the_turn_was_over_is_not_known_to_have_waited() -> None:
    turns = play(
        *(user(1, 0, 1000), told_over(1200), speaks(1300), silent(2000), ended(1, 2200)),
        *(user(2, 2500, 3500), speaks(4000), silent(5000), ended(2, 5200)),
        *(user(3, 6000, 7000), ended(3, 13_000, "timeout")),
    )
    assert [endpoints_ms(turn) for turn in turns] == [[1200], None, []]
    (silent_agent,) = play(user(1, 0, 1000), ended(1, 7000, "timeout"))
    assert endpoints_ms(silent_agent) is None


# --- marks that cannot be true ------------------------------------------------------------------

TRUE = {"endpoint": 1100, "llm_request": 1110, "llm_first_token": 1200, "tts_request": 1210}
SPOKEN = {"tts_first_audio": 1290, "tts_first_audible": 1295, "sent": 1300}


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ({}, None),
        ({"llm_request": 900, "llm_first_token": 950}, None),  # an answer to a guess
        ({"tts_first_audible": 1340}, None),  # in a chunk that was sent before it could sound
        ({"llm_first_token": 1105}, "llm_request lies 5 ms after llm_first_token"),
        ({"tts_first_audio": 1205}, "tts_request lies 5 ms after tts_first_audio"),
        ({"tts_first_audible": 1289}, "tts_first_audio lies 1 ms after tts_first_audible"),
        ({"endpoint": 1301}, "endpoint lies 1 ms after sent"),
        ({"tts_first_audio": 1301, "tts_first_audible": 1310}, "tts_first_audio lies 1 ms after"),
        ({"tool_call": 1150, "tool_result": 1140}, "tool_call lies 10 ms after tool_result"),
        ({"transcript": 5000}, "transcript lies 3600 ms after the reply was heard"),
        ({"endpoint": -900}, "endpoint lies 900 ms before the person began to speak"),
        ({"sent": 9000}, "none of the agent's marks is of a reply in this turn"),
        ({"sent": -9000}, "none of the agent's marks is of a reply in this turn"),
    ],
    ids=str,
)
def test_marks_that_cannot_be_true_make_no_stage_and_say_why(
    lies: dict[str, float], why: str | None
) -> None:
    told = marks(1, **(TRUE | SPOKEN | lies))
    (turn,) = play(user(1, 0, 1000), told, speaks(1400, received=1310), ended(1, 3000))
    assert gap_ms(turn) == 400
    assert sum(stage.ns for stage in turn.stages) == turn.gap_ns
    if why is None:
        assert turn.why_no_marks is None
        assert [stage.name for stage in turn.stages][:1] == ["endpoint"]
    else:
        assert (turn.why_no_marks or "").startswith(why)
        assert [stage.name for stage in turn.stages] == [UNATTRIBUTED, "agent_onset"]
        assert set(turn.marks) == {"user_end", "received", "agent_onset"}
    assert turn.agent_turns or why is not None


def test_marks_may_be_off_by_as_much_as_the_clocks_comparison() -> None:
    events = (
        user(1, 0, 1000),
        marks(1, endpoint=1100, sent=1380),
        speaks(1300),
        ended(1, 3000),
    )
    (near,) = play(*events)
    assert near.why_no_marks is not None
    tracker = TurnTracker(Slack(bound_ns=ms_to_ns(50)))
    (turn,) = [turn for event in events for turn in tracker.feed(event)]
    assert turn.why_no_marks is None


@pytest.mark.parametrize(("compared_ms", "fits"), [(0, False), (-600_000, True)])
def test_marks_may_be_off_by_as_much_as_clocks_drift(compared_ms: int, fits: bool) -> None:
    """Ten minutes at 100 ppm are 60 ms, which the marks of a long call need beside the 50."""
    tracker = TurnTracker(Slack(compared_ns=ms_to_ns(compared_ms)))
    events = (user(1, 0, 1000), marks(1, endpoint=1200, sent=1400), speaks(1300), ended(1, 3000))
    (turn,) = [turn for event in events for turn in tracker.feed(event)]
    assert (turn.why_no_marks is None) == fits


# --- reports whose marks cannot be placed -------------------------------------------------------


def unplaced(agent_turn: int, told_ms: float, error: str | None = None) -> Marks:
    return Marks(agent_turn, {}, error=error, told_ns=ms_to_ns(told_ms), counts={"n": 3.0})


HEARD = (speaks(4400), silent(4900), ended(1, 5400))


def test_an_engine_that_was_late_and_then_answered_is_no_error() -> None:
    late = unplaced(1, 4000, "llm: no token for 3 s")
    (turn,) = play(user(1, 0, 1000), late, *HEARD)
    assert (turn.outcome, turn.error) == ("error", "llm: no token for 3 s")
    (turn,) = play(user(1, 0, 1000), late, unplaced(1, 4600, ""), *HEARD)
    assert (turn.outcome, turn.error, gap_ms(turn)) == ("late", None, 3400)


def test_what_is_reported_without_a_place_belongs_to_the_turn_in_which_it_came() -> None:
    first, second = play(
        *(user(1, 0, 1000), unplaced(1, 1200), speaks(1400), silent(1900), ended(1, 2400)),
        *(user(2, 8000, 9000), unplaced(2, 9200, "no server"), ended(2, 15_000, "timeout")),
    )
    assert [told.counts for told in first.agent_turns] == [{"n": 3.0}]
    assert (first.error, second.error) == (None, "no server")


def test_a_report_without_a_place_of_an_attempt_that_nobody_missed_is_no_error() -> None:
    (turn,) = play(user(1, 0, 1000), unplaced(1, 700, "no server"), *HEARD)
    assert turn.error is None


def test_an_agent_that_tells_no_marks_needs_no_reason() -> None:
    (turn,) = play(user(1, 0, 1000), speaks(1300), ended(1, 3000))
    assert turn.why_no_marks is None


# --- what cannot be measured --------------------------------------------------------------------


def breaks(at: float, why: str) -> TurnBroken:
    return TurnBroken(ms_to_ns(at), why)


def test_a_turn_that_cannot_be_measured_is_an_error_and_the_others_are_not() -> None:
    first, second, third = play(
        *(user(1, 0, 1000), speaks(1300), silent(1800), ended(1, 2000)),
        *(user(2, 3000, 4000), breaks(4200, "stereo"), breaks(4300, "more"), speaks(4300)),
        *(silent(4500), ended(2, 5000), breaks(5100, "between the turns")),
        *(user(3, 6000, 7000), ended(3, 9000, "timeout")),
    )
    assert outcomes([first, second, third]) == ["answered", "error", "no_reply"]
    assert (first.error, second.error, third.error) == (None, "stereo", None)
    assert gap_ms(second) == 300


def test_a_broken_turn_without_a_reply_says_why() -> None:
    turn = play(user(1, 0, 1000), breaks(1200, "too much of it"), ended(1, 7000, "timeout"))[0]
    assert (turn.outcome, turn.why_no_gap) == ("error", "the agent failed: too much of it")


# --- how much work it is ------------------------------------------------------------------------


class Copied(str):
    """A text that counts how many characters are copied when it is added to another."""

    characters = 0

    def __radd__(self, before: str) -> str:
        Copied.characters += len(before) + len(self)
        return Copied(str.__add__(before, self))

    def __add__(self, after: str) -> str:
        Copied.characters += len(after) + len(self)
        return Copied(str.__add__(self, after))


def test_the_pieces_of_a_reply_are_joined_once() -> None:
    """One after the other, the 200,000 pieces of a babbling agent took minutes."""
    pieces = [ReplyText(Copied("word "), at_ns=ms_to_ns(1100)) for _ in range(5_000)]
    Copied.characters = 0
    (turn,) = play(user(1, 0, 1000), speaks(1300), *pieces, ended(1, 3000))
    assert len(turn.reply) == 5 * len(pieces) - 1
    assert Copied.characters <= 10 * len(turn.reply)


def test_what_is_said_in_between_costs_no_new_look_at_what_was_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0
    found = HeardSpeech._found  # pyright: ignore[reportPrivateUsage]

    def counted(heard: HeardSpeech) -> Any:
        nonlocal looks
        looks += 1
        return found(heard)

    monkeypatch.setattr(HeardSpeech, "_found", counted)
    tracker = TurnTracker()
    tracker.feed(user(1, 0, 1000))
    for n in range(2_000):
        tracker.feed(says(1100 + n / 100, "word "))
        tracker.feed(heard_as(1100 + n / 100, "word"))
        assert tracker.onset_of(1) is None
        assert not tracker.agent_speaking
    assert looks <= 2


def at_level(db: float, *events: Event) -> list[Event]:
    return [replace(e, dbfs=db) if isinstance(e, AgentSilence) else e for e in events]


def test_a_voice_far_below_one_that_follows_is_not_the_agents() -> None:
    low = at_level(-38, speaks(2500), silent(3000))
    loud = at_level(-20, speaks(4000), silent(5000))
    (turn,) = play(user(1, 1000, 2000), *low, *loud, ended(1, 6000))
    assert (gap_ms(turn), len(turn.parts_ns), turn.ambiguous) == (2000, 1, ())


def test_a_turn_with_no_voice_but_one_far_below_the_agents_is_ambiguous() -> None:
    loud = at_level(-20, speaks(2500), silent(3000))
    low = at_level(-38, speaks(6500), silent(7000))
    first, second = play(
        user(1, 1000, 2000), *loud, ended(1, 4000), user(2, 5000, 6000), *low, ended(2, 8000)
    )
    assert first.ambiguous == ()
    assert "softer" in second.ambiguous[0]
