"""Warms the LLM and the voice in advance, so that the first token and sound come sooner."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from loguru import logger
from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregator
from pipecat.services.tts_service import TTSService

from turngap.core.clock import Clock, ms_to_ns, ns_to_ms
from turngap.core.speeds import Request, VoiceSpeed
from turngap.marks.waste import CHARS_A_TOKEN

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
