"""Whose answer is it? Agents as they are, in virtual time (what is right is in each test)."""

import pytest
from timed_agents import Says, TimedAgent, hear, turn

from turngap.caller.conversation import Patience
from turngap.core.cue import When
from turngap.core.turns import HOLD_GUESS

TOOL = (Says(300, 600), Says(2200))  # "one moment", and the answer
WITH_WORDS = (
    Says(300, 600, first=("bot-llm-started", "llm-function-call-started", "bot-llm-stopped")),
    Says(2200, first=("bot-llm-started", "bot-llm-text", "bot-llm-stopped")),
)


@pytest.mark.parametrize("rtvi", [False, True])
@pytest.mark.parametrize("said", [TOOL, WITH_WORDS])
def test_a_hold_phrase_is_the_first_word_and_no_answer(said: tuple[Says, ...], rtvi: bool) -> None:
    heard = hear(TimedAgent([said], rtvi=rtvi), [turn(600), turn(600), turn(600)])
    assert heard.outcomes == ["answered"] * 3
    assert heard.gaps_ms == [300] * 3
    assert heard.first_answers_ms == [2200] * 3


@pytest.mark.parametrize(
    ("said", "gap_ms", "answer_ms", "hole_ms"),
    [
        ((Says(300, 400), Says(3500)), 300, 3500, 2800),
        ((Says(400, 800), Says(4900)), 400, 4900, 3700),
        ((Says(400, 2000), Says(3500, 1500)), 400, 400, 1100),
        ((Says(400, 400), Says(1700, 400), Says(3400)), 400, 3400, 900),
    ],
)
def test_an_answer_in_parts_is_of_one_turn_and_its_holes_are_told(
    said: tuple[Says, ...], gap_ms: int, answer_ms: int, hole_ms: int
) -> None:
    later = (Says(2000, 800),)
    heard = hear(TimedAgent([said, later]), [turn(), turn()])
    assert heard.gaps_ms == [gap_ms, 2000]
    assert heard.first_answers_ms == [answer_ms, 2000]
    assert heard.turns[0].holes[0][1] == pytest.approx(hole_ms * 1e6, abs=1e6)
    assert heard.turns[1].holes == ()


@pytest.mark.parametrize("ms", [2200, 3000])
def test_a_long_hold_phrase_is_told_by_the_silence_after_it(ms: int) -> None:
    agent = TimedAgent([(Says(300, ms), Says(300 + ms + 2500))])
    heard = hear(agent, [turn(), turn()])
    assert (heard.gaps_ms, heard.first_answers_ms) == ([300] * 2, [2800 + ms] * 2)
    assert not any(p.turn.ambiguous for p in heard.turns)


@pytest.mark.parametrize("said", [(Says(300, 2200), Says(7500)), (Says(300, 900), Says(6300))])
def test_an_answer_that_comes_after_the_wait_is_never_the_next_turns_unnoted(
    said: tuple[Says, ...],
) -> None:
    heard = hear(TimedAgent([said, (Says(400),)]), [turn(), turn(3000)])
    assert heard.outcomes == ["answered", "cut_in"]
    assert [len(p.turn.ambiguous) for p in heard.turns] == [0, 1]


def test_an_answer_that_the_agent_has_announced_stays_owed() -> None:
    first = ("bot-llm-started", "llm-function-call-started", "bot-llm-stopped")
    heard = hear(
        TimedAgent([(Says(300, 600, first=first), Says(9000)), (Says(500),)], rtvi=True),
        [turn(), turn(4500)],
    )
    assert heard.gaps_ms == [300, 500]
    assert [len(p.turn.ambiguous) for p in heard.turns] == [0, 1]


def test_a_claim_hides_no_cut_in_after_another_reply() -> None:
    agent = TimedAgent([(), (Says(500),), (Says(1500, 2500, from_start=True),)])
    heard = hear(agent, [turn(), turn(), turn(3000)])
    assert heard.outcomes == ["no_reply", "answered", "cut_in"]
    assert [len(p.turn.ambiguous) for p in heard.turns] == [0, 1, 1]


def test_short_sentences_with_pauses_are_one_answer() -> None:
    said = (Says(500, 700), Says(2400, 700), Says(4300, 700))
    assert hear(TimedAgent([said]), [turn()]).first_answers_ms == [500]


def test_audio_that_runs_out_for_a_moment_is_a_hole() -> None:
    heard = hear(TimedAgent([(Says(400, 500), Says(1100, 500))]), [turn()])
    ((at_ns, length_ns),) = heard.turns[0].holes
    assert (at_ns / 1e6, length_ns / 1e6) == pytest.approx((500, 200), abs=1)
    assert heard.first_answers_ms == [400]


def test_what_a_slow_agent_says_is_never_the_next_turns_answer() -> None:
    cues = [turn(), turn(300), turn(300), turn(300)]
    heard = hear(TimedAgent([(Says(7600),)]), cues)
    assert heard.outcomes == ["no_reply"] * 4
    assert heard.first_answers_ms == [7600] * 4
    why = "; the answer came 7,600 ms after the person's end"
    assert all((p.turn.why_no_gap or "").endswith(why) for p in heard.turns)
    patient = hear(TimedAgent([(Says(7600),)]), cues, Patience(no_reply_ms=9000))
    assert (patient.gaps_ms, patient.outcomes) == ([7600] * 4, ["late"] * 4)


def test_what_may_be_owed_to_a_turn_that_was_given_up_is_noted() -> None:
    heard = hear(TimedAgent([(Says(14_000),)]), [turn(), turn(300), turn(300)])
    assert heard.outcomes[0] == "no_reply"
    later = [p.turn for p in heard.turns[1:]]
    assert all(t.ambiguous for t in later if t.outcome in ("answered", "late"))
    assert any(t.ambiguous for t in later)


def test_a_false_start_is_no_reply() -> None:
    said = (Says(150, flushed_ms=200), Says(1500))
    heard = hear(TimedAgent([said, (Says(150, flushed_ms=200), Says(4500))]), [turn(), turn()])
    assert heard.gaps_ms == [1500, 4500]
    assert [p.turn.false_starts for p in heard.turns] == [1, 1]


def test_a_reply_that_is_broken_off_for_good_stays_the_reply() -> None:
    heard = hear(TimedAgent([(Says(150, flushed_ms=200),)]), [turn()])
    assert (heard.gaps_ms, heard.turns[0].turn.false_starts) == ([150], 0)


def test_a_sound_of_assent_is_neither_cut_in_nor_reply() -> None:
    said = (Says(700, 200, from_start=True), Says(500))
    heard = hear(TimedAgent([said]), [turn(3000), turn(3000)])
    assert (heard.outcomes, heard.gaps_ms) == (["answered"] * 2, [500, 500])
    assert [p.turn.backchannels_heard for p in heard.turns] == [1, 1]
    alone = hear(TimedAgent([said[:1]]), [turn(3000)])
    assert alone.outcomes == ["no_reply"]


def test_what_is_longer_than_assent_is_a_cut_in_though_it_stops() -> None:
    heard = hear(TimedAgent([(Says(700, 1200, from_start=True), Says(500))]), [turn(3000)])
    assert (heard.outcomes, heard.first_answers_ms) == (["cut_in"], [500])


@pytest.mark.parametrize(("early_ms", "outcome"), [(40, "answered"), (80, "cut_in")])
def test_an_onset_within_the_labels_error_is_no_cut_in(early_ms: float, outcome: str) -> None:
    heard = hear(TimedAgent([(Says(1200 - early_ms, from_start=True),)]), [turn(1200)])
    assert heard.outcomes == [outcome]
    assert heard.gaps_ms == [-early_ms]


BARGE_IN = When(barge_in_ms=2200)


def test_a_reply_that_ends_by_itself_has_not_yielded() -> None:
    agent = TimedAgent([(Says(400, 2400),), (Says(2000, 1000),)])
    heard = hear(agent, [turn(600), turn(600, BARGE_IN)])
    assert [p.turn.yield_ns for p in heard.turns] == [None, None]
    assert heard.gaps_ms == [400, 2000]


def test_what_was_on_its_way_when_it_was_dropped_is_the_old_reply() -> None:
    agent = TimedAgent([(Says(600, 6000),), (Says(600, 1000),)], yields_ms=60, left_over_ms=60)
    heard = hear(agent, [turn(600), turn(1500, When(barge_in_ms=1000))])
    assert (heard.outcomes, heard.gaps_ms) == (["answered", "answered"], [600, 600])
    assert 60 < (heard.turns[1].turn.yield_ns or 0) / 1e6 < 200


def test_words_that_fall_into_the_persons_first_answer_nothing_of_theirs() -> None:
    """The second part of the reply begins as the person does, and their turn is answered apart."""
    agent = TimedAgent([(Says(300, 2000), Says(6560, 400)), (Says(700),)])
    heard = hear(agent, [turn(), turn()])
    assert (heard.outcomes, heard.gaps_ms) == (["answered", "answered"], [300, 700])
    assert len(heard.turns[1].turn.ambiguous) == 1


def test_words_that_begin_just_before_the_persons_are_noted() -> None:
    """The wait after a hold phrase has run out, and the person is about to go on."""
    agent = TimedAgent([(Says(400, 1000), Says(5430, 1600)), (Says(430),)])
    heard = hear(agent, [turn(), turn()])
    assert [len(p.turn.ambiguous) for p in heard.turns] == [0, 1]


@pytest.mark.parametrize("rtvi", [False, True])
def test_what_the_shape_of_the_sound_decides_is_said(rtvi: bool) -> None:
    """An answer with a hole looks as a hold phrase does; one that is announced is no guess."""
    heard = hear(TimedAgent([WITH_WORDS], rtvi=rtvi), [turn()])
    assert heard.turns[0].turn.guesses == (() if rtvi else (HOLD_GUESS,))


def test_a_sudden_answer_after_a_hold_phrase_may_be_the_turns_before() -> None:
    heard = hear(TimedAgent([(Says(400, 1000), Says(7000))]), [turn(), turn(1200)])
    assert [p.turn.claimed_by for p in heard.turns] == [None, 1]
    assert 0 < (heard.gaps_ms[1] or 0) < 300


@pytest.mark.parametrize("pause_ms", [100, 300])
def test_a_second_answer_close_to_the_first_is_noted(pause_ms: int) -> None:
    over_ms = 2400 - 1500 - 600  # how long the first goes on after the person
    agent = TimedAgent([(Says(400, 2400),), (Says(over_ms + pause_ms, 2000),)])
    heard = hear(agent, [turn(600), turn(600, When(barge_in_ms=1500))]).turns[1].turn
    assert (heard.outcome, len(heard.ambiguous)) == ("no_reply", 1)


def test_an_agent_that_is_never_silent_is_said_to_be() -> None:
    heard = hear(TimedAgent([()], greets=Says(800, 90_000)), [turn()], Patience(greeting_ms=3000))
    (why,) = heard.turns[0].turn.ambiguous
    assert "from before the person's first word on" in why


def test_silence_without_a_word_of_an_interruption_is_no_yield_but_noted() -> None:
    agent = TimedAgent([(Says(400, 2400),), (Says(2000, 1000),)])
    (guess,) = hear(agent, [turn(600), turn(600, BARGE_IN)]).turns[1].turn.guesses
    assert "no yield" in guess


def test_a_line_that_is_lost_after_the_reply_leaves_it_heard() -> None:
    heard = hear(TimedAgent([(Says(500, closes=(2500, 1011)),)]), [turn()])
    assert (heard.outcomes, heard.conversation.failure is None) == (["answered"], False)
    early = hear(TimedAgent([(Says(500, closes=(500, 1011)),)]), [turn()])
    assert early.outcomes == ["error"]
