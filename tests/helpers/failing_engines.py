"""Engines that do as a test says, in the stacks that ship, in conversations in virtual time.

Each knows which of the person's turns it is at work for: the recogniser counts them, the model
counts what the person said, and the voice reads the number in the text. So a test says in which
turn an engine does what.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import Any, Literal

import numpy as np
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    FunctionCallFromLLM,
    InterimTranscriptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.turns.types import ProcessFrameResult
from pipecat.turns.user_stop import BaseUserTurnStopStrategy
from pipecat.utils.errors import ErrorCategory

from turngap.agent.session import Assembly, assemble
from turngap.agent.stack import load_stack, override
from turngap.agent.switching import Offers
from turngap.backends import BackendSettings, BackendSpec, ConfiguredBackend, Kind, TurnTaking
from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.events import TrackedTurn
from turngap.play.turns import cues_of
from turngap.play.virtual import line_to_stack
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import library_dir, scenario_paths
from turngap.testing.agent import voice
from turngap.testing.virtual import LoopClock, in_virtual_time, virtual_clocks
from turngap_services.llm.plain import PlainAdapter, plain_messages, plain_settings

# What an engine does instead of its work.
Fate = Literal[
    "stalls",  # accepts, then nothing
    "stalls_midway",  # begins, then nothing
    "dies",  # raises
    "dies_midway",  # begins, then raises
    "refuses",  # an error that names a refused key, which pipecat takes for permanent
    "is_busy",  # an error that names a limit
    "babbles",  # never comes to an end
    "says_nothing",  # comes to its end at once, without having said anything
    "stalls_after_a_tool",  # calls a tool, and then nothing
    "babbles_after_a_tool",
    "is_slow",  # does its work, 4.5 s later
    "makes_no_sense",  # what is not what it should be
]
AFTER_A_TOOL: dict[Fate, Fate] = {
    "stalls_after_a_tool": "stalls",
    "babbles_after_a_tool": "babbles",
}
Fates = Mapping[int, Fate]
RATE = 16_000
REPLY = "Number {n}, of course. This is answer number {n}, and it is here."
_FATE_MS = 20.0


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def _passes(clock: Clock, ms: float = _FATE_MS) -> None:
    await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(ms))


class ScriptedSTT(STTService):
    """Hears "question" and the turn's number, as soon as the VAD stops."""

    def __init__(self, fates: Fates, clock: Clock) -> None:
        super().__init__(ttfs_p99_latency=0.1, settings=STTSettings(model="x", language="en-US"))
        self._fates, self._clock = fates, clock
        self._turn = 0
        self._in_turn = False
        self._babble = 0

    @property
    def _fate(self) -> Fate | None:
        return self._fates.get(self._turn) if self._in_turn else None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, VADUserStartedSpeakingFrame) and not self._in_turn:
            self._turn, self._in_turn = self._turn + 1, True
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            try:
                await self._finish()
            finally:
                self._in_turn = False

    async def _finish(self) -> None:
        match self._fate:
            case "stalls_midway":
                await _for_ever()
            case "dies_midway":
                raise ConnectionError("its server has gone")
            case "makes_no_sense" | "is_slow" | None as fate:
                garbage = " half \ud83d a pair \x1b[2J" if fate == "makes_no_sense" else ""
                if fate == "is_slow":
                    await _passes(self._clock, 4500)
                text = f"question {self._turn}{garbage}"
                await self.push_frame(TranscriptionFrame(text, "", "", finalized=True))
            case _:
                pass

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        match self._fate:
            case "stalls":
                await _for_ever()
            case "dies":
                raise ConnectionError("its server has gone")
            case "refuses" | "is_busy" as fate:
                yield refusal(fate)
            case "babbles":
                self._babble += 1
                yield InterimTranscriptionFrame(f"word {self._babble}", "", "")
            case "makes_no_sense":
                yield InterimTranscriptionFrame(7, "", "")  # type: ignore
            case _:
                return


class ScriptedLLM(LLMService[PlainAdapter]):
    """Answers with the number of the turn, counted by what the person has said."""

    adapter_class = PlainAdapter

    def __init__(self, fates: Fates, clock: Clock) -> None:
        super().__init__(settings=plain_settings("x"))
        self._fates, self._clock = fates, clock
        self.asked: list[int] = []

    def can_generate_metrics(self) -> bool:
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        try:
            await self._answer(frame.context)
        finally:
            await self.push_frame(LLMFullResponseEndFrame())

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        return "x"

    async def _answer(self, context: LLMContext) -> None:
        number = turn_of(context)
        self.asked.append(number)
        fate = self._fates.get(number)
        await _passes(self._clock)
        if fate in AFTER_A_TOOL and self.asked.count(number) == 1:
            call = FunctionCallFromLLM("clock", f"call {number}", {}, context)
            await self.run_function_calls([call])
            return
        await self._say(number, AFTER_A_TOOL.get(fate, fate) if fate else None)

    async def _say(self, number: int, fate: Fate | None) -> None:
        match fate:
            case "stalls":
                await _for_ever()
            case "dies":
                raise ConnectionError("its server has gone")
            case "refuses" | "is_busy":
                await self.push_error_frame(refusal(fate))
                return
            case "says_nothing":
                return
            case "makes_no_sense":
                for piece in ("half \ud83d a pair", "\x00\x1b[2J", ""):
                    await self.push_frame(LLMTextFrame(piece))
            case _:
                pass
        for count, word in enumerate(REPLY.format(n=number).split()):
            if count == 4 and fate == "stalls_midway":
                await _for_ever()
            if count == 4 and fate == "dies_midway":
                raise ConnectionError("its server has gone")
            await _passes(self._clock)
            await self.push_frame(LLMTextFrame(f"{word} "))
        while fate == "babbles":
            await _passes(self._clock, 1)
            await self.push_frame(LLMTextFrame("and so on "))


class ScriptedTTS(TTSService):
    """A voice of 400 ms for each text, in chunks of 100 ms that are made at once."""

    def __init__(self, fates: Fates, clock: Clock) -> None:
        super().__init__(
            sample_rate=RATE,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="x", voice="x", language=None),
        )
        self._fates, self._clock = fates, clock
        self._turn = 0

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        # Each reply begins with the number, and the rest of it is of the same turn.
        self._turn = next(map(int, re.findall(r"\d+", text)), self._turn)
        fate = self._fates.get(self._turn)
        match fate:
            case "stalls":
                await _for_ever()
            case "dies":
                raise ConnectionError("its server has gone")
            case "refuses" | "is_busy":
                yield refusal(fate)
                return
            case "says_nothing":
                return
            case "makes_no_sense":
                yield TTSAudioRawFrame(b"\x01\x02\x03", 0, 1, context_id=context_id)
                return
            case _:
                pass
        chunks = [chunk.tobytes() for chunk in np.split(voice(400, RATE), 4)]
        for number, chunk in enumerate(chunks):
            if number == 2 and fate == "stalls_midway":
                await _for_ever()
            if number == 2 and fate == "dies_midway":
                raise ConnectionError("its server has gone")
            yield TTSAudioRawFrame(chunk, RATE, 1, context_id=context_id)
        while fate == "babbles":
            await _passes(self._clock, 1)
            yield TTSAudioRawFrame(chunks[0], RATE, 1, context_id=context_id)


def refusal(fate: Fate) -> ErrorFrame:
    if fate == "refuses":
        return ErrorFrame("401: key refused", category=ErrorCategory.AUTHENTICATION)
    return ErrorFrame("429: too many requests", category=ErrorCategory.RATE_LIMIT)


def turn_of(context: LLMContext) -> int:
    """The number of the turn that is to be answered: what the person said carries it."""
    said = [m["content"] for m in plain_messages(context) if m["role"] == "user"]
    numbers = re.findall(r"\d+", said[-1]) if said else []
    return int(numbers[-1]) if numbers else 0


@dataclass
class Cast:
    """The failing turn of each kind of engine, and the turns in which the turn-taker raises
    once."""

    stt: Fates = field(default_factory=dict[int, Fate])
    llm: Fates = field(default_factory=dict[int, Fate])
    tts: Fates = field(default_factory=dict[int, Fate])
    turn: frozenset[int] = frozenset()

    @property
    def calls_tools(self) -> bool:
        return any(fate in AFTER_A_TOOL for fate in self.llm.values())


class RaisingStop(BaseUserTurnStopStrategy):
    """Raises at the first final transcript of some turns, and else does nothing."""

    def __init__(self, turns: frozenset[int]) -> None:
        super().__init__()
        self._turns = set(turns)

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        if isinstance(frame, TranscriptionFrame):
            number = int("".join(filter(str.isdigit, frame.text)))
            if number in self._turns:
                self._turns.discard(number)
                raise ArithmeticError("a turn that is no turn")
        return ProcessFrameResult.CONTINUE


def parts(cast: Mapping[str, Fates]) -> Callable[[Kind, str], BackendSpec]:
    """Return what finds LLM backends by these names, for a combined model to be made of."""

    def find(kind: Kind, name: str) -> BackendSpec:
        def create(settings: BackendSettings, clock: Clock) -> ScriptedLLM:
            return ScriptedLLM(cast[name], clock)

        return BackendSpec(name, kind, BackendSettings, create)

    return find


def assembly_of(
    stack: str,
    cast: Cast,
    *,
    sets: Sequence[str] = (),
    llms: Sequence[ConfiguredBackend] = (),
) -> Assembly:
    """A stack that ships, with these engines in the place of its own, or these LLMs."""
    sets = ("warm.voice=false", *sets, f"audio.out_sample_rate={RATE}")
    own = override(load_stack(stack), {}, sets)
    assembly = assemble(own, library_dir(), LoopClock())
    create: dict[Kind, Any] = {
        "stt": lambda settings, clock: ScriptedSTT(cast.stt, clock),
        "llm": lambda settings, clock: ScriptedLLM(cast.llm, clock),
        "tts": lambda settings, clock: ScriptedTTS(cast.tts, clock),
    }
    if cast.turn:
        create["turn"] = partial(_raising, assembly.engines["turn"], cast.turn)
    specs = {
        kind: (BackendSpec(f"{kind}-x", kind, BackendSettings, make), BackendSettings())
        for kind, make in create.items()
    }
    offers = Offers(llms or [ConfiguredBackend("llm-x", *specs["llm"])])
    stack_made = override(own, {}, ["tools.use=clock"]) if cast.calls_tools else own
    engines = {**assembly.engines, **specs}
    made = replace(assembly, stack=stack_made, engines=engines, offers=offers)
    made.prepare()
    return made


def _raising(
    own: tuple[BackendSpec, BackendSettings],
    turns: frozenset[int],
    settings: BackendSettings,
    clock: Clock,
) -> TurnTaking:
    spec, values = own
    taking: TurnTaking = spec.create(values, clock)
    stop = [RaisingStop(turns), *(taking.strategies.stop or [])]
    return replace(taking, strategies=replace(taking.strategies, stop=stop))


def talk_to(
    assembly: Assembly, count: int = 3, patience: Patience | None = None
) -> list[TrackedTurn]:
    """Ask the agent the library's quick questions, so many and again and again, in virtual time."""
    (loaded,) = load_scenarios(scenario_paths(library_dir(), ["quick-questions"]))
    turns = tuple(islice(cycle(loaded.scenario.turns), count))
    loaded = replace(loaded, scenario=loaded.scenario.model_copy(update={"turns": turns}))
    played: list[PlayedTurn] = []

    async def converse() -> None:
        clock = LoopClock()
        await clock.sleep_until_ns(NS_PER_S)
        async with line_to_stack(assembly) as line:
            offset = await line.clock_offset()
            talk = Conversation(
                *(line, cues_of(loaded, None), clock),
                offset=offset,
                patience=patience,
                watch=clock,
            )
            async with aclosing(talk.play()) as turns:
                played.extend([turn async for turn in turns])

    with virtual_clocks():
        in_virtual_time(converse())
    return [p.turn for p in played]
