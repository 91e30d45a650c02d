"""The LLMs that an agent offers, and a switch to another one in the middle of a conversation.

pipecat's own `ServiceSwitcher` lets a reply in flight from the old service through (pipecat #5337)
and needs every service at the pipeline's start. Here the old service is interrupted and muted, and
its text is dropped on its way to the caller. A service is made when it is first chosen.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from loguru import logger
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
    LLMMessagesAppendFrame,
    LLMTextFrame,
    MetricsFrame,
    StartFrame,
    TextFrame,
)
from pipecat.pipeline.pipeline import Pipeline, PipelineSink, PipelineSource
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup
from pipecat.processors.frameworks.rtvi import RTVIProcessor

from turngap.agent.access import TEXT_CHARS
from turngap.agent.stack import require_tools
from turngap.agent.watchdogs import LLM_PATIENCE, Late, Patience, ReplyWatch
from turngap.backends import BackendChoice, BackendSettings, BackendSpec, ConfiguredBackend, specs
from turngap.clocks import others_first
from turngap.core.clock import Clock
from turngap.core.counts import OUT_OF_DOMAIN
from turngap.core.errors import AgentError, InputError, TurngapError
from turngap.core.untrusted import harmless, whole
from turngap.core.wire import LLM, SAY, refusal
from turngap.thoughts import guard_thoughts

State = Literal["ready", "unloaded", "loading", "failed"]


class Offers:
    """The LLMs that an agent offers, the stack's own first; sessions share what they load.

    Attributes:
        answered: names of the LLMs that have answered a turn since the agent began.

    Raises (when made):
        InputError: two offered LLMs have the same name.
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
        """Return whether an offered LLM may know only the conversations of the library."""
        return any(offer.spec.narrow is not None for offer in self._offers.values())

    @property
    def simulated(self) -> frozenset[str]:
        """Return the names of the offered LLMs in which a script answers instead of a model."""
        offers = self._offers.items()
        return frozenset(name for name, o in offers if o.spec.scripted(o.settings))

    def get(self, name: str) -> ConfiguredBackend:
        """Return the LLM of that name.

        Raises:
            InputError: no LLM of that name is offered.
        """
        if name not in self._offers:
            raise InputError(
                "llm.not_offered",
                f"this agent does not offer the LLM {name!r}",
                hint=f"offered: {', '.join(self._offers)}; `turngap serve --offer NAME` adds one",
            )
        return self._offers[name]

    def prepare(self) -> None:
        """Load the stack's own LLM, and those that were requested by name. Slow."""
        for offer in self._offers.values() if self._preload else (self.first,):
            offer.prepare()
            self._loaded.add(offer.name)

    async def load(self, name: str) -> ConfiguredBackend:
        """Load an LLM that no session has used yet, in a thread, while conversations continue.

        Raises:
            TurngapError: the LLM cannot be loaded; another call tries again.
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
        """Return the LLM's state: whether it could answer at once."""
        if name in self._loaded:
            return "ready"
        if self._locks[name].locked():
            return "loading"
        return "failed" if name in self._why_failed else "unloaded"

    def as_json(self) -> list[dict[str, Any]]:
        """Return each LLM with its state, as shown to the caller."""
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
    """Collect the stack's own LLM and the others that its callers may pick.

    Args:
        own: the stack's LLM and its settings.
        wanted: `[LABEL=]BACKEND[,KEY=VALUE…]` each, loaded when the agent starts. None: every LLM
            that this machine has and that needs no settings, loaded when it is first picked.
        library: the scenarios that an engine may be made from.
        tools: whether the conversation has tools, so that every LLM must call them.

    Raises:
        InputError: a backend or setting is unknown, a name is used twice, or an LLM calls no tools.
        AgentError: this machine lacks something that a requested LLM needs.
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
    """Configure the backend with its default settings; None if it needs a setting."""
    try:
        return ConfiguredBackend(spec.name, spec, spec.settings(dict(defaults)))
    except InputError:
        return None


# What a service says in a reply.
_REPLY = (TextFrame, LLMFullResponseStartFrame, LLMFullResponseEndFrame)


class _Branch:
    """One LLM service inside the switch; once it was left, it is `muted` until its next request."""

    def __init__(self, name: str, service: FrameProcessor, switch: "LlmSwitch") -> None:
        self.name = name
        self.service = service
        self.muted = False

        async def up(frame: Frame, direction: FrameDirection) -> None:
            await switch.from_branch(self, frame, direction)

        source, sink = PipelineSource(up), PipelineSink(up)
        self.pipeline = Pipeline([service], source=source, sink=sink)


class LlmSwitch(FrameProcessor):
    """A conversation's LLM services, one of which answers.

    It takes the LLM's place in the pipeline. It has no queue of its own, so it adds no wait to a
    stack that never switches.

    Args:
        made: called with every service before it is used.
        patience: how long an LLM may be silent before its reply is given up.
        late, empty: called with the reason why the answer is late, or empty, as in `ReplyWatch`.

    Attributes:
        offers: the LLMs that can be picked.
    """

    def __init__(
        self,
        offers: Offers,
        clock: Clock,
        made: Callable[[FrameProcessor], None] | None = None,
        *,
        patience: Patience = LLM_PATIENCE,
        late: Late = lambda why: None,
        empty: Callable[[str], None] = lambda why: None,
    ) -> None:
        super().__init__(enable_direct_mode=True)
        self._watch = ReplyWatch(clock, self._give_up, patience=patience, late=late, empty=empty)
        self._stopping: InterruptionFrame | None = None
        self._speaking = False  # whether the caller hears the agent
        self.offers = offers
        self._made = made
        self._clock = clock
        self._choosing = asyncio.Lock()
        self._start: StartFrame | None = None
        self._started = False
        self._requested = self._responding = False
        offer = offers.first
        self._active = self._make(offer)
        self._branches = {offer.name: self._active}

    @property
    def current(self) -> str:
        return self._active.name

    @property
    def service(self) -> Any:
        return self._active.service

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        """Ask the current LLM a question outside the conversation (`LLMService`'s method)."""
        return await self.service.run_inference(*args, **kwargs)

    @property
    def narrow(self) -> bool:
        """Return whether the current LLM knows only the conversations of the library."""
        return self.offers.get(self.current).narrow

    async def use(self, name: str) -> bool | None:
        """Let another LLM answer from here on.

        A reply that the old one is making or speaking is cancelled and not heard any further; the
        new one is not asked for it.

        Returns:
            Whether a reply was cancelled; None if that LLM answers already.

        Raises:
            TurngapError: the LLM is not offered, or cannot be used here.
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
        """Set up the existing services; later ones are set up when they are chosen."""
        await super().setup(setup)
        await self._active.pipeline.setup(setup)

    async def cleanup(self) -> None:
        await super().cleanup()
        self._watch.end()
        for branch in self._branches.values():
            await branch.pipeline.cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Pass everything to the LLM that answers; pass a session's beginning and end to all."""
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
        """Pass on a service's frames; drop its reply while it is muted or another LLM answers."""
        # Of a cancelled reply nothing is heard; but its cost is reported, and that the tools which
        # it called are not waited for.
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
            # What no voice, no JSON and no terminal can take is left out.
            frame.text = "\n".join(map(harmless, frame.text.split("\n")))
        await self._watch.saw(frame)
        self._follow(frame)
        await self.push_frame(frame, direction)

    async def _give_up(self, why: str) -> None:
        """End the request of an LLM that stalls or does not stop, as an interruption would.

        Speech that has begun is spoken to its end. All other text is dropped: after so long a wait,
        half a sentence is of no use.
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


class Controls:
    """The answers to a caller's RTVI client messages, or the reasons for refusing them.

    Typed text that `knows` rejects is marked like speech outside a recogniser's domain.
    """

    def __init__(
        self, switch: LlmSwitch, clock: Clock, knows: Callable[[str], bool] = lambda text: True
    ) -> None:
        self._knows = knows
        self._switch = switch
        self._clock = clock

    def attach(self, worker: PipelineWorker) -> None:
        asked: dict[str, Callable[[PipelineWorker, dict[str, Any]], Awaitable[None]]] = {
            LLM: self._use,
            SAY: self._say,
        }

        async def on_client_ready(rtvi: RTVIProcessor) -> None:
            await self._tell(rtvi)

        async def on_client_message(rtvi: RTVIProcessor, message: Any) -> None:
            if answer := asked.get(message.type):
                try:
                    data = message.data if isinstance(message.data, dict) else {}
                    await answer(worker, data)
                except TurngapError as e:
                    await rtvi.send_server_message(refusal(message.type, e))

        worker.rtvi.add_event_handler("on_client_ready", on_client_ready)
        worker.rtvi.add_event_handler("on_client_message", on_client_message)

    async def _tell(
        self, rtvi: RTVIProcessor, *, loading: str = "", switched: dict[str, Any] | None = None
    ) -> None:
        offered = self._switch.offers.as_json()
        for row in offered:
            if row["name"] == loading:
                row["state"] = "loading"
        message = {"turngap": "llm", "current": self._switch.current, "offered": offered}
        await rtvi.send_server_message({**message, "switched": switched})

    async def _use(self, worker: PipelineWorker, data: dict[str, Any]) -> None:
        offers, before = self._switch.offers, self._switch.current
        name = offers.get(str(data.get("use"))).name
        if offers.state(name) != "ready":
            await self._tell(worker.rtvi, loading=name)
        try:
            cancelled = await self._switch.use(name)
        except Exception as e:
            await self._tell(worker.rtvi)
            raise _unusable(name, e) from e
        switched = None
        if cancelled is not None:
            now_ns = self._clock.now_ns()
            switched = {"from": before, "to": name, "at_ns": now_ns, "cancelled": cancelled}
        await self._tell(worker.rtvi, switched=switched)

    async def _say(self, worker: PipelineWorker, data: dict[str, Any]) -> None:
        text = str(data.get("text") or "").strip()
        if not text or len(text) > TEXT_CHARS:
            raise InputError(
                "say.length", f"{len(text)} characters of text, expected 1 to {TEXT_CHARS}"
            )
        turn = data.get("turn")
        try:
            turn = None if turn is None else whole(turn)
        except ValueError as e:
            raise InputError("say.turn", f"the turn of a typed text: {e}") from e
        content = text if self._knows(text) else f"{OUT_OF_DOMAIN} {text}"
        messages: list[Any] = [{"role": "user", "content": content}]
        await worker.rtvi.interrupt_bot()
        # The interruption commits what was spoken so far to the context, before the text.
        await worker.flush_pipeline()
        await worker.rtvi.push_frame(LLMMessagesAppendFrame(messages, run_llm=True))
        await worker.rtvi.send_server_message({"turngap": "said", "turn": turn})


def _unusable(name: str, error: Exception) -> TurngapError:
    if isinstance(error, TurngapError):
        return error
    logger.opt(exception=error).warning(f"the LLM {name} cannot be used")
    why = str(error) or type(error).__name__
    return AgentError("llm.failed", f"the LLM {name!r} cannot be used: {why}")
