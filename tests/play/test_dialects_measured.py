"""Every installed dialect against a loopback agent that speaks it, in virtual time.

Whoever adds a dialect and the agent's half of it gets both tests for nothing.
"""

import asyncio
from dataclasses import replace

import pytest
import virtual_calls

from turngap.caller.dialects import SPECS
from turngap.caller.dialects.registry import dialects
from turngap.core.cue import Cue, When
from turngap.play.calibrate import (
    PATIENCE,
    Calibration,
    loopback_script,
    measured,
    plan,
    utterance,
)
from turngap.testing.agent import Account, Reply, Script, Truth
from turngap.testing.dialects import HALVES, WEBRTC, Truncated, make_half
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

each_dialect = pytest.mark.parametrize("dialect", [d for d in dialects() if d in HALVES])
# In `gpt-live` what was sent is played; in a stream of packets nothing waits to be played.
each_that_flushes = pytest.mark.parametrize(
    "dialect", [d for d in dialects() if d in HALVES and make_half(d).flush() and d != WEBRTC]
)

# In these the caller tells the server how much of a reply was heard.
THAT_ARE_TOLD = ("openai-realtime",)


def test_every_dialect_that_ships_has_a_loopback_agent() -> None:
    assert {spec.name for spec in SPECS if spec.transport == "websocket"} <= set(HALVES)


def by_turn(account: Account) -> dict[int, Truth]:
    return {truth.turn: truth for truth in account.truths}


def calibrated(dialect: str, replies: list[Reply], **faults: float) -> Calibration:
    async def course() -> Calibration:
        account, clock = Account(), LoopClock()
        script = replace(loopback_script(replies, dialect), **faults)
        async with asyncio.timeout(3600), line_to(script, account=account) as line:
            return await measured(
                line, clock, replies, lambda _: by_turn(account), watch=clock, buffer_ms=60
            )

    return in_virtual_time(course())


@each_dialect
def test_known_gaps_are_measured_to_two_samples(dialect: str) -> None:
    """Each delay, lead, chunk size and way of sending at least once: the wire alone may err."""
    found = calibrated(dialect, plan(32, 1, dialect))
    assert (found.missed, len(found.samples)) == (0, 32)
    assert found.agent_rate is not None
    # Opus smears an edge by a few samples.
    samples_ms = (5 if dialect == WEBRTC else 2) * 1000 / min(found.rate, found.agent_rate)
    worst = max(found.samples, key=lambda sample: abs(sample.error_ms))
    assert abs(worst.error_ms) <= samples_ms, worst
    assert (found.record().dialect, found.record().error_ms.n) == (dialect, 32)


@each_that_flushes
@pytest.mark.parametrize("paced", [True, False], ids=["paced", "at once"])
def test_a_reply_that_is_interrupted_falls_silent_when_it_is_flushed(
    dialect: str, paced: bool
) -> None:
    """The person speaks 400 ms into a reply of 3 s, and the agent yields 200 ms later."""
    long = Reply(delay_ms=300, speech_ms=3000, paced=paced)
    script = Script(
        replies=(long, replace(long, speech_ms=300)), hold_ms=100, yield_ms=200, dialect=dialect
    )

    def cues(rate: int) -> list[Cue]:
        return [(first := utterance(rate)), replace(first, when=When(barge_in_ms=400))]

    played = virtual_calls.play(script, cues, PATIENCE)
    (first, second), account = played.turns, played.account
    assert first.turn.ended == "interrupted"
    assert (first.turn.outcome, second.turn.outcome) == ("answered", "answered")
    assert second.turn.yield_ns is not None
    assert second.turn.yield_ns / 1e6 == pytest.approx(200, abs=1)
    assert second.turn.gap_ns is not None
    assert second.turn.gap_ns / 1e6 == pytest.approx(300, abs=1)
    # What the caller says was heard of the reply is what was heard of it.
    heard_ms = [word.heard_ms for _, word in account.events if isinstance(word, Truncated)]
    assert heard_ms == ([pytest.approx(600, abs=21)] if dialect in THAT_ARE_TOLD else [])


def test_packets_of_a_bad_line_are_heard_at_their_arrival_and_losses_are_told() -> None:
    """Without the jitter, behind a buffer; and no first word after a loss counts as certain."""
    replies = plan(40, 1, WEBRTC)
    found = calibrated(WEBRTC, replies, loss=0.03, jitter_ms=20.0)
    every = [*found.samples, *found.lost]
    assert found.missed + found.lost_silent + len(every) == 40
    assert found.lost
    for sample in every:
        unsure = (sample.spread_ms or 0) >= 20
        assert unsure or abs(sample.error_ms) <= 0.15, sample
    sure = [s for s in every if (s.spread_ms or 0) < 20]
    assert len(sure) > 30
    # The fastest of the last two seconds' packets, by which jitter is known, is a little late too.
    behind_ms = [s.playout_error_ms for s in sure]
    assert all(ms is not None and abs(ms) < 2 for ms in behind_ms)
    # The jitter is in the gap at arrival.
    assert len({round(s.truth_ms - s.reply.delay_ms - s.reply.pad_ms) for s in sure}) > 10


def test_a_first_word_says_how_far_off_it_is_if_packets_around_it_are_lost() -> None:
    replies = plan(40, 1, WEBRTC)
    found = calibrated(WEBRTC, replies, loss=0.08)
    every = [*found.samples, *found.lost]
    assert max(abs(sample.error_ms) for sample in every) > 50
    assert [s for s in every if abs(s.error_ms) > (s.spread_ms or 0) + 0.5] == []
    # The same seed loses the same.
    again = calibrated(WEBRTC, replies[:8], loss=0.08).samples
    assert again == found.samples[: len(again)]


def test_a_reply_over_packets_that_is_interrupted_has_yielded_when_it_is_silent() -> None:
    """The agent reports it 60 ms before, as one does whose track has a queue."""
    long = Reply(delay_ms=300, speech_ms=3000)
    script = Script(replies=(long, replace(long, speech_ms=200)), dialect=WEBRTC)

    def cues(rate: int) -> list[Cue]:
        return [(first := utterance(rate)), replace(first, when=When(barge_in_ms=400))]

    (first, second) = virtual_calls.play(script, cues, PATIENCE).turns
    assert (first.turn.ended, first.turn.outcome) == ("interrupted", "answered")
    assert second.turn.outcome == "answered"
    assert second.turn.yield_ns is not None
    # Where speech is cut off, Opus rings for some ms.
    assert second.turn.yield_ns / 1e6 == pytest.approx(200, abs=10)
    assert second.turn.gap_ns is not None
    assert second.turn.gap_ns / 1e6 == pytest.approx(300, abs=10)
