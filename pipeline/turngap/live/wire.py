"""The page's own messages, which are RTVI client messages with bounds, and the server's answers.

docs/live.md describes them. Instants are ns on the page clock of one connection.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turngap.core.budget import TurnEnd
from turngap.core.clock import NS_PER_S
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.run_record import OffsetRecord

TURN = "turngap.turn"
PLAYED = "turngap.played"
CALIBRATED = "turngap.calibrated"

# JavaScript's doubles hold these whole ns exactly, which is 100 days of a page clock.
Ns = Annotated[int, Field(ge=-(2**53), le=2**53)]
# A longer turn means that the page's clock went wrong; its recording would fill the memory.
MOST_TURN_NS = 600 * NS_PER_S
# A shorter turn counts as this long, since each takes a file and has all figures made again.
LEAST_TURN_S = 1.0
# Figures of the page's own in one report; it has six.
MOST_VIEW = 50
# Entries in one report: a page that hears speech begin a thousand times in a turn hears noise.
MOST = 1000


class _Message(BaseModel):
    # A newer page may send more keys; that is no reason to lose a measured turn.
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


M = TypeVar("M", bound=_Message)


class AgentStretch(_Message):
    """A stretch of audible speech of the agent, as it sounded; `end_ns` is None while it lasts."""

    onset_ns: Ns
    received_ns: Ns
    lead_ns: Annotated[int, Field(ge=0, le=2**53)] = 0
    end_ns: Ns | None = None


class Offset(_Message):
    """The agent's clock minus the page clock, from the fastest of `n` pings."""

    offset_ns: Annotated[int, Field(ge=-(2**62), le=2**62)]
    bound_ns: Annotated[int, Field(ge=0, le=2**53)]
    n: Annotated[int, Field(ge=1)]

    def record(self) -> OffsetRecord:
        return OffsetRecord(offset_ns=self.offset_ns, bound_ns=self.bound_ns, n=self.n)


class TurnReport(_Message):
    """A turn as the page measured it."""

    turn: Annotated[int, Field(ge=1, le=100_000)]
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
    view: Annotated[dict[str, float | None], Field(max_length=MOST_VIEW)] = {}
    offset: Offset

    @model_validator(mode="after")
    def _ordered(self) -> "TurnReport":
        if not self.start_ns <= self.end_ns <= self.ended_ns:
            raise ValueError("expected start_ns <= end_ns <= ended_ns")
        if self.ended_ns - self.start_ns > MOST_TURN_NS:
            raise ValueError("expected a turn of at most ten minutes")
        return self

    @property
    def typed(self) -> bool:
        return self.input == "typed"


class Played(_Message):
    """Stretches of agent audio that sounded: first agent sample, samples, instant of the first."""

    played: Annotated[
        tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)], Ns], ...],
        Field(max_length=MOST),
    ]
    # After a flush: of the audio before this agent sample, all that did not sound was dropped.
    dropped_to: Annotated[int, Field(ge=0)] | None = None


class Calibrated(_Message):
    """The page's loopback calibration: what its own devices add to the figures."""

    round_trip_ms: Annotated[float, Field(ge=0, le=10_000)]
    n: Annotated[int, Field(ge=1)] = 1


def parsed(model: type[M], data: Any) -> M:
    """Check a message's data.

    Raises:
        InputError: the data is wrong; the message says how.
    """
    try:
        return model.model_validate(data)
    except ValidationError as e:
        problems = "; ".join(
            f"{'.'.join(map(str, p['loc'])) or 'message'}: {p['msg']}" for p in e.errors()[:3]
        )
        raise InputError(
            "live.message", problems, hint='docs/live.md, "The wire", says where every key is'
        ) from e


def kept_message(
    record: Turn, run: str, figures: dict[str, Any], relay_ms: float | None = None
) -> dict[str, Any]:
    """Build the message about a stored turn, with the figures of all turns so far.

    `relay_ms`: how much of the gap is caused by the relay to a foreign agent.
    """
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
        "relay_ms": relay_ms,
    }
