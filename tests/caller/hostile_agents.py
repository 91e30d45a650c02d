"""Hostile agents: what each does in the second of three turns, and what must come of it.

In the other turns they behave, so that the table also shows what one oddity does to the turns
after it: nothing.
"""

import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turngap.caller import intake
from turngap.caller.dialects.pipecat import audio_frame, interruption_frame, parse
from turngap.caller.dialects.pipecat import payload_of as payload
from turngap.caller.dialects.rtvi import rtvi
from turngap.core.audio import SpeechDetector, SpeechEnd
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns
from turngap.core.wire import PING, message_frame
from turngap.testing.agent import voice
from turngap.testing.dialects.pipecat import wav_file
from turngap.testing.memory import End

RATE = 16_000
CHUNK = RATE // 50
GAP_MS = 500.0
# The recordings hold pauses of up to 200 ms inside a phrase.
HOLD_MS = 300.0
EVIL = "\x1b[2J\x1b]0;owned\x07\u202eevil\r\n::error::no"
SILENCE = bytes(2**23)


def tone(ms: float, rate: int = RATE) -> bytes:
    return voice(ms, rate).astype("<i2").tobytes()


def frame(audio: bytes, rate: int = RATE, channels: int = 1) -> bytes:
    """An audio frame as nobody should send it."""
    made = parse(audio_frame(b"", rate))
    made.audio.audio, made.audio.sample_rate, made.audio.num_channels = audio, rate, channels
    return made.SerializeToString()


def raw_message(text: str) -> bytes:
    made = parse(message_frame({}))
    made.message.data = text
    return made.SerializeToString()


class Bot:
    """A well-behaved agent, but for what `hostile` does."""

    def __init__(self, hostile: "Hostile", end: End, clock: Clock) -> None:
        self.hostile, self.end, self.clock = hostile, end, clock
        self.shift_ns = 0
        self._detector = SpeechDetector(RATE, gap_ms=HOLD_MS)
        self._samples = self._turn = 0

    async def run(self) -> None:
        while True:
            message = parse(await self.end.recv())
            if message.WhichOneof("frame") == "audio":
                await self._hears(np.frombuffer(message.audio.audio, dtype="<i2"))
            else:
                await self._is_told(payload(message))

    async def _is_told(self, said: dict[str, Any]) -> None:
        if said["type"] == "client-ready":
            await self.hostile.begins(self)
        elif said["data"].get("t") == PING:
            await self.hostile.pongs(self, said["data"]["d"]["ping"])

    async def _hears(self, pcm: np.ndarray) -> None:
        self._samples += len(pcm)
        for event in self._detector.feed(pcm):
            if not isinstance(event, SpeechEnd):
                continue
            self._turn += 1
            past = samples_to_ns(self._samples - event.sample, RATE)
            self.user_end_ns = self.end.arrived_ns - past
            await (self.hostile.acts(self) if self._turn == 2 else self.answers())

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns() + self.shift_ns

    async def sends(self, *messages: bytes | str) -> None:
        for message in messages:
            await self.end.send(message)

    async def says(self, kind: str, data: Any = None) -> None:
        await self.sends(message_frame(rtvi(kind, data)))

    async def pong(self, ping: Any, agent_ns: Any) -> None:
        await self.says("server-message", {"turngap": "pong", "ping": ping, "agent_ns": agent_ns})

    async def waits(self, ms: float) -> None:
        await self.clock.sleep_until_ns(self.clock.now_ns() + ms_to_ns(ms))

    async def answers(self, frames: Sequence[bytes] | None = None, **told: Any) -> None:
        """Answer `GAP_MS` after the person's end: with other audio frames, with other marks."""
        marks = {"endpoint": self.now_ns}
        await self.says("user-transcription", {"text": "words", "final": True})
        await self.says("bot-llm-text", {"text": "a reply"})
        await self.clock.sleep_until_ns(self.user_end_ns + ms_to_ns(GAP_MS))
        marks |= {"tts_first_audio": self.now_ns, "sent": self.now_ns}
        pcm = tone(200)
        chunks = [pcm[i : i + 2 * CHUNK] for i in range(0, len(pcm), 2 * CHUNK)]
        for message in [audio_frame(c, RATE) for c in chunks] if frames is None else frames:
            await self.sends(message)
            await self.waits(5)
        told = {"turngap": "marks", "turn": self._turn, "marks": marks} | told
        await self.says("server-message", told)
        await self.says("bot-stopped-speaking")


Act = Callable[[Bot], Awaitable[None]]


@dataclass(frozen=True)
class Hostile:
    """One hostile agent.

    Attributes:
        act: what it does in its second turn; None: it answers.
        outcome: of the second turn; "" where there is none.
        before, after: of the first and the third.
        error, note: what the second turn's error, and one of its notes, must hold.
        failure: what ends the run early, where anything does.
        stages: whether the second turn's stages rest on the agent's marks.
    """

    name: str
    act: Act | None = None
    outcome: str = "answered"
    error: str = ""
    note: str = ""
    failure: str = ""
    code: int = 4  # with a failure
    before: str = "answered"
    after: str = "answered"
    stages: bool = True
    begin: Act | None = None
    pong: Callable[[Bot, int], Awaitable[None]] | None = None

    async def course(self, end: End, clock: Clock) -> None:
        await Bot(self, end, clock).run()

    async def begins(self, bot: Bot) -> None:
        if self.begin is not None:
            await self.begin(bot)
        else:
            await bot.says("bot-ready", {"version": "2.2.0"})

    async def pongs(self, bot: Bot, ping: int) -> None:
        if self.pong is not None:
            await self.pong(bot, ping)
        else:
            await bot.pong(ping, bot.now_ns)

    async def acts(self, bot: Bot) -> None:
        await (bot.answers() if self.act is None else self.act(bot))


def first(*messages: bytes | str) -> Act:
    """Send these, then answer."""

    async def act(bot: Bot) -> None:
        await bot.sends(*messages)
        await bot.answers()

    return act


def in_place(*frames: bytes) -> Act:
    """Answer with these audio frames."""
    return lambda bot: bot.answers(frames)


def told(**parts: Any) -> Act:
    """Answer, and tell this with the marks."""
    return lambda bot: bot.answers(**parts)


def says_first(kind: str, data: Any = None, times: int = 1) -> Act:
    return first(*[message_frame(rtvi(kind, data))] * times)


def marks_at(**at_ms: float) -> Act:
    """Answer, with some marks so many ms after the person's end."""

    async def act(bot: Bot) -> None:
        now_ns = bot.user_end_ns
        marks = {name: now_ns + ms_to_ns(ms) for name, ms in at_ms.items()}
        await bot.answers(marks={"endpoint": now_ns, "sent": now_ns + ms_to_ns(GAP_MS)} | marks)

    return act


# --- what takes more than a line ----------------------------------------------------------------


async def nothing(bot: Bot) -> None:
    pass


async def dies(bot: Bot) -> None:
    bot.end.die()


async def dies_midway(bot: Bot) -> None:
    await bot.clock.sleep_until_ns(bot.user_end_ns + ms_to_ns(GAP_MS))
    await bot.sends(audio_frame(tone(100), RATE))
    await bot.waits(50)
    bot.end.die()


async def drips(bot: Bot) -> None:
    await bot.answers([audio_frame(tone(60), RATE)])
    for _ in range(5):
        await bot.waits(250)
        await bot.sends(audio_frame(tone(60), RATE))


async def never_stops(bot: Bot) -> None:
    await bot.clock.sleep_until_ns(bot.user_end_ns + ms_to_ns(GAP_MS))
    for _ in range(8):
        await bot.sends(audio_frame(tone(20_000), RATE))


async def greets_without_end(bot: Bot) -> None:
    await bot.says("bot-ready", {})
    for _ in range(30):
        await bot.sends(audio_frame(tone(20_000), RATE))


async def sample_by_sample(bot: Bot) -> None:
    await bot.clock.sleep_until_ns(bot.user_end_ns + ms_to_ns(GAP_MS))
    pcm = tone(200)
    await bot.sends(*(audio_frame(pcm[i : i + 2], RATE) for i in range(0, len(pcm), 2)))
    await bot.answers([])


async def far_ahead(bot: Bot) -> None:
    await bot.sends(*[audio_frame(SILENCE, RATE)] * 12, interruption_frame())
    await bot.answers()


async def a_gigabyte(bot: Bot) -> None:
    for _ in range(128):
        await bot.sends(audio_frame(SILENCE, RATE))


async def jumps(bot: Bot) -> None:
    bot.shift_ns += ms_to_ns(3_600_000)
    await bot.answers()
    bot.shift_ns = 0


async def goes_back(bot: Bot) -> None:
    bot.shift_ns -= ms_to_ns(3_600_000)
    await bot.answers()
    bot.shift_ns = 0


async def interrupts_itself(bot: Bot) -> None:
    frames = [audio_frame(tone(100), RATE), interruption_frame(), audio_frame(tone(100), RATE)]
    await bot.answers(frames)


async def refuses(bot: Bot) -> None:
    await bot.says("error", {"error": EVIL, "fatal": True})


async def ready_twice(bot: Bot) -> None:
    await bot.says("bot-ready", {})
    await bot.says("bot-ready", {})


async def talks_before_ready(bot: Bot) -> None:
    for _ in range(20_000):
        await bot.says("bot-llm-text", {"text": "already"})


async def other_protocol(bot: Bot) -> None:
    await bot.sends('{"event": "connected", "protocol": "Call"}')


async def half_a_ready(bot: Bot) -> None:
    ready = message_frame(rtvi("bot-ready", {}))
    await bot.sends(ready[: len(ready) // 2])


async def lies_of_time(bot: Bot, ping: int) -> None:
    await bot.pong(ping, 2**62)


async def no_number(bot: Bot, ping: int) -> None:
    await bot.pong(ping, math.nan)


async def wrong_numbers(bot: Bot, ping: int) -> None:
    await bot.pong(-ping - 1, bot.now_ns)
    await bot.pong(2**70, bot.now_ns)
    await bot.pong(ping, bot.now_ns)
    await bot.pong(ping, bot.now_ns + 10**15)


DEEP = functools.reduce(lambda inner, _: {"in": inner}, range(300), "bottom")
NOT_OURS = "does not speak the pipecat dialect"
NO_PCM = "no PCM16 mono"
WAV = wav_file(tone(200), RATE)
FLOAT = WAV[:20] + b"\x03" + WAV[21:]
STEREO = WAV[:22] + b"\x02" + WAV[23:]
TWILIO = '{"event": "media", "media": {"payload": "////"}}'
NOT_FIT = "no marks: "
AHEAD = "later than the message"
MANY = intake.MOST_MESSAGES

ALL = [
    Hostile("behaves"),
    # --- what is not the protocol ---
    Hostile("a text message", first("hello"), "error", NOT_OURS),
    Hostile("another protocol in mid-conversation", first(*[TWILIO] * 3), "error", NOT_OURS),
    Hostile("bytes that are no frame", first(b"\xff" * 40), "error", NOT_OURS),
    Hostile("an empty message", first(b""), "error", NOT_OURS),
    Hostile("half a frame", first(audio_frame(tone(20), RATE)[:300]), "error", NOT_OURS),
    Hostile("no JSON", first(raw_message("{")), "error", "not JSON"),
    Hostile("JSON without a floor", first(raw_message("[" * 100_000)), "error", "nested too deep"),
    Hostile("JSON without an end", first(raw_message("[" + "1," * 2**20)), "error", "not JSON"),
    Hostile("a number without an end", first(raw_message("9" * 9_000)), "error", "not JSON"),
    Hostile("JSON of another kind", first(raw_message("[1]"), raw_message('"text"'))),
    Hostile("somebody else's messages", first(message_frame({"label": "other", "type": 5}))),
    Hostile("data of the wrong kind", says_first("server-message", ["turngap"], 5)),
    Hostile(
        "half a message of turngap's",
        says_first("server-message", {"turngap": "marks"}),
        note="malformed turngap message",
    ),
    Hostile(
        "a turn that is no number",
        says_first("server-message", {"turngap": "marks", "turn": {}, "marks": {}}),
        note="malformed turngap message",
    ),
    # --- audio ---
    Hostile("stereo", in_place(frame(tone(200), RATE, 2)), "error", NO_PCM, stages=False),
    Hostile("half a sample", in_place(frame(tone(200)[:-1])), "error", "half a sample"),
    Hostile("no rate", in_place(frame(tone(200), 0)), "error", NO_PCM),
    Hostile("a rate of 4 GHz", in_place(frame(tone(200), 2**32 - 1)), "error", NO_PCM),
    Hostile("audio without samples", first(audio_frame(b"", RATE))),
    Hostile("chunks of one sample", sample_by_sample),
    Hostile(
        "another rate in mid-reply",
        in_place(audio_frame(tone(100), RATE), audio_frame(tone(100, 48_000), 48_000)),
    ),
    Hostile(
        "a new rate in each chunk",
        in_place(*(audio_frame(tone(20, r), r) for r in range(8_000, 8_020))),
        "error",
        "more than 8 rates",
    ),
    Hostile("WAV headers", in_place(audio_frame(WAV, RATE)), note="with WAV headers"),
    Hostile(
        "a WAV header in two messages",
        in_place(audio_frame(WAV[:30], RATE), audio_frame(WAV[30:], RATE)),
        note="with WAV headers",
    ),
    Hostile("a WAV header of stereo", in_place(audio_frame(STEREO, RATE)), "error", "2 channels"),
    Hostile("a WAV header of floats", in_place(audio_frame(FLOAT, RATE)), "error", "float"),
    Hostile("a WAV header at another rate", in_place(audio_frame(WAV, 24_000)), "error", "24000"),
    Hostile("FLAC", in_place(audio_frame(b"fLaC" + tone(200), RATE)), "error", "FLAC"),
    Hostile(
        "random bytes",
        in_place(audio_frame(np.random.default_rng(0).bytes(3200), RATE)),
        "error",
        "compressed",
    ),
    Hostile("far more audio than it plays", far_ahead, "error", "ahead of playback"),
    Hostile("a gigabyte of audio", a_gigabyte, "error", "ahead", failure="MiB of audio", after=""),
    # --- texts ---
    Hostile("half a surrogate pair", says_first("bot-llm-text", {"text": "\ud83d"})),
    Hostile("escape sequences", says_first("bot-llm-text", {"text": EVIL})),
    Hostile(
        "a transcript that escapes", says_first("user-transcription", {"text": EVIL, "final": 1})
    ),
    Hostile("a very long text", says_first("bot-llm-text", {"text": "x" * 900_000})),
    Hostile("a text that is a list", says_first("bot-llm-text", {"text": []}), note="a list"),
    Hostile(
        "texts without end", says_first("bot-llm-text", {"text": "x"}, MANY + 9), "error", "10,000"
    ),
    Hostile(
        "a library", says_first("bot-llm-text", {"text": "x" * 10_000}, 25), "error", "characters"
    ),
    Hostile("errors without end", says_first("error", {"error": EVIL}, 150), "error", "Fault"),
    Hostile("an error that is an object", says_first("error", {"error": {"deep": DEEP}})),
    # --- marks ---
    Hostile("NaN in counts", told(counts={"n": math.nan}), note="the count n"),
    Hostile("infinite milliseconds", told(calls=[{"name": "a", "ms": 1e999}]), note="how long a"),
    Hostile(
        "deep arguments", told(calls=[{"name": "a", "arguments": DEEP}]), note="arguments of a"
    ),
    Hostile("a huge number", told(counts={"n": 10**4000}), note="more than 64 bits"),
    Hostile("a name that escapes", told(calls=[{"name": EVIL, "result": EVIL, "error": EVIL}])),
    Hostile("reasons that escape", told(why=EVIL)),
    Hostile("an error that escapes", told(error=EVIL), "error", "evil"),
    Hostile("5,000 counts", told(counts={str(n): n for n in range(5_000)}), note="more than 100"),
    Hostile("no marks", told(marks={}), note=NOT_FIT, stages=False),
    Hostile("a negative turn", told(turn=-5)),
    Hostile("a turn beyond all", told(turn=2**63), note="malformed turngap", stages=False),
    Hostile(
        "marks of turns that never were",
        first(
            *(
                message_frame(
                    rtvi("server-message", {"turngap": "marks", "turn": n, "marks": {"sent": 5}})
                )
                for n in range(100, 200)
            )
        ),
    ),
    Hostile(
        "marks without end",
        says_first("server-message", {"turngap": "marks", "turn": 2, "marks": {}}, 600),
        "error",
        "Marks",
    ),
    Hostile(
        "marks out of order",
        marks_at(tts_request=450, tts_first_audio=150),
        note=NOT_FIT,
        stages=False,
    ),
    Hostile("marks in the far future", marks_at(sent=10**9), note=AHEAD, stages=False),
    Hostile("marks in the far past", marks_at(endpoint=-(10**9)), note=NOT_FIT, stages=False),
    Hostile("a clock that jumps", jumps, note=AHEAD, stages=False),
    Hostile("a clock that goes back", goes_back, note=NOT_FIT, stages=False),
    Hostile("a clock beyond 64 bits", pong=lies_of_time, note="", stages=False),
    Hostile("a clock without numbers", pong=no_number, stages=False),
    Hostile("pongs for others", pong=wrong_numbers),
    # --- how it behaves ---
    Hostile("silence", nothing, "no_reply"),
    Hostile("a slow drip", drips),
    Hostile("no end of its reply", never_stops, after="any", stages=False),
    Hostile("dies", dies, "error", failure="the line was lost", after="error"),
    Hostile("dies in mid-reply", dies_midway, "error", failure="the line was lost", after="error"),
    Hostile("interrupts itself", interrupts_itself),
    Hostile("flushes now and then", first(*[interruption_frame()] * 150)),
    Hostile("a storm of flushes", first(*[interruption_frame()] * 300), "error", "Flush"),
    Hostile("done before it began", says_first("bot-stopped-speaking", times=500)),
    Hostile("decides again and again", says_first("user-stopped-speaking", times=900)),
    Hostile("ready twice", begin=ready_twice),
    Hostile(
        "a greeting without end",
        begin=greets_without_end,
        before="any",
        outcome="any",
        after="any",
        failure="in 3 of 3 turns",
        code=3,
    ),
    Hostile("never ready", begin=nothing, outcome="", after="", failure="did not answer the"),
    Hostile("refuses", begin=refuses, outcome="", after="", failure="refused"),
    Hostile(
        "talks before it is ready",
        begin=talks_before_ready,
        outcome="",
        after="",
        failure="does not stop",
    ),
    Hostile("another protocol", begin=other_protocol, outcome="", after="", failure=NOT_OURS),
    Hostile("half a greeting", begin=half_a_ready, outcome="", after="", failure=NOT_OURS),
]
