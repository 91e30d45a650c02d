"""Whole conversations with a scripted agent, in virtual time: exact, whatever the machine does."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import virtual_calls
from timed_agents import Says, TimedAgent
from virtual_calls import AFTER_REPLY, QUICK, Played

from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.hearing import WAV_HEADERS
from turngap.caller.said import AudioBytes, Incoming, Message
from turngap.caller.stream import GRID_MS, RATE
from turngap.core.audio import Pcm
from turngap.core.cue import BackchannelCue, Cue, When
from turngap.core.events import AgentSpeech, Marks, TurnEnded, UserSpeech
from turngap.core.stages import UNATTRIBUTED
from turngap.testing.agent import IDLE_MS, Reply, Script
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

# Nothing but rounding to samples. Whether times are right on a real machine is what
# `turngap calibrate` measures.
SLACK_MS = 0.1

ANSWER = Reply(delay_ms=200, speech_ms=200)


def tone(ms: float) -> Pcm:
    t = np.arange(round(ms * RATE / 1000)) / RATE
    return (np.cos(2 * np.pi * 250 * t) * 8000).astype(np.int16)


def silence(ms: float) -> Pcm:
    return np.zeros(round(ms * RATE / 1000), dtype=np.int16)


def says(
    speech: Pcm | None = None,
    *,
    when: When = AFTER_REPLY,
    budget_ms: float = 800,
    under: Sequence[BackchannelCue] = (),
) -> Cue:
    return virtual_calls.says(RATE, when, tone(300) if speech is None else speech, budget_ms, under)


def hums(reply_ms: float) -> BackchannelCue:
    pcm, bounds = virtual_calls.in_room(tone(150), RATE)
    return BackchannelCue(pcm, bounds, reply_ms)


def play(
    script: Script,
    cues: Sequence[Cue],
    patience: Patience = QUICK,
    session: PipecatSession | None = None,
) -> Played:
    played = virtual_calls.play(script, cues, patience, session)
    check(played.turns)
    return played


def check(turns: Sequence[PlayedTurn]) -> None:
    """Check the rules for every turn of every conversation."""
    for number, played in enumerate(turns, start=1):
        turn = played.turn
        assert turn.turn == number
        assert (turn.gap_ns is None) == (turn.why_no_gap is not None)
        assert sum(s.ns for s in turn.stages) == (turn.gap_ns or 0)
        assert bool(turn.stages) == (turn.gap_ns is not None)
        assert played.window[0] < turn.user_start_ns < turn.user_end_ns
        # The recording of a turn that was cut short ends where that of the next one begins.
        follower_ns = turns[number].window[0] if number < len(turns) else turn.ended_ns
        assert played.window[1] == min(turn.ended_ns, follower_ns)
        assert played.late_ns
    events = [e for played in turns for e in played.events]
    for kind in (UserSpeech, TurnEnded):
        assert [e.turn for e in events if isinstance(e, kind)] == list(range(1, len(turns) + 1))


# --- answers ----------------------------------------------------------------------------------


def test_answered_turns_their_marks_and_what_was_said() -> None:
    replies = (Reply(delay_ms=200, speech_ms=200, text="one"), replace(ANSWER, text="two"))
    script = Script(replies=replies, clock_shift_ms=12_345)
    played = play(script, [says(), says()])
    assert played.outcomes == ["answered", "answered"]
    assert played.conversation.failure is None
    for number, text in enumerate(("one", "two"), start=1):
        turn = played.turns[number - 1].turn
        assert (turn.transcript, turn.reply) == (f"utterance {number}", text)
        assert (turn.ended, turn.yield_ns) == ("reply_done", None)
        assert turn.gap_ns is not None
        truth = played.account.truths[number - 1]
        assert truth.gap_ns is not None
        assert abs(turn.gap_ns - truth.gap_ns) < SLACK_MS * 1e6
        assert list(turn.marks) == [
            "user_end",
            "endpoint",
            "tts_first_audio",
            "sent",
            "received",
            "agent_onset",
        ]
        # The agent's clock runs 12 s ahead: on the caller's its marks lie within the turn.
        assert turn.user_end_ns < turn.marks["endpoint"] < turn.marks["sent"]
        assert abs(turn.marks["sent"] - turn.marks["received"]) < SLACK_MS * 1e6
        assert [a.agent_turn for a in turn.agent_turns] == [number]
        assert [s.name for s in turn.stages if s.name == UNATTRIBUTED]
        assert [s.name for s in turn.stages if s.name != UNATTRIBUTED] == [
            "endpoint",
            "received",
            "agent_onset",
        ]


def test_a_leading_pad_is_part_of_the_gap_and_shown_as_lead() -> None:
    pads = (Reply(delay_ms=200, pad_ms=150, speech_ms=200), replace(ANSWER, pad_ms=0))
    played = play(Script(replies=pads), [says(), says()])
    assert played.outcomes == ["answered", "answered"]
    leads = [p.turn.lead_ns for p in played.turns]
    assert leads[0] == pytest.approx(150e6, abs=1e6)
    assert leads[1] == pytest.approx(0, abs=1e6)


def test_replies_over_the_turns_own_budget_are_late_each_in_its_turn() -> None:
    replies = (Reply(delay_ms=350, speech_ms=200), Reply(delay_ms=450, speech_ms=200))
    played = play(Script(replies=replies), [says(budget_ms=100), says(budget_ms=100)])
    assert played.outcomes == ["late", "late"]
    assert played.gaps_ms == pytest.approx([350, 450], abs=SLACK_MS)


def test_an_agent_without_marks_is_measured_all_the_same() -> None:
    played = play(Script(replies=(ANSWER,), marks=False), [says()])
    assert played.outcomes == ["answered"]
    (turn,) = (p.turn for p in played.turns)
    assert [s.name for s in turn.stages] == [UNATTRIBUTED, "agent_onset"]
    assert turn.agent_turns == ()


def test_a_turn_that_nobody_answers_is_one_and_the_next_goes_on() -> None:
    replies = (Reply(action="silence"), ANSWER)
    patience = replace(QUICK, no_reply_ms=500)
    played = play(Script(replies=replies), [says(), says()], patience)
    assert played.outcomes == ["no_reply", "answered"]
    first, second = (p.turn for p in played.turns)
    assert (first.ended, first.marks) == ("timeout", {"user_end": first.user_end_ns})
    assert first.why_no_gap == "no audible reply before the caller stopped waiting"
    # As long again, for an answer that is only late.
    assert 1000 <= played.starts_after_ms(2, first.user_end_ns) < 1000 + GRID_MS + 2 * SLACK_MS
    assert second.transcript == "utterance 2"


def test_an_agent_that_speaks_first_is_heard_out() -> None:
    script = Script(replies=(ANSWER,), welcome_ms=900)
    played = play(script, [says()])
    assert played.outcomes == ["answered"]
    (turn,) = (p.turn for p in played.turns)
    assert turn.yield_ns is None
    welcome = next(e for e in played.turns[0].events if isinstance(e, AgentSpeech))
    assert played.starts_after_ms(1, welcome.onset_ns) > 900


def test_an_agent_that_is_never_quite_silent_is_answered_as_any_other() -> None:
    script = Script(replies=(ANSWER,), idle_dbfs=-55.0)
    played = play(script, [says(), says()])
    assert played.outcomes == ["answered", "answered"]
    first_ms, second_ms = played.gaps_ms
    assert first_ms == pytest.approx(200, abs=SLACK_MS)
    # The first reply was sent ahead of its time, and what follows on it without a break stays so.
    assert second_ms is not None
    assert 200 <= second_ms <= 200 + 2 * IDLE_MS + SLACK_MS
    assert [p.turn.ended for p in played.turns] == ["reply_done", "reply_done"]


# --- the agent cuts in ------------------------------------------------------------------------


def test_an_answer_into_a_pause_is_a_cut_in_and_the_real_one_is_awaited() -> None:
    # Endpoint in the pause, dropped when the person goes on; the rest is answered after longer than
    # what otherwise counts as the end of a reply.
    hesitant = np.concatenate((tone(200), silence(350), tone(900)))
    replies = (Reply(delay_ms=120, speech_ms=2000), Reply(delay_ms=700, speech_ms=200), ANSWER)
    script = Script(replies=replies, hold_ms=100, yield_ms=100)
    played = play(script, [says(hesitant), says()])
    assert played.outcomes == ["cut_in", "answered"]
    first, second = (p.turn for p in played.turns)
    assert first.gap_ns is not None
    assert first.gap_ns < 0
    assert [(s.name, s.ns) for s in first.stages] == [(UNATTRIBUTED, first.gap_ns)]
    assert first.transcript == "utterance 1 utterance 2"
    assert (first.yield_ns, first.ended) == (None, "reply_done")
    assert second.transcript == "utterance 3"
    assert played.gaps_ms[1] == pytest.approx(200, abs=SLACK_MS)


# --- the person does --------------------------------------------------------------------------


def test_a_turn_cut_short_before_any_reply_is_abandoned() -> None:
    replies = (Reply(delay_ms=1200, speech_ms=200), ANSWER)
    script = Script(replies=replies, yield_ms=50)
    played = play(script, [says(), says(when=When(at_ms=300))])
    assert played.outcomes == ["abandoned", "answered"]
    first, second = (p.turn for p in played.turns)
    assert (first.ended, first.onset_ns) == ("interrupted", None)
    assert 300 <= played.starts_after_ms(2, first.user_end_ns) < 300 + GRID_MS + SLACK_MS
    assert second.transcript == "utterance 2"


def test_a_turn_at_a_set_time_after_a_reply_that_was_over_cuts_nothing_short() -> None:
    played = play(Script(replies=(ANSWER,)), [says(), says(when=When(at_ms=1300))])
    assert played.outcomes == ["answered", "answered"]
    assert [p.turn.ended for p in played.turns] == ["reply_done", "reply_done"]
    assert played.turns[1].turn.yield_ns is None


def test_barge_in_on_an_agent_that_yields() -> None:
    script = Script(replies=(Reply(delay_ms=200, speech_ms=3000), ANSWER), yield_ms=200)
    played = play(script, [says(), says(when=When(barge_in_ms=400))])
    assert played.outcomes == ["answered", "answered"]
    first, second = (p.turn for p in played.turns)
    assert first.ended == "interrupted"
    assert 400 <= played.starts_after_ms(2, first.onset_ns) < 400 + GRID_MS + SLACK_MS
    assert played.yield_ms(2) == pytest.approx(200, abs=SLACK_MS)
    # The reply is the new one, though the old one sounded when the person began.
    assert second.transcript == "utterance 2"
    assert played.gaps_ms[1] == pytest.approx(200, abs=SLACK_MS)
    assert second.onset_ns is not None
    assert second.onset_ns > second.user_end_ns
    # Both turns' marks came, those of the first with its interruption.
    assert [[a.agent_turn for a in t.agent_turns] for t in (first, second)] == [[1], [2]]


def test_barge_in_on_an_agent_that_talks_on() -> None:
    replies = (Reply(delay_ms=200, speech_ms=1500), Reply(delay_ms=1700, speech_ms=200))
    script = Script(replies=replies, yield_ms=None)
    patience = replace(QUICK, no_reply_ms=4000)
    played = play(script, [says(), says(when=When(barge_in_ms=300))], patience)
    assert played.outcomes == ["answered", "late"]
    first, second = (p.turn for p in played.turns)
    assert (first.ended, second.yield_ns) == ("interrupted", None)
    assert played.gaps_ms[1] == pytest.approx(1700, abs=SLACK_MS)


def test_a_barge_in_that_comes_after_the_reply_waits_as_usual() -> None:
    script = Script(replies=(Reply(delay_ms=200, speech_ms=150), ANSWER))
    played = play(script, [says(), says(when=When(barge_in_ms=900))])
    assert played.outcomes == ["answered", "answered"]
    assert [p.turn.ended for p in played.turns] == ["reply_done", "reply_done"]
    assert played.turns[1].turn.yield_ns is None


# --- backchannels -----------------------------------------------------------------------------


def test_a_backchannel_under_a_reply_that_goes_on_to_its_end() -> None:
    # The reply ends of itself while it is watched for being stopped.
    script = Script(
        replies=(Reply(delay_ms=200, speech_ms=1100), Reply(action="silence")), yield_ms=None
    )
    patience = replace(QUICK, backchannel_ms=900)
    played = play(script, [says(under=[hums(reply_ms=300)])], patience)
    assert played.outcomes == ["answered"]
    (turn,) = played.turns
    (backchannel,) = turn.backchannels
    assert (backchannel.index, backchannel.reply_stopped) == (0, False)
    assert turn.turn.onset_ns is not None
    laid_ms = (backchannel.start_ns - turn.turn.onset_ns) / 1e6
    assert 300 <= laid_ms < 300 + GRID_MS + SLACK_MS
    assert turn.turn.yield_ns is None


def test_a_reply_that_falls_silent_under_a_backchannel_without_a_word_was_stopped() -> None:
    # No flush, and no word that it is done: the audio just ends.
    script = Script(replies=(Reply(delay_ms=200, speech_ms=1600, action="break_off"),))
    patience = replace(QUICK, backchannel_ms=900)
    played = play(script, [says(under=[hums(reply_ms=300)])], patience)
    assert [b.reply_stopped for b in played.turns[0].backchannels] == [True]


def test_a_backchannel_that_stops_the_reply_takes_no_turn_either() -> None:
    # The broken-off reply is called done, but the agent has yet to answer what it heard.
    pardon = Reply(delay_ms=700, speech_ms=200, text="pardon?")
    replies = (Reply(delay_ms=200, speech_ms=3000), pardon, ANSWER)
    script = Script(replies=replies, yield_ms=100)
    patience = replace(QUICK, backchannel_ms=100, quiet_ms=1500)
    cues = [says(under=[hums(reply_ms=300)]), says()]
    played = play(script, cues, patience)
    assert played.outcomes == ["answered", "answered"]
    first, second = played.turns
    assert [b.reply_stopped for b in first.backchannels] == [True]
    assert [t.turn.yield_ns for t in (first, second)] == [None, None]
    # What the agent makes of the backchannel is part of the turn that it was laid over.
    assert first.turn.transcript == "utterance 1 utterance 2"
    assert first.turn.reply.endswith("pardon?")
    assert len([e for e in first.events if isinstance(e, AgentSpeech)]) == 2
    assert second.turn.transcript == "utterance 3"


# --- what goes wrong --------------------------------------------------------------------------


def test_an_agent_killed_in_mid_turn_is_an_error_after_the_turns_before_it() -> None:
    played = play(Script(replies=(ANSWER, Reply(action="die"))), [says(), says(), says()])
    assert played.outcomes == ["answered", "error"]
    assert played.turns[1].turn.ended == "line_lost"
    assert played.turns[1].turn.why_no_gap == "the line was lost before any reply"
    assert played.conversation.failure is not None
    assert played.conversation.failure.kind == "agent.line_lost"


def test_an_agent_killed_in_mid_reply_is_an_error_that_keeps_its_gap() -> None:
    script = Script(replies=(Reply(delay_ms=200, speech_ms=1500, action="die_midway"),))
    played = play(script, [says(), says()])
    assert played.outcomes == ["error"]
    assert played.gaps_ms == pytest.approx([200], abs=SLACK_MS)
    assert played.conversation.failure is not None


def test_garbage_in_mid_conversation_is_an_error() -> None:
    played = play(Script(replies=(ANSWER, Reply(action="garbage"))), [says(), says(), says()])
    assert played.outcomes == ["answered", "error", "answered"]
    assert played.conversation.failure is None
    why = played.turns[1].turn.error
    assert why is not None
    assert why.startswith("it does not speak the pipecat dialect: it sent a text message")


class Broken(PipecatSession):
    """Fails as no dialect should, at the first audio."""

    fails = True

    def receive_data(self, message: Message) -> list[Incoming]:
        said = super().receive_data(message)
        if self.fails and any(isinstance(incoming, AudioBytes) for incoming in said):
            self.fails = False
            raise ZeroDivisionError("a fault of the caller")
        return said


def test_a_fault_of_the_caller_is_told_by_its_turn_and_the_next_are_played() -> None:
    played = play(Script(replies=(ANSWER,)), [says(), says()], session=Broken())
    assert played.outcomes == ["error", "answered"]
    broken, fine = played.turns
    why = "turngap itself failed to read a message (ZeroDivisionError: a fault of the caller)"
    assert (broken.turn.error or "").startswith(why)
    assert any("Traceback" in note and "in receive_data" in note for note in broken.notes)
    assert fine.notes == {}


@pytest.mark.parametrize(
    ("fails", "what"),
    [
        ("turngap.core.turns.TurnTracker._finish", "make out what came in the turn"),
        ("turngap.core.turns.TurnTracker._keep", "take in a message"),
        ("turngap.caller.ear.Ear.receive", "take in a message"),
        ("turngap.caller.ear.Ear.advance", "take in a message"),
    ],
    ids=lambda value: value.rpartition(".")[2],
)
def test_a_fault_of_ours_is_told_by_its_turn_wherever_it_is(
    fails: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = resolve_name(fails.rpartition(".")[0]), fails.rpartition(".")[2]
    works, failed = getattr(owner, name), False

    def fails_once(self: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal failed
        speaks = any(isinstance(a, AgentSpeech | np.ndarray | TurnEnded) for a in arguments)
        if not failed and (speaks or (name == "advance" and self.heard)):
            failed = True
            raise ZeroDivisionError("a fault of ours")
        return works(self, *arguments, **named)

    monkeypatch.setattr(owner, name, fails_once)
    played = play(Script(replies=(ANSWER,)), [says(), says()])
    assert played.outcomes == ["error", "answered"]
    why = f"turngap itself failed to {what} (ZeroDivisionError: a fault of ours); please report it"
    assert played.turns[0].turn.error == why
    assert any("in fails_once" in note for note in played.turns[0].notes)


def test_a_conversation_can_be_left_at_any_turn() -> None:
    async def course() -> tuple[PlayedTurn, list[str]]:
        async with line_to(Script(replies=(ANSWER,))) as line:
            offset, clock = await line.clock_offset(), LoopClock()
            cues = [says()] * 3
            conversation = Conversation(
                line, cues, clock, offset=offset, patience=QUICK, watch=clock
            )
            turns = conversation.play()
            first = await anext(turns)
            await turns.aclose()
            return first, [t.get_name() for t in asyncio.all_tasks()]

    first, tasks = in_virtual_time(course())
    assert first.turn.outcome == "answered"
    assert [e for e in first.events if isinstance(e, Marks)]
    assert not [name for name in tasks if name.startswith("turngap-")]


def test_a_greeting_is_timed_from_the_open_line_though_no_ping_is_answered() -> None:
    """The agent sends no marks, so the caller waits for the answer of a ping while it greets."""
    agent = TimedAgent([(Says(500),)], rtvi=True, greets=Says(500, 600))
    played = virtual_calls.play(agent, [says()], Patience(greeting_ms=5000), PipecatSession())
    assert played.offset.n == 0
    greeting_ns = played.turns[0].greeting_ns
    assert greeting_ns is not None
    assert greeting_ns / 1e6 == pytest.approx(500, abs=2)


# --- WAV headers --------------------------------------------------------------------------------


@pytest.mark.parametrize("wav", [False, True], ids=["raw", "with WAV headers"])
@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_the_onset_is_right_within_1_ms_with_and_without_wav_headers(rate: int, wav: bool) -> None:
    """Taken for sound, each header is a click, and the gap reads 250 ms short."""
    reply = Reply(delay_ms=252, pad_ms=250, speech_ms=300)
    played = play(Script(replies=(reply,), rate=rate, wav=wav), [says(), says()])
    truths = [(truth.gap_ns or 0) / 1e6 for truth in played.account.truths]
    assert truths == pytest.approx([502, 502], abs=1)
    assert played.gaps_ms == pytest.approx(truths, abs=1)
    assert played.outcomes == ["answered", "answered"]
    notes = [dict(p.notes) for p in played.turns]
    assert notes == ([{WAV_HEADERS: 28}] * 2 if wav else [{}] * 2)
