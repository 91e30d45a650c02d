"""Cues that the caller plays: the words of a person, and their time."""

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from turngap.core.audio import Pcm
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import LONGEST_MS
from turngap.core.stored import PauseRecord

Ms = Annotated[float, Field(ge=0, le=LONGEST_MS)]


class Strict(BaseModel):
    """A part of a scenario: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Span(Strict):
    """A stretch of a recording, in ms from its start."""

    start_ms: Ms
    end_ms: Annotated[float, Field(gt=0, le=LONGEST_MS)]

    @property
    def ms(self) -> float:
        return self.end_ms - self.start_ms

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end_ms <= self.start_ms:
            raise ValueError(
                f"end_ms ({self.end_ms:g}) must lie after start_ms ({self.start_ms:g})"
            )
        return self


class SpeechBounds(Span):
    """First and last audible sample of a recording (`turngap label`).

    `start_error_ms` and `end_error_ms` say how far off the bound may be; None if not known.
    """

    start_error_ms: Ms | None = None
    end_error_ms: Ms | None = None


class Pause(Span):
    """A silence of the person inside their turn."""


class When(Strict):
    """The moment at which the user begins to speak; exactly one of the three.

    `after_reply_ms`: this long after the reply to the previous turn has ended. `barge_in_ms`: this
    long after that reply began, while it still plays. `at_ms`: this long after the user's own
    previous turn ended, whatever the agent does.
    """

    after_reply_ms: Ms | None = None
    barge_in_ms: Ms | None = None
    at_ms: Ms | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(v is not None for v in (self.after_reply_ms, self.barge_in_ms, self.at_ms)) != 1:
            raise ValueError("give exactly one of after_reply_ms, barge_in_ms, at_ms")
        return self


# People pause about this long between an answer and their next sentence; it is in no figure.
AFTER_REPLY_MS = 200.0


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording at the line's rate, ready to be put into the stream."""

    pcm: Pcm
    speech: SpeechBounds


@dataclass(frozen=True, slots=True)
class BackchannelCue(Recording):
    """A recording to play over the reply; its speech begins `reply_ms` after the reply's onset."""

    reply_ms: float


@dataclass(frozen=True, slots=True)
class Cue(Recording):
    """A turn to play."""

    when: When
    budget_ms: float
    backchannels: tuple[BackchannelCue, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """The words of a person in a turn of a scenario, and the budget for the answer.

    `pauses` are the labelled silences in the turn; None if the turn was not searched for any.
    """

    scenario: str
    say: str
    budget_ms: float = DEFAULT_BUDGET_MS
    pauses: tuple[PauseRecord, ...] | None = None
