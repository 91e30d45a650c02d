"""Named agents: which turn-taking, STT, LLM and TTS engine each has, with their settings."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from turngap.backends import (
    KINDS,
    BackendSettings,
    BackendSpec,
    Kind,
    find,
    require,
    specs,
    value_of,
)
from turngap.core.errors import InputError, known_names, url_meant
from turngap.core.run_record import SIMULATED_LLM, HeldOutRecord
from turngap.core.secrets import remember_secrets, text_without_secrets
from turngap.core.untrusted import problems, reason
from turngap.store.files import read_toml

GROUP = "turngap.stacks"

# By default. To the first token more than a combined model may take, which gives each of two parts
# 3 s; from one to the next more than it gives a part (5 s), as it may have another to fall back to.
FIRST_TOKEN_MS, STALL_MS = 10_000.0, 6_000.0
# What a recogniser says later than the caller waits for an answer comes in vain.
TRANSCRIPT_MS = 6_000.0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AudioSettings(_Strict):
    """Rates on the wire, Hz. The TTS's audio is resampled as it comes if its rate is different.

    Protocols with a rate of their own (a telephone's 8,000 Hz, OpenAI's 24,000) use that.

    `out_ahead_ms` is how far ahead of the caller's ear audio is written, so that a late agent is
    not heard as a hole; 0 leaves it to pipecat, which is two chunks ahead at first and less after
    every delay. `cut_lead_in` cuts off the silence that the TTS puts before its speech.
    """

    in_sample_rate: Literal[8000, 16000] = 16_000
    out_sample_rate: Annotated[int, Field(ge=8000, le=48_000)] = 24_000
    out_chunk_ms: Annotated[int, Field(ge=10, le=200, multiple_of=10)] = 40
    out_ahead_ms: Annotated[int, Field(ge=0, le=500)] = 0
    cut_lead_in: bool = False


class TextSettings(_Strict):
    """The gathering of the LLM's tokens before the TTS gets them.

    `sentence` is pipecat's default and waits for the first character of the next sentence. `clause`
    hands over the first few words at once, then whole clauses. `adaptive` hands over as few words
    first as the engines' measured speeds allow, and then keeps the speech from running dry. `token`
    hands over each word as soon as its last token arrives. `reply` waits for the whole reply, like
    an agent that does not stream into its TTS.
    """

    aggregation: Literal["adaptive", "clause", "sentence", "token", "reply"] = "sentence"


class WarmSettings(_Strict):
    """Work that is done ahead of any request.

    `prefix` makes the LLM read the conversation so far when the session begins and when the person
    starts to speak (one token is requested, and paid for). `voice` makes the TTS speak unheard when
    the session begins, so that its connection is open and its speed is known.
    """

    prefix: bool = False
    voice: bool = False


ToolName = Literal["clock", "weather", "order", "calendar"]
TOOLS: tuple[ToolName, ...] = get_args(ToolName)


class ToolSettings(_Strict):
    """The tools of `turngap.agent.tools` that the LLM may call; `use = "all"` allows all of them.

    `delay_ms` is added to each call, for the distance between an agent and its tools.
    """

    use: tuple[ToolName, ...] = ()
    delay_ms: Annotated[float, Field(ge=0, le=60_000)] = 0.0

    @field_validator("use", mode="before")
    @classmethod
    def _by_name(cls, use: Any) -> Any:
        if isinstance(use, str):
            return TOOLS if use == "all" else [name.strip() for name in use.split(",")]
        return use


class PipelineSettings(_Strict):
    """The settings of the pipeline.

    `vad_first` puts the VAD before the STT, so that engines see its verdicts in step with the
    audio; if false, it is in the user aggregator, as in pipecat's examples. `keep_heard` keeps the
    words of an interrupted reply that were heard; if false, only whole clauses are kept, as pipecat
    does. `first_token_ms` is how long the LLM may take to its first token, reasoning included, and
    `stall_ms` to each further one, before its reply is given up. `transcript_ms` is how long a call
    of the STT may take.
    """

    vad_first: bool = True
    keep_heard: bool = False
    first_token_ms: Annotated[float, Field(ge=1000, le=600_000)] = FIRST_TOKEN_MS
    stall_ms: Annotated[float, Field(ge=1000, le=600_000)] = STALL_MS
    transcript_ms: Annotated[float, Field(ge=1000, le=600_000)] = TRANSCRIPT_MS
    metrics: bool = False
    system_prompt: str = "You are on a phone call. Answer in one or two short spoken sentences."


class Engine(_Strict):
    """One engine of a stack: a backend's name and its settings as written."""

    backend: str
    settings: dict[str, Any] = {}


class Stack(_Strict):
    """A whole agent."""

    name: str
    description: str = ""
    audio: AudioSettings = AudioSettings()
    text: TextSettings = TextSettings()
    warm: WarmSettings = WarmSettings()
    pipeline: PipelineSettings = PipelineSettings()
    tools: ToolSettings = ToolSettings()
    turn: Engine
    stt: Engine
    llm: Engine
    tts: Engine

    def engine(self, kind: Kind) -> Engine:
        return {"turn": self.turn, "stt": self.stt, "llm": self.llm, "tts": self.tts}[kind]


def stack_files() -> dict[str, Path]:
    """Return every installed stack by name."""
    found: dict[str, Path] = {}
    for entry in entry_points(group=GROUP):
        folder = Path(str(resources.files(entry.value)))
        found.update({p.stem: p for p in sorted(folder.glob("*.toml"))})
    return found


def load_stack(name_or_file: str) -> Stack:
    """Read a stack by name or from a file.

    Raises:
        InputError: no stack has that name, or the file is wrong.
    """
    path = Path(name_or_file)
    if path.suffix != ".toml":
        known = stack_files()
        if name_or_file not in known:
            raise InputError(
                "stack.unknown",
                f"no agent named {name_or_file!r}",
                hint=url_meant(name_or_file)
                or f"{known_names(name_or_file, known)}; or give a stack file or a ws:// URL",
            )
        path = known[name_or_file]
    return _validated(read_toml(path, "stack"), str(path))


def _validated(values: dict[str, Any], where: str) -> Stack:
    remember_secrets(values)
    shaped = dict(values)
    for kind in KINDS:
        table = shaped.get(kind)
        if isinstance(table, dict):
            settings = {k: v for k, v in table.items() if k != "backend"}
            shaped[kind] = {k: v for k, v in table.items() if k == "backend"}
            shaped[kind]["settings"] = settings
    try:
        return Stack.model_validate(shaped)
    except ValidationError as e:
        said = "\n".join(
            f"{where}: {'.'.join(map(str, p['loc']))}: {reason(p)}" for p in problems(e)
        )
        raise InputError(
            "stack.invalid",
            said,
            hint=f"tables: {', '.join(_TABLES)} (each engine: backend = …)",
        ) from e


def override(stack: Stack, backends: Mapping[Kind, str | None], sets: Sequence[str]) -> Stack:
    """Return a stack with other backends (`--llm B`) and settings (`--set tts.speed_wpm=180`).

    A new backend starts from its own defaults, without the settings of the one that it replaces.

    Raises:
        InputError: an assignment is not `table.key=value` or names no table.
    """
    values = stack.model_dump()
    engines, sets = engines_of(sets)
    for kind, name in (*backends.items(), *engines.items()):
        if name is not None and name != stack.engine(kind).backend:
            values[kind] = {"backend": name, "settings": {}}
    for assignment in sets:
        table, key, value = _parse_assignment(assignment)
        target = values[table]["settings"] if table in KINDS else values[table]
        target[key] = value
    remember_secrets(values)
    try:
        return Stack.model_validate(values)
    except ValidationError as e:
        problem = problems(e)[0]
        table = Stack.model_fields[str(problem["loc"][0])].annotation
        raise InputError(
            "stack.invalid",
            f"--set {'.'.join(map(str, problem['loc']))}: {reason(problem)}",
            hint=f"allowed: {', '.join(getattr(table, 'model_fields', ()))}",
        ) from e


def engines_of(sets: Sequence[str]) -> tuple[dict[Kind, str], list[str]]:
    """Return the engines that `--set stt=NAME` names, by kind, and the other assignments."""
    kinds: dict[str, Kind] = {kind: kind for kind in KINDS}
    engines: dict[Kind, str] = {}
    others: list[str] = []
    for assignment in sets:
        key, equals, name = assignment.partition("=")
        kind = kinds.get(key.strip()) if equals else None
        if kind is None:
            others.append(assignment)
        else:
            engines[kind] = name.strip()
    return engines, others


_TABLES = ("audio", "text", "warm", "pipeline", "tools", *KINDS)


def _parse_assignment(assignment: str) -> tuple[str, str, Any]:
    name, equals, text = assignment.partition("=")
    table, dot, key = name.strip().partition(".")
    if not (equals and dot and key) or table not in _TABLES:
        raise InputError(
            "stack.set",
            f"--set {assignment!r}: expected TABLE.KEY=VALUE",
            hint=f"tables: {', '.join(_TABLES)}; for example --set tts.speed_wpm=180. Without a "
            f"table: {', '.join(KINDS)} (an engine's name), seed and marks",
        )
    return table, key, value_of(text)


def resolved(
    stack: Stack, library: Path | None, *, required: bool = True
) -> list[tuple[BackendSpec, BackendSettings]]:
    """Return each engine's spec and checked settings, in the order of `KINDS`.

    `required` engines have to run on this machine.

    Raises:
        InputError: a backend or setting is unknown, or there are tools for an LLM that calls none.
        AgentError: this machine lacks something that a backend needs.
    """
    found: list[tuple[BackendSpec, BackendSettings]] = []
    for kind in KINDS:
        engine = stack.engine(kind)
        spec = find(kind, engine.backend)
        values = dict(engine.settings)
        if library is not None:
            values.setdefault("library", library)
        found.append((spec, spec.settings(values)))
    if required:
        require(spec for spec, _ in found)
    for spec, settings in found:
        # Of one that is not installed here, not even its settings say what it calls.
        if spec.kind == "llm" and stack.tools.use and not spec.missing():
            require_tools(spec, settings)
    return found


def stand_ins_of(engines: Iterable[tuple[BackendSpec, BackendSettings]]) -> tuple[str, ...]:
    """List the simulated parts of an agent, as a run stores and every report shows them."""
    found: list[str] = []
    for spec, settings in engines:
        if spec.scripted(settings):
            found.append(SIMULATED_LLM)
        if spec.closed_domain:
            found.append("closed-domain recogniser")
    return tuple(sorted(found, reverse=True))


def held_out_of(
    engines: Iterable[tuple[BackendSpec, BackendSettings]],
) -> tuple[HeldOutRecord, ...]:
    """List the held-out figures of an agent's models, for a run's record."""
    found = [each for spec, settings in engines for each in spec.held_out_shares(settings)]
    return tuple({each.model: each for each in found}.values())


class Chosen(_Strict):
    """Models that only a running agent knows.

    `found` are the programs it uses; `narrow` says whether its LLM knows only the library's talk.
    """

    found: dict[str, str] = {}
    held_out: tuple[HeldOutRecord, ...] = ()
    narrow: bool = False


def found_of(engines: Iterable[tuple[BackendSpec, BackendSettings]]) -> dict[str, str]:
    """Describe, by kind, which programs of this machine the engines use."""
    said = {spec.kind: spec.finds(settings) for spec, settings in engines if spec.finds}
    return {kind: text_without_secrets(line) for kind, line in said.items()}


def require_tools(spec: BackendSpec, settings: BackendSettings) -> None:
    """Refuse an LLM that calls no tools: it would answer without them and not say why.

    Raises:
        InputError: the LLM calls no tools; the message names those that do.
    """
    if (why := spec.why_no_tools(settings)) is not None:
        choose = "make it of parts that do" if spec.tools else "choose one that does"
        raise InputError(
            "tools.not_called", why, hint=f"leave tools.use out, or {choose}: {tool_callers()}"
        )


def tool_callers() -> str:
    """List the LLM backends that call tools, in words: those with a model first."""
    those = [s for s in specs() if s.kind == "llm" and s.tools and not s.combines]
    real = ", ".join(s.name for s in those if not s.simulated)
    scripts = ", ".join(s.name for s in those if s.simulated)
    return f"{real}; or, simulated, {scripts}" if scripts else real
