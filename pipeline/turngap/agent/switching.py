"""Another LLM in the middle of a conversation, without a word more from the one before.

pipecat's own `ServiceSwitcher` lets a reply in flight from the old service through (pipecat #5337)
and needs every service at the pipeline's start. Here the old one is interrupted and muted, and what
it has said so far is dropped on its way to the caller; a service is made when it is first chosen.
"""

import asyncio
from collections.abc import Callable
from typing import Any

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
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup

from turngap.agent.offers import Offers
from turngap.agent.watchdogs import LLM, Late, Patience, ReplyWatch
from turngap.backends import ConfiguredBackend
from turngap.clocks import others_first
from turngap.core.clock import Clock
from turngap.core.untrusted import harmless
from turngap.thoughts import guard_thoughts

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
            # What no voice, no JSON and no terminal can take is left out.
            frame.text = "\n".join(map(harmless, frame.text.split("\n")))
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
