"""Calls in virtual time: what the caller makes of a scripted agent or of a course of one's own."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.dialects.session import Session
from turngap.caller.ear import Heard
from turngap.core.audio import Pcm
from turngap.core.clock import ms_to_ns
from turngap.core.cue import BackchannelCue, Cue, SpeechBounds, When
from turngap.core.run_record import OffsetRecord
from turngap.testing.agent import Account, Script, voice
from turngap.testing.memory import Course, line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

ROOM_MS = 60
AFTER_REPLY = When(after_reply_ms=0)
QUICK = Patience(no_reply_ms=1500, quiet_ms=400, quiet_after_done_ms=50)


@dataclass(frozen=True)
class Played:
    """A conversation, turn by turn, and how the caller's clock compared with the agent's."""

    turns: list[PlayedTurn]
    conversation: Conversation
    offset: OffsetRecord
    over_ns: int
    account: Account = field(default_factory=Account)
    heard: list[Heard] = field(default_factory=list[Heard])

    @property
    def outcomes(self) -> list[str]:
        return [p.turn.outcome for p in self.turns]

    @property
    def gaps_ms(self) -> list[float | None]:
        return [None if p.turn.gap_ns is None else p.turn.gap_ns / 1e6 for p in self.turns]

    def yield_ms(self, turn: int) -> float | None:
        yield_ns = self.turns[turn - 1].turn.yield_ns
        return None if yield_ns is None else yield_ns / 1e6

    def starts_after_ms(self, turn: int, instant_ns: int | None) -> float:
        assert instant_ns is not None
        return (self.turns[turn - 1].turn.user_start_ns - instant_ns) / 1e6


def in_room(speech: Pcm, rate: int) -> tuple[Pcm, SpeechBounds]:
    """A recording with sharp edges in a quiet room, and its label."""
    room = np.zeros(round(ROOM_MS * rate / 1000), np.int16)
    bounds = SpeechBounds(start_ms=ROOM_MS, end_ms=ROOM_MS + (len(speech) - 1) * 1000 / rate)
    return np.concatenate((room, speech, room)), bounds


def says(
    rate: int,
    when: When = AFTER_REPLY,
    speech: Pcm | None = None,
    budget_ms: float = 800,
    under: Sequence[BackchannelCue] = (),
) -> Cue:
    """A turn of 300 ms, or of this speech."""
    pcm, bounds = in_room(voice(300, rate) if speech is None else speech, rate)
    return Cue(pcm, bounds, when, budget_ms, tuple(under))


def play(
    agent: Script | Course,
    cues: Sequence[Cue] | Callable[[int], Sequence[Cue]],
    patience: Patience | None = QUICK,
    session: Session | None = None,
    *,
    hangs_up: bool = False,
) -> Played:
    """Play the turns, or those made for the line's rate, and perhaps hang up."""
    account = Account()

    async def course() -> Played:
        clock = LoopClock()
        async with asyncio.timeout(3600), line_to(agent, session, clock, account=account) as line:
            offset = await line.clock_offset()
            said = cues(line.rate) if callable(cues) else cues
            talk = Conversation(line, said, clock, offset=offset, patience=patience, watch=clock)
            heard: dict[int, Heard] = {}
            turns: list[PlayedTurn] = []
            async for turn in talk.play():
                heard |= {id(each): each for each in talk.heard}
                turns.append(turn)
            over_ns = clock.now_ns()
            if hangs_up:
                await line.hang_up()
                await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(1))
            return Played(turns, talk, offset, over_ns, account, [*heard.values()])

    return in_virtual_time(course())
