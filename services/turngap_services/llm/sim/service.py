"""The simulated models as pipecat services: their words and timing, by a seed."""

import json
import random
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from rapidfuzz import fuzz

from turngap.core.clock import NS_PER_MS, NS_PER_S, Clock
from turngap.inference.server import Server, find_accelerator, find_model
from turngap_services.llm.plain import PlainLLMService, offered, plain_messages, turns_heard
from turngap_services.llm.sim import LibrarySettings, Profile, ServedSettings, SimSettings
from turngap_services.llm.sim.server import Background, LiveServer
from turngap_services.text import scenarios, spoken_words

if TYPE_CHECKING:
    from turngap.scenario.expectation import Call
    from turngap.scenario.model import Scenario

# Likeness of two texts: rapidfuzz's normalised indel similarity of their spoken words, 0 to 1. The
# library's 34 sentences with one word in five replaced at random keep 0.71 (lowest 1 % of 1,700);
# two different ones reach 0.58 at most, but for two ways of asking a price (0.70).
FLOOR = 0.6
# What the right place in a conversation adds: it decides between equal sentences of two scenarios,
# it never outweighs a clearly better match.
_IN_PLACE = 0.15

# 1.5 pieces a word over the library's replies, marks counted: like a byte-pair tokeniser, a common
# word is one piece with the space before it, a long one is several.
_TOKEN = re.compile(r"\s*(?:[^\W_]{1,6}|[^\w\s]|_)|\s+$")
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class LibraryTurn:
    """A turn of a scenario: its words, the words before it, its tool calls and its reply."""

    said: str
    before: str | None
    reply: str | None
    calls: tuple["Call", ...] = ()


def library_turns(scenarios: Iterable["Scenario"]) -> tuple[LibraryTurn, ...]:
    """Return every turn of every scenario, with its text reduced to spoken words."""
    found: list[LibraryTurn] = []
    for scenario in scenarios:
        before: str | None = None
        for turn in scenario.turns:
            said = _plain(turn.say)
            found.append(LibraryTurn(said, before, turn.reply, turn.calls))
            before = said
    return tuple(found)


def reply_to(
    heard: Sequence[str],
    script: Sequence[LibraryTurn],
    default: str,
    results: Mapping[str, Any] | None = None,
) -> str:
    """Return the reply of the turn that is most like the last words heard.

    Args:
        heard: the user's words, turn by turn; not empty.
        script: the turns to choose from.
        default: the reply if no turn is similar, the turn has no reply, or the reply needs a result
            that no tool gave.
        results: the results of the tools that were called for this reply, by key.
    """
    turn = turn_for(heard, script)
    if turn is None or turn.reply is None:
        return default
    return (filled(turn.reply, results or {}) or default) if turn.calls else turn.reply


def turn_for(heard: Sequence[str], script: Sequence[LibraryTurn]) -> LibraryTurn | None:
    """Return the turn that is most like the last words heard; `heard` is not empty."""
    last = _plain(heard[-1])
    before = _plain(heard[-2]) if len(heard) > 1 else None
    best: tuple[float, LibraryTurn] | None = None
    for turn in script:
        likeness = fuzz.ratio(last, turn.said) / 100
        if likeness < FLOOR:
            continue
        score = likeness + _IN_PLACE * _placed(before, turn.before)
        if best is None or score > best[0]:
            best = (score, turn)
    return None if best is None else best[1]


def _placed(before: str | None, expected: str | None) -> float:
    """Return how well the words before fit the turn's place in its scenario, 0 to 1."""
    if before is None or expected is None:
        return float(before is expected)
    return fuzz.ratio(before, expected) / 100


def _plain(text: str) -> str:
    return " ".join(spoken_words(text))


def filled(reply: str, results: Mapping[str, Any]) -> str | None:
    """Return the reply with each `{key}` replaced by the tools' result; None if one is missing."""
    if not set(_PLACE.findall(reply)) <= results.keys():
        return None
    return _PLACE.sub(lambda place: str(results[place[1]]), reply)


def tokens(text: str) -> list[str]:
    """Split `text` into pieces that join to it again, each with the space before it."""
    return _TOKEN.findall(text)


class PromptCache:
    """The last prompt; the beginning that the next one shares need not be read again."""

    def __init__(self) -> None:
        self._read: list[str] = []

    def unread(self, prompt: Sequence[str]) -> int:
        """Return how many tokens of `prompt` come after the part shared with the last one."""
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(self._read, prompt, strict=False))
        return len(prompt) - sum(1 for _ in shared)

    def read(self, prompt: Sequence[str]) -> None:
        self._read = list(prompt)


def due_ns(
    start_ns: int, *, key: str, ttft_ms: float, tokens_per_s: float, jitter: float
) -> Iterator[int]:
    """Yield the instants at which the first, second, … token is due.

    Args:
        start_ns: when the request was made.
        key: everything that the jitter depends on, as text.
        ttft_ms: median time to first token.
        tokens_per_s: inverse of the median time between tokens.
        jitter: sigma of the lognormal factor on each time.
    """
    random_ = random.Random(key)  # seeded by SHA-512 of the text: the same in every process
    at = start_ns + ttft_ms * NS_PER_MS * random_.lognormvariate(0, jitter)
    while True:
        yield round(at)
        at += NS_PER_S / tokens_per_s * random_.lognormvariate(0, jitter)


class LibraryLLMService(PlainLLMService):
    """A script from the scenario library, token by token, at a pace that subclasses decide.

    If the library says that a tool is called first, it is called if the conversation offers it.
    """

    def __init__(
        self, *, name: str, settings: LibrarySettings, script: tuple[LibraryTurn, ...], clock: Clock
    ) -> None:
        super().__init__(name, seed=settings.seed)
        self._default = settings.default_reply
        self._script = script
        self._clock = clock

    @abstractmethod
    def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        """Yield the reply's tokens as they come; closed when the reply is no longer wanted."""

    def _reply(self, heard: list[str], results: dict[str, Any] | None = None) -> str:
        return reply_to(heard, self._script, self._default, results) if heard else self._default

    def _calls(self, heard: list[str]) -> tuple["Call", ...]:
        turn = turn_for(heard, self._script) if heard else None
        return turn.calls if turn else ()

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        messages = plain_messages(context)
        said = tokens(self._reply(turns_heard(messages)))[:max_tokens]
        return "".join([piece async for piece in self._paced(said, messages)])

    async def _answer(self, context: LLMContext) -> None:
        await self.start_ttfb_metrics()
        messages = plain_messages(context, tools=True)
        heard, results = turns_heard(messages), results_of(context)
        calls = () if results is not None else self._calls(heard)
        if not offers(context, calls):
            calls = ()
        # A model writes its calls token by token, too.
        written = json.dumps([call.model_dump() for call in calls])
        text = written if calls else self._reply(heard, results)
        said = 0
        try:
            async with aclosing(self._paced(tokens(text), messages)) as pieces:
                async for piece in pieces:
                    if said == 0:
                        await self.stop_ttfb_metrics()
                        if calls:  # the first token of a call is the answer's, as pipecat has it
                            await self.stop_ttfat_metrics()
                    if not calls:
                        await self._push_llm_text(piece)
                    said += 1
        finally:
            # As a provider would bill it, an interrupted reply included.
            await self._count_tokens(len(prompt_tokens(messages)), said)
        # A guess calls no tool: pipecat withdraws the guess, and the model is asked again.
        await self.run_function_calls(
            [
                FunctionCallFromLLM(
                    function_name=call.name,
                    tool_call_id=f"call_{uuid4().hex}",
                    arguments=dict(call.arguments),
                    context=context,
                )
                for call in calls
            ]
        )


class SimLLMService(LibraryLLMService):
    """A simulated model that answers by a script, at the pace in its settings."""

    def __init__(
        self, *, settings: SimSettings, script: tuple[LibraryTurn, ...], clock: Clock
    ) -> None:
        super().__init__(name="sim", settings=settings, script=script, clock=clock)
        self._sim = settings
        self._cache = PromptCache()

    async def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        heard = turns_heard(messages)
        due = due_ns(
            await self._read(messages),
            key=f"{self._sim.seed}|{len(heard)}|{heard[-1] if heard else ''}",
            ttft_ms=self._sim.ttft_ms,
            tokens_per_s=self._sim.tokens_per_s,
            jitter=self._sim.jitter,
        )
        for piece, at_ns in zip(said, due, strict=False):
            await self._clock.sleep_until_ns(at_ns)
            yield piece

    async def _read(self, messages: list[dict[str, Any]]) -> int:
        """Take the time to read the prompt; returns the instant at which it was read (ns)."""
        start_ns = self._clock.now_ns()
        if self._sim.prefill_tokens_per_s is None:
            return start_ns
        prompt = prompt_tokens(messages)
        read_ns = self._cache.unread(prompt) * NS_PER_S / self._sim.prefill_tokens_per_s
        await self._clock.sleep_until_ns(start_ns + round(read_ns))
        self._cache.read(prompt)
        return start_ns + round(read_ns)


def prompt_tokens(messages: list[dict[str, Any]]) -> list[str]:
    """Return the tokens that the model reads."""
    return [token for message in messages for token in tokens(message["content"])]


def offers(context: LLMContext, calls: Iterable["Call"]) -> bool:
    """Return whether the conversation offers a tool for each of the calls."""
    names = {tool.name for tool in offered(context)}
    return all(call.name in names for call in calls)


def results_of(context: LLMContext) -> dict[str, Any] | None:
    """Return the results of the tools called since the user's last words; None without a call.

    They are by key. A tool that failed gives no values, only words about the failure.
    """
    results: dict[str, Any] | None = None
    for message in context.get_messages():
        if isinstance(message, LLMSpecificMessage):
            continue
        if message["role"] == "user":
            results = None
        elif message["role"] == "tool":
            try:
                result = json.loads(message.get("content"))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                result = None
            results = (results or {}) | (result if isinstance(result, dict) else {})
    return results


# A count of the turn: 1 if the reply was made wrong on purpose.
WRONG = "sim_wrong"


class ServedLLMService(LibraryLLMService):
    """A script at the pace of a simulated server, with a set share of wrong replies.

    Its words depend on its `model`, not on the server: two servers of one model are wrong in the
    same turns.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        settings: ServedSettings,
        accuracy: float,
        server: LiveServer,
        script: tuple[LibraryTurn, ...],
        clock: Clock,
    ) -> None:
        super().__init__(name=name, settings=settings, script=script, clock=clock)
        self._model = model
        self._seed = settings.seed
        self._network_ns = round(settings.network_ms * NS_PER_MS)
        self._accuracy = accuracy
        self.server = server

    def counts_of(self, heard: list[str]) -> dict[str, float]:
        return {WRONG: float(self._is_wrong(heard))}

    def _calls(self, heard: list[str]) -> tuple["Call", ...]:
        return () if heard and self._is_wrong(heard) else super()._calls(heard)

    def _reply(self, heard: list[str], results: dict[str, Any] | None = None) -> str:
        if not heard or not self._is_wrong(heard):
            return super()._reply(heard, results)
        right = reply_to(heard, self._script, self._default)
        return wrong_reply(right, self._script, self._key(heard)) or self._default

    def _is_wrong(self, heard: list[str]) -> bool:
        """Decide by the conversation and the seed: the next run is wrong in the same turns."""
        return random.Random(f"wrong|{self._key(heard)}").random() >= self._accuracy

    def _key(self, heard: Sequence[str]) -> str:
        return f"{self._seed}|{self._model}|{len(heard)}|{heard[-1] if heard else ''}"

    async def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        if self._network_ns:
            await self._clock.sleep_until_ns(self._clock.now_ns() + self._network_ns)
        prompt = max(1, len(prompt_tokens(messages)))
        async with aclosing(self.server.tokens(prompt, len(said))) as out:
            done = 0
            async for ready in out:
                for piece in said[done:ready]:
                    yield piece
                done = ready


def wrong_reply(right: str, script: Sequence[LibraryTurn], key: str) -> str | None:
    """Return another turn's reply, chosen by `key`; None if there is no other."""
    spoken = {turn.reply for turn in script if turn.reply and not turn.calls}
    others = sorted(spoken - {right})
    return random.Random(f"which|{key}").choice(others) if others else None


def prepare(settings: LibrarySettings) -> None:
    """Read the library. Importing this module does the rest."""
    scenarios(settings.library)


def create(settings: SimSettings, clock: Clock) -> SimLLMService:
    """Make the service of one session."""
    script = library_turns(scenarios(settings.library))
    return SimLLMService(settings=settings, script=script, clock=clock)


def create_served(profile: Profile, settings: ServedSettings, clock: Clock) -> ServedLLMService:
    """Make the service of one session; the sessions of a process share the server."""
    accuracy = profile.accuracy if settings.accuracy is None else settings.accuracy
    return ServedLLMService(
        name=profile.name,
        model=profile.model,
        settings=settings,
        accuracy=accuracy,
        server=server_of(profile, settings.streams, settings.seed, clock),
        script=library_turns(scenarios(settings.library)),
        clock=clock,
    )


@cache
def server_of(profile: Profile, streams: int | None, seed: int, clock: Clock) -> LiveServer:
    """Return the process's one server of that profile."""
    background = Background(profile.streams if streams is None else streams)
    server = Server(
        find_accelerator(profile.hardware),
        find_model(profile.model),
        profile.parts,
        profile.weights,
        "fp8",
    )
    # The number of streams is random around its mean: the batch has room for all, and for ours.
    max_batch = 2 * background.streams + 64
    return LiveServer(server, background, max_batch=max_batch, seed=seed, clock=clock)
