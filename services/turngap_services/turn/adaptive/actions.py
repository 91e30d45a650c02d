"""What `adaptive` hears and what it decides: the words that its mind has with the world."""

from dataclasses import dataclass

from turngap_services.turn.adaptive.melody import Melody


@dataclass(frozen=True, slots=True)
class Heard:
    """The ears' knowledge after a packet; instants on the clock, ns.

    Attributes:
        until_ns: when the last sample so far sounded.
        onset_ns: when the utterance began, if there is one.
        audible_ns: when the person was last audible in it.
        audible_at: the sample at that instant, which identifies a silence: instants are placed anew
            with every packet, as the line's shortest delay is.
        stirring_ns: since when there is a sound that may be the person, if there is one.
        voiced_ms: how much of the utterance was surely speech.
        melody: how it sounded before a silence that has begun, if that can be told.
    """

    until_ns: int
    onset_ns: int | None = None
    audible_ns: int | None = None
    audible_at: int | None = None
    stirring_ns: int | None = None
    voiced_ms: float = 0.0
    melody: Melody | None = None


@dataclass(frozen=True, slots=True)
class Listen:
    """Have the recogniser hear an utterance that has begun."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """Have the recogniser say what it heard; it may be told to `Listen` again."""

    silence_ms: float


@dataclass(frozen=True, slots=True)
class Settle:
    """End the utterance: what comes next is another one."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin the person's turn; `interrupt`: over what the agent says or is about to say."""

    interrupt: bool


@dataclass(frozen=True, slots=True)
class Speculate:
    """Ask for an answer to `text` as if the turn were over, unheard for now."""

    text: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Cancel the answer, as the person says something else."""


@dataclass(frozen=True, slots=True)
class End:
    """End the turn, with why and when; if `confirmed`, the speculation answers it."""

    text: str
    confirmed: bool
    decided_ns: int
    hold_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop what was heard, as it was not a turn: a cough, or an "mm-hm", which is in `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class Withhold:
    """Keep the agent silent until it is clear what the person wants."""


@dataclass(frozen=True, slots=True)
class Give:
    """Let the agent speak on."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the classifier whether the turn sounds complete, with the silence that began at `at`."""

    at: int


Action = (
    Listen | Conclude | Settle | Begin | Speculate | Withdraw | End | Discard
    | Withhold | Give | Ask
)  # fmt: skip
