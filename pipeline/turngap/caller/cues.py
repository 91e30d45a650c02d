"""What a conversation plays, and how long the caller waits for what."""

from dataclasses import dataclass

from turngap.caller.ear import SPEECH_GAP_MS
from turngap.core.audio import Pcm
from turngap.scenario.model import SpeechBounds, When


@dataclass(frozen=True, slots=True)
class Cue:
    """A recording at 16 kHz, ready to be laid into the stream."""

    pcm: Pcm
    speech: SpeechBounds


@dataclass(frozen=True, slots=True)
class BackchannelCue(Cue):
    """A recording to lay over the reply: its speech begins `reply_ms` after the reply's onset."""

    reply_ms: float


@dataclass(frozen=True, slots=True)
class TurnCue(Cue):
    """A turn to play."""

    when: When
    budget_ms: float
    backchannels: tuple[BackchannelCue, ...] = ()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the caller waits for what.

    Attributes:
        no_reply_ms: from the user's end until the turn counts as unanswered. A turn classifier's
            wrong "incomplete" is known to cost 3 s; this lies well beyond it.
        quiet_ms: silence that ends a reply, where the agent does not say that it is done.
        quiet_after_done_ms: silence that ends a reply that the agent has called done.
        longest_reply_ms: a reply that goes on for longer is no longer waited for.
        settle_ms: how long to wait for the agent's marks after the reply.
        backchannel_ms: a reply that falls silent so soon after a backchannel was stopped by it.
        greeting_ms: how long an agent has to speak first; what it then says is heard out.
        speech_gap_ms: a pause within the agent's speech that does not end it.
    """

    no_reply_ms: float = 6000.0
    quiet_ms: float = 1500.0
    quiet_after_done_ms: float = 200.0
    longest_reply_ms: float = 60_000.0
    settle_ms: float = 500.0
    backchannel_ms: float = 1000.0
    speech_gap_ms: float = SPEECH_GAP_MS
    greeting_ms: float = 0.0
