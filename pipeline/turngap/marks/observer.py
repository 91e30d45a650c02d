"""An observer that makes turngap's marks from pipecat's frames.

Any pipecat bot can have it, in two lines:

    from turngap import MarksObserver
    MarksObserver().attach(worker)  # a PipelineWorker, before it runs
"""

import asyncio
import dataclasses
import json
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from loguru import logger  # pipecat's
from pipecat.frames.frames import (
    AggregatedTextFrame,
    BotStoppedSpeakingFrame,
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
    SystemFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSTextFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage, LLMUsageMetricsData
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregator
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.utils.errors import ErrorCategory

from turngap.backends import COUNTS, Decision, Kind
from turngap.core.clock import ms_to_ns, ns_to_ms, samples_to_ns
from turngap.core.counts import (
    AGENT_GAP,
    CACHE_READ,
    CACHE_READ_NET,
    CACHE_WRITTEN,
    COLD,
    USER_BOT_LATENCY,
)
from turngap.core.wire import PING
from turngap.marks.recorder import MarksRecorder
from turngap.marks.turn import GUESS, AgentTurn, Waste, costs

# Up to `on_user_bot_latency`: what differs between a bot's versions of pipecat, from 1.8 on.
try:
    from pipecat.frames.frames import (
        EagerEndOfTurnCancelFrame,  # pyright: ignore[reportAssignmentType]
    )
except ImportError:  # 1.8 makes no guesses, so it withdraws none

    class EagerEndOfTurnCancelFrame(SystemFrame):
        """A stand-in for a frame that this version never pushes."""


# The versions of pipecat that a bot may have, from 1.8 on, differ in the following.

# A frame passes all processors of a pipeline within far fewer frames than this.
_REMEMBERED = 10_000


class FirstPushes:
    """A memory of which frames were pushed before; pipecat has one of its own from 1.14 on."""

    def __init__(self) -> None:
        self._seen: dict[int, None] = {}

    def is_first(self, data: FramePushed) -> bool:
        first: bool | None = getattr(data, "first_push", None)
        return self._is_new(data.frame) if first is None else first

    def _is_new(self, frame: Frame) -> bool:
        if frame.id in self._seen:
            return False
        self._seen[frame.id] = None
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return True


def is_guess(frame: LLMContextFrame) -> bool:
    """Return whether the frame asks for an answer to an open turn; none did before pipecat 1.9."""
    return bool(getattr(frame, "speculation", False))


def tool_error(frame: FunctionCallResultFrame) -> str | None:
    """Return why a tool failed; before pipecat 1.9 no frame says so."""
    return getattr(frame, "error", None)


def on_user_bot_latency(worker: Any, on_latency: Callable[[float], None]) -> None:
    """Report pipecat's own measurement of each reply, in ms, if the bot is traced.

    It is the figure that its traces hold as `turn.user_bot_latency_seconds`. Nothing is measured
    for it: without `enable_tracing`, or in a version that keeps it elsewhere, nothing is called.
    """
    observer = getattr(worker, "_user_bot_latency_observer", None)
    if observer is None:
        return

    async def on_latency_measured(_: Any, seconds: float) -> None:
        on_latency(seconds * 1000)

    observer.add_event_handler("on_latency_measured", on_latency_measured)


# The longest error text that is kept: a server may answer with a page.
_MOST = 300

_REMEDIES: dict[ErrorCategory, str] = {
    ErrorCategory.AUTHENTICATION: "put the right key in its environment variable "
    "(turngap backends names it)",
    ErrorCategory.AUTHORIZATION: "its key may not use this model: choose another, or another key",
    ErrorCategory.INVALID_REQUEST: "correct the model's name and the settings",
    ErrorCategory.RATE_LIMIT: "too many requests in a short time: wait, or ask for a higher limit",
    ErrorCategory.QUOTA: "its account has nothing left to spend",
    ErrorCategory.CONNECTIVITY: "check that its server runs, and read the server's log",
    ErrorCategory.SERVER: "the server's log says why",
}


def failure_of(frame: ErrorFrame, engine: FrameProcessor) -> str | None:
    """Return the error that `engine` pushed, or None if the engine itself is well.

    A tool that fails is the application's problem: the model gets the error, and answers.
    """
    category = frame.category or ErrorCategory.UNKNOWN
    if category is ErrorCategory.APPLICATION:
        return None
    # A client's own words are often just "Connection error.".
    cause = str((frame.exception and frame.exception.__cause__) or "")
    said = " ".join((frame.error if cause in frame.error else f"{frame.error} {cause}").split())
    said = said if len(said) <= _MOST else said[:_MOST] + "…"
    remedy = _REMEDIES.get(category)
    name = f"{kind_of(engine)}: {engine.name.partition('#')[0]}"
    return f"{name}: {said} ({remedy})" if remedy else f"{name}: {said}"


def kind_of(engine: FrameProcessor) -> Kind | None:
    """Return the engine's kind; None for any other processor."""
    kinds: tuple[tuple[Kind, tuple[type[FrameProcessor], ...]], ...] = (
        ("llm", (LLMService,)),
        ("tts", (TTSService,)),
        ("stt", (STTService,)),
        # The aggregator has the turn-taking's strategies.
        ("turn", (LLMUserAggregator, VADProcessor)),
    )
    return next((kind for kind, types in kinds if isinstance(engine, types)), None)


# Services that do not count what they cache among the prompt's tokens.
NET_OF_CACHE = ("pipecat.services.anthropic", "pipecat.services.aws")
# pipecat's WebRTC output pushes audio on when its track has taken the last of its pieces of 10 ms.
# It is known by its name, because its module needs aiortc.
WEBRTC_OUTPUT = "SmallWebRTCOutputTransport"
PIECE_NS = ms_to_ns(10)
# Characters of a tool's result that are stored with its turn.
MOST_OF_A_RESULT = 500


class MarksObserver(BaseObserver):
    """An observer that takes each turn's marks from the pushes' timestamps and reports them.

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
    ) -> None:
        super().__init__()
        self._pushes = FirstPushes()
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
        self._has_complained = False

    def attach(self, worker: PipelineWorker) -> None:
        """Observe a worker and report by its RTVI; without RTVI the bot runs unobserved."""
        try:
            rtvi = worker.rtvi
        except Exception:  # pipecat raises no narrower one
            logger.warning(
                "This worker has no RTVI, so the marks of its turns cannot be reported: "
                "make it without enable_rtvi=False if you want the stages."
            )
            return
        worker.add_observer(self)
        self.report_to(rtvi)
        on_user_bot_latency(worker, lambda ms: self.count(USER_BOT_LATENCY, ms))

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
        """Note that an engine is late with the answer, and why; an empty `why`: it continues."""
        self._recorder.late(kind, why)

    def silent(self, kind: Kind, why: str) -> None:
        """Note why there is nothing to hear, though no engine has failed."""
        self._recorder.silent(kind, why)

    async def on_push_frame(self, data: FramePushed) -> None:
        # An exception would end pipecat's task for this observer, and its queue would grow for as
        # long as the bot talks.
        try:
            self._see(data)
        except Exception as e:
            if not self._has_complained:
                logger.warning(f"turngap could not read a {type(data.frame).__name__}: {e!r}")
            self._has_complained = True

    def _see(self, data: FramePushed) -> None:
        frame, at_ns = data.frame, data.timestamp
        if isinstance(frame, OutputAudioRawFrame):
            self._on_audio(data, frame)
        elif not self._pushes.is_first(data):
            pass
        elif data.direction == FrameDirection.DOWNSTREAM:
            self._on_first_push(data, frame, at_ns)
        elif isinstance(frame, ErrorFrame):
            self._on_error(data.source, frame, at_ns)

    def _on_audio(self, data: FramePushed, frame: OutputAudioRawFrame) -> None:
        if isinstance(data.source, BaseOutputTransport):
            pcm, taken_ns = _pcm(frame), 0
            if type(data.source).__name__ == WEBRTC_OUTPUT:
                taken_ns = samples_to_ns(len(pcm), frame.sample_rate) - PIECE_NS
            self._recorder.sent(self._written(data.timestamp) - taken_ns, pcm, frame.sample_rate)
        elif isinstance(frame, TTSAudioRawFrame) and isinstance(data.source, TTSService):
            self._on_counts(frame)
            self._on_voice(data, frame)

    def _on_voice(self, data: FramePushed, frame: OutputAudioRawFrame) -> None:
        self._recorder.tts_audio(data.timestamp, _pcm(frame), frame.sample_rate)

    def _on_first_push(self, data: FramePushed, frame: Frame, at_ns: int) -> None:
        match frame:
            case InterruptionFrame() | EagerEndOfTurnCancelFrame():
                self._waste.withdrawn()
                self._recorder.withdrawn()
                # Its last frames do not belong to the next turn.
                self._guess = self._guessing = None
                if isinstance(frame, InterruptionFrame):
                    self._recorder.finish(interrupted=True)
            case BotStoppedSpeakingFrame():
                self._recorder.finish()
            case TTSTextFrame():
                pass  # already spoken
            case AggregatedTextFrame() | TTSStartedFrame():
                self._recorder.mark("tts_request", at_ns)
            case LLMMessagesAppendFrame():
                self._typed = True
                self._recorder.typed()
            case LLMContextFrame() if isinstance(data.source, LLMUserAggregator):
                self._on_request(frame, at_ns)
            case _ if isinstance(data.source, LLMService):
                self._on_llm(data.source, frame, at_ns)
            case _:
                self._on_user(data, frame, at_ns)

    def _on_user(self, data: FramePushed, frame: Frame, at_ns: int) -> None:
        recorder = self._recorder
        match frame:
            case VADUserStartedSpeakingFrame():
                recorder.user_started(at_ns)
            case VADUserStoppedSpeakingFrame():
                recorder.vad_stopped(at_ns, frame.stop_secs * 1000)
            case InterimTranscriptionFrame() if isinstance(data.source, STTService):
                recorder.partial()
            case TranscriptionFrame() if isinstance(data.source, STTService):
                recorder.transcript(at_ns)
                recorder.heard(frame.metadata.get(COUNTS, {}))
            case UserStoppedSpeakingFrame():
                self._waste.confirmed()
                found: Decision | None = None
                while self._decisions and self._decisions[0].at_ns <= at_ns:
                    found = self._decisions.popleft()
                recorder.turn_decided(at_ns, found)
                self._has_answered(self._guessing)
            case _:
                pass

    def _on_llm(self, source: LLMService, frame: Frame, at_ns: int) -> None:
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
                    prompt, cached = prompt_of(usage.value, source)
                    completion = usage.value.completion_tokens
                    self._waste.used(prompt, completion)
                    self._recorder.used(prompt, completion, cached)
            case _:
                self._on_tool(frame, at_ns)

    def _on_tool(self, frame: Frame, at_ns: int) -> None:
        """Note tool calls, which run in the LLM service and are announced by its frames."""
        match frame:
            case FunctionCallInProgressFrame(tool_call_id=call_id):
                arguments = frame.arguments if isinstance(frame.arguments, dict) else {}
                self._recorder.tool_called(call_id, frame.function_name, arguments, at_ns)
            case FunctionCallResultFrame(tool_call_id=call_id):
                error = tool_error(frame)
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
        """Take an engine's own counts; of a void answer, only its cost."""
        counts: dict[str, float] = frame.metadata.get(COUNTS, {})
        is_void = frame.metadata.get(GUESS) not in (None, self._guess)
        for name, n in costs(counts).items() if is_void else counts.items():
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
        if guess := is_guess(frame):
            self._recorder.guessed(at_ns)
            messages = (m for m in frame.context.get_messages() if isinstance(m, dict))
            self._waste.begun(sum(len(str(m.get("content", ""))) for m in messages))
        else:
            self._recorder.llm_requested(at_ns)
        llm = self._llm()
        if self._answered is not None and llm is not None and llm not in self._answered:
            self._recorder.count(COLD, 1)
        self._guessing = llm if guess else None
        if not guess:
            self._has_answered(llm)
        self._about = {"llm": llm, "typed": self._typed}
        self._typed = False

    def _has_answered(self, llm: str | None) -> None:
        """Note that the LLM is asked for a turn, so that later turns are not its first."""
        if self._answered is not None and llm is not None:
            self._answered.add(llm)

    def _report(self, turn: AgentTurn) -> None:
        for name, n in self._waste.take(self._price()).items():
            turn.counts[name] = turn.counts.get(name, 0) + n
        if turn.silent_ns is not None and "sent" in turn.marks:
            turn.counts[AGENT_GAP] = ns_to_ms(turn.marks["sent"] - turn.silent_ns)
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


def prompt_of(usage: LLMTokenUsage, source: object) -> tuple[int, dict[str, float]]:
    """Return the tokens of the whole prompt, and how many were read from or written to a cache.

    Anthropic's and Bedrock's services report the prompt without the cached tokens, all other
    services with them.
    """
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    modules = {kind.__module__ for kind in type(source).__mro__}
    net = any(m.startswith(NET_OF_CACHE) for m in modules)
    counts = {
        CACHE_READ_NET if net else CACHE_READ: read,
        CACHE_WRITTEN: written if net else 0,
    }
    whole = usage.prompt_tokens + (read + written if net else 0)
    return whole, {name: float(n) for name, n in counts.items() if n}


def _as_json(result: Any) -> str:
    """Return the result as the LLM gets it, cut to the caller's needs."""
    try:
        text = json.dumps(result, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # keys of any type, circles, deep nesting
        text = repr(result)
    return text if len(text) <= MOST_OF_A_RESULT else text[:MOST_OF_A_RESULT] + "…"


def _pcm(frame: OutputAudioRawFrame) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Return the first channel, of whole samples."""
    channels = max(1, frame.num_channels)
    whole = len(frame.audio) // (2 * channels) * channels
    return np.frombuffer(frame.audio, "<i2", whole)[::channels]
