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
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams
from pipecat.workers.runner import WorkerRunner

from turngap.agent.feed import SpeechFeed
from turngap.agent.guard import ROOM
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
from turngap.agent.speech_output import speaking
from turngap.agent.stack import Chosen, Stack, found_of, held_out_of, resolved
from turngap.agent.switching import Controls, LlmSwitch, Offers, offers_of
from turngap.agent.tools import PROMPT, DomainAnswer, toolbox, tools
from turngap.agent.watchdogs import Patience, guard_ears, guard_voice, usable_again
from turngap.backends import BackendSettings, BackendSpec, Kind, TurnTaking, WeighsWords
from turngap.backends.weights import bring
from turngap.core.clock import Clock, ms_to_ns, ns_to_ms
from turngap.core.voice import Request, VoiceSpeed
from turngap.marks.turn import CHARS_A_TOKEN
from turngap.scenario.library import Domain, domain_of

# A short and a long text: together they give the TTS's time per request and per second of speech.
VOICE_TEXTS = ("Yes.", "One moment please, I will have a look at that for you.")

# After an interruption the conversation is cut to what was heard, which is done by then.
SETTLED_MS = 100.0

Count = Callable[[str, float], None]


class Answers(Protocol):
    """The methods of an LLM that `PrefixWarmer` needs; pipecat's `LLMService` has them."""

    async def run_inference(
        self, context: LLMContext, max_tokens: int | None = None
    ) -> str | None: ...


class PrefixWarmer:
    """Requests that make the LLM read the conversation so far before it has to answer.

    A server that caches prompts by their prefix (vLLM and the hosted ones do) then reads only the
    rest, over an open connection. The request is for one token, the fewest possible. The request is
    given up when the person's turn is answered, so it never delays the real request.
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
        """Warm in the background, unless the conversation as it stands has been warmed already."""
        if self._of_use and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._read(after_ms))

    def give_up(self) -> None:
        """Cancel the request, because the real request comes now or the session ends."""
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
            # The next request reports the problem, and a person waits for its answer.
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
    """Make the TTS speak unheard, and measure how fast it is."""
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
    """Warm at a session's beginning and at each of the person's turns; stop at its end."""
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
        turn's marks when it is first heard, too, and not only when it is over. domain: the
        sentences the agent knows, if its recogniser or one of its LLMs knows no others. closed:
        whether it is the recogniser that knows no others.
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
        """Load the models and voices that sessions share. Slow: call it once, at the start.

        Missing weights are downloaded first, all together.
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
        """Return the models that the engines found while they were prepared, for a run's record."""
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
    traced = under_the_caller(socket.headers)
    session = _Session(assembly, socket)
    worker = session.worker(traced=traced)

    async def on_client_disconnected(*_: object) -> None:
        await worker.cancel()

    session.transport.add_event_handler("on_client_disconnected", on_client_disconnected)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()
    if traced:
        send_traces()


class _Session:
    """The parts of one conversation; `worker` makes a pipeline of them.

    Attributes:
        guesses: None without speculation.
        observer: None where nothing reports the marks of turns.
    """

    def __init__(self, assembly: Assembly, socket: WebSocket) -> None:
        self.assembly = assembly
        stack, clock = assembly.stack, assembly.clock
        self.taking: TurnTaking = assembly.create("turn")
        self.guesses = Guesses() if self.taking.speculates else None
        self.switch = LlmSwitch(
            assembly.offers,
            clock,
            self.guesses.let_through if self.guesses else None,
            patience=Patience(stack.pipeline.first_token_ms, stack.pipeline.stall_ms),
            late=partial(self._late, "llm"),
            empty=self._empty,
        )
        self.observer: AgentObserver | None = None
        serializer = ProtobufFrameSerializer()
        if assembly.traced:
            serializer = StampedSerializer(clock)
            self.observer = AgentObserver(
                hold_ms=self.taking.hold_ms,
                written=serializer.written_ns,
                eager=assembly.eager,
                llm=lambda: self.switch.current,
                answered=assembly.offers.answered,
                decisions=self.taking.decisions,
                price=self._price,
                cuts_lead_in=stack.audio.cut_lead_in,
            )
        params = FastAPIWebsocketParams(
            serializer=serializer,
            audio_in_enabled=True,
            audio_out_enabled=True,
            audio_out_10ms_chunks=stack.audio.out_chunk_ms // 10,
            # pipecat's default, two seconds of silence at the end, only delays hanging up.
            audio_out_end_silence_secs=0,
            # The server ends a call whose client takes nothing (`Limits.unread_s`). Here it would
            # only fall silent.
            audio_out_write_timeout_secs=60,
        )
        self.transport = YieldingTransport(
            socket,
            params,
            self.taking.floor,
            ahead_ms=stack.audio.out_ahead_ms,
            clock=clock,
            room=socket.scope.get(ROOM),
        )
        self.stt, self.tts, self.feed = assembly.create("stt"), assembly.create("tts"), SpeechFeed()
        guard_ears(self.stt, partial(self._late, "stt"), most_ms=stack.pipeline.transcript_ms)
        guard_voice(self.tts, partial(self._late, "tts"))
        self.count = self.observer.count if self.observer else lambda name, n: None
        gated = self.guesses is not None
        self.voice = speaking(stack, self.tts, clock, feed=self.feed, gated=gated, count=self.count)
        self.talk = _aggregators(stack, self.taking, clock)
        again = usable_again(lambda: (self.stt, self.switch.service, self.tts))
        self.talk.user().add_event_handler("on_user_turn_started", again)
        if self.taking.use_llm is not None and isinstance(self.switch.service, WeighsWords):
            self.taking.use_llm(self._whole)

    async def _whole(self, text: str) -> float | None:
        """Return the LLM's probability that these words are a whole message."""
        service = self.switch.service
        if not isinstance(service, WeighsWords):
            return None
        return await service.whole(self.talk.user().context, text)

    def _late(self, kind: Kind, why: str) -> None:
        if self.observer is not None:
            self.observer.late(kind, why)

    def _empty(self, why: str) -> None:
        if self.observer is not None:
            self.observer.silent("llm", why)

    def _price(self) -> tuple[float, float] | None:
        price = self.assembly.offers.get(self.switch.current).spec.price
        return None if price is None else (price.input_usd, price.output_usd)

    def _knows(self, text: str) -> bool:
        """Return whether the LLM in charge knows a typed text; some know only the library's."""
        domain = self.assembly.domain
        return domain is None or not self.switch.narrow or domain.knows(text)

    def worker(self, *, traced: bool) -> PipelineWorker:
        """Build the pipeline, with its observers, controls and warming."""
        stack, clock, guesses = self.assembly.stack, self.assembly.clock, self.guesses
        metrics, warm, user = stack.pipeline.metrics, stack.warm, self.talk.user()
        worker = PipelineWorker(
            Pipeline(self._processors()),
            params=PipelineParams(
                audio_in_sample_rate=stack.audio.in_sample_rate,
                audio_out_sample_rate=stack.audio.out_sample_rate,
                enable_metrics=metrics,
                # Only these report what a request cost.
                enable_usage_metrics=self.observer is not None or guesses is not None or metrics,
            ),
            rtvi_observer_params=RTVIObserverParams(metrics_enabled=metrics),
            clock=MonotonicPipecatClock(clock),
            rtvi_processor=DiscreetRTVI(guesses) if guesses else None,
            # A caller may be silent for any time; the server closes connections that were lost.
            idle_timeout_secs=None,
            enable_turn_tracking=traced,  # nothing else asks pipecat which turn it is
            enable_tracing=traced,
        )
        observe_sparingly(worker)
        if self.observer is not None:
            self.observer.attach(worker)
        Controls(self.switch, clock, self._knows).attach(worker)
        warm_session(
            worker,
            user,
            PrefixWarmer(self.switch, user.context, clock, self.count) if warm.prefix else None,
            (lambda: warm_voice(self.tts, self.feed.voice, clock)) if warm.voice else None,
        )
        return worker

    def _processors(self) -> list[FrameProcessor]:
        pipeline, taking, ledger = self.assembly.stack.pipeline, self.taking, Ledger()
        vad = taking.vad if pipeline.vad_first else None
        ears = taking.ears or (VADProcessor(vad_analyzer=vad) if vad else None)
        return [
            self.transport.input(),
            *([ears] if ears else []),
            self.stt,
            *([end_of_input_audio()] if taking.ears else []),
            self.talk.user(),
            *self._answering(),
            *([MadeCounter(ledger)] if pipeline.keep_heard else []),
            self.transport.output(),
            *([HeardKeeper(ledger)] if pipeline.keep_heard else []),
            self.talk.assistant(),
        ]

    def _answering(self) -> list[FrameProcessor]:
        """Return the processors from request to sound; they hold a guess until it is confirmed."""
        assembly, guesses, voice = self.assembly, self.guesses, self.voice
        outside: list[FrameProcessor] = []
        if assembly.domain is not None:
            # What a closed recogniser let pass is known, however little of it was said.
            checks = (lambda: False) if assembly.closed else (lambda: self.switch.narrow)
            outside = [DomainAnswer(assembly.domain, checks)]
        if guesses is None:
            return [*outside, self.switch, *voice.processors]
        gate = AudioGate(guesses, voice.playing)
        announcer = Announcer(guesses, gate)
        return [announcer, *outside, self.switch, *guesses.guarded(voice.processors), gate]


def _aggregators(stack: Stack, taking: TurnTaking, clock: Clock) -> LLMContextAggregatorPair:
    """Build the aggregators of the conversation."""
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


def end_of_input_audio() -> FrameProcessor:
    """Drop the caller's audio, which no processor after the recogniser needs.

    Otherwise each of its fifty packets a second would pass through every later processor's queue.
    """

    async def is_no_input(frame: Frame) -> bool:
        return not isinstance(frame, InputAudioRawFrame)

    return FunctionFilter(is_no_input, filter_system_frames=True, enable_direct_mode=True)
