"""Engines that can be swapped: how they are declared, found and chosen.

An engine is a frozen `BackendSpec` whose `create` returns a stock pipecat service. Specs arrive
through the entry-point group `turngap.backends`, each entry naming an iterable of them, so that any
package plugs in as turngap's own does.
"""

import asyncio
import re
import shlex
import tomllib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from turngap.backends.needs import AGENT as AGENT
from turngap.backends.needs import Need as Need
from turngap.backends.needs import install as install
from turngap.backends.needs import not_installed as not_installed
from turngap.backends.needs import remedies as remedies
from turngap.core.clock import LONGEST_MS, Clock
from turngap.core.errors import AgentError, InputError, known_names
from turngap.core.untrusted import in_a_line, parse_toml, shown

if TYPE_CHECKING:
    from pipecat.audio.vad.vad_analyzer import VADAnalyzer
    from pipecat.processors.aggregators.llm_context import LLMContext
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.turns.user_turn_strategies import UserTurnStrategies

    from turngap.core.audio import Pcm
    from turngap.core.run_record import HeldOutRecord


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of published weights.

    Attributes:
        path: its path in the repository, with `/`.
        size: bytes; None if not known beforehand.
        sha256: its pinned digest; None if not known, so that the hub's own digest is checked.
    """

    path: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """Published weights in a repository of a hub, as an engine with certain settings loads them.

    Attributes:
        name: the name for people, for example `whisper base.en`.
        repository: its id on the hub.
        revision: a commit, or a branch if nothing is pinned.
        files: the files to load; empty if only the hub knows them, which then lists them.
        licence: the licence of the weights; empty where it is not known.
        patterns: shell patterns that choose from the hub's list of files, if `files` is empty.
        pins: the file that replaces turngap's shipped pins, if there is one.
        fetched_as: their name for `turngap fetch`, for example `whisper,model=base.en`.
    """

    name: str
    repository: str
    revision: str
    files: tuple[WeightFile, ...] = ()
    licence: str = ""
    patterns: tuple[str, ...] = ()
    pins: str = ""
    fetched_as: str = ""


class Floor:
    """Permission for the agent to be heard: the output waits for it.

    Withheld speech is not lost: given the floor again, the agent speaks on where it fell silent.
    """

    def __init__(self) -> None:
        self._given = asyncio.Event()
        self._given.set()

    @property
    def withheld(self) -> bool:
        """Return whether the agent has to be silent."""
        return not self._given.is_set()

    def withhold(self) -> None:
        """Make the agent fall silent where it is."""
        self._given.clear()

    def give(self) -> None:
        """Let the agent speak on."""
        self._given.set()

    async def wait(self) -> None:
        """Return once the agent may speak."""
        await self._given.wait()


@dataclass(frozen=True, slots=True)
class Decision:
    """The reason why a turn was considered over.

    Attributes:
        at_ns: when the end was decided, on the clock that the engine was created with.
        hold_ms: how long the person had been silent, from the last audible sample.
        why: the reason for the hold, in the engine's words.
    """

    at_ns: int
    hold_ms: float
    why: str


# Returns the probability that these words of the person are a whole message; None for no answer.
Whole = Callable[[str], Awaitable[float | None]]


@runtime_checkable
class WeighsWords(Protocol):
    """An LLM service that can say how likely the person has finished."""

    async def whole(self, context: "LLMContext", text: str) -> float | None:
        """Return the probability that `text` is the person's whole next message, or None."""
        ...


@dataclass(frozen=True, slots=True)
class TurnTaking:
    """An engine of the kind `turn`: it says when the user is speaking, and when the turn is over.

    Attributes:
        vad: pipecat's VAD; None if `ears` replace it.
        hold_ms: how long the turn's end is held after the VAD's stop before it is decided.
        ears: a processor that hears the caller in place of a VAD and pushes pipecat's VAD frames.
        speculates: whether the strategies ask for answers before the turn is over; the pipeline
            then keeps them from being heard.
        floor: withholds the agent's voice until it is clear what the person wants.
        decisions: why each turn was considered over, oldest first; a reader removes what it reads.
        use_llm: takes a function that asks the LLM; None for an engine that asks none.
    """

    vad: "VADAnalyzer | None"
    strategies: "UserTurnStrategies"
    hold_ms: float
    ears: "FrameProcessor | None" = None
    speculates: bool = False
    floor: Floor = field(default_factory=Floor)
    decisions: deque[Decision] = field(default_factory=deque[Decision])
    use_llm: Callable[[Whole], None] | None = None


Kind = Literal["stt", "llm", "tts", "turn"]
KINDS: tuple[Kind, ...] = ("turn", "stt", "llm", "tts")
# Key of the metadata of the frames of an LLM's reply, of a TTS's audio and of an STT's transcript:
# figures by name, put together by `core.counts` and stored with the turn. What is known early goes
# with an early frame: an interrupted reply may have no other.
COUNTS = "turngap.counts"


class BackendSettings(BaseModel):
    """Base of every engine's settings; a stack file's table for the engine fills it.

    The string below a field describes it, unit included (`model_fields[name].description`).
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    library: Path | None = None
    """Scenario library of an engine that is made from it; the agent's own by default."""

    @field_validator("*")
    @classmethod
    def _is_a_time_that_passes(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if isinstance(value, int | float) and name.endswith(("_ms", "_s")):
            in_ms = value if name.endswith("_ms") else value * 1000
            if not name.endswith("_per_s") and in_ms > LONGEST_MS:
                raise ValueError(f"expected at most {LONGEST_MS / 3_600_000:g} hour")
        return value

    def parts(self) -> "list[tuple[BackendSpec, BackendSettings]]":
        """List the backends that a combining backend is made of, each with its settings."""
        return []


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens, where known."""

    input_usd: float
    output_usd: float


@dataclass(frozen=True, slots=True)
class BackendSpec:
    """A swappable engine.

    Attributes:
        create: `(settings, clock)` to a stock pipecat service (`TurnTaking` for kind `turn`);
            called once a session, so it is quick once `prepare` has run.
        prepare: loads shared models and voices when the agent starts.
        by_default: its further needs with default settings, such as the command that starts its
            server. Other settings may not need it, so it is shown but not required.
        on_a_card: its further needs if its setting `device` is `cuda`.
        weights: the weights that these settings load from a hub; None for none, for example if they
            name a folder. `turngap.backends.weights` fetches it before `prepare` is called.
        finds: describes in a line which of this machine's programs these settings would use.
        licence: SPDX id of the code that runs in the process; it matters if it is GPL.
        speak: of a TTS that needs no conversation: turns `(settings, text)` into all of its speech,
            mono samples and their rate. It may block, and its weights are already there.
        speaks_with: the needs of `speak`, fewer than an agent's.
        closed_domain: of an STT: whether it recognises only given sentences, those of the library
            in its settings. Its transcript of anything else is `turngap.core.counts.OUT_OF_DOMAIN`,
            which the pipeline answers without the LLM.
        simulated: of an LLM: whether no model answers, but a script.
        held_out: of an LLM: how often the model of these settings was right on held-out dialogues;
            None if not known.
        narrow: of an LLM: whether the model of these settings, once prepared, knows only the
            library's conversations, so that any other text is answered without it.
        tools: of an LLM: whether it calls the tools that a conversation offers it.
        toolless: returns why these settings keep it from calling tools; None if they do not.
        combines: of an LLM: whether it is made of others, and reports what each of them cost.
        judges: of an LLM: whether it can give a verdict on an answer. False if it knows only its
            own conversations, lacks pipecat's `run_inference`, or is made of other LLMs, only one
            of which would be asked.
    """

    name: str
    kind: Kind
    settings_type: type[BackendSettings]
    create: Callable[[Any, Clock], Any]
    prepare: Callable[[Any], object] | None = None
    requires: tuple[Need, ...] = ()
    by_default: tuple[Need, ...] = ()
    on_a_card: tuple[Need, ...] = ()
    weights: Callable[[Any], Weights | None] | None = None
    finds: Callable[[Any], str] | None = None
    price: Price | None = None
    licence: str = ""
    notes: str = ""
    speak: "Callable[[Any, str], tuple[Pcm, int]] | None" = None
    speaks_with: tuple[Need, ...] = ()
    closed_domain: bool = False
    simulated: bool = False
    held_out: "Callable[[Any], HeldOutRecord | None] | None" = None
    narrow: Callable[[Any], bool] | None = None
    tools: bool = False
    toolless: Callable[[Any], str | None] | None = None
    combines: bool = False
    judges: bool = True

    def missing(self, device: object = None) -> list[Need]:
        """List the needs that this machine does not meet, with this setting of `device`."""
        needs = (AGENT, *self.requires, *(self.on_a_card if device == "cuda" else ()))
        return [need for need in needs if not need.met()]

    def missing_by_default(self) -> list[Need]:
        return [need for need in self.by_default if not need.met()]

    def why_no_tools(self, settings: BackendSettings) -> str | None:
        """Return why the backend calls no tools of a conversation; None if it calls them."""
        why = self.toolless(settings) if self.toolless else None
        if self.tools and why is None:
            return None
        return f"{self.kind} backend {self.name!r} calls no tools" + (f": {why}" if why else "")

    def settings(self, values: dict[str, Any]) -> BackendSettings:
        """Check `values` against the engine's settings.

        Raises:
            InputError: an unknown key or a bad value, with the allowed keys.
        """
        try:
            return self.settings_type.model_validate(values)
        except ValidationError as e:
            raise InputError(
                "backend.settings",
                f"{self.kind} backend {self.name!r}: {in_a_line(e)}",
                hint=f"allowed: {', '.join(self.settings_type.model_fields)}",
            ) from e

    def scripted(self, settings: BackendSettings) -> bool:
        """Return whether a script answers in place of a model, also in any of its parts."""
        return self.simulated or any(part.scripted(own) for part, own in settings.parts())

    def downloads(self, settings: BackendSettings) -> list[Weights]:
        """List the weights that these settings load from a hub, including those of its parts."""
        own = self.weights(settings) if self.weights else None
        parts = [each for part, of in settings.parts() for each in part.downloads(of)]
        return [own, *parts] if own else parts

    def held_out_shares(self, settings: BackendSettings) -> "list[HeldOutRecord]":
        """List how often its model and the models of its parts were right on held-out dialogues."""
        own = self.held_out(settings) if self.held_out else None
        parts = [each for part, of in settings.parts() for each in part.held_out_shares(of)]
        return parts if own is None else [own, *parts]

    def require(self) -> None:
        """Raise AgentError with the remedy unless this machine has all that the engine needs."""
        require([self])


def require(engines: Iterable[BackendSpec]) -> None:
    """Raise AgentError with one remedy unless this machine has all that the engines need."""
    missing: dict[Need, str] = {}  # and the engine that needs it first
    for spec in engines:
        for need in spec.missing():
            missing.setdefault(need, f"{spec.kind} backend {spec.name!r} needs")
    if not missing:
        return
    whats = {
        engine: ", ".join(f"{n.kind} {n.name}" for n, its in missing.items() if its == engine)
        for engine in missing.values()
    }
    raise AgentError(
        "backend.missing",
        "; ".join(f"{engine} {what}" for engine, what in whats.items()) + ", not found here",
        hint=" and ".join(remedies(missing)),
    )


GROUP = "turngap.backends"


@cache
def specs() -> tuple[BackendSpec, ...]:
    """Load every registered backend, in the order of `KINDS` and then by name."""
    found: list[BackendSpec] = []
    for entry in entry_points(group=GROUP):
        provided: Iterable[BackendSpec] = entry.load()
        found.extend(provided)
    return tuple(sorted(found, key=lambda s: (KINDS.index(s.kind), s.name)))


def find(kind: Kind, name: str) -> BackendSpec:
    """Find the backend of that kind and name.

    Raises:
        InputError: no backend has that name; the message lists the known ones.
    """
    for spec in specs():
        if spec.kind == kind and name == spec.name:
            return spec
    known = known_names(name, [spec.name for spec in specs() if spec.kind == kind])
    engine, *settings = name.split(",")
    if settings:
        flags = "".join(f" --set {shlex.quote(f'{kind}.{setting}')}" for setting in settings)
        known = f"its settings are flags of their own: --set {kind}={engine}{flags}; {known}"
    raise InputError(
        "backend.unknown",
        f"no {kind} backend named {name!r}",
        hint=f"{known}. `turngap backends` shows what each needs",
    )


# What `--set` gives in a word; Linux allows an argument of twice as much.
MAX_VALUE = 2**16

# A string of TOML, or any other character. An apostrophe within a word begins no string.
_TOKEN = re.compile(r"""(?<=[=\[{,\s])(?:"(?:\\.|[^"\\])*"|'[^']*')|.""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend as a user names it, `[LABEL=]BACKEND[,KEY=VALUE…]`.

    Attributes:
        name: its label, or else the whole text.
        sets: `KEY=VALUE` each.
    """

    name: str
    backend: str
    sets: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "BackendChoice":
        """Read the text of `--llm`, `--offer`, `--judge` or `--transcribe`.

        A value is TOML, or else a bare word; commas within its brackets or quotes belong to it.

        Raises:
            InputError: the text is not `[LABEL=]BACKEND[,KEY=VALUE…]`.
        """
        head, *sets = _pieces(text)
        label, equals, backend = (part.strip() for part in head.partition("="))
        if not label or (equals and not backend):
            raise _unreadable(text, f"{head.strip()!r} is no [LABEL=]BACKEND")
        for assignment in sets:
            key, equals_, _ = assignment.partition("=")
            if not equals_ or not key.strip():
                raise _unreadable(text, f"{assignment.strip()!r} is no KEY=VALUE")
        return cls(
            label if equals else text.strip(), backend or label, tuple(s.strip() for s in sets)
        )

    def values(self) -> dict[str, Any]:
        pairs = (assignment.partition("=") for assignment in self.sets)
        return {key.strip(): value_of(value) for key, _, value in pairs}

    def configured(self, kind: Kind, defaults: Mapping[str, Any]) -> "ConfiguredBackend":
        """Validate the backend's settings over `defaults` and return it configured.

        Raises:
            InputError: an unknown backend or setting.
            AgentError: this machine lacks something that it needs.
        """
        spec = find(kind, self.backend)
        spec.require()
        return ConfiguredBackend(self.name, spec, spec.settings({**defaults, **self.values()}))


@dataclass(frozen=True, slots=True)
class ConfiguredBackend:
    """A backend with checked settings, and the name that picks it."""

    name: str
    spec: BackendSpec
    settings: BackendSettings

    @property
    def narrow(self) -> bool:
        """Return whether the model knows only the conversations of the library."""
        return self.spec.narrow is not None and self.spec.narrow(self.settings)

    def prepare(self) -> None:
        """Load the backend, or check that its server answers. Slow.

        Raises:
            TurngapError: it cannot be used.
        """
        if self.spec.prepare is not None:
            self.spec.prepare(self.settings)


def _pieces(text: str) -> list[str]:
    """Split `text` at its commas, except within brackets or quotes."""
    pieces, open_brackets = [""], 0
    for token in _TOKEN.findall(text):
        open_brackets = max(0, open_brackets + (token in "[{") - (token in "]}"))
        if token == "," and not open_brackets:
            pieces.append("")
        else:
            pieces[-1] += token
    if open_brackets:
        raise _unreadable(text, "a bracket is not closed")
    return pieces


def _unreadable(text: str, why: str) -> InputError:
    return InputError(
        "backend.unreadable",
        f"{text!r}: {why}",
        hint="expected [LABEL=]BACKEND[,KEY=VALUE…], for example slow=sim,ttft_ms=400",
    )


def value_of(text: str) -> Any:
    """Parse a setting's value from the command line: TOML, or else a bare word.

    Raises:
        InputError: the text is too long, nested too deeply, or not a finite number.
    """
    if len(text) > MAX_VALUE:
        raise InputError(
            "backend.value",
            f"{shown(text, 80)} has {len(text)} characters, expected at most {MAX_VALUE}",
            hint="if it is a prompt, write it into a stack file",
        )
    try:
        values = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    except ValueError as e:
        raise InputError(
            "backend.value", f"{shown(text, 80)} is not a value: {e}", hint="write it as TOML"
        ) from e
    return values["value"] if len(values) == 1 else text.strip()
