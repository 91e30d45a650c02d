"""The relay between the page and a foreign agent: in virtual time, with a page in memory."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from turngap.caller import intake, said
from turngap.caller.dialects.pipecat import audio_frame, parse, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.dialects.session import Session
from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_MS, Clock, ms_to_ns, samples_to_ns
from turngap.core.errors import AgentError
from turngap.core.wire import message_frame
from turngap.live import wire
from turngap.live.answering import Playback, Relay
from turngap.live.keeping import Delays
from turngap.testing import LoopClock, in_virtual_time
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import Course, line_to

RATE = 16_000
PACKET = RATE // 50


class PageInMemory:
    """A page in memory: it speaks, plays the audio as it comes, and reports what it has played."""

    def __init__(self, clock: LoopClock) -> None:
        self.clock = clock
        self.got: list[tuple[int, Any]] = []
        self.to_relay = asyncio.Queue[Any]()
        self.answers_flush = True
        self.sample = 0

    async def receive(self) -> Any:
        return await self.to_relay.get()

    async def send_bytes(self, data: bytes) -> None:
        frame = parse(data)
        kind = frame.WhichOneof("frame")
        now_ns = self.clock.now_ns()
        if kind == "audio":
            self.got.append((now_ns, frame.audio))
            self.sample += len(frame.audio.audio) // 2
        elif kind == "interruption":
            self.got.append((now_ns, "interruption"))
            if self.answers_flush:
                self.say(wire.PLAYED, {"played": [], "dropped_to": self.sample})
        else:
            self.got.append((now_ns, payload_of(frame)))

    def put(self, frame: bytes) -> None:
        self.to_relay.put_nowait({"type": "websocket.receive", "bytes": frame})

    def say(self, kind: str, data: Any) -> None:
        self.put(message_frame(rtvi("client-message", {"t": kind, "d": data})))

    def played(self, first: int, samples: int) -> None:
        self.say(wire.PLAYED, {"played": [[first, samples, self.clock.now_ns()]]})

    def leave(self) -> None:
        self.to_relay.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def speak(self, ms: float, *, loud: bool = True) -> int:
        """Send audio in real time; return when its last sample sounded."""
        for _ in range(round(ms / 20)):
            await self.clock.sleep_until_ns(self.clock.now_ns() + ms_to_ns(20))
            level = 8000 if loud else 0
            self.put(audio_frame(np.full(PACKET, level, np.int16).tobytes(), RATE))
        return self.clock.now_ns()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The RTVI messages of a type."""
        return [m for _, m in self.got if isinstance(m, dict) and m["type"] == kind]

    def audio(self) -> list[tuple[int, Any]]:
        return [(at, m) for at, m in self.got if not isinstance(m, dict | str)]

    async def until(self, there: Callable[[], Any]) -> None:
        async with asyncio.timeout(30):
            while not there():
                await self.clock.sleep_until_ns(self.clock.now_ns() + NS_PER_MS)


@dataclass
class Made:
    """A dialect whose agent says what the test wants, in one message each."""

    name: str = "made"
    rate: int = RATE
    calls: list[tuple[str, int]] = field(default_factory=list)

    def open(self) -> list[said.Incoming]:
        return [said.Ready()]

    def user_ends(self, sample: int) -> None: ...

    def receive_data(self, message: said.Message) -> list[said.Incoming]:
        assert isinstance(message, str)
        kind, _, text = message.partition(" ")
        match kind:
            case "audio":
                return [said.AudioChunk(np.full(int(text), 9000, np.int16), 24_000)]
            case "packet" | "silence":
                packet, level = said.Packet(0, 0, 0, goes_on=True), 9000 * (kind == "packet")
                pcm = np.full(int(text), level, np.int16)
                return [said.AudioChunk(pcm, 24_000, packet=packet)]
            case "flush":
                return [said.Flush()]
            case "done":
                return [said.ReplyDone()]
            case "marks":
                return [said.Marks(1, {"endpoint": 5_000}, error="too slow")]
            case "fault":
                return [said.Fault("the key is wrong: api_key=Xq7zW2pLm9", fatal=False)]
            case _:
                raise said.NotSpokenError(f"the word {kind}")

    def send_audio(self, pcm: bytes) -> None:
        self.calls.append(("audio", len(pcm) // 2))

    def ping(self, number: int) -> bool:
        return False

    def audio_played(self, samples: int) -> None:
        self.calls.append(("played", samples))

    def audio_dropped(self, samples: int) -> None:
        self.calls.append(("dropped", samples))

    def data_to_send(self) -> list[said.Message]:
        return []

    def close(self) -> None:
        self.calls.append(("closed", 0))


def relayed(
    course: Callable[[PageInMemory], Any],
    agent: Script | Course | None = None,
    session: Session | None = None,
    ready_ms: float = 0,
) -> tuple[PageInMemory, Delays]:
    """Return the page's messages in a conversation in which it behaves as `course` says."""

    async def conversation() -> tuple[PageInMemory, Delays]:
        clock, delays = LoopClock(), Delays()
        page = PageInMemory(clock)
        async with line_to(agent or Script(), session, clock) as line:
            offset = await line.clock_offset()
            relay = asyncio.create_task(Relay(line, page, clock, offset, delays).run())
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(ready_ms))
            page.put(message_frame(rtvi("client-ready", {"version": "2.2.0"})))
            talking = asyncio.create_task(course(page))
            await asyncio.wait({relay, talking}, return_when=asyncio.FIRST_COMPLETED)
            page.leave()
            await asyncio.gather(relay, talking)
        return page, delays

    return in_virtual_time(conversation())


def saying(*messages: str) -> Course:
    """An agent that says these at once, and then hears on."""

    async def course(end: Any, clock: Any) -> None:
        for message in messages:
            await end.send(message)
        await asyncio.Event().wait()

    return course


def test_the_relay_adds_nothing_to_a_known_gap() -> None:
    ended: list[int] = []

    async def course(page: PageInMemory) -> None:
        await page.speak(500, loud=False)
        ended.append(await page.speak(400))
        await page.speak(1500, loud=False)
        page.played(0, page.sample)
        await page.speak(100, loud=False)

    page, delays = relayed(course, Script(replies=(Reply(delay_ms=300, speech_ms=400),)))
    onset_ns, first = page.audio()[0]
    last_ns = ended[0] - samples_to_ns(1, RATE)  # where the person's last sample begins
    assert (onset_ns - last_ns) / NS_PER_MS == 300
    assert first.sample_rate == 24_000
    assert delays.ms == 0
    assert page.got[0][1]["type"] == "bot-ready"
    assert page.of("user-transcription")[0]["data"] == {
        "text": "utterance 1",
        "final": True,
        "user_id": "",
        "timestamp": "",
    }
    assert [m["data"]["text"] for m in page.of("bot-llm-text")] == ["scripted reply"]
    # The agent's marks, on this machine's clock: its endpoint lies before its audio.
    (marks,) = [m["data"] for m in page.of("server-message")]
    assert ended[0] < marks["marks"]["endpoint"] < marks["marks"]["sent"] == onset_ns
    assert len(page.of("bot-stopped-speaking")) == 1


def test_marks_are_placed_by_the_clock_that_the_relay_has_compared() -> None:
    async def course(page: PageInMemory) -> None:
        await page.speak(400)
        await page.speak(1500, loud=False)

    page, _ = relayed(course, Script(clock_shift_ms=70_000))
    (marks,) = [m["data"] for m in page.of("server-message")]
    onset_ns, _ = page.audio()[0]
    assert marks["marks"]["sent"] == onset_ns
    # An agent that tells no clock may say what it did, but not when.
    page, _ = relayed(_until("server-message"), saying("marks"), Made())
    (marks,) = [m["data"] for m in page.of("server-message")]
    assert (marks["marks"], marks["error"]) == ({}, "too slow")


def _until(kind: str) -> Callable[[PageInMemory], Any]:
    async def course(page: PageInMemory) -> None:
        await page.until(lambda: page.of(kind))

    return course


def test_what_the_page_has_played_is_told_and_a_reply_is_over_when_it_has_sounded() -> None:
    made = Made()

    async def course(page: PageInMemory) -> None:
        await page.until(lambda: page.sample == 24_000)
        page.played(0, 9_000)
        await page.until(lambda: ("played", 9_000) in made.calls)
        assert page.of("bot-stopped-speaking") == []
        # What the page's resampler keeps to itself never sounds.
        page.played(9_000, 24_000 - 9_000 - 16)
        await page.until(lambda: page.of("bot-stopped-speaking"))

    relayed(course, saying("audio 12000", "audio 12000", "done"), made)
    assert [call for call in made.calls if call[0] != "audio"] == [
        ("played", 9_000),
        ("played", 24_000),
    ]


def test_what_came_of_an_endless_stream_before_the_page_was_ready_does_not_delay_it() -> None:
    made = Made()

    async def course(page: PageInMemory) -> None:
        await page.until(lambda: page.sample == 480)
        page.played(0, 480)
        await page.until(lambda: ("played", 480 + 480) in made.calls)

    async def agent(end: Any, clock: Clock) -> None:
        for _ in range(2):
            await end.send("packet 480")
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(100))
        await asyncio.Event().wait()

    page, _ = relayed(course, agent, made, ready_ms=120)
    assert page.sample == 480


def test_silence_makes_up_for_what_came_late_at_once() -> None:
    async def course(page: PageInMemory) -> None:
        await page.clock.sleep_until_ns(page.clock.now_ns() + ms_to_ns(500))

    async def agent(end: Any, clock: Clock) -> None:
        for _ in range(6):  # 120 ms, as after a stop
            await end.send("packet 480")
        for _ in range(10):
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(20))
            await end.send("silence 480")
        await asyncio.Event().wait()

    page, _ = relayed(course, agent, Made())
    heard = [bool(any(audio.audio)) for _, audio in page.audio()]
    # The page is 120 ms behind, until 40 are left.
    assert heard == [True] * 6 + [False] * 7


@pytest.mark.parametrize("answers", [True, False])
def test_what_is_dropped_is_what_came_before_the_flush(answers: bool) -> None:
    made = Made()

    async def course(page: PageInMemory) -> None:
        page.answers_flush = answers
        await page.until(lambda: page.sample == 20_000)
        page.played(0, 5_000)
        await page.until(lambda: page.sample == 26_000)
        page.played(20_000, 1_000)
        await page.until(lambda: ("played", 21_000) in made.calls)

    async def agent(end: Any, clock: Clock) -> None:
        await end.send("audio 20000")
        await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(200))
        await end.send("flush")
        await end.send("audio 6000")
        await asyncio.Event().wait()

    page, _ = relayed(course, agent, made)
    assert [m for _, m in page.got if m == "interruption"] == ["interruption"]
    assert made.calls == [
        ("played", 5_000),
        ("dropped", 15_000),
        ("played", 20_000),
        ("played", 21_000),
    ]


def test_an_answer_to_an_earlier_flush_does_not_end_the_wait_for_the_next() -> None:
    made = Made()

    async def course(page: PageInMemory) -> None:
        page.answers_flush = False
        await page.until(lambda: [m for _, m in page.got if m == "interruption"][1:])
        page.say(wire.PLAYED, {"played": [], "dropped_to": 20_000})  # to the first, late
        await page.clock.sleep_until_ns(page.clock.now_ns() + ms_to_ns(100))
        assert page.sample == 26_000
        page.say(wire.PLAYED, {"played": [[20_000, 2_000, 0]], "dropped_to": 26_000})
        await page.until(lambda: page.sample == 26_500)

    relayed(course, saying("audio 20000", "flush", "audio 6000", "flush", "audio 500"), made)
    assert made.calls == [
        ("dropped", 20_000),
        ("played", 20_000),
        ("dropped", 4_000),
        ("played", 26_000),
    ]


def test_a_page_that_leaves_while_a_flush_waits_ends_the_conversation() -> None:
    made = Made()

    async def course(page: PageInMemory) -> None:
        page.answers_flush = False
        await page.until(lambda: [m for _, m in page.got if m == "interruption"])

    relayed(course, saying("audio 20000", "flush"), made)
    # Had it waited, the audio would have counted as dropped.
    assert made.calls == []


def test_an_endless_stream_is_handed_on_and_what_is_left_out_of_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MOST_MESSAGES", 5)
    monkeypatch.setattr(intake, "MOST_WAITING_BYTES", 6_000)
    made = Made()

    async def course(page: PageInMemory) -> None:
        for sent in range(500, 20_001, 500):
            await page.until(lambda sent=sent: page.sample == sent)
            page.played(sent - 500, 500)
        await page.until(lambda: ("played", 24_500) in made.calls)
        await page.until(lambda: page.sample == 20_500)

    async def agent(end: Any, clock: Clock) -> None:
        for _ in range(40):
            await end.send("audio 500")
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(20))
        await end.send("audio 4500")
        await end.send("audio 500")
        await asyncio.Event().wait()

    page, _ = relayed(course, agent, made)
    (error,) = page.of("error")
    assert "ahead of playback" in error["data"]["error"]
    assert ("dropped", 4_500) in made.calls


def test_pings_are_answered_here_and_what_the_dialect_cannot_is_refused() -> None:
    async def course(page: PageInMemory) -> None:
        page.say("turngap.ping", {"ping": 7})
        page.say("turngap.say", {"turn": 1, "text": "hello"})
        page.say(wire.PLAYED, {"played": "nonsense"})
        page.say(wire.TURN, None)
        await page.until(lambda: len(page.of("server-message")) == 2)

    page, _ = relayed(course, saying(), Made())
    pong, refused = [m["data"] for m in page.of("server-message")]
    assert (pong["turngap"], pong["ping"]) == ("pong", 7)
    assert (refused["turngap"], refused["re"]) == ("refused", "turngap.say")


def test_what_cannot_be_understood_is_said_once_and_a_lost_line_ends_it() -> None:
    async def course(page: PageInMemory) -> None:
        await page.until(lambda: len(page.of("error")) == 2)

    page, _ = relayed(course, saying("pardon", "pardon", "fault", "audio 10"), Made())
    odd, fault = [m["data"]["error"] for m in page.of("error")]
    assert "does not speak the made dialect: it sent the word pardon" in odd
    assert fault == "the key is wrong: api_key=(removed)"

    async def dies(end: Any, clock: Clock) -> None:
        end.die()

    async def waits(page: PageInMemory) -> None:
        await asyncio.Event().wait()

    with pytest.raises(AgentError, match="the line was lost"):
        relayed(waits, dies, Made())


def test_the_playback_never_falls_nor_passes_what_was_sent() -> None:
    playback = Playback()
    playback.send(1_000, 8_000)
    playback.report(wire.Played(played=((0, 400, 0), (390, 60, 0))))
    assert (playback.played, playback.dropped) == (450, 0)
    playback.report(wire.Played(played=((0, 100, 0),)))
    assert playback.played == 450
    playback.report(wire.Played(played=((900, 9_000, 0),), dropped_to=50_000))
    assert (playback.played, playback.dropped) == (1_000, 0)
    playback.send(100, 192_000)
    playback.report(wire.Played(played=((1_000, 40, 0),)))
    assert playback.played == 1_100  # of so fast a stream the page's resampler keeps 64 samples
    quiet: Pcm = np.zeros(0, np.int16)
    playback.send(len(quiet), 8_000)
    assert playback.sent == 1_100
