"""The zoo: agents as they are in production, each with what is right to say of it.

An agent is data: what it does in a turn, as sounds and words of its protocol on a timeline that
begins at the person's end, and the truth. Its voice is real speech, the shipped recordings of
synthetic voices, trimmed to their first audible sample; so the instant of a first word is known.
`turngap.play.zoo` plays them through turngap's own caller, and docs/agents.md shows what comes out.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed

from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.line import Peer
from turngap.caller.said import Message
from turngap.core.audio import (
    Pcm,
    SpeechDetector,
    SpeechStart,
    audible_onset,
    rms_dbfs,
)
from turngap.core.budget import DEFAULT_BUDGET_MS, Outcome
from turngap.core.clock import Clock, ms_to_ns, ns_to_samples, samples_to_ns
from turngap.core.frames import message_frame
from turngap.scenario.library import shipped_library
from turngap.store.sound import read_sound
from turngap.testing.dialects.half import AgentHalf, Begun, Spoken

FRAME_MS = 20
# A pipecat bot says so long after its last sound that it has stopped speaking.
STOPS_AFTER_MS = 350.0

Floats = NDArray[np.float64]


# Sounds


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound, made at the rate of a line. `says`: it is the agent's speech, and not a bed's.

    `at_once`: it is sent as fast as the line takes it, and not in real time.
    """

    make: Callable[[int], Pcm]
    says: bool = False
    at_once: bool = False


def voice(take: str, ms: float = 1e9, db: float = 0.0, *, at_once: bool = False) -> Sound:
    """Speak a shipped recording, or its first `ms`, so many dB louder than it is."""

    @cache
    def make(rate: int) -> Pcm:
        spoken = _recorded(take, rate)[: round(min(ms, 60_000) * rate / 1000)]
        return _pcm(spoken * 10 ** (db / 20))

    return Sound(make, says=True, at_once=at_once)


@cache
def _recorded(take: str, rate: int) -> Floats:
    import soxr

    sound = read_sound(shipped_library() / f"{take}.flac", "zoo")
    pcm = sound.samples[:, 0]
    pcm = pcm if sound.rate == rate else soxr.resample(pcm, sound.rate, rate)
    return pcm[audible_onset(pcm, rate) :].astype(np.float64)


def _pcm(samples: Floats) -> Pcm:
    return np.rint(samples).clip(-32768, 32767).astype(np.int16)


def at_level(wave: Callable[[Floats, int], Floats], ms: float, dbfs: float) -> Sound:
    """Make a sound of this RMS level from a function of the time in s and of the rate."""

    @cache
    def make(rate: int) -> Pcm:
        t = np.arange(round(ms * rate / 1000)) / rate
        loud = wave(t, rate) * 8000.0
        return _pcm(loud * 10 ** ((dbfs - rms_dbfs(_pcm(loud))) / 20))

    return Sound(make)


def white(t: Floats, _: int) -> Floats:
    """Make white noise."""
    return np.random.default_rng(1).standard_normal(len(t)) / 2


def pink(t: Floats, _: int) -> Floats:
    """Make noise that is softer the higher it is."""
    spectrum = np.fft.rfft(white(t, 0))
    spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    found = np.fft.irfft(spectrum, len(t))
    return found / (4 * found.std())


def hum(t: Floats, _: int) -> Floats:
    """Hum as the mains do."""
    return sum(np.sin(2 * np.pi * 50 * n * t) / n**2 for n in (1, 2, 3, 5)) / 2  # pyright: ignore


def office(t: Floats, rate: int) -> Floats:
    """Make a room with its ventilation and nobody in it: noise that swells, and a hum."""
    return pink(t, rate) * (1 + 0.3 * np.sin(2 * np.pi * 0.4 * t)) + hum(t, rate) / 10


def keys(t: Floats, rate: int) -> Floats:
    """Type: strokes of 15 ms, 0.4 to 0.9 s apart."""
    rng, found, at = np.random.default_rng(5), np.zeros(len(t)), 0.3
    stroke = round(0.015 * rate)
    while at < len(t) / rate - 0.02:
        begin = round(at * rate)
        found[begin : begin + stroke] = rng.standard_normal(stroke) / 4
        at += rng.uniform(0.4, 0.9)
    return found


def music(t: Floats, _: int) -> Floats:
    """Play a tune of struck notes, as agents do while they think or hold."""
    scale = 261.6 * 2 ** (np.array([0, 4, 7, 12, 9, 7, 4, 2]) / 12)
    beat = 0.24
    hz, since = scale[(t / beat).astype(int) % len(scale)], t % beat
    tone = sum(np.sin(2 * np.pi * hz * n * since) / n**2 for n in (1, 2, 4))
    return tone * np.exp(-since * 9) * np.minimum(1, since * 400) / 3


def beep(t: Floats, _: int) -> Floats:
    """Beep."""
    return np.sin(2 * np.pi * 880 * t) / 2


def breath(t: Floats, rate: int) -> Floats:
    """Draw in air: noise that rises and falls."""
    return white(t, rate) * np.sin(np.pi * np.arange(len(t)) / max(1, len(t)))


def constant(ms: float, sample: int) -> Sound:
    """Hold a constant: an offset, or a µ-law buffer of zero bytes, which is -32124."""
    return Sound(lambda rate: np.full(round(ms * rate / 1000), sample, np.int16))


def header(rate: int) -> Pcm:
    """Play the header of a WAV file as if it were samples, as TTS services have been known to."""
    riff = b"RIFF\xff\xff\xff\x7fWAVEfmt " + struct.pack(
        "<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16
    )
    return np.frombuffer(riff + b"data\xff\xff\xff\x7f", np.int16)


ANSWER = voice("order-status/3")  # 1.6 s
LONG = voice("slow-order-status/3")  # 1.9 s
SHORT = voice("quick-questions/1")  # 0.7 s
HOLD = voice("order-status/1")  # 1.0 s, in the place of "one moment, please"
HMM = voice("museum-visit/1-mm-hmm")
MHM = voice("museum-visit/1-mm-hmm", 260)


# Agents


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the person that lasts `ms`: its number, and that of the call, from 1."""

    number: int
    call: int
    ms: float


# When, in ms from the person's end, and what: a sound; `flush`, `hang up` or `drop`; or the name of
# an RTVI message, which is sent where the dialect has them.
Act = tuple[float, Sound | str]
Acts = Callable[[Turn], Sequence[Act]]


@dataclass(frozen=True, slots=True)
class Right:
    """The truth of a turn. A `None` after the gap is not compared.

    Attributes:
        yield_ms: of a turn that barges in; False: the agent did not yield.
        refuses: no figure is right, too, if its reason has these words; None: it is not.
        gone: the agent has ended the call, and there is no turn.
    """

    outcome: Outcome
    gap_ms: float | None = None
    first_sound_ms: float | None = None
    first_answer_ms: float | None = None
    yield_ms: float | Literal[False] | None = None
    holes: int | None = None
    false_starts: int = 0
    backchannels: int = 0
    refuses: str | None = None
    gone: bool = False


def at(gap_ms: float, **more: Any) -> Right:
    """Say that a turn is answered after so long, in time or late."""
    return Right("answered" if gap_ms <= DEFAULT_BUDGET_MS else "late", gap_ms, **more)


NOTHING = Right("no_reply")
LEVEL = "dBFS"  # the reason names a level


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the zoo.

    Attributes:
        does: what it does, for people.
        acts: what it does in a turn.
        right: the truth of each turn, over all calls; the last one holds for those that follow.
        opens: what it does on a line that is open, by the number of the call.
        bed: sounds from the opening to the end, over and over.
        barge_ms: the second turn begins so long after the onset of the first reply.
        calls: how often it is called.
    """

    name: str
    does: str
    acts: Acts
    right: Sequence[Right]
    opens: Callable[[int], Sequence[Act]] = lambda _: ()
    bed: Sound | None = None
    barge_ms: float | None = None
    calls: int = 1


def says(*acts: Act) -> Acts:
    """Do the same in every turn."""
    return lambda _: acts


def _second(first: Sequence[Act], second: Callable[[Turn], Sequence[Act]]) -> Acts:
    """Do one thing in the second turn, and another in all others."""
    return lambda turn: second(turn) if turn.number == 2 else first


def _tool(hold_ms: float, answer_ms: float) -> Acts:
    """Hold, call a tool and answer, in two replies of the LLM."""
    call = "llm-function-call"
    held = ((hold_ms + 40, f"{call}-in-progress"), (answer_ms - 300, f"{call}-stopped"))
    words = (*_replied(hold_ms - 100, hold_ms + 60), *_replied(answer_ms - 250, answer_ms - 20))
    return says((hold_ms, HOLD), *held, *words, (answer_ms, ANSWER))


def _replied(from_ms: float, to_ms: float) -> list[Act]:
    """Tell of a reply of the LLM."""
    words = ("bot-llm-started", "bot-llm-text", "bot-llm-stopped")
    return list(zip((from_ms, (from_ms + to_ms) / 2, to_ms), words, strict=True))


def _with_bed(name: str, wave: Callable[[Floats, int], Floats], dbfs: float, **more: Any) -> Agent:
    kind = (wave.__doc__ or f"{wave.__name__} noise").partition(":")[0]
    does = f"{kind} at {dbfs:g} dBFS under the whole call; answers after 600 ms"
    truth = more.pop("right", [at(600)])
    bed = at_level(wave, 8000, dbfs)
    return Agent(f"{name} {-dbfs:g}", does, says((600, ANSWER)), truth, bed=bed, **more)


def _pieces(*cuts: tuple[float, float, float]) -> list[Act]:
    """Say pieces of an answer: at, from and to so many ms."""

    def piece(begin: float, end: float) -> Sound:
        def make(rate: int) -> Pcm:
            return LONG.make(rate)[round(begin * rate / 1000) : round(end * rate / 1000)]

        return Sound(cache(make), says=True)

    return [(when, piece(begin, end)) for when, begin, end in cuts]


ZOO: tuple[Agent, ...] = (
    # Ideal
    Agent("plain", "answers after 500 ms", says((500, ANSWER)), [at(500)]),
    Agent("prompt", "answers after 120 ms, in short", says((120, SHORT)), [at(120)]),
    Agent("short", "answers after 700 ms, in 0.7 s", says((700, SHORT)), [at(700)]),
    Agent("long", "answers after 500 ms, at length", says((500, LONG)), [at(500)]),
    Agent(
        "at once",
        "answers after 400 ms and sends all of it at once",
        says((400, voice("order-status/3", at_once=True))),
        [at(400)],
    ),
    *(
        Agent(
            f"soft {db}",
            f"answers after 500 ms, in a voice {db} dB softer",
            says((500, voice("order-status/3", db=-db))),
            [at(500)],
        )
        for db in (10, 14, 18)
    ),
    Agent(
        "whisper",
        "answers after 500 ms, in a voice 34 dB softer, which nobody hears",
        says((500, voice("order-status/3", db=-34))),
        [at(500, refuses=LEVEL)],
    ),
    # Slow
    *(
        Agent(f"slow {s:g}", f"answers after {s:g} s", says((s * 1000, ANSWER)), [at(s * 1000)])
        for s in (2, 4, 5.5)
    ),
    Agent(
        "too slow",
        "answers after 8 s, whatever is said meanwhile",
        says((8000, ANSWER)),
        [at(8000, refuses="")],
    ),
    # Hold phrases and fillers
    Agent(
        "hold 2.2",
        "says “one moment” after 300 ms, calls a tool, answers after 2.2 s",
        _tool(300, 2200),
        [at(300, first_answer_ms=2200)],
    ),
    Agent(
        "hold 4.9",
        "says “one moment” after 400 ms, calls a tool, answers after 4.9 s",
        _tool(400, 4900),
        [at(400, first_answer_ms=4900)],
    ),
    Agent(
        "hold once",
        "the first answer waits for a tool, until 3.5 s; the others come after 600 ms",
        lambda turn: _tool(300, 3500)(turn) if turn.number == 1 else [(600, ANSWER)],
        [at(300, first_answer_ms=3500), at(600)],
    ),
    Agent(
        "filler 1.2",
        "says “hmm” after 300 ms, answers after 1.2 s",
        says((300, HMM), (1200, ANSWER)),
        [at(300, first_answer_ms=1200)],
    ),
    Agent(
        "filler 3.5",
        "says “hmm” after 300 ms, answers after 3.5 s",
        says((300, HMM), (3500, ANSWER)),
        [at(300, first_answer_ms=3500)],
    ),
    # Greetings
    Agent(
        "greets",
        "greets after 1 s in each call, answers after 700 ms",
        says((700, ANSWER)),
        [at(700)],
        opens=lambda _: [(1000, LONG)],
        calls=2,
    ),
    Agent(
        "greets late once",
        "greets after 3.4 s in the first call and after 1.3 s in others, answers after 700 ms",
        says((700, ANSWER)),
        [at(700, refuses=""), at(700)],
        opens=lambda call: [(3400 if call == 1 else 1300, SHORT)],
        calls=3,
    ),
    Agent(
        "greets, mute",
        "greets after 4.5 s and never answers",
        says(),
        [NOTHING],
        opens=lambda _: [(4500, ANSWER)],
        calls=2,
    ),
    # Endings
    Agent(
        "goodbye",
        "says goodbye in the last turn and hangs up (code 1000)",
        lambda t: [(400, ANSWER), *([(2800.0, "hang up")] if t.number == 3 else [])],
        [at(400)],
        calls=2,
    ),
    Agent(
        "hangs up early",
        "hangs up (code 1000) after its second of three answers",
        lambda t: [(400, ANSWER), *([(2800.0, "hang up")] if t.number == 2 else [])],
        [at(400), at(400), Right("error", gone=True)],
    ),
    Agent(
        "drops a call",
        "the line of the first of two calls is lost within the second turn",
        lambda t: [(400, ANSWER), *([(100.0, "drop")] if (t.call, t.number) == (1, 2) else [])],
        [at(400), Right("error"), Right("error", gone=True), at(400)],
        calls=2,
    ),
    # The floor
    Agent(
        "false start",
        "begins after 60 ms, flushes that 200 ms later, answers after 1.5 s",
        says((60, LONG), (260, "flush"), (1500, ANSWER)),
        [at(1500, false_starts=1)],
    ),
    Agent(
        "false start 2",
        "begins after 250 ms, flushes that 300 ms later, answers after 900 ms",
        says((250, LONG), (550, "flush"), (900, ANSWER)),
        [at(900, false_starts=1)],
    ),
    Agent(
        "mm-hm",
        "says “mm-hm” while the person speaks, answers after 500 ms",
        _second([(500, ANSWER)], lambda t: [(-t.ms + 500, MHM), (500, ANSWER)]),
        [at(500), at(500, backchannels=1), at(500)],
    ),
    Agent(
        "mm-hm, slow",
        "says “mm-hm” while the person speaks, answers after 2 s",
        _second([(500, ANSWER)], lambda t: [(-t.ms + 300, MHM), (2000, ANSWER)]),
        [at(500), at(2000, backchannels=1), at(500)],
    ),
    Agent(
        "overlap 40",
        "begins 40 ms before the end that the label has, which is within its error",
        says((-40, ANSWER)),
        [Right("answered", -40)],
    ),
    *(
        Agent(
            f"cut-in {ms}",
            f"begins {ms} ms before the person has finished, and talks on",
            says((-ms, LONG)),
            [Right("cut_in", -ms)],
        )
        for ms in (250, 450)
    ),
    Agent(
        "yields",
        "is interrupted after 700 ms and flushes 250 ms later, answers after 500 ms",
        _second([(500, LONG)], lambda t: [(-t.ms + 250, "flush"), (500, ANSWER)]),
        [at(500), at(500, yield_ms=250), at(500)],
        barge_ms=700,
    ),
    Agent(
        "not interruptible",
        "talks on when it is interrupted, answers after 2 s",
        _second([(500, LONG)], lambda _: [(2000, ANSWER)]),
        [at(500), at(2000, yield_ms=False), at(500)],
        barge_ms=700,
    ),
    Agent(
        "stops by itself",
        "is interrupted 300 ms before its answer ends, answers after 500 ms",
        says((500, ANSWER)),
        [at(500), at(500, yield_ms=False), at(500)],
        barge_ms=1250,
    ),
    Agent(
        "stale frames",
        "flushes when it is interrupted, 60 ms of the old answer follow; answers after 600 ms",
        _second(
            [(500, LONG)],
            lambda t: [
                (-t.ms + 100, "flush"),
                (-t.ms + 140, voice("slow-order-status/3", 60)),
                (600, ANSWER),
            ],
        ),
        [at(500), at(600), at(500)],
        barge_ms=700,
    ),
    # Beds
    _with_bed("white", white, -60),
    _with_bed("white", white, -50),
    _with_bed("white", white, -41),
    _with_bed("white", white, -35),
    _with_bed("pink", pink, -45),
    _with_bed("pink", pink, -38),
    _with_bed("hum", hum, -37),
    _with_bed("office", office, -42),
    _with_bed("office", office, -30),
    _with_bed("too loud", white, -12, right=[at(600, refuses=LEVEL)]),
    Agent(
        "bed while it thinks",
        "pink noise at -36 dBFS from 100 ms on, until it answers after 1.4 s",
        says((100, at_level(pink, 1300, -36)), (1400, ANSWER)),
        [at(1400)],
    ),
    # Other sounds
    Agent(
        "keys",
        "clicks of a keyboard all the time, answers after 1.2 s",
        says((1200, ANSWER)),
        [at(1200)],
        bed=at_level(keys, 8000, -44),
    ),
    Agent(
        "types while it thinks",
        "a typing sound from 150 ms on, answers after 2.5 s",
        says((150, at_level(keys, 2300, -40)), (2500, ANSWER)),
        [at(2500)],
    ),
    Agent(
        "thinking music",
        "a tune from 160 ms on, answers after 2.5 s",
        says((160, at_level(music, 2200, -26)), (2500, ANSWER)),
        [at(2500, first_sound_ms=160)],
    ),
    Agent(
        "hold music",
        "says “one moment” after 400 ms, plays a tune, answers after 5 s",
        says((400, HOLD), (1500, at_level(music, 3300, -24)), (5000, ANSWER)),
        [at(400, first_answer_ms=5000)],
    ),
    Agent(
        "earcon",
        "beeps after 300 ms, answers after 700 ms",
        says((300, at_level(beep, 200, -20)), (700, ANSWER)),
        [at(700, first_sound_ms=300)],
    ),
    Agent(
        "breath",
        "draws breath after 500 ms, answers after 880 ms",
        says((500, at_level(breath, 350, -36)), (880, ANSWER)),
        [at(880, first_sound_ms=500)],
    ),
    Agent(
        "offset",
        "600 ms of a constant of 1 % after 300 ms, then the answer",
        says((300, constant(600, 340)), (900, ANSWER)),
        [at(900)],
    ),
    Agent(
        "offset always",
        "a constant of 2 % under the whole call, answers after 600 ms",
        says((600, ANSWER)),
        [at(600)],
        bed=constant(1000, 650),
    ),
    Agent(
        "µ-law zeros",
        "300 ms of zero bytes, which are full scale in µ-law, then the answer after 600 ms",
        says((300, constant(300, -32124)), (600, ANSWER)),
        [at(600)],
    ),
    Agent(
        "header",
        "a WAV file's header as samples after 300 ms, the answer after 600 ms",
        says((300, Sound(header)), (600, ANSWER)),
        [at(600)],
    ),
    # The shape of the reply
    Agent(
        "hole",
        "a hole of 500 ms in each answer, which comes after 500 ms",
        says(*_pieces((500, 0, 700), (1700, 700, 1900))),
        [at(500, holes=1)],
    ),
    Agent(
        "stutters",
        "holes of 150 to 400 ms in each answer, which comes after 600 ms",
        says(*_pieces((600, 0, 400), (1150, 400, 800), (1800, 800, 1200), (2600, 1200, 1900))),
        [at(600, holes=3)],
    ),
    Agent(
        "answers twice",
        "answers after 500 ms, and once more 900 ms after that answer",
        says((500, ANSWER), (3000, LONG)),
        [at(500)],
    ),
    Agent(
        "asks whether you are there",
        "does not hear the first turn and speaks after 5 s; others are answered after 500 ms",
        lambda turn: [(5000 if turn.number == 1 else 500, SHORT)],
        [at(5000), at(500)],
    ),
    # Nothing
    Agent("deaf", "says nothing", says(), [NOTHING]),
    Agent(
        "beeps only",
        "beeps after 300 ms and says nothing",
        says((300, at_level(beep, 300, -20))),
        [Right("no_reply", first_sound_ms=300)],
    ),
    Agent(
        "hums only",
        "plays a tune for 3 s and says nothing",
        says((200, at_level(music, 3000, -24))),
        [NOTHING],
    ),
)


# A call


class Mortal(Peer, Protocol):
    """The caller's end of the line."""

    def die(self) -> None:
        """End the agent without a closing handshake."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the line with a closing handshake."""
        ...


async def converse(
    agent: Agent,
    half: AgentHalf,
    peer: Mortal,
    clock: Clock,
    *,
    call: int,
    lengths_ms: Sequence[float],
) -> None:
    """Be an agent for one call of a person whose turns last `lengths_ms`, until it is closed.

    It hears the onset of each turn and knows when it will end, so it can also be early.
    """
    turns = [Turn(number, call, ms) for number, ms in enumerate(lengths_ms, start=1)]
    await _Call(agent, turns, half, peer, clock).run(call)


@dataclass(slots=True)
class _Playing:
    start_ns: int
    pcm: Pcm


class _Call:
    def __init__(
        self, agent: Agent, turns: list[Turn], half: AgentHalf, peer: Mortal, clock: Clock
    ) -> None:
        self._agent, self._turns = agent, turns
        self._half, self._peer, self._clock = half, peer, clock
        self._turn_over_ns = 0
        self._received = 0
        self._playing: list[_Playing] = []
        self._bed_since_ns: int | None = None
        self._sending = False
        self._speaking = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, call: int) -> None:
        await self._send(self._half.opens())
        try:
            while True:
                message = await self._peer.recv()
                said, answers = self._half.receive_data(message)
                await self._send(answers)
                for heard in said:
                    if isinstance(heard, Begun):
                        await self._open(call)
                    elif isinstance(heard, Spoken):
                        self._hear(self._peer.arrived_ns, heard.pcm)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _open(self, call: int) -> None:
        await self._send(self._half.ready())
        now_ns = self._clock.now_ns()
        for ms, act in self._agent.opens(call):
            self._plan(now_ns + ms_to_ns(ms), act)
        self._detector = SpeechDetector(self._half.in_rate)
        if self._agent.bed is not None:
            self._bed_since_ns = now_ns
            self._spawn(self._sound_from(now_ns))

    def _hear(self, now_ns: int, pcm: Pcm) -> None:
        self._received += len(pcm)
        for event in self._detector.feed(pcm):
            ago_ns = samples_to_ns(self._received - event.sample, self._half.in_rate)
            starts = isinstance(event, SpeechStart) and now_ns - ago_ns > self._turn_over_ns
            if starts and self._turns:
                self._begin_turn(self._turns.pop(0), now_ns - ago_ns)

    def _begin_turn(self, turn: Turn, onset_ns: int) -> None:
        self._turn_over_ns = end_ns = onset_ns + ms_to_ns(turn.ms)
        acts = list(self._agent.acts(turn))
        spoken = [ms for ms, act in acts if isinstance(act, Sound) and act.says]
        words: list[Act] = [(-turn.ms + 40, "user-started-speaking")]
        if spoken:
            words += [(150, "user-stopped-speaking"), (155, "user-transcription")]
            if "bot-llm-started" not in dict(acts).values():
                words += _replied(min(160, spoken[0] - 100), spoken[-1] - 20)
        for ms, act in (*words, *acts):
            self._plan(end_ns + ms_to_ns(ms), act)

    def _plan(self, at_ns: int, act: Sound | str) -> None:
        if isinstance(act, str):
            self._spawn(self._do(at_ns, act))
            return
        pcm = act.make(self._half.out_rate)
        if act.says:
            self._spawn(self._speak(at_ns, samples_to_ns(len(pcm), self._half.out_rate)))
        if act.at_once:
            self._spawn(self._pour(at_ns, pcm))
            return
        self._playing.append(_Playing(at_ns, pcm))
        if self._agent.bed is None:
            self._spawn(self._sound_from(at_ns))

    async def _do(self, at_ns: int, word: str) -> None:
        await self._clock.sleep_until_ns(at_ns)
        if word == "flush":
            self._playing = [p for p in self._playing if p.start_ns > at_ns]
            await self._send(self._half.flush())
            await self._stop()
        elif word == "hang up":
            await self._peer.close(1000, "goodbye")
        elif word == "drop":
            self._peer.die()
        else:
            await self._tell(word)

    async def _speak(self, at_ns: int, length_ns: int) -> None:
        """Tell that it begins to speak, and that it has stopped, as a pipecat bot does."""
        await self._clock.sleep_until_ns(at_ns)
        if not self._speaking:
            await self._tell("bot-started-speaking")
        self._speaking += 1
        await self._clock.sleep_until_ns(at_ns + length_ns + ms_to_ns(STOPS_AFTER_MS))
        self._speaking -= 1
        if not self._speaking:
            await self._tell("bot-stopped-speaking")

    async def _stop(self) -> None:
        if self._speaking > 0:
            await self._tell("bot-stopped-speaking")

    async def _tell(self, word: str) -> None:
        if self._half.told({}):  # the dialects that carry RTVI carry turngap's own messages
            data = {"text": "so it is", "final": True, "function_name": "look", "tool_call_id": "1"}
            await self._send([message_frame(rtvi(word, data))])

    async def _pour(self, at_ns: int, pcm: Pcm) -> None:
        await self._clock.sleep_until_ns(at_ns)
        step = self._half.out_rate * FRAME_MS // 1000
        for begin in range(0, len(pcm), step):
            await self._send(self._half.audio(pcm[begin : begin + step].tobytes()))

    async def _sound_from(self, at_ns: int) -> None:
        """Send what sounds from an instant on in packets, in real time, while anything does."""
        await self._clock.sleep_until_ns(at_ns)
        if self._sending:
            return
        self._sending = True
        while (frame := self._frame(at_ns)) is not None:
            await self._send(self._half.audio(frame.tobytes()))
            at_ns += ms_to_ns(FRAME_MS)
            await self._clock.sleep_until_ns(at_ns)
        self._sending = False

    def _frame(self, at_ns: int) -> Pcm | None:
        """Mix the packet that begins at an instant; None if nothing sounds in it."""
        rate = self._half.out_rate
        length = rate * FRAME_MS // 1000
        mixed = np.zeros(length)
        sounds = False
        if self._bed_since_ns is not None and self._agent.bed is not None:
            bed = self._agent.bed.make(rate)
            place = ns_to_samples(at_ns - self._bed_since_ns, rate)
            mixed += np.take(bed, np.arange(place, place + length), mode="wrap")
            sounds = True
        for playing in self._playing:
            place = ns_to_samples(at_ns - playing.start_ns, rate)
            part = playing.pcm[max(0, place) : max(0, place + length)]
            if len(part):
                begin = max(0, -place)
                mixed[begin : begin + len(part)] += part
                sounds = True
        return _pcm(mixed) if sounds else None

    async def _send(self, messages: Sequence[Message]) -> None:
        with suppress(ConnectionClosed):
            for message in messages:
                await self._peer.send(message)

    def _spawn(self, course: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(course)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
