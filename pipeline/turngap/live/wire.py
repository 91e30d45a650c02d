"""The page's own messages: RTVI client messages with bounds, and what the server answers.

docs/live.md describes them. Instants are ns of the page clock of one connection.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turngap.core.budget import DEFAULT_BUDGET_MS, NATURAL_MS, TurnEnd
from turngap.core.clock import NS_PER_S
from turngap.core.errors import InputError
from turngap.core.results import OffsetRecord, Turn
from turngap.core.stages import MARKS

TURN = "turngap.turn"
PLAYED = "turngap.played"
CALIBRATED = "turngap.calibrated"

# Whole ns that JavaScript's doubles hold exactly; a page clock's 100 days.
Ns = Annotated[int, Field(ge=-(2**53), le=2**53)]
# A longer turn is a page whose clock went wrong; its recording would fill the memory.
MOST_TURN_NS = 600 * NS_PER_S
# Of one report: a page that hears speech set in a thousand times in a turn hears noise.
MOST = 1000


class _Message(BaseModel):
    # Keys of a newer page are no reason to lose a measured turn.
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=_Message)


class AgentStretch(_Message):
    """A stretch of audible speech of the agent, as it sounded; `end_ns` is None while it lasts."""

    onset_ns: Ns
    received_ns: Ns
    lead_ns: Annotated[int, Field(ge=0, le=2**53)] = 0
    end_ns: Ns | None = None


class Offset(_Message):
    """Agent's clock minus page clock, from the fastest of `n` pings."""

    offset_ns: Annotated[int, Field(ge=-(2**62), le=2**62)]
    bound_ns: Annotated[int, Field(ge=0, le=2**53)]
    n: Annotated[int, Field(ge=1)]

    def record(self) -> OffsetRecord:
        """As a run stores it."""
        return OffsetRecord(offset_ns=self.offset_ns, bound_ns=self.bound_ns, n=self.n)


class TurnReport(_Message):
    """A turn as the page measured it."""

    turn: Annotated[int, Field(ge=1, le=100_000)]
    connection: Annotated[int, Field(ge=1)] | None = None
    input: Annotated[str, Field(pattern="^(voice|typed)$")] = "voice"
    start_ns: Ns
    end_ns: Ns
    over_reply: bool = False
    agent: Annotated[tuple[AgentStretch, ...], Field(max_length=MOST)] = ()
    flushed_ns: Annotated[tuple[Ns, ...], Field(max_length=MOST)] = ()
    ended_ns: Ns
    ended: TurnEnd
    stall_ms: Annotated[float, Field(ge=0)] | None = None
    text: Annotated[str, Field(max_length=4000)] = ""
    view: dict[str, float | None] = {}
    offset: Offset

    @model_validator(mode="after")
    def _ordered(self) -> "TurnReport":
        if not self.start_ns <= self.end_ns <= self.ended_ns:
            raise ValueError("expected start_ns <= end_ns <= ended_ns")
        if self.ended_ns - self.start_ns > MOST_TURN_NS:
            raise ValueError("expected a turn of ten minutes at most")
        return self

    @property
    def typed(self) -> bool:
        """Whether nobody spoke."""
        return self.input == "typed"


class Played(_Message):
    """Stretches of agent audio that sounded: first agent sample, samples, instant of the first."""

    connection: Annotated[int, Field(ge=1)] | None = None
    played: Annotated[
        tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)], Ns], ...],
        Field(max_length=MOST),
    ]


class Calibrated(_Message):
    """The page's loopback calibration: what its own devices add to what it measures."""

    round_trip_ms: Annotated[float, Field(ge=0, le=10_000)]
    n: Annotated[int, Field(ge=1)] = 1


def parsed(model: type[M], data: Any) -> M:
    """A message's data, checked.

    Raises:
        InputError: what is wrong with it.
    """
    try:
        return model.model_validate(data)
    except ValidationError as e:
        problems = "; ".join(
            f"{'.'.join(map(str, p['loc'])) or 'message'}: {p['msg']}" for p in e.errors()[:3]
        )
        raise InputError("live.message", problems, hint="docs/live.md has every key") from e


def session_message(
    *, id_: str, connection: int, turns: int, kept: bool, audio: dict[str, int], limits: Any
) -> dict[str, Any]:
    """What the page needs to know of its conversation."""
    return {
        "turngap": "session",
        "id": id_,
        "connection": connection,
        "resumed": connection > 1,
        "turns": turns,
        "kept": kept,
        "budget_ms": DEFAULT_BUDGET_MS,
        "natural_ms": list(NATURAL_MS),
        "audio": audio,
        "limits": limits,
        "stages": list(MARKS),
    }


def kept_message(record: Turn, run: str, figures: dict[str, Any]) -> dict[str, Any]:
    """A turn that is stored, as made from the page's own facts, and the figures of all so far."""
    return {
        "turngap": "kept",
        "turn": record.turn,
        "run": run,
        "outcome": record.outcome,
        "gap_ms": record.gap_ms,
        "why_no_gap": record.why_no_gap,
        "left_out": record.left_out,
        "llm": record.llm,
        "stages": [{"name": s.name, "ms": s.ms} for s in record.stages],
        "record": record.model_dump(mode="json", exclude={"events"}),
        "figures": figures,
    }
