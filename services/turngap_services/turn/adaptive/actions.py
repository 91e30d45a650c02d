"""What goes into the mind of `adaptive`, and what comes out of it."""

from dataclasses import dataclass

from turngap_services.turn.adaptive.phrasing import Phrase


@dataclass(frozen=True, slots=True)
class Heard:
    """What the ears know after a packet; instants on the clock, ns.

    Attributes:
        until_ns: when the last sample that was heard sounded.
        onset_ns: when the utterance began; None: there is none.
        audible_ns: when the person was last audible; None as above.
        audible_at: which sample that was. Instants are placed anew with every packet, as the line's
            shortest delay is: a silence is known by the sample it began with.
        stirring_ns: since when there is a sound that may be the person; None: none.
        voiced_ms: how much of the utterance was surely speech.
    """

    until_ns: int
    onset_ns: int | None = None
    audible_ns: int | None = None
    audible_at: int | None = None
    stirring_ns: int | None = None
    voiced_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Listen:
    """An utterance has begun: the recogniser is to hear it."""


@dataclass(frozen=True, slots=True)
class Conclude:
    """The recogniser is to say what it heard; it may be told to `Listen` again."""

    silence_ms: float


@dataclass(frozen=True, slots=True)
class Settle:
    """The utterance is over: what comes next is another one."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The person's turn has begun; `interrupt`: what the agent does or says is cancelled."""

    interrupt: bool


@dataclass(frozen=True, slots=True)
class Speculate:
    """Answer `text` as if the turn were over, unheard."""

    text: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """What is being answered was not what the person says."""


@dataclass(frozen=True, slots=True)
class End:
    """The turn is over; `confirmed`: the speculation answers it. Why and when it was decided."""

    text: str
    confirmed: bool
    decided_ns: int
    hold_ms: float
    why: Phrase


@dataclass(frozen=True, slots=True)
class Discard:
    """What was heard was no turn: a cough, or an "mm-hm", which is in `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class Withhold:
    """The agent is to fall silent while it is made out what the person wants."""


@dataclass(frozen=True, slots=True)
class Give:
    """The agent may speak on."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the classifier whether the turn sounds complete, with the silence that began at `at`."""

    at: int


Action = (
    Listen | Conclude | Settle | Begin | Speculate | Withdraw | End | Discard
    | Withhold | Give | Ask
)  # fmt: skip
