"""A conversation's pipeline between the recogniser and the memory, driven frame by frame."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.turns.types import ProcessFrameResult, UserTurnSpeculation
from pipecat.turns.user_start import BaseUserTurnStartStrategy
from pipecat.turns.user_stop import BaseUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipelines import PATIENCE_S, at_work

from turngap.agent.output import HeardKeeper, Ledger, MadeCounter
from turngap.agent.speculation import Announcer, AudioGate, DiscreetRTVI, Guesses
from turngap.agent.speech_output import ClauseAggregator
from turngap.clocks import MonotonicClock
from turngap.marks.observer import MarksObserver
from turngap_services.llm.plain import plain_settings

F = TypeVar("F", bound=Frame)
RATE = 16_000
# Each letter sounds so long: a clause's audio says which words it holds.
LETTER_SAMPLES = RATE // 50


class EchoLLM(LLMService[Any]):
    """Answers "You said TEXT, and that is that." in pieces, each when `go` lets it."""

    def __init__(self) -> None:
        super().__init__(settings=plain_settings("echo"))
        self.asked: list[list[dict[str, Any]]] = []
        self.cancelled: list[str] = []
        self.finished: list[str] = []
        self.wants_tool = False
        self.call: tuple[str, dict[str, Any]] = ("pay", {})
        self.go = asyncio.Event()
        self.go.set()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        messages: Any = frame.context.get_messages()
        self.asked.append(list(messages))
        said = messages[-1]["content"]
        await self.push_frame(LLMFullResponseStartFrame())
        try:
            await self._answer(said, frame.context)
            self.finished.append(said)
        except asyncio.CancelledError:
            self.cancelled.append(said)
            raise
        finally:
            await self.push_frame(LLMFullResponseEndFrame())

    async def _answer(self, said: str, context: LLMContext) -> None:
        if self.wants_tool:
            name, arguments = self.call
            call = FunctionCallFromLLM(
                function_name=name, tool_call_id="1", arguments=arguments, context=context
            )
            await self.run_function_calls([call])
            return
        await self.push_frame(LLMTextFrame(f"You said {said},"))
        await self.go.wait()
        await self.push_frame(LLMTextFrame(" and that is that."))


class LetterTTS(TTSService):
    """Speaks a clause as one tone, so long for each letter."""

    def __init__(self) -> None:
        super().__init__(
            sample_rate=RATE,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="tone", voice="tone", language=None),
        )
        self.spoken: list[str] = []

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        self.spoken.append(text)
        tone = np.full(LETTER_SAMPLES * len(text), 8000, np.int16).tobytes()
        for at in range(0, len(tone), 3200):
            yield TTSAudioRawFrame(tone[at : at + 3200], RATE, 1, context_id=context_id)


class Told(BaseUserTurnStartStrategy):
    """Starts a turn when the test says so."""


class Ends(BaseUserTurnStopStrategy):
    """Guesses and ends turns when the test says so.

    Attributes:
        refused: whether the LLM has refused a guess.
    """

    refused = False

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        self.refused = self.refused or isinstance(frame, EagerEndOfTurnCancelFrame)
        return ProcessFrameResult.CONTINUE


class Output(FrameProcessor):
    """In place of the transport: what comes here would be heard.

    Attributes:
        let_through: so many more pieces of audio are written, the next waits for an interruption;
            None: all are written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self.let_through: int | None = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        if isinstance(frame, OutputAudioRawFrame) and self.let_through is not None:
            if self.let_through == 0:
                await asyncio.Event().wait()  # until an interruption cancels it
            self.let_through -= 1
        await self.push_frame(frame, direction)


class Conversation:
    """The pipeline and the handles by which a test plays the person."""

    def __init__(
        self,
        *,
        gated: bool = True,
        llm: LLMService[Any] | None = None,
        tools: ToolsSchema | None = None,
        observer: MarksObserver | None = None,
    ) -> None:
        self.observer = observer
        prompt: Any = {"role": "system", "content": "Be brief."}
        self.context = LLMContext([prompt], tools) if tools else LLMContext([prompt])
        self.start, self.stop = Told(), Ends()
        self.echo, self.tts, self.output = EchoLLM(), LetterTTS(), Output()
        self.llm = llm or self.echo
        guesses = Guesses()
        self.rtvi = DiscreetRTVI(guesses)
        self.told: list[tuple[str, Any]] = []
        self.paid = 0
        voice = [LLMTextProcessor(text_aggregator=ClauseAggregator()), self.tts]
        gate = AudioGate(guesses)
        if gated:
            guesses.let_through(self.llm)
            voice = [*guesses.guarded(voice), gate]
        ledger = Ledger()
        pair = LLMContextAggregatorPair(
            self.context,
            user_params=LLMUserAggregatorParams(
                user_turn_strategies=UserTurnStrategies(start=[self.start], stop=[self.stop])
            ),
        )
        self.user = pair.user()
        self.processors: list[FrameProcessor] = [
            self.user,
            *([Announcer(guesses, gate)] if gated else []),
            self.llm,
            *voice,
            MadeCounter(ledger),
            self.output,
            HeardKeeper(ledger),
            pair.assistant(),
        ]

        async def pay(params: Any) -> None:
            self.paid += 1
            await params.result_callback({"paid": True})

        self.echo.register_function("pay", pay)

    # --- the person -----------------------------------------------------------------------------

    async def begins(self, *, interrupt: bool = False) -> None:
        await self.start.trigger_user_turn_started(enable_interruptions=interrupt)

    async def is_read(self, text: str) -> None:
        """The recogniser has a final text, which the aggregator keeps for the turn's end."""
        await self.user.queue_frame(TranscriptionFrame(text, "", "", finalized=True))
        await self.until(lambda: self.user.aggregation_string().endswith(text))

    async def guess(self, text: str) -> None:
        await self.stop.trigger_user_turn_inference_triggered(
            speculation=UserTurnSpeculation(text=text)
        )

    async def withdraw(self) -> None:
        await self.stop.trigger_user_turn_speculation_cancelled()

    async def ends(self, *, confirmed: bool) -> None:
        if confirmed:
            await self.stop.trigger_user_turn_finalized(confirms_speculation=True)
        else:
            await self.stop.trigger_user_turn_stopped()

    # --- what came of it ------------------------------------------------------------------------

    @property
    def memory(self) -> list[tuple[str, str]]:
        """Role and text of each message of the conversation but the first."""
        messages: Any = self.context.get_messages()
        return [(m["role"], m.get("content") or "") for m in messages[1:]]

    @property
    def refused(self) -> bool:
        """Return whether the LLM would call a tool for a guess, and turn-taking knows."""
        return self.stop.refused

    @property
    def heard_letters(self) -> float:
        """Return how much was spoken to the caller, in letters."""
        samples = sum(len(f.audio) // 2 for f in self.of(TTSAudioRawFrame))
        return samples / LETTER_SAMPLES

    def of(self, kind: type[F]) -> list[F]:
        return [frame for frame in self.output.frames if isinstance(frame, kind)]

    def client_heard(self, kind: str) -> list[Any]:
        return [data for said, data in self.told if said == kind]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until something holds, looking again whenever the event loop comes round."""
        clock = MonotonicClock()
        async with asyncio.timeout(PATIENCE_S):
            while not ready():
                await clock.sleep_until_ns(clock.now_ns() + 1_000_000)

    async def pause(self, rounds: int) -> None:
        """Let every task that is ready have so many turns."""
        for _ in range(rounds):
            await asyncio.sleep(0)  # noqa: TID251

    async def answered(self, times: int = 1) -> None:
        """Wait until so many replies are part of the conversation."""
        await self.until(lambda: self._replies == times)

    @property
    def _replies(self) -> int:
        # A call of a tool is a message of the assistant's, too, without words.
        return sum(role == "assistant" and bool(text) for role, text in self.memory)


@asynccontextmanager
async def conversing(**options: Any) -> AsyncIterator[Conversation]:
    """Run a conversation; ends it gracefully."""
    conversation = Conversation(**options)
    rtvi = conversation.rtvi

    async def push(model: Any, exclude_none: bool = True) -> None:
        data = getattr(model, "data", None)
        conversation.told.append((model.type, getattr(data, "text", data)))

    rtvi.push_transport_message = push  # type: ignore[method-assign]
    worker = PipelineWorker(
        Pipeline(conversation.processors),
        params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
        rtvi_processor=rtvi,
        idle_timeout_secs=None,
    )
    if conversation.observer is not None:
        worker.add_observer(conversation.observer)
        conversation.observer.report_to(rtvi)
    async with at_work(worker):
        yield conversation
        conversation.echo.go.set()
