"""One conversation of the built-in agent: its pipeline, from socket to socket, and its warming."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fastapi import WebSocket
from loguru import logger
from pipecat.frames.frames import ErrorFrame, Frame, InputAudioRawFrame, TTSAudioRawFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import NOT_GIVEN, LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregator,
    LLMUserAggregatorParams,
)
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.processors.filters.function_filter import FunctionFilter
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIObserverParams
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.services.tts_service import TTSService
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

from turngap.agent.feed import SpeechFeed
from turngap.agent.observer import (
    AgentObserver,
    MonotonicPipecatClock,
    StampedSerializer,
    observe_sparingly,
    ready_to_trace,
    send_traces,
    under_the_caller,
)
from turngap.agent.output import HeardKeeper, Ledger, MadeCounter, YieldingTransport
from turngap.agent.speculation import Announcer, AudioGate, DiscreetRTVI, Guesses
from turngap.agent.speech_output import Speaking, speaking
from turngap.agent.stack import Chosen, Stack, found_of, held_out_of, resolved
from turngap.agent.switching import Controls, LlmSwitch, Offers, offers_of
from turngap.agent.tools import PROMPT, DomainAnswer, toolbox, tools
from turngap.agent.watchdogs import Patience, guard_ears, guard_voice, usable_again
from turngap.backends import BackendSettings, BackendSpec, Kind, TurnTaking
from turngap.core.clock import Clock, ms_to_ns, ns_to_ms
from turngap.core.speeds import Request, VoiceSpeed
from turngap.marks.turn import CHARS_A_TOKEN
from turngap.scenario.domain import Domain, domain_of
from turngap.weights import bring

# A short and a long text: together they give the TTS's time per request and per second of speech.
VOICE_TEXTS = ("Yes.", "One moment please, I will have a look at that for you.")

# After an interruption the conversation is cut to what was heard, which is done by then.
SETTLED_MS = 100.0

Count = Callable[[str, float], None]


class Answers(Protocol):
    """The methods that `PrefixWarmer` needs of an LLM; pipecat's `LLMService` has it."""

    async def run_inference(
        self, context: LLMContext, max_tokens: int | None = None
    ) -> str | None: ...


class PrefixWarmer:
    """Has the LLM read the conversation so far before it has to answer.

    A server that caches prompts by their prefix (vLLM and the hosted ones do) then reads only the
    rest, over a connection that is open. One token is asked for, the fewest possible. The request
    is given up when the person's turn is answered, so that it never delays the real one.
    """

    def __init__(
        self, llm: Answers, context: LLMContext, clock: Clock, count: Count = lambda name, n: None
    ) -> None:
        self._llm = llm
        self._context = context
        self._clock = clock
        self._count = count
        self._warm: list[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._of_use = True

    def begin(self, after_ms: float = 0.0) -> None:
        """Warm in the background, unless that was done for the conversation as it stands."""
        if self._of_use and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._read(after_ms))

    def give_up(self) -> None:
        """Cancel the request, as the LLM is asked now or never again."""
        if self._task is not None:
            self._task.cancel()

    async def _read(self, after_ms: float) -> None:
        await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(after_ms))
        messages = list(self._context.messages)
        if messages == self._warm:
            return
        copy = LLMContext(messages, self._context.tools, self._context.tool_choice)
        try:
            await self._llm.run_inference(copy, max_tokens=1)
        except NotImplementedError:
            # pipecat raises this for a service that only its pipeline can ask: nothing is wrong.
            self._of_use = False
            return
        except asyncio.CancelledError:
            self._paid_for(messages)
            raise
        except Exception as e:
            # The next request reports the problem to somebody who waits for an answer.
            self._of_use = False
            why = f"{type(e).__name__}: {e}"
            logger.warning(f"the LLM's prompt is no longer read in advance: {why}")
        else:
            self._warm = messages
        self._paid_for(messages)

    def _paid_for(self, messages: list[Any]) -> None:
        chars = sum(len(str(m.get("content", ""))) for m in messages if isinstance(m, dict))
        self._count("warm_requests", 1)
        self._count("warm_prompt_tokens", -(-chars // CHARS_A_TOKEN))


async def warm_voice(tts: TTSService, speed: VoiceSpeed, clock: Clock) -> None:
    """Have the TTS speak unheard, and measure how fast it is."""
    for number, text in enumerate(VOICE_TEXTS):
        asked_ns = clock.now_ns()
        made: list[tuple[int, float]] = []
        async for frame in tts.run_tts(text, f"turngap-warm-{number}"):
            if isinstance(frame, ErrorFrame):
                logger.warning(f"the voice could not be warmed: {frame.error}")
                return
            if isinstance(frame, TTSAudioRawFrame):
                made.append((clock.now_ns(), frame.num_frames * 1000 / frame.sample_rate))
        if made:  # a service that answers over its own socket yields nothing here
            speed.add(
                Request(
                    chars=len(text),
                    audio_ms=sum(ms for _, ms in made),
                    made_ms=ns_to_ms(made[-1][0] - asked_ns),
                    first_ms=ns_to_ms(made[0][0] - asked_ns),
                    chunk_ms=made[0][1],
                )
            )


def warm_session(
    worker: PipelineWorker,
    user: LLMUserAggregator,
    prefix: PrefixWarmer | None,
    voice: Callable[[], Coroutine[Any, Any, None]] | None,
) -> None:
    """Warm at a session's beginning and at each turn of the person's; stop at its end."""
    speaking: list[asyncio.Task[None]] = []

    async def on_started(*_: object) -> None:
        if voice is not None:
            speaking.append(asyncio.create_task(voice()))
        if prefix is not None:
            prefix.begin()

    async def on_turn_started(*_: object) -> None:
        if prefix is not None:
            prefix.begin(SETTLED_MS)

    async def on_asked(*_: object) -> None:
        if prefix is not None:
            prefix.give_up()

    async def on_finished(*_: object) -> None:
        await on_asked()
        for task in speaking:
            task.cancel()

    worker.add_event_handler("on_pipeline_started", on_started)
    worker.add_event_handler("on_pipeline_finished", on_finished)
    user.add_event_handler("on_user_turn_started", on_turn_started)
    user.add_event_handler("on_user_turn_inference_triggered", on_asked)


@dataclass(frozen=True, slots=True)
class Assembly:
    """A stack whose engines are usable on this machine.

    Attributes:
        offers: the LLMs that a caller may pick, the stack's own first. eager: report an agent
        turn's marks when it is first heard, too, and not only when it is over. domain: what can be
        said to it, if its recogniser or one of its LLMs knows nothing else. closed: whether it is
        the recogniser.
    """

    stack: Stack
    engines: dict[Kind, tuple[BackendSpec, BackendSettings]]
    clock: Clock
    offers: Offers
    traced: bool = True
    eager: bool = False
    domain: Domain | None = None
    closed: bool = False

    def prepare(self) -> None:
        """Load the models and voices that sessions share. Slow; once, before the agent is ready.

        Weights that are not here are fetched first, all together.
        """
        bring(each for spec, settings in self.engines.values() for each in spec.downloads(settings))
        for kind, (spec, settings) in self.engines.items():
            if kind != "llm" and spec.prepare is not None:
                spec.prepare(settings)
        self.offers.prepare()
        if self.domain is not None:
            self.domain.knows("")  # the first check takes 70 ms
        ready_to_trace()

    def chosen(self) -> Chosen:
        """Return what was chosen when the engines were made ready, for whoever keeps a run."""
        engines = self.engines.values()
        narrow = self.offers.first.narrow
        return Chosen(found=found_of(engines), held_out=held_out_of(engines), narrow=narrow)

    def create(self, kind: Kind) -> Any:
        spec, settings = self.engines[kind]
        return spec.create(settings, self.clock)


def assemble(
    stack: Stack,
    library: Path | None,
    clock: Clock,
    *,
    traced: bool = True,
    offer: Sequence[str] | None = None,
) -> Assembly:
    """Check a stack against this machine.

    `offer` names the LLMs that a caller may pick during a conversation, as in `offers_of`.

    Raises:
        InputError, AgentError: as `turngap.agent.stack.resolved` and `offers_of`.
    """
    engines: dict[Kind, tuple[BackendSpec, BackendSettings]] = {
        spec.kind: (spec, settings) for spec, settings in resolved(stack, library)
    }
    offers = offers_of(engines["llm"], offer, library, tools=bool(stack.tools.use))
    spec, settings = engines["stt"]
    closed = spec.closed_domain
    domain = domain_of(settings.library) if closed or offers.narrow else None
    return Assembly(stack, engines, clock, offers, traced, domain=domain, closed=closed)


async def converse(assembly: Assembly, socket: WebSocket) -> None:
    """Serve one accepted WebSocket until the caller leaves."""
    serializer = ProtobufFrameSerializer()
    if assembly.traced:
        serializer = StampedSerializer(assembly.clock)
    taking: TurnTaking = assembly.create("turn")
    transport = _transport(assembly, socket, serializer, taking)
    traced = under_the_caller(socket.headers)
    worker = _worker(assembly, transport, serializer, taking, traced=traced)

    async def on_client_disconnected(*_: object) -> None:
        await worker.cancel()

    transport.add_event_handler("on_client_disconnected", on_client_disconnected)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()
    if traced:
        send_traces()


def _transport(
    assembly: Assembly, socket: WebSocket, serializer: ProtobufFrameSerializer, taking: TurnTaking
) -> FastAPIWebsocketTransport:
    params = FastAPIWebsocketParams(
        serializer=serializer,
        audio_in_enabled=True,
        audio_out_enabled=True,
        audio_out_10ms_chunks=assembly.stack.audio.out_chunk_ms // 10,
        # pipecat's default, two seconds of silence at the end, only delays hanging up.
        audio_out_end_silence_secs=0,
    )
    ahead_ms = assembly.stack.audio.out_ahead_ms
    return YieldingTransport(socket, params, taking.floor, ahead_ms=ahead_ms, clock=assembly.clock)


def _worker(
    assembly: Assembly,
    transport: FastAPIWebsocketTransport,
    serializer: ProtobufFrameSerializer,
    taking: TurnTaking,
    *,
    traced: bool = False,
) -> PipelineWorker:
    guesses = Guesses() if taking.speculates else None
    made = guesses.let_through if guesses else None
    stack, observer = assembly.stack, None

    def late(kind: Kind, why: str) -> None:
        if observer is not None:
            observer.late(kind, why)

    def empty(why: str) -> None:
        if observer is not None:
            observer.silent("llm", why)

    switch = LlmSwitch(
        assembly.offers,
        assembly.clock,
        made,
        patience=Patience(stack.pipeline.first_token_ms, stack.pipeline.stall_ms),
        late=partial(late, "llm"),
        empty=empty,
    )
    observer = _observer(assembly, serializer, taking, switch)
    count = observer.count if observer else lambda name, n: None
    stt, tts, feed = assembly.create("stt"), assembly.create("tts"), SpeechFeed()
    guard_ears(stt, partial(late, "stt"), most_ms=stack.pipeline.transcript_ms)
    guard_voice(tts, partial(late, "tts"))
    voice = speaking(stack, tts, assembly.clock, feed=feed, gated=bool(guesses), count=count)
    talk = _aggregators(stack, taking, assembly.clock)
    again = usable_again(lambda: (stt, switch.service, tts))
    talk.user().add_event_handler("on_user_turn_started", again)
    parts = _Parts(taking, stt, switch, guesses, voice, talk)
    audio = stack.audio
    worker = PipelineWorker(
        Pipeline(_processors(assembly, transport, parts)),
        params=PipelineParams(
            audio_in_sample_rate=audio.in_sample_rate,
            audio_out_sample_rate=audio.out_sample_rate,
            enable_metrics=stack.pipeline.metrics,
            # Only these tell what a request cost.
            enable_usage_metrics=observer is not None
            or taking.speculates
            or stack.pipeline.metrics,
        ),
        rtvi_observer_params=RTVIObserverParams(metrics_enabled=stack.pipeline.metrics),
        clock=MonotonicPipecatClock(assembly.clock),
        rtvi_processor=DiscreetRTVI(guesses) if guesses else None,
        # A caller may be silent for any time; the server closes connections that were lost.
        idle_timeout_secs=None,
        enable_turn_tracking=traced,  # nobody else asks pipecat which turn it is
        enable_tracing=traced,
    )
    observe_sparingly(worker)
    if observer is not None:
        observer.attach(worker)
    Controls(switch, assembly.clock, partial(_known, assembly, switch)).attach(worker)
    warm = stack.warm
    warm_session(
        worker,
        talk.user(),
        PrefixWarmer(switch, talk.user().context, assembly.clock, count) if warm.prefix else None,
        (lambda: warm_voice(tts, feed.voice, assembly.clock)) if warm.voice else None,
    )
    return worker


def _known(assembly: Assembly, switch: LlmSwitch, text: str) -> bool:
    """Return whether the LLM that will answer a typed text knows such text."""
    return assembly.domain is None or not switch.narrow or assembly.domain.knows(text)


def _observer(
    assembly: Assembly,
    serializer: ProtobufFrameSerializer,
    taking: TurnTaking,
    switch: LlmSwitch,
) -> AgentObserver | None:
    if not isinstance(serializer, StampedSerializer):
        return None
    return AgentObserver(
        hold_ms=taking.hold_ms,
        written=serializer.written_ns,
        eager=assembly.eager,
        llm=lambda: switch.current,
        answered=assembly.offers.answered,
        decisions=taking.decisions,
        price=lambda: _price(assembly.offers.get(switch.current).spec),
        cuts_lead_in=assembly.stack.audio.cut_lead_in,
    )


def _price(spec: BackendSpec) -> tuple[float, float] | None:
    return None if spec.price is None else (spec.price.input_usd, spec.price.output_usd)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of one session; `guesses` is None without speculation."""

    taking: TurnTaking
    stt: FrameProcessor
    switch: LlmSwitch
    guesses: Guesses | None
    voice: Speaking
    talk: LLMContextAggregatorPair


def _aggregators(stack: Stack, taking: TurnTaking, clock: Clock) -> LLMContextAggregatorPair:
    """Make what gathers the conversation."""
    prompt, settings, box = stack.pipeline.system_prompt, stack.tools, None
    if settings.use:
        prompt = f"{prompt} {PROMPT}"
        box = toolbox(settings.use, clock, delay_ms=settings.delay_ms, among=tools())
    return LLMContextAggregatorPair(
        LLMContext([{"role": "system", "content": prompt}], box or NOT_GIVEN),
        user_params=LLMUserAggregatorParams(
            user_turn_strategies=taking.strategies,
            vad_analyzer=None if stack.pipeline.vad_first else taking.vad,
        ),
    )


def _processors(
    assembly: Assembly, transport: FastAPIWebsocketTransport, parts: _Parts
) -> list[FrameProcessor]:
    pipeline = assembly.stack.pipeline
    ledger = Ledger()
    return [
        transport.input(),
        *_ears(parts.taking, vad_first=pipeline.vad_first),
        parts.stt,
        *([end_of_input_audio()] if parts.taking.ears else []),
        parts.talk.user(),
        *_answering(assembly, parts),
        *([MadeCounter(ledger)] if pipeline.keep_heard else []),
        transport.output(),
        *([HeardKeeper(ledger)] if pipeline.keep_heard else []),
        parts.talk.assistant(),
    ]


def end_of_input_audio() -> FrameProcessor:
    """Drop the caller's audio, which no processor after the recogniser needs.

    Otherwise each of its fifty packets a second would go through every later processor's queue.
    """

    async def is_no_input(frame: Frame) -> bool:
        return not isinstance(frame, InputAudioRawFrame)

    return FunctionFilter(is_no_input, filter_system_frames=True, enable_direct_mode=True)


def _answering(assembly: Assembly, parts: _Parts) -> list[FrameProcessor]:
    """Return the processors from the request to the sound; a guess is not heard before its time."""
    outside: list[FrameProcessor] = []
    if assembly.domain is not None:
        # What a closed recogniser let pass is known, however little of it was said.
        checks = (lambda: False) if assembly.closed else (lambda: parts.switch.narrow)
        outside = [DomainAnswer(assembly.domain, checks)]
    if parts.guesses is None:
        return [*outside, parts.switch, *parts.voice.processors]
    gate = AudioGate(parts.guesses, parts.voice.playing)
    announcer = Announcer(parts.guesses, gate)
    return [announcer, *outside, parts.switch, *parts.guesses.guarded(parts.voice.processors), gate]


def _ears(taking: TurnTaking, *, vad_first: bool) -> list[FrameProcessor]:
    """Return what hears the caller before the recogniser does."""
    if taking.ears is not None:
        return [taking.ears]
    return [VADProcessor(vad_analyzer=taking.vad)] if vad_first and taking.vad else []
