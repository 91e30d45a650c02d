"""The keys of `turngap.toml`: the names of the commands' options, each with its type.

`scenarios` are the names, files or folders to play.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _listed(value: Any) -> Any:
    """One text where a list may stand is a list of it."""
    return [value] if isinstance(value, str) else value


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Text], BeforeValidator(_listed)]


class Shared(BaseModel):
    """Keys that several commands take; they stand at the top of the file. None: not said."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
    )

    agent: Text | None = None
    start: Text | None = None
    dialect: Text | None = None
    header: Texts | None = None
    llm: Text | None = None
    set_: Texts | None = None
    scenarios: Texts | None = None
    tag: Text | None = None
    phases: int | None = None
    calibration: int | None = None
    no_reply_ms: float | None = None
    quiet_ms: float | None = None
    starved_ms: float | None = None
    out: Text | None = None


class Check(Shared):
    """`[check]`."""

    against: Text | None = None
    start_against: Text | None = None
    against_dialect: Text | None = None
    against_header: Texts | None = None
    against_set: Texts | None = None
    baseline: Text | None = None
    rounds: int | None = None
    until_decided: bool | None = None
    max_minutes: float | None = None
    limit_p50_ms: float | None = None
    limit_p95_ms: float | None = None
    budget: dict[str, float] | None = None
    target: float | None = None


class Replay(Shared):
    """`[replay]`."""

    repeat: int | None = None
    greeting_ms: float | None = None
    stop_on_error: bool | None = None
    budget_ms: float | None = None
    min_hit_rate: float | None = None


class Turns(Shared):
    """`[turns]`."""

    rounds: int | None = None


class Compare(Shared):
    """`[compare]`; its LLMs are a list."""

    llm: Texts | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    price: Texts | None = None
    rounds: int | None = None
    budget_ms: float | None = None


class Load(Shared):
    """`[load]`."""

    sessions: Text | None = None
    max_sessions: int | None = None
    rate: Text | None = None
    arrivals: Text | None = None
    duration: float | None = None
    max_minutes: float | None = None
    warm_up: float | None = None
    callers: int | None = None
    budget_ms: float | None = None
    target: float | None = None
    confidence: float | None = None
    min_sessions: int | None = None


class Document(Shared):
    """The whole file."""

    check: Check = Check()
    replay: Replay = Replay()
    turns: Turns = Turns()
    compare: Compare = Compare()
    load: Load = Load()


TABLES: dict[str, type[Shared]] = {
    "check": Check,
    "replay": Replay,
    "turns": Turns,
    "compare": Compare,
    "load": Load,
}
# What means something else in a command than at the top of the file.
OF_THEIR_OWN = {"compare": ("llm",)}
SHARED = tuple(Shared.model_fields)

OF_THE_AGENT = ("start", "dialect", "header", "llm", "set_")
_OF_THE_REFERENCE = ("start_against", "against_dialect", "against_header", "against_set")
# By what was given, in a flag, a variable or a test: what of the file is left out then.
REPLACED: dict[str, tuple[str, ...]] = {
    "agent": OF_THE_AGENT,
    "against": (*_OF_THE_REFERENCE, "baseline"),
    "baseline": ("against", *_OF_THE_REFERENCE),
    "tag": ("scenarios",),
    "scenarios": ("tag",),
}
