"""Finds where a person's turns begin and end, from what their microphone and loudspeaker did.

It has no I/O and no clock: it takes instants and returns measured turns. The page's `turns.js`
follows the same rules.
"""

from dataclasses import dataclass, field

from turngap.core.budget import TurnEnd
from turngap.core.clock import ms_to_ns
from turngap.live.wire import AgentStretch

# After a shorter pause without an answer, the person is still in the same turn.
PAUSE_MS = 1000.0
# Nobody reacts to a voice this fast: speech that begins so soon after the agent's onset was
# already on its way, so the agent cut in.
REACTION_MS = 200.0
# Anything shorter may be a cough, which is no turn.
LEAST_SPEECH_MS = 200.0
# The same patience as in a replay (turngap/caller/conversation.py).
NO_REPLY_MS = 6000.0
QUIET_MS = 1500.0
QUIET_AFTER_DONE_MS = 200.0


@dataclass(frozen=True, slots=True)
class FoundTurn:
    """A turn that is over; `turngap.live.wire.TurnReport` says what the fields mean."""

    typed: bool
    start_ns: int
    end_ns: int
    over_reply: bool
    agent: tuple[AgentStretch, ...]
    flushed_ns: tuple[int, ...]
    ended_ns: int
    ended: TurnEnd


@dataclass(slots=True)
class _Open:
    start_ns: int
    end_ns: int | None
    over_reply: bool
    typed: bool = False
    reply_ns: int | None = None
    flushed_ns: list[int] = field(default_factory=list[int])


class TurnFinder:
    """Takes instants in order; each method returns the turns that it ended."""

    def __init__(self) -> None:
        self._turn: _Open | None = None
        self._begun_ns: int | None = None  # speech that may still prove to be a cough
        self._agent: list[AgentStretch] = []
        self._done_ns: int | None = None

    @property
    def agent_speaking(self) -> bool:
        return bool(self._agent) and self._agent[-1].end_ns is None

    def user_started(self, at_ns: int) -> list[FoundTurn]:
        turn = self._turn
        if turn is not None and not turn.typed and self._goes_on(turn, at_ns):
            turn.end_ns = None
            return []
        self._begun_ns = at_ns
        return []

    def user_stopped(self, at_ns: int) -> list[FoundTurn]:
        ended: list[FoundTurn] = []
        if self._begun_ns is not None:
            if at_ns - self._begun_ns >= ms_to_ns(LEAST_SPEECH_MS):
                ended = self._begin(self._begun_ns)
            self._begun_ns = None
            if not ended and self._turn is None:
                return []
        if self._turn is not None and not self._turn.typed and self._turn.end_ns is None:
            self._turn.end_ns = at_ns
        return ended

    def was_noise(self) -> None:
        """Discard the current sound at the microphone, which was only noise."""
        self._begun_ns = None
        if self._turn is not None and self._turn.end_ns is None and self._turn.reply_ns is None:
            self._turn = None

    def typed(self, at_ns: int) -> list[FoundTurn]:
        ended = self._close("interrupted" if self._is_open(at_ns) else "reply_done", at_ns)
        self._begun_ns = None  # a person who types has not really begun to speak
        self._forget_ended(at_ns)
        self._turn = _Open(at_ns, at_ns, self.agent_speaking, typed=True)
        return ended

    def agent_started(self, stretch: AgentStretch) -> list[FoundTurn]:
        self._agent.append(stretch)
        turn = self._turn
        if turn is not None and turn.reply_ns is None and not self._is_stale(turn, stretch):
            turn.reply_ns = stretch.onset_ns
        return []

    def agent_stopped(self, at_ns: int) -> list[FoundTurn]:
        if self.agent_speaking:
            self._agent[-1] = self._agent[-1].model_copy(update={"end_ns": at_ns})
        return []

    def flushed(self, at_ns: int) -> list[FoundTurn]:
        if self._turn is not None:
            self._turn.flushed_ns.append(at_ns)
        return []

    def called_done(self, at_ns: int) -> list[FoundTurn]:
        self._done_ns = at_ns
        return []

    def cancelled(self, at_ns: int) -> list[FoundTurn]:
        return self._close("interrupted", at_ns) if self._is_open(at_ns) else []

    def tick(self, now_ns: int) -> list[FoundTurn]:
        if self._begun_ns is not None and now_ns - self._begun_ns >= ms_to_ns(LEAST_SPEECH_MS):
            begun_ns, self._begun_ns = self._begun_ns, None
            return self._begin(begun_ns)
        turn = self._turn
        if turn is None or turn.end_ns is None:
            return []
        if turn.reply_ns is None:
            over = now_ns - turn.end_ns > ms_to_ns(NO_REPLY_MS)
            return self._close("timeout", now_ns) if over else []
        return self._close("reply_done", now_ns) if self._is_quiet(turn, now_ns) else []

    def finish(self, at_ns: int) -> list[FoundTurn]:
        """End the conversation: a reply that was heard counts, a turn without one does not."""
        heard = self._turn is not None and self._turn.reply_ns is not None
        return self._close("reply_done", at_ns) if heard else []

    def lost(self, at_ns: int) -> list[FoundTurn]:
        return self._close("line_lost", at_ns)

    def _goes_on(self, turn: _Open, at_ns: int) -> bool:
        if turn.end_ns is None:
            return True
        if turn.reply_ns is None:
            return at_ns - turn.end_ns < ms_to_ns(PAUSE_MS)
        return at_ns - turn.reply_ns < ms_to_ns(REACTION_MS)

    def _begin(self, at_ns: int) -> list[FoundTurn]:
        interrupted, over_reply = self._is_open(at_ns), self._speaking_at(at_ns)
        ended = self._close("interrupted" if interrupted else "reply_done", at_ns)
        self._forget_ended(at_ns)
        self._turn = _Open(at_ns, None, over_reply)
        return ended

    def _is_open(self, at_ns: int) -> bool:
        turn = self._turn
        return turn is not None and (turn.reply_ns is None or self._speaking_at(at_ns))

    def _speaking_at(self, at_ns: int) -> bool:
        return any(
            s.onset_ns <= at_ns and (s.end_ns is None or s.end_ns > at_ns) for s in self._agent
        )

    def _is_stale(self, turn: _Open, stretch: AgentStretch) -> bool:
        return stretch.onset_ns < turn.start_ns or stretch.received_ns < turn.start_ns

    def _is_quiet(self, turn: _Open, now_ns: int) -> bool:
        last = self._agent[-1]
        if last.end_ns is None or (turn.end_ns is not None and last.end_ns < turn.end_ns):
            # It cut in and fell silent before the user had ended, so it still owes an answer.
            waited = last.end_ns is not None and turn.end_ns is not None
            return waited and now_ns - (turn.end_ns or 0) > ms_to_ns(NO_REPLY_MS)
        done = self._done_ns is not None and self._done_ns >= last.onset_ns
        return now_ns - last.end_ns > ms_to_ns(QUIET_AFTER_DONE_MS if done else QUIET_MS)

    def _close(self, ended: TurnEnd, at_ns: int) -> list[FoundTurn]:
        turn, self._turn = self._turn, None
        if turn is None:
            return []
        end_ns = at_ns if turn.end_ns is None else turn.end_ns
        found = FoundTurn(
            typed=turn.typed,
            start_ns=turn.start_ns,
            end_ns=min(end_ns, at_ns),
            over_reply=turn.over_reply,
            # Includes speech that still sounded at the end of the turn before: its end is new.
            agent=tuple(self._agent),
            flushed_ns=tuple(turn.flushed_ns),
            ended_ns=at_ns,
            ended=ended,
        )
        self._forget_ended(at_ns)
        return [found]

    def _forget_ended(self, at_ns: int) -> None:
        self._agent = [s for s in self._agent if s.end_ns is None or s.end_ns >= at_ns]
