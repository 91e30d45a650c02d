"""Where pipecat's frames become turngap's marks: the only module that knows both.

Any pipecat bot can have it, in two lines:

    from turngap.agent.observer import MarksObserver
    MarksObserver().attach(worker)  # a PipelineWorker, before it runs
"""

import asyncio
import dataclasses
import json
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from pipecat.clocks.base_clock import BaseClock
from pipecat.frames.frames import (
    AggregatedTextFrame,
    BotStoppedSpeakingFrame,
    EagerEndOfTurnCancelFrame,
    ErrorFrame,
    Frame,
    FunctionCallCancelFrame,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseStartFrame,
    LLMMessagesAppendFrame,
    LLMTextFrame,
    LLMThoughtTextFrame,
    MetricsFrame,
    OutputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSTextFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregator
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIProcessor
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport

from turngap.agent.domain import DomainAnswer
from turngap.agent.marks import AgentTurn, MarksRecorder, Waste, costs, failure_of, kind_of
from turngap.agent.speculation import GUESS, SpeculationDropped
from turngap.agent.voice.speech_output import SpeechOutput
from turngap.backends import COUNTS, Decision, Kind
from turngap.clocks import MonotonicClock
from turngap.core.clock import Clock
from turngap.core.messages import PING
from turngap.core.tokens import COLD

# Characters of a tool's result that are stored with its turn.
MOST_OF_A_RESULT = 500


class MonotonicPipecatClock(BaseClock):
    """Stamps pipecat's frames with the clock that everything else reads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()

    def get_time(self) -> int:
        return self._clock.now_ns()

    def start(self) -> None:
        """Do nothing, as this clock has no zero of its own."""


class StampedSerializer(ProtobufFrameSerializer):
    """Notes when each chunk of audio is handed to the socket.

    Pipecat's WebSocket outputs write a chunk, sleep until it is time for the next, and only then
    push it on: by the push alone, `sent` would be up to a chunk late.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or MonotonicClock()
        self._written_ns: deque[int] = deque()

    async def serialize(self, frame: Frame) -> str | bytes | None:
        data = await super().serialize(frame)
        if isinstance(frame, OutputAudioRawFrame):
            self._written_ns.append(self._clock.now_ns())
        return data

    def written_ns(self, pushed_ns: int) -> int:
        """Return when the chunk pushed on then was written; call in the order of pushes."""
        written_ns = pushed_ns
        while self._written_ns and self._written_ns[0] <= pushed_ns:
            written_ns = self._written_ns.popleft()
        return written_ns


class MarksObserver(BaseObserver):
    """Notes each turn's marks from the pushes' own timestamps and reports them after the turn.

    Pipecat hands pushes to observers from a queue, which has been seen to stall for 1.5 s. The
    timestamp on each push is exact all the same, and the instant of handling is never used.

    Args:
        hold_ms: how long turn-taking holds the turn's end after the VAD's stop.
        written: returns when the audio that the output pushed on at an instant (ns) was written;
            without it, `sent` is the push.
        eager: report a turn's marks when its first audible sample is written, too.
        llm: returns the name of the LLM that answers, if that can change.
        answered: names of the LLMs that have answered a turn since the agent began, for any caller;
            added to. Without it no turn is marked as an LLM's first.
        decisions: turn-taking's decisions, oldest first; those that are reported are removed.
        price: returns the price of the LLM that answers, if known: US dollars per million input and
            output tokens.
        cuts_lead_in: whether a `SpeechOutput` after the TTS cuts off the silence before speech.
    """

    def __init__(
        self,
        *,
        hold_ms: float = 0.0,
        written: Callable[[int], int] = lambda pushed_ns: pushed_ns,
        eager: bool = False,
        llm: Callable[[], str | None] = lambda: None,
        answered: set[str] | None = None,
        decisions: deque[Decision] | None = None,
        price: Callable[[], tuple[float, float] | None] = lambda: None,
        cuts_lead_in: bool = False,
    ) -> None:
        super().__init__()
        self._cuts_lead_in = cuts_lead_in
        self._written = written
        self._decisions = deque[Decision]() if decisions is None else decisions
        self._price = price
        self._waste = Waste()
        self._guess: object = None  # the guess number of the answer that is being made, if any
        self._llm = llm
        self._answered = answered
        self._guessing: str | None = None  # the LLM whose answer is still a guess
        self._about: dict[str, Any] = {}
        self._typed = False
        self._recorder = MarksRecorder(hold_ms, self._report, eager=eager)
        self._rtvi: RTVIProcessor | None = None
        self._reports: set[asyncio.Task[None]] = set()

    def attach(self, worker: PipelineWorker) -> None:
        worker.add_observer(self)
        self.report_to(worker.rtvi)

    def report_to(self, rtvi: RTVIProcessor) -> None:
        """Send the marks as RTVI server messages, and answer the caller's clock pings."""
        self._rtvi = rtvi

        async def on_client_message(processor: RTVIProcessor, message: Any) -> None:
            # The clock that stamps the frames: some begin at 0 with the pipeline.
            now_ns = processor.get_clock().get_time()
            if message.type == PING and isinstance(message.data, dict):
                number = message.data.get("ping")
                pong = {"turngap": "pong", "ping": number, "agent_ns": now_ns}
                await processor.send_server_message(pong)

        rtvi.add_event_handler("on_client_message", on_client_message)

    def count(self, name: str, n: float) -> None:
        """Add to a figure of the turn that is being answered, or of the next one."""
        self._recorder.count(name, n)

    def late(self, kind: Kind, why: str) -> None:
        """Note that an engine is late with the answer, and why; empty: it goes on."""
        self._recorder.late(kind, why)

    def silent(self, kind: Kind, why: str) -> None:
        """Note that there is nothing to hear, though no engine has failed."""
        self._recorder.silent(kind, why)

    async def on_push_frame(self, data: FramePushed) -> None:
        frame, at_ns = data.frame, data.timestamp
        if isinstance(frame, OutputAudioRawFrame):
            self._on_audio(data, frame)
        elif data.first_push and data.direction == FrameDirection.DOWNSTREAM:
            self._on_first_push(data, frame, at_ns)
        elif data.first_push and isinstance(frame, ErrorFrame):
            self._on_error(data.source, frame, at_ns)

    def _on_audio(self, data: FramePushed, frame: OutputAudioRawFrame) -> None:
        if isinstance(data.source, BaseOutputTransport):
            self._recorder.sent(self._written(data.timestamp), _pcm(frame), frame.sample_rate)
        elif isinstance(frame, TTSAudioRawFrame) and isinstance(data.source, TTSService):
            self._on_counts(frame)
            if self._cuts_lead_in:
                self._recorder.mark("tts_first_audio", data.timestamp)
            else:
                self._recorder.tts_audio(data.timestamp, _pcm(frame), frame.sample_rate)
        elif self._cuts_lead_in and isinstance(data.source, SpeechOutput):
            self._recorder.tts_audio(data.timestamp, _pcm(frame), frame.sample_rate)

    def _on_first_push(self, data: FramePushed, frame: Frame, at_ns: int) -> None:
        match frame:
            case SpeculationDropped():
                pass  # only the processors that made the guess are interrupted
            case InterruptionFrame() | EagerEndOfTurnCancelFrame():
                self._waste.withdrawn()
                self._recorder.withdrawn()
                # Its last frames do not belong to the next turn.
                self._guess = self._guessing = None
                if isinstance(frame, InterruptionFrame):
                    self._recorder.finish()
            case BotStoppedSpeakingFrame():
                self._recorder.finish()
            case TTSTextFrame():
                pass  # already spoken
            case AggregatedTextFrame() | TTSStartedFrame():
                self._recorder.mark("tts_request", at_ns)
            case LLMMessagesAppendFrame():
                self._typed = True
            case LLMContextFrame() if isinstance(data.source, LLMUserAggregator):
                self._on_request(frame, at_ns)
            case _ if isinstance(data.source, LLMService):
                self._on_llm(frame, at_ns)
            case _ if isinstance(data.source, DomainAnswer):
                self._on_outside(frame, at_ns)
            case _:
                self._on_user(data, frame, at_ns)

    def _on_user(self, data: FramePushed, frame: Frame, at_ns: int) -> None:
        recorder = self._recorder
        match frame:
            case VADUserStartedSpeakingFrame():
                recorder.user_started(at_ns)
            case VADUserStoppedSpeakingFrame():
                recorder.vad_stopped(at_ns)
            case InterimTranscriptionFrame() if isinstance(data.source, STTService):
                recorder.partial()
            case TranscriptionFrame() if isinstance(data.source, STTService):
                recorder.transcript(at_ns)
                recorder.heard(frame.metadata.get(COUNTS, {}))
            case UserStoppedSpeakingFrame():
                self._waste.confirmed()
                recorder.turn_decided(at_ns, self._decision(at_ns))
                self._has_answered(self._guessing)
            case _:
                pass

    def _on_llm(self, frame: Frame, at_ns: int) -> None:
        self._on_counts(frame)
        match frame:
            case LLMFullResponseStartFrame():
                self._waste.answered()
            case LLMTextFrame() if frame.metadata.get(GUESS) == self._guess:
                self._waste.piece()
                self._recorder.said(at_ns)
            case LLMThoughtTextFrame() if frame.metadata.get(GUESS) == self._guess:
                self._waste.piece()
                self._recorder.thought(at_ns)
            case MetricsFrame():
                for usage in (d for d in frame.data if isinstance(d, LLMUsageMetricsData)):
                    tokens = usage.value
                    self._waste.used(tokens.prompt_tokens, tokens.completion_tokens)
                    self._recorder.used(tokens.prompt_tokens, tokens.completion_tokens)
            case _:
                self._on_tool(frame, at_ns)

    def _on_outside(self, frame: Frame, at_ns: int) -> None:
        """Note an answer without the LLM, of which no figure of the LLM's counts."""
        if isinstance(frame, LLMTextFrame):
            self._on_counts(frame)
            self._recorder.mark("llm_first_token", at_ns)

    def _on_tool(self, frame: Frame, at_ns: int) -> None:
        """Note tools, which run in the LLM service and are announced by its frames."""
        match frame:
            case FunctionCallInProgressFrame(tool_call_id=call_id):
                arguments = frame.arguments if isinstance(frame.arguments, dict) else {}
                self._recorder.tool_called(call_id, frame.function_name, arguments, at_ns)
            case FunctionCallResultFrame(tool_call_id=call_id, error=error):
                if frame.properties is None or frame.properties.is_final:
                    # The answer to it does not belong to a guess, even if the call did.
                    self._guess = None
                    result = None if error else _as_json(frame.result)
                    self._recorder.tool_returned(call_id, at_ns, result=result, error=error)
            case FunctionCallCancelFrame(tool_call_id=call_id):
                self._recorder.tool_cancelled(call_id)
            case _:
                pass

    def _on_counts(self, frame: Frame) -> None:
        """Take an engine's own counts; of a void answer, only what it cost."""
        told: dict[str, float] = frame.metadata.get(COUNTS, {})
        is_void = frame.metadata.get(GUESS) not in (None, self._guess)
        for name, n in costs(told).items() if is_void else told.items():
            self._recorder.count(name, n)

    def _on_error(self, source: FrameProcessor, frame: ErrorFrame, at_ns: int) -> None:
        """Note the engines' errors."""
        error = failure_of(frame, source)
        if error is not None and isinstance(source, LLMService | TTSService):
            self._recorder.failed(error)
        elif error is not None and kind_of(source) is not None:
            self._recorder.unheard(error, at_ns)

    def _on_request(self, frame: LLMContextFrame, at_ns: int) -> None:
        self._guess = frame.metadata.get(GUESS)
        if frame.speculation:
            self._recorder.guessed(at_ns)
            messages = (m for m in frame.context.get_messages() if isinstance(m, dict))
            self._waste.begun(sum(len(str(m.get("content", ""))) for m in messages))
        else:
            self._recorder.llm_requested(at_ns)
        llm = self._llm()
        if self._answered is not None and llm is not None and llm not in self._answered:
            self._recorder.count(COLD, 1)
        self._guessing = llm if frame.speculation else None
        if not frame.speculation:
            self._has_answered(llm)
        self._about = {"llm": llm, "typed": self._typed}
        self._typed = False

    def _has_answered(self, llm: str | None) -> None:
        """Note that the LLM is asked for a turn, so that later turns are not its first."""
        if self._answered is not None and llm is not None:
            self._answered.add(llm)

    def _decision(self, announced_ns: int) -> Decision | None:
        """Return the latest decision before it was announced."""
        found: Decision | None = None
        while self._decisions and self._decisions[0].at_ns <= announced_ns:
            found = self._decisions.popleft()
        return found

    def _report(self, turn: AgentTurn) -> None:
        for name, n in self._waste.take(self._price()).items():
            turn.counts[name] = turn.counts.get(name, 0) + n
        if self._rtvi is None:
            return
        message = {"turngap": "marks", "turn": turn.number, "marks": dict(turn.marks)}
        message |= {"counts": dict(turn.counts), "why": turn.why, "error": turn.failure}
        message["calls"] = [dataclasses.asdict(call) for call in turn.calls.values()]
        message |= self._about
        if turn.no_reply is not None:
            message["no_reply"] = turn.no_reply
        task = asyncio.create_task(self._rtvi.send_server_message(message))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)


def _as_json(result: Any) -> str:
    """Return the result as the LLM gets it, cut to what a caller needs."""
    text = json.dumps(result, ensure_ascii=False, default=str)
    return text if len(text) <= MOST_OF_A_RESULT else text[:MOST_OF_A_RESULT] + "…"


def _pcm(frame: OutputAudioRawFrame) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.frombuffer(frame.audio, dtype="<i2")
