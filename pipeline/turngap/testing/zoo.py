"""The zoo: agents like those in production, each with the truth about it.

An agent is data (`zoo.yaml`): what it does in a turn, as sounds and words of its protocol on a
timeline that begins at the person's end, and the truth. Its voice is real speech, the shipped
recordings of synthetic voices, trimmed to their first audible sample; so the instant of a first
word is known. `turngap.play.calibrate` plays them through turngap's own caller.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML
from websockets.exceptions import ConnectionClosed

from turngap.caller.connection import Peer
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.said import Message
from turngap.core.audio import Pcm, SpeechDetector, SpeechStart, audible_onset, rms_dbfs
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import Clock, ms_to_ns, ns_to_samples, samples_to_ns
from turngap.core.wire import message_frame
from turngap.scenario.model import shipped_library
from turngap.store.sound import read_sound
from turngap.testing.dialects import AgentHalf, Begun, Spoken

FRAME_MS = 20
# A pipecat bot says so long after its last sound that it has stopped speaking.
STOPS_AFTER_MS = 350.0

Floats = NDArray[np.float64]


# Sounds

# What agents say, and how long it takes; `hold` stands for "one moment, please".
VOICES = {
    "answer": "order-status/3",  # 1.6 s
    "long": "slow-order-status/3",  # 1.9 s
    "short": "quick-questions/1",  # 0.7 s
    "hold": "order-status/1",  # 1.0 s
    "hmm": "museum-visit/1-mm-hmm",  # 0.5 s
    "mm-hm": "museum-visit/1-mm-hmm",
}
# A backchannel is shorter than a filler.
MM_HM_MS = 260.0


@dataclass(frozen=True, slots=True)
class Sound:
    """A sound, made at the rate of a line. `says`: it is the agent's speech, not a bed.

    `at_once`: it is sent as fast as the line takes it, and not in real time.
    """

    make: Callable[[int], Pcm]
    says: bool = False
    at_once: bool = False


def sound(name: str, **how: Any) -> Sound:
    """Make a sound of `VOICES`, of `WAVES`, a `constant` or a WAV file's `header`.

    A voice takes `db`, its gain over the recording, and `from` and `to` in ms of the recording; a
    wave its length in `ms` and its level in `dbfs`; a constant `ms` and its `sample`.
    """

    def make(rate: int) -> Pcm:
        if name in VOICES:
            upto = how.get("to", MM_HM_MS if name == "mm-hm" else 60_000)
            begin, end = (round(ms * rate / 1000) for ms in (how.get("from", 0), upto))
            return _pcm(_recorded(VOICES[name], rate)[begin:end] * 10 ** (how.get("db", 0) / 20))
        if name == "header":
            return _header(rate)
        t = np.arange(round(how.get("ms", 8000) * rate / 1000)) / rate
        if name == "constant":  # an offset; zero bytes of µ-law are -32124
            return np.full(len(t), how["sample"], np.int16)
        loud = WAVES[name](t, rate) * 8000.0
        return _pcm(loud * 10 ** ((how["dbfs"] - rms_dbfs(_pcm(loud))) / 20))

    return Sound(cache(make), name in VOICES, how.get("at_once", False))


@cache
def _recorded(take: str, rate: int) -> Floats:
    import soxr

    sound = read_sound(shipped_library() / f"{take}.flac", "zoo")
    pcm = sound.samples[:, 0]
    pcm = pcm if sound.rate == rate else soxr.resample(pcm, sound.rate, rate)
    return pcm[audible_onset(pcm, rate) :].astype(np.float64)


def _pcm(samples: Floats) -> Pcm:
    return np.rint(samples).clip(-32768, 32767).astype(np.int16)


def _header(rate: int) -> Pcm:
    """Play the header of a WAV file as if it were samples, as some TTS services do."""
    riff = b"RIFF\xff\xff\xff\x7fWAVEfmt " + struct.pack(
        "<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16
    )
    return np.frombuffer(riff + b"data\xff\xff\xff\x7f", np.int16)


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
    """Make the sound of an empty room with ventilation: noise that swells, and a hum."""
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


def babble(t: Floats, rate: int) -> Floats:
    """Talk in the background, two at a time and without end."""
    voices = (_recorded(VOICES[name], rate) for name in ("long", "short"))
    return sum(np.resize(voice, len(t)) for voice in voices) / 16384  # pyright: ignore


WAVES: Mapping[str, Callable[[Floats, int], Floats]] = {
    wave.__name__: wave for wave in (white, pink, hum, office, keys, music, beep, breath, babble)
}


# Agents


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the person that lasts `ms`: its number, and that of the call, from 1."""

    number: int
    call: int
    ms: float


# When, in ms from the person's end, and what: a sound; a word of the file; or the name of an RTVI
# message, which is sent where the dialect has them.
Act = tuple[float, Sound | str]

# An outcome, and figures by their names; and, where no one can tell, `refuses`: the words that a
# note or the reason for no figure must have. The answer is the first word where nothing else is
# said, and there are no holes, yields, false starts and backchannels. Any sound may come first.
Truth = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the zoo, as its file says.

    Attributes:
        does: a description of its behaviour, for people.
        says: its actions in a turn.
        opens: its actions when a line opens, by the number of the call.
        right: the truth of each turn, over all calls; the last one also holds for later turns.
        bed: sounds that repeat from the opening to the end.
        barge_ms: the time from the onset of the first reply to the second turn.
        calls: how often it is called.
    """

    name: str
    does: str
    says: Callable[[Turn], list[Act]]
    opens: Callable[[int], list[Act]]
    right: Sequence[Truth]
    bed: Sound | None
    barge_ms: float | None
    calls: int


def _agent(name: str, about: Mapping[str, Any]) -> Agent:
    says, opens = about["says"], about.get("opens", [])

    def turn_acts(turn: Turn) -> list[Act]:
        return _acts(_of(says, f"{turn.call}.{turn.number}", turn.number), turn.ms)

    def speaks(number: int) -> float:
        acts = turn_acts(Turn(number, 1, 0))
        return next(ms for ms, act in acts if isinstance(act, Sound) and act.says)

    bed = about.get("bed")
    return Agent(
        name,
        about["does"],
        turn_acts,
        lambda call: _acts(_of(opens, call)),
        [_truth(right) for right in about.get("right") or map(speaks, (1, 2, 3))],
        bed and sound(bed[0], **bed[1]),
        about.get("barge_ms"),
        about.get("calls", 1),
    )


def _of(acts: Any, *keys: Any) -> list[Any]:
    """Return the actions in a turn or a call, by the first of its keys."""
    if isinstance(acts, list):
        return acts
    named = {str(key): each for key, each in acts.items()}
    return next((named[str(key)] for key in keys if str(key) in named), named["else"])


def _acts(written: Sequence[Sequence[Any]], turn_ms: float = 0.0) -> list[Act]:
    found: list[Act] = []
    for when, what, *how in written:
        more = how[0] if how else {}
        since, _, after = str(when).rpartition(" ")
        ms = float(after) - (turn_ms if since == "start" else 0)
        if what == "tool":
            begun, ended = "llm-function-call-in-progress", "llm-function-call-stopped"
            found += [*_replied(ms - 140, ms + 20), (ms, begun), (ms + more["ms"], ended)]
        else:
            plain = what in ("deaf", "flush", "hang up", "drop")
            found.append((ms, what if plain else sound(what, **more)))
    return found


def _truth(right: Any) -> Truth:
    figures: dict[str, Any] = {"outcome" if isinstance(right, str) else "gap": right}
    if isinstance(right, dict):
        figures = {**right}
    gap = figures.get("gap")
    outcome = "answered" if gap is not None and gap <= DEFAULT_BUDGET_MS else "late"
    answer = None if figures.get("outcome") == "cut_in" else gap
    none = {"yield": None, "holes": 0, "false_starts": 0, "backchannels": 0}
    return {"outcome": outcome, "gap": gap, "answer": answer, **none, **figures}


def _replied(from_ms: float, to_ms: float) -> list[Act]:
    """Report a reply of the LLM."""
    words = ("bot-llm-started", "bot-llm-text", "bot-llm-stopped")
    return list(zip((from_ms, (from_ms + to_ms) / 2, to_ms), words, strict=True))


def _read() -> tuple[Agent, ...]:
    text = (resources.files("turngap.testing") / "zoo.yaml").read_text("utf-8")
    return tuple(_agent(name, about) for name, about in YAML(typ="safe").load(text).items())


ZOO = _read()


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
    """Act as an agent in one call of a person whose turns last `lengths_ms`, until it is closed.

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
        acts = self._agent.says(turn)
        spoken = [ms for ms, act in acts if isinstance(act, Sound) and act.says]
        words: list[Act] = [(-turn.ms + 40, "user-started-speaking")]
        if spoken and "deaf" not in [act for _, act in acts]:
            words += [(150, "user-stopped-speaking"), (155, "user-transcription")]
            tools = [ms for ms, act in acts if act == "llm-function-call-stopped"]
            begun_ms = max(tools, default=min(110, spoken[0] - 150)) + 50
            words += _replied(begun_ms, spoken[-1] - 20)
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
        elif word != "deaf":
            await self._tell(word)

    async def _speak(self, at_ns: int, length_ns: int) -> None:
        """Report the start and the end of the agent's speech, as a pipecat bot does."""
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
        if self._half.own_message({}):  # the dialects that carry RTVI carry turngap's own messages
            data = {"text": "so it is", "final": True, "function_name": "look", "tool_call_id": "1"}
            await self._send([message_frame(rtvi(word, data))])

    async def _pour(self, at_ns: int, pcm: Pcm) -> None:
        await self._clock.sleep_until_ns(at_ns)
        step = self._half.out_rate * FRAME_MS // 1000
        for begin in range(0, len(pcm), step):
            await self._send(self._half.audio(pcm[begin : begin + step].tobytes()))

    async def _sound_from(self, at_ns: int) -> None:
        """Send the sounds from an instant on, in packets and in real time, until they end."""
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
