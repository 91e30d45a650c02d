"""Another LLM in the middle of a conversation, without a word more from the one before.

pipecat's own `ServiceSwitcher` lets a reply in flight from the old service through (pipecat #5337)
and needs every service at the pipeline's start. Here the old one is interrupted and muted, and what
it has said so far is dropped on its way to the caller; a service is made when it is first chosen.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    EagerEndOfTurnCancelFrame,
    EndFrame,
    Frame,
    FunctionCallCancelFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    StartFrame,
    TextFrame,
)
from pipecat.pipeline.pipeline import Pipeline, PipelineSink, PipelineSource
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup

from turngap.agent.replies import ReplyWatch, spoken
from turngap.agent.stack import require_tools
from turngap.agent.watch import LLM, Late, Patience
from turngap.backends import (
    BackendChoice,
    BackendSettings,
    BackendSpec,
    ConfiguredBackend,
    specs,
)
from turngap.clocks import others_first
from turngap.core.clock import Clock
from turngap.core.errors import InputError
from turngap.thoughts import guard_thoughts

State = Literal["ready", "unloaded", "loading", "failed"]


class Offers:
    """The LLMs that an agent offers, the stack's own first; what they load is shared by sessions.

    Attributes:
        answered: those that have answered a turn since the agent began.

    Raises (when made):
        InputError: two of one name.
    """

    def __init__(self, offers: Sequence[ConfiguredBackend], *, preload: bool = False) -> None:
        self._offers = {offer.name: offer for offer in offers}
        if len(self._offers) < len(offers):
            names = ", ".join(offer.name for offer in offers)
            raise InputError(
                "offer.twice",
                f"two offered LLMs have the same name: {names}",
                hint="name one: --offer slow=sim,ttft_ms=400",
            )
        self.answered: set[str] = set()
        self._preload = preload
        self._locks = {offer.name: asyncio.Lock() for offer in offers}
        self._why_failed: dict[str, str] = {}
        self._loaded = {offer.name for offer in offers if offer.spec.prepare is None}

    @property
    def first(self) -> ConfiguredBackend:
        return next(iter(self._offers.values()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._offers)

    @property
    def narrow(self) -> bool:
        """Whether one of them may turn out to know nothing but the library's talk."""
        return any(offer.spec.narrow is not None for offer in self._offers.values())

    @property
    def simulated(self) -> frozenset[str]:
        """Those in which a script answers in place of a model."""
        offers = self._offers.items()
        return frozenset(name for name, o in offers if o.spec.scripted(o.settings))

    def get(self, name: str) -> ConfiguredBackend:
        """The LLM of that name.

        Raises:
            InputError: it is not offered.
        """
        if name not in self._offers:
            raise InputError(
                "llm.not_offered",
                f"this agent does not offer the LLM {name!r}",
                hint=f"offered: {', '.join(self._offers)}; `turngap serve --offer NAME` adds one",
            )
        return self._offers[name]

    def prepare(self) -> None:
        """Load the stack's own LLM, and those that were asked for by name. Slow."""
        for offer in self._offers.values() if self._preload else (self.first,):
            offer.prepare()
            self._loaded.add(offer.name)

    async def load(self, name: str) -> ConfiguredBackend:
        """Load an LLM that no session has used yet, in a thread, while conversations go on.

        Raises:
            TurngapError: it cannot be loaded; asking again tries again.
        """
        offer = self.get(name)
        async with self._locks[name]:
            if name not in self._loaded:
                try:
                    await asyncio.to_thread(offer.prepare)
                except Exception as e:
                    self._why_failed[name] = str(e) or type(e).__name__
                    raise
                self._why_failed.pop(name, None)
                self._loaded.add(name)
        return offer

    def state(self, name: str) -> State:
        """Whether it could answer at once."""
        if name in self._loaded:
            return "ready"
        if self._locks[name].locked():
            return "loading"
        return "failed" if name in self._why_failed else "unloaded"

    def as_json(self) -> list[dict[str, Any]]:
        """Each LLM with its state, for whoever is to pick one."""
        rows: list[dict[str, Any]] = []
        simulated = self.simulated
        for name in self._offers:
            row: dict[str, Any] = {"name": name, "state": str(self.state(name))}
            if name in simulated:
                row["simulated"] = True
            if name in self._why_failed and row["state"] == "failed":
                row["why"] = self._why_failed[name]
            rows.append(row)
        return rows


def offers_of(
    own: tuple[BackendSpec, BackendSettings],
    wanted: Sequence[str] | None,
    library: Path | None,
    *,
    tools: bool = False,
) -> Offers:
    """The stack's own LLM and the others that its callers may pick.

    Args:
        own: the stack's LLM and its settings.
        wanted: `[LABEL=]BACKEND[,KEY=VALUE…]` each, loaded when the agent starts; None: every LLM
            that this machine has and that needs no settings, loaded when it is first picked.
        library: the scenarios that an engine may be made from.
        tools: whether the conversation has tools, so that all have to call them.

    Raises:
        InputError: an unknown backend or setting, a name twice, or one that calls no tools.
        AgentError: one that was asked for lacks something on this machine.
    """
    spec, settings = own
    first = ConfiguredBackend(spec.name, spec, settings)
    defaults = {} if library is None else {"library": library}
    if wanted is not None:
        asked_for = [BackendChoice.parse(text).configured("llm", defaults) for text in wanted]
        for offer in asked_for if tools else ():
            require_tools(offer.spec, offer.settings)
        return Offers([first, *asked_for], preload=True)
    others = (s for s in specs() if s.kind == "llm" and s.name != spec.name and not s.missing())
    ready = [offer for s in others if (offer := _as_it_is(s, defaults)) is not None]
    if tools:
        ready = [offer for offer in ready if offer.spec.why_no_tools(offer.settings) is None]
    return Offers([first, *ready])


def _as_it_is(spec: BackendSpec, defaults: Mapping[str, Any]) -> ConfiguredBackend | None:
    """The backend with its default settings, or None where it has to be told something."""
    try:
        return ConfiguredBackend(spec.name, spec, spec.settings(dict(defaults)))
    except InputError:
        return None


@dataclass(slots=True)
class Memory:
    """What a conversation keeps when its line is lost and comes back."""

    context: LLMContext | None = None
    llm: str | None = None


# What a service says in a reply.
_REPLY = (TextFrame, LLMFullResponseStartFrame, LLMFullResponseEndFrame)


class _Branch:
    """One LLM service inside the switch; `muted` until its next request, once it was left."""

    def __init__(self, name: str, service: FrameProcessor, switch: "LlmSwitch") -> None:
        self.name = name
        self.service = service
        self.muted = False

        async def up(frame: Frame, direction: FrameDirection) -> None:
            await switch.from_branch(self, frame, direction)

        source, sink = PipelineSource(up), PipelineSink(up)
        self.pipeline = Pipeline([service], source=source, sink=sink)


class LlmSwitch(FrameProcessor):
    """Holds a conversation's LLM services and lets one of them answer.

    In the pipeline it stands where the LLM stands. It has no queue of its own, so that it adds no
    wait to a stack that never switches.

    Args:
        made: called with every service before it is used.
        patience: how long an LLM may be silent before its reply is given up.
        late, empty: called with why the answer is late, or empty, as a `ReplyWatch` does.

    Attributes:
        offers: what can be picked.
    """

    def __init__(
        self,
        offers: Offers,
        clock: Clock,
        memory: Memory,
        made: Callable[[FrameProcessor], None] | None = None,
        *,
        patience: Patience = LLM,
        late: Late = lambda why: None,
        empty: Callable[[str], None] = lambda why: None,
    ) -> None:
        super().__init__(enable_direct_mode=True)
        self._watch = ReplyWatch(clock, self._give_up, patience=patience, late=late, empty=empty)
        self._stopping: InterruptionFrame | None = None
        self._speaking = False  # whether the caller hears the agent
        self.offers = offers
        self._made = made
        self._memory = memory
        self._clock = clock
        self._choosing = asyncio.Lock()
        self._start: StartFrame | None = None
        self._started = False
        self._requested = self._responding = False
        offer = offers.get(memory.llm) if memory.llm else offers.first
        memory.llm = offer.name
        self._active = self._make(offer)
        self._branches = {offer.name: self._active}

    @property
    def current(self) -> str:
        return self._active.name

    @property
    def service(self) -> Any:
        return self._active.service

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        """A question beside the conversation, to the LLM that answers (`LLMService`'s)."""
        return await self.service.run_inference(*args, **kwargs)

    @property
    def narrow(self) -> bool:
        """Whether the LLM that answers now knows nothing but the library's talk."""
        return self.offers.get(self.current).narrow

    async def use(self, name: str) -> bool | None:
        """Let another LLM answer from here on.

        A reply of the old one that is being made or spoken is cancelled at the old one and not
        heard any further; the new one is not asked for it.

        Returns:
            Whether a reply was cancelled; None where that LLM answers already.

        Raises:
            TurngapError: it is not offered, or cannot be used here.
        """
        async with self._choosing:
            if name == self._active.name:
                return None
            offer = await self.offers.load(name)
            branch = self._branches.get(name)
            if branch is None:
                branch = self._branches[name] = self._make(offer)
                await branch.pipeline.setup(self.processor_setup)
                if self._start is not None:
                    await branch.pipeline.queue_frame(self._start)
            old, self._active = self._active, branch
            self._memory.llm = name
            self._watch.end()
            old.muted = True
            cancelled = self._requested
            # Its request is to end at its server, whatever becomes of the rest of the pipeline.
            await old.pipeline.queue_frame(InterruptionFrame())
            if cancelled:
                self._requested = False
                await self.broadcast_interruption()
            return cancelled

    def _make(self, offer: ConfiguredBackend) -> _Branch:
        service = offer.spec.create(offer.settings, self._clock)
        guard_thoughts(service)
        if self._made is not None:
            self._made(service)
        return _Branch(offer.name, service, self)

    def processors_with_metrics(self) -> list[FrameProcessor]:
        branches = self._branches.values()
        return [p for branch in branches for p in branch.pipeline.processors_with_metrics()]

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up the services there are; later ones when they are chosen."""
        await super().setup(setup)
        await self._active.pipeline.setup(setup)

    async def cleanup(self) -> None:
        await super().cleanup()
        self._watch.end()
        for branch in self._branches.values():
            await branch.pipeline.cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Hand everything to the LLM that answers; what begins and ends a session, to all."""
        await super().process_frame(frame, direction)
        self._follow(frame)
        if isinstance(frame, StartFrame):
            self._start = frame
        # A context comes upstream, too, with the results of tools; a reply that was made before the
        # switch passes through the service.
        elif isinstance(frame, LLMContextFrame | LLMFullResponseStartFrame):
            self._active.muted, self._stopping = False, None
            self._watch.begin()
        elif isinstance(frame, InterruptionFrame | EagerEndOfTurnCancelFrame | CancelFrame):
            self._watch.end()
        elif isinstance(frame, BotStartedSpeakingFrame | BotStoppedSpeakingFrame):
            self._speaking = isinstance(frame, BotStartedSpeakingFrame)
        if isinstance(frame, CancelFrame | EndFrame | InterruptionFrame):
            for branch in [b for b in self._branches.values() if b is not self._active]:
                await branch.pipeline.queue_frame(frame, direction)
        await self._active.pipeline.queue_frame(frame, direction)

    async def from_branch(self, branch: _Branch, frame: Frame, direction: FrameDirection) -> None:
        """Pass on what a service pushes, unless it is not its turn to speak."""
        # Of a cancelled reply nothing is heard; but what it has cost is told, and that the tools
        # which it called are not waited for.
        is_told = isinstance(frame, MetricsFrame | FunctionCallCancelFrame)
        if branch is not self._active and not is_told:
            return
        if frame is self._stopping:  # for this service alone: what it has said is spoken to its end
            self._stopping = None
            if self._responding:
                await self.from_branch(branch, LLMFullResponseEndFrame(), direction)
            return
        # Only the reply: a flush probe that passes through is what the next request waits for.
        if branch.muted and isinstance(frame, _REPLY):
            return
        if isinstance(frame, StartFrame):
            if self._started:
                return  # of a service that was made later; the pipeline is running already
            self._started = True
        if self._stopping is not None and isinstance(frame, LLMTextFrame):
            await others_first()  # a model that does not stop must let itself be stopped
            return
        if isinstance(frame, LLMTextFrame):
            frame.text = spoken(frame.text)
        await self._watch.saw(frame)
        self._follow(frame)
        await self.push_frame(frame, direction)

    async def _give_up(self, why: str) -> None:
        """End the request of an LLM that stalls or does not stop, as an interruption would.

        What is being spoken is spoken to its end. What was not spoken until now is dropped: after
        so long, nobody expects half a sentence.
        """
        await self.service.push_error(why)
        if not self._speaking:
            await self.broadcast_interruption()
        self._stopping = InterruptionFrame()
        await self._active.pipeline.queue_frame(self._stopping)

    def _follow(self, frame: Frame) -> None:
        if isinstance(frame, LLMContextFrame | LLMFullResponseStartFrame):
            self._requested = self._responding = True
        elif isinstance(frame, LLMFullResponseEndFrame):
            self._responding = False
        elif isinstance(frame, InterruptionFrame) or (
            isinstance(frame, BotStoppedSpeakingFrame) and not self._responding
        ):
            self._requested = self._responding = False
