"""An LLM made of several: to the pipeline it is one service, with one reply and one bill."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from math import fsum
from typing import Any, ClassVar, Generic, TypeVar

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessorSetup

from turngap.backends import COUNTS
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.counts import THOUGHT, THOUGHT_MS
from turngap.core.voice import LETTER_MS, letters
from turngap.scenario.phrases import tokens
from turngap_services.llm.combine import (
    BestOfSettings,
    CombinedSettings,
    OpenerSettings,
    PairSettings,
    RaceSettings,
    RouteSettings,
)
from turngap_services.llm.combine.part import (
    CHARS_A_TOKEN,
    Ask,
    Meter,
    Part,
    PartFailedError,
    difficulty,
    first_of,
    follows_a_tool,
    is_for_tool,
    last_words,
    prompt_chars,
    written,
)
from turngap_services.llm.plain import PlainLLMService

Settings = TypeVar("Settings", bound=CombinedSettings)
Pair = TypeVar("Pair", bound=PairSettings)


class CombinedLLMService(PlainLLMService, Generic[Settings]):
    """Several models; subclasses decide which one answers.

    This service calls the tools, once the chosen part's reply has been said. The part that called a
    tool also answers its result.
    """

    backend: ClassVar[str]

    def __init__(self, *, settings: Settings, clock: Clock) -> None:
        super().__init__(self.backend)
        self._combined = settings
        self._clock = clock
        self._parts = [
            Part(
                *(spec.name, spec.create(own, clock), price, clock),
                tools=spec.why_no_tools(own) is None,
                settings=settings,
            )
            for (spec, own), price in zip(settings.parts(), settings.prices(), strict=True)
        ]
        self._asks: list[Ask] = []
        self._beside: list[Ask] = []
        self._counts: dict[str, float] = {}
        self._user_end_ns: int | None = None
        # The request whose reply is heard; the part that made each call since the person's last
        # words.
        self._kept: Ask | None = None
        self._called: dict[str, Part] = {}

    @property
    def _trusted(self) -> Part:
        return self._parts[0]

    async def _choose(self, context: LLMContext) -> Ask:
        """Ask the parts, and return the request whose reply is heard.

        Raises:
            PartFailedError: no part can answer.
        """
        raise NotImplementedError

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        """Yield the reply's pieces and set `_kept`; closed when the reply is no longer wanted.

        Raises:
            PartFailedError: no part can answer, or not to the end.
        """
        self._kept = await self._choose(context)
        async for piece in self._kept.text():
            yield piece

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        for part in self._parts:
            await part.setup(setup)

    async def cleanup(self) -> None:
        await super().cleanup()
        for part in self._parts:
            await part.cleanup()

    async def _note(self, frame: Frame) -> None:
        match frame:
            case StartFrame() | EndFrame() | CancelFrame():
                for part in self._parts:
                    await part.pipeline.queue_frame(frame)
            case VADUserStoppedSpeakingFrame():
                self._user_end_ns = self._clock.now_ns() - ms_to_ns(frame.stop_secs * 1000)
            case UserStoppedSpeakingFrame() if self._user_end_ns is None:
                self._user_end_ns = self._clock.now_ns()
            case UserStartedSpeakingFrame():
                self._user_end_ns = None
            case _:
                pass

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Ask the most trusted model outside the conversation; the next turn pays for it."""
        prompt = self._trusted.prompt(context)
        ask = Ask(self._trusted, prompt_chars(prompt), self._clock.now_ns())
        self._beside.append(ask)
        said = await self._trusted.service.run_inference(
            prompt, max_tokens, system_instruction, response_schema
        )
        ask.pieces = -(-len(said or "") // CHARS_A_TOKEN)
        return said

    def _left_ms(self) -> float:
        """Return the rest of this turn's budget for the first token.

        If the end of the person's last word is not known, the budget begins with the request.
        """
        now_ns = self._clock.now_ns()
        spent_ms = (now_ns - (self._user_end_ns or now_ns)) / 1e6
        return self._combined.budget_ms - self._combined.after_llm_ms - spent_ms

    async def _ask(self, part: Part, context: LLMContext) -> Ask:
        ask = await part.ask(context)
        self._asks.append(ask)
        return ask

    def _fell_back(self, ask: Ask) -> None:
        logger.warning(f"{self}: fell back, {ask.failed}")
        self._counts["combined_fell_back"] = 1.0

    async def _one_of(self, parts: Sequence[Part], context: LLMContext) -> Ask:
        """Ask one part after the other until one answers.

        Raises:
            PartFailedError: no part answers.
        """
        failed: list[Ask] = []
        for part in parts:
            ask = await self._ask(part, context)
            await ask.ready.wait()
            if ask.answers:
                for other in failed:
                    self._fell_back(other)
                return ask
            failed.append(ask)
        raise PartFailedError("; ".join(f"{ask.failed}" for ask in failed))

    def _answerers(self) -> list[Part]:
        """Return the parts that may answer a tool's result: the last caller, then others."""
        callers = reversed(self._called.values())
        able = [self._trusted, *self._parts]
        known = dict.fromkeys([*callers, *(part for part in able if part.tools)])
        return list(known) or [self._trusted]

    async def _answer_tools(self, context: LLMContext) -> AsyncGenerator[str]:
        """Yield the answer to tools' results, as `_reply` does."""
        self._kept = await self._one_of(self._answerers(), context)
        async for piece in self._kept.text():
            yield piece

    def _pieces(self, context: LLMContext) -> AsyncGenerator[str]:
        if follows_a_tool(context):
            return self._answer_tools(context)
        self._called = {}
        return self._reply(context)

    async def _call(self, context: LLMContext) -> None:
        """Run the tools that the heard reply calls.

        A call that another part made in this turn is not repeated, because its effects remain.
        """
        calls = self._kept.calls if self._kept else ()
        if self._kept is None or not calls:
            return
        part = self._kept.part
        for call in map(written, calls):
            before = self._called.setdefault(call, part)
            if before is not part:
                await self.push_error(f"{part.name}: calls {call}, as {before.name} did before it")
                return
        await self.run_function_calls([replace(call, context=context) for call in calls])

    async def _respond(self, context: LLMContext) -> None:
        # This answer's bill includes what was asked besides the conversation since the last one.
        self._asks, self._beside, self._counts = self._beside, [], {}
        self._kept = None
        meter = Meter(self._asks)
        await self.push_frame(LLMFullResponseStartFrame())
        await self.start_processing_metrics()
        await self.start_ttfb_metrics()
        try:
            async with aclosing(self._pieces(context)) as pieces:
                async for piece in pieces:
                    await self.stop_ttfb_metrics()
                    # Costs go out as they arise: after an interruption no frame carries them.
                    await self.push_frame(self._counted(LLMTextFrame(piece), meter))
            await self.stop_ttfb_metrics()  # of a call, if nothing was said
        except PartFailedError as e:
            self._kept = None
            await self.push_error(str(e), exception=e)
        finally:
            await asyncio.gather(*(part.cancel() for part in self._parts))
            if self._kept is not None and self._kept.thoughts:
                self._counts |= {THOUGHT: self._kept.thoughts, THOUGHT_MS: self._kept.thought_ms}
            used = [ask.tokens() for ask in self._asks]
            await self._count_tokens(sum(p for p, _ in used), sum(c for _, c in used))
            await self.stop_processing_metrics()
            await self.push_frame(self._counted(LLMFullResponseEndFrame(), meter))
        # After the figures, as a tool's result makes void whatever belongs to a guess.
        await self._call(context)

    def _counted(self, frame: Frame, meter: Meter) -> Frame:
        frame.metadata[COUNTS] = {**meter.take(), **self._counts}
        self._counts = {}
        return frame


class PairLLMService(CombinedLLMService[Pair]):
    """A fast and a full model."""

    def __init__(self, *, settings: Pair, clock: Clock) -> None:
        super().__init__(settings=settings, clock=clock)
        self._fast, self._full = self._parts

    @property
    def _trusted(self) -> Part:
        return self._full


# 1 if the full model's reply was heard.
FULL_WON = "race_full_won"


class RaceLLMService(PairLLMService[RaceSettings]):
    """A race of fast and full; the loser is cancelled before the winner's first word is said."""

    backend = "race"

    async def _choose(self, context: LLMContext) -> Ask:
        own_ms = self._combined.deadline_ms
        ms = self._left_ms() if own_ms is None else own_ms
        deadline_ns = self._clock.now_ns() + ms_to_ns(ms)
        full = await self._ask(self._full, context)
        fast = await self._ask(self._fast, context)
        winner = await self._winner(fast, full, deadline_ns)
        await (fast if winner is full else full).part.cancel()
        self._counts[FULL_WON] = float(winner is full)
        return winner

    async def _winner(self, fast: Ask, full: Ask, deadline_ns: int) -> Ask:
        """Return the full request if it has a token by the deadline, else the first that has one.

        The first token of a tool call counts, too; the other model runs on until the call is whole.
        """
        await first_of(full.begun.wait(), self._clock.sleep_until_ns(deadline_ns))
        if not full.begun.is_set() and not fast.begun.is_set():
            await first_of(full.begun.wait(), fast.begun.wait())
        preferred, other = (full, fast) if full.begun.is_set() else (fast, full)
        await preferred.ready.wait()
        if preferred.answers:
            return preferred
        await other.ready.wait()
        if not other.answers:
            raise PartFailedError(f"{preferred.failed}; {other.failed}")
        self._fell_back(preferred)
        return other


# Points of the turn; 1 if the full model answered; 1 if there was no time to ask it; 1 if the turn
# looked like one for a tool.
POINTS, TO_FULL, NO_TIME = "route_points", "route_full", "route_no_time"
ROUTE_FOR_TOOL = "route_for_tool"

# Weight of each new time to first token in the running mean: the last few turns count.
NEWS = 0.3
# Share of the mean's excess over the setting that is forgotten when there was no time for the full
# model: a model that is not asked gives no new time, and one slow turn would exclude it for good.
FORGOTTEN = 0.1


class RouteLLMService(PairLLMService[RouteSettings]):
    """A choice of fast or full; the other answers if the chosen one fails before its first word."""

    backend = "route"

    def __init__(self, *, settings: RouteSettings, clock: Clock) -> None:
        super().__init__(settings=settings, clock=clock)
        self._full_ttft_ms = settings.full_ttft_ms

    async def _choose(self, context: LLMContext) -> Ask:
        pair = [self._fast, self._full]
        try:
            ask = await self._one_of(pair[::-1] if self._is_for_full(context) else pair, context)
        finally:
            self._learn()
        self._counts[TO_FULL] = float(ask.part is self._full)
        return ask

    def _is_for_full(self, context: LLMContext) -> bool:
        for_tool = is_for_tool(context)
        points = difficulty(*last_words(context), tools=for_tool)
        self._counts |= {POINTS: float(len(points)), ROUTE_FOR_TOOL: float(for_tool)}
        hard = len(points) >= self._combined.threshold
        in_time = self._full_ttft_ms <= self._left_ms()
        no_time = hard and not in_time and not for_tool
        self._counts[NO_TIME] = float(no_time)
        if no_time:
            above_ms = self._full_ttft_ms - self._combined.full_ttft_ms
            self._full_ttft_ms -= FORGOTTEN * max(0.0, above_ms)
        # A turn with a tool takes two requests and may be late: a right call matters more.
        return for_tool or (hard and in_time)

    def _learn(self) -> None:
        """Add the full model's time to first token, or the time waited for it, to the mean."""
        for ask in self._asks:
            in_vain_ms = self._combined.first_token_ms if ask.given_up else None
            ms = in_vain_ms if ask.first_ms is None else ask.first_ms
            if ask.part is self._full and ms is not None:
                self._full_ttft_ms += NEWS * (ms - self._full_ttft_ms)


# Which candidate was heard, counted from 0; how many had something to say by then.
CHOSEN, IN_TIME = "best_of_chosen", "best_of_in_time"


class BestOfLLMService(CombinedLLMService[BestOfSettings]):
    """A vote of all candidates: the reply that most of them agree on is said."""

    backend = "best-of"

    async def _choose(self, context: LLMContext) -> Ask:
        until_ns = self._clock.now_ns() + ms_to_ns(self._combined.window_ms)
        asks = [await self._ask(part, context) for part in self._parts]
        over = asyncio.gather(*(ask.ended.wait() for ask in asks))
        await first_of(over, self._clock.sleep_until_ns(until_ns))
        # A call that has begun is known when it is whole.
        await asyncio.gather(*(ask.ready.wait() for ask in asks if ask.begun.is_set()))
        while not any(ask.answers for ask in asks):
            waiting = [ask for ask in asks if not ask.over]
            if not waiting:
                raise PartFailedError("; ".join(f"{ask.failed}" for ask in asks))
            await first_of(*(ask.ready.wait() for ask in waiting))
        for ask in asks:
            if ask.over and not ask.answers:
                self._fell_back(ask)
        able = [n for n, ask in enumerate(asks) if ask.answers and ask.failed is None]
        able = able or [n for n, ask in enumerate(asks) if ask.answers]
        chosen = able[best([words_of(asks[n]) for n in able])]
        self._counts |= {CHOSEN: float(chosen), IN_TIME: float(len(able))}
        others = (part for n, part in enumerate(self._parts) if n != chosen)
        await asyncio.gather(*(part.cancel() for part in others))
        return asks[chosen]


def words_of(ask: Ask) -> list[str]:
    """Return the parts of a candidate to compare: words, and calls with and without arguments.

    Two calls of one tool are thus alike, more so with the same arguments, and unlike any text.
    """
    calls = [word for call in ask.calls for word in (f"{call.function_name}()", written(call))]
    return [*tokens(ask.said), *calls]


def best(words: Sequence[Sequence[str]]) -> int:
    """Return the index of the candidate that the others agree with most, the first of equals.

    A candidate's score is its mean likeness to the others: the words that both have, divided by the
    words that either has. Both are cut to the length of the shorter one, because a longer one may
    just have come sooner.
    """

    def score(at: int) -> float:
        others = [w for n, w in enumerate(words) if n != at]
        # Exact: in another order the same likenesses would add up to a little more.
        return fsum(_alike(words[at], other) for other in others) / max(len(others), 1)

    return max(range(len(words)), key=score)


def _alike(a: Sequence[str], b: Sequence[str]) -> float:
    both = min(len(a), len(b))
    one, other = set(a[:both]), set(b[:both])
    return len(one & other) / len(one | other) if both else 0.0


# How long after the first audio the answer itself began, in ms: the opening and the wait behind it.
OPENER_MS = "opener_ms"
# 1 if the full model took back what the fast one had said.
CORRECTED = "opener_corrected"
# 1 if there was no opening, as a tool has to be called and the fast model calls none.
OPENER_FOR_TOOL = "opener_for_tool"

# Not after a digit, as "9:" and "7." continue.
_CLAUSE_END = re.compile(r"(?<!\d)[,.;:?!…]$")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# A shorter opening is spoken before there is more for the voice.
LEAST_WORDS = 2

INSTRUCTION = (
    'You have already begun your answer and said: "{opening}" Go on from exactly there: do not say '
    "it again, and do not greet. If it was wrong, begin with: {correction}"
)


class OpenerLLMService(PairLLMService[OpenerSettings]):
    """A reply whose first clause is the fast model's, and whose rest is the full model's."""

    backend = "opener"
    # The opening of an answer that is still to come, and when it was said (ns).
    _opened: tuple[str, int] | None = None

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        self._opened = None
        if not self._fast.tools and is_for_tool(context):
            # The opening would be made up, and the tool's result would take it back.
            self._counts[OPENER_FOR_TOOL] = 1.0
            async for piece in self._behind_opening(await self._one_of(self._parts[::-1], context)):
                yield piece
            return
        anew = None if self._combined.told else await self._ask(self._full, context)
        fast = await self._ask(self._fast, context)
        words = fast.text()
        opening, begun = await self._opening(words)
        if opening:
            yield opening + " "
        if fast.failed is not None:
            self._fell_back(fast)
        self._opened = (opening, self._clock.now_ns()) if opening else None
        if opening:
            said = {"role": "assistant", "content": opening}
            context = self._reminded(with_messages(context, said))
        full = anew or await self._ask(self._full, context)
        await full.ready.wait()
        if not full.answers:
            # The fast model can continue from its own opening, with what it had begun to say.
            if fast.failed is not None:
                raise PartFailedError(f"{fast.failed}; {full.failed}")
            self._fell_back(full)
            self._kept = fast
            if begun:
                yield begun
            async for piece in words:
                yield piece
            return
        await self._fast.cancel()
        async for piece in self._behind_opening(full):
            yield piece

    async def _answer_tools(self, context: LLMContext) -> AsyncGenerator[str]:
        ask = await self._one_of(self._answerers(), self._reminded(context))
        async for piece in self._behind_opening(ask):
            yield piece

    async def _behind_opening(self, ask: Ask) -> AsyncGenerator[str]:
        """Yield the full model's text after the opening; a call alone is not an answer yet."""
        self._kept = ask
        if self._opened is None or not ask.pieces:
            async for piece in ask.text():
                yield piece
            return
        opening, said_ns = self._opened
        self._opened = None
        waited_ms = (self._clock.now_ns() - said_ns) / 1e6
        self._counts[OPENER_MS] = max(waited_ms, LETTER_MS * letters(opening))
        async for piece in self._going_on(opening, ask):
            yield piece

    async def _opening(self, words: AsyncGenerator[str]) -> tuple[str, str]:
        """Return the first clause, or the first words of a long one, and the text after it so far.

        Both are empty if the model says nothing.
        """
        text, most = "", self._combined.most_words
        try:
            async for piece in words:
                text += piece
                said = text.split(maxsplit=most)
                # A word is whole when the next one begins.
                if len(said) > most:
                    return " ".join(said[:most]), said[most]
                if len(said) >= LEAST_WORDS and _CLAUSE_END.search(text.rstrip()):
                    break
        except PartFailedError:
            pass
        return text.strip(), ""

    def _reminded(self, context: LLMContext) -> LLMContext:
        """Return the conversation with the instruction to continue from the opening, if any."""
        if self._opened is None or not self._combined.told:
            return context
        opening, correction = self._opened[0], self._combined.correction
        note: Any = INSTRUCTION.format(opening=opening, correction=correction)
        return with_messages(context, {"role": "system", "content": note})

    async def _going_on(self, opening: str, full: Ask) -> AsyncGenerator[str]:
        """Yield the full model's text without the part that was said already.

        If it repeats the opening, that is left out. A model that was given the opening is trusted
        to continue it or to take it back. A model that was not has answered anew: if it says
        something else, the opening is taken back first.
        """
        pieces = full.text()
        held, known, heard, ended = "", _words(opening), list[str](), True
        async for piece in pieces:
            held += piece
            # The next piece may continue the last word.
            heard = _words(held[: held.rfind(" ") + 1])
            if heard[: len(known)] != known[: len(heard)] or len(heard) > len(known):
                ended = False
                break
        heard = _words(held) if ended else heard
        if heard[: len(known)] == known:
            held = _behind(held, len(known))
        elif not self._combined.told:
            self._counts[CORRECTED] = 1.0
            yield f"{self._combined.correction} "
        if held:
            yield held
        async for piece in pieces:
            yield piece


def with_messages(context: LLMContext, *more: Any) -> LLMContext:
    """Return the conversation with these messages at its end."""
    return LLMContext([*context.messages, *more], context.tools, context.tool_choice)


def _words(text: str) -> list[str]:
    """Return the words without punctuation, in lower case."""
    return [m.group().lower() for m in _WORD.finditer(text)]


def _behind(text: str, count: int) -> str:
    """Return `text` without its first `count` words and their punctuation."""
    ends = [m.end() for m in _WORD.finditer(text)]
    rest = text[ends[count - 1] :] if count else text
    return rest.lstrip(" \n,.;:?!…")


KINDS: dict[str, type[CombinedLLMService[Any]]] = {
    kind.backend: kind
    for kind in (RaceLLMService, RouteLLMService, OpenerLLMService, BestOfLLMService)
}


def prepare(settings: CombinedSettings) -> None:
    """Load the parts' models.

    Raises:
        AgentError: a part needs something that this machine lacks.
    """
    for spec, own in settings.parts():
        spec.require()
        if spec.prepare is not None:
            spec.prepare(own)


def create(which: str, settings: Any, clock: Clock) -> CombinedLLMService[Any]:
    """Make the service of one session."""
    return KINDS[which](settings=settings, clock=clock)
