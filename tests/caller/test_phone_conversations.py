"""Conversations on phone lines in virtual time: gaps, marks, barge-ins, and hostile agents."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import virtual_calls
from virtual_calls import AFTER_REPLY, says

from turngap.caller.conversation import Patience, PlayedTurn
from turngap.caller.dialects.registry import find_dialect
from turngap.caller.dialects.telephony import MOST_MARKS
from turngap.core.audio import SpeechDetector, SpeechEnd
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns
from turngap.core.cue import When
from turngap.core.run_record import OffsetRecord
from turngap.testing.agent import voice
from turngap.testing.dialects import HungUp, Played, Spoken, make_half
from turngap.testing.memory import End

PHONES = ("twilio", "telnyx", "plivo", "exotel", "vonage")
DELAY_MS = 300
REPLY_MS = 1000
PACKET_MS = 20
QUICK = Patience(no_reply_ms=1500, quiet_ms=400)


@dataclass
class Bot:
    """Answers 300 ms after the person's end, all at once and with a mark; yields when talked over.

    `first` are messages that come before its second answer. `told` is when which mark came back.
    """

    dialect: str
    first: Sequence[str | bytes] = ()
    told: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    said_ms: list[float] = field(default_factory=list[float])
    flushed_ms: list[float] = field(default_factory=list[float])
    hung_up: bool = False

    async def course(self, end: End, clock: Clock) -> None:
        self.end, self.clock = end, clock
        self.half = make_half(self.dialect)
        detector: SpeechDetector | None = None
        heard = 0
        while True:
            said, _ = self.half.receive_data(await end.recv())
            for word in said:
                if isinstance(word, Played):
                    self.told.append((self.now_ms, word.mark))
                elif isinstance(word, HungUp):
                    self.hung_up = True
                elif isinstance(word, Spoken):
                    detector = detector or SpeechDetector(self.half.in_rate, gap_ms=100)
                    heard += len(word.pcm)
                    for event in detector.feed(word.pcm):
                        past_ns = samples_to_ns(heard - event.sample, self.half.in_rate)
                        await self.hears(event, end.arrived_ns - past_ns)

    @property
    def now_ms(self) -> float:
        return self.clock.now_ns() / 1e6

    async def sends(self, messages: Sequence[str | bytes]) -> None:
        for message in messages:
            await self.end.send(message)

    async def hears(self, event: object, at_ns: int) -> None:
        if isinstance(event, SpeechEnd):
            await self.sends(self.first if len(self.said_ms) == 1 else ())
            await self.clock.sleep_until_ns(at_ns + ms_to_ns(DELAY_MS))
            self.said_ms.append(self.now_ms)
            reply, packet = voice(REPLY_MS, self.half.out_rate), self.half.out_rate // 50
            for first in range(0, len(reply), packet):
                await self.sends(self.half.audio(reply[first : first + packet].tobytes()))
            await self.sends(self.half.reply_done())
        elif self.said_ms and self.now_ms < self.said_ms[-1] + REPLY_MS:
            self.flushed_ms.append(self.now_ms)
            await self.sends(self.half.flush())


def play(bot: Bot, whens: Sequence[When]) -> list[PlayedTurn]:
    session = find_dialect(bot.dialect).session()
    cues = lambda rate: [says(rate, when) for when in whens]  # noqa: E731
    played = virtual_calls.play(bot.course, cues, QUICK, session, hangs_up=True)
    assert played.offset == OffsetRecord(offset_ns=None, bound_ns=None, n=0)
    return played.turns


def gaps_ms(turns: Sequence[PlayedTurn]) -> list[float | None]:
    return [None if t.turn.gap_ns is None else t.turn.gap_ns / 1e6 for t in turns]


@pytest.mark.parametrize("dialect", PHONES)
def test_gaps_are_exact_and_marks_come_back_when_their_audio_was_played(dialect: str) -> None:
    bot = Bot(dialect)
    turns = play(bot, [AFTER_REPLY, AFTER_REPLY])
    assert [t.turn.outcome for t in turns] == ["answered", "answered"]
    # To a sample of the line; the label's end is the last sample itself.
    sample_ms = 1000 / find_dialect(dialect).session().rate
    assert gaps_ms(turns) == pytest.approx([DELAY_MS, DELAY_MS], abs=sample_ms)
    assert [name for _, name in bot.told] == ["reply 1", "reply 2"]
    for said_ms, (told_ms, _) in zip(bot.said_ms, bot.told, strict=True):
        assert 0 <= told_ms - (said_ms + REPLY_MS) <= PACKET_MS + 1
    assert bot.hung_up == (dialect not in ("plivo", "vonage"))  # which have no word for it


@pytest.mark.parametrize("dialect", PHONES)
def test_a_barge_in_clears_the_queue_and_its_marks_come_back_at_once(dialect: str) -> None:
    bot = Bot(dialect)
    first, second = play(bot, [AFTER_REPLY, When(barge_in_ms=300)])
    assert first.turn.ended == "interrupted"
    assert (first.turn.outcome, second.turn.outcome) == ("answered", "answered")
    (flushed_ms,) = bot.flushed_ms
    assert second.turn.yield_ns is not None
    silent_ms = (second.turn.user_start_ns + second.turn.yield_ns) / 1e6
    assert silent_ms == pytest.approx(flushed_ms, abs=0.2)
    assert second.turn.gap_ns == pytest.approx(DELAY_MS * 1e6, abs=0.2e6)
    told = {name: ms for ms, name in bot.told}
    if dialect == "plivo":  # which forgets the checkpoints of what was cleared
        assert list(told) == ["reply 2"]
    else:
        assert list(told) == ["reply 1", "reply 2"]
        assert told["reply 1"] == flushed_ms
    assert told["reply 2"] >= bot.said_ms[1] + REPLY_MS


def event(name: str, **body: object) -> str:
    return json.dumps({"event": name, **body})


HOSTILE: list[tuple[str, Sequence[str | bytes], str, str]] = [
    ("binary", [bytes(160)], "error", "it does not speak the twilio dialect: it sent a binary"),
    ("no JSON", ["{"], "error", "a text that is no JSON"),
    ("other JSON", ['{"label":"rtvi-ai","type":"bot-ready"}'], "error", "without a text under"),
    ("an unknown event", [event("transfer")], "answered", "which twilio does not take"),
    ("no payload", [event("media", media={})], "answered", "media without a payload"),
    ("no base64", [event("media", media={"payload": "?"})], "answered", "no base64"),
    ("another stream", [event("clear", streamSid="MZ0")], "answered", "for another stream"),
    ("a flood of nested", ["[" * 100_000], "error", "no JSON"),
    ("2 MB", [" " * 2**21], "answered", "2,097,152 characters"),
    (
        "marks without end",
        [
            event("media", media={"payload": "f39/f39/f38="}),
            *[event("mark", mark={"name": "x"})] * (MOST_MARKS + 5),
        ],
        "answered",
        f"more than {MOST_MARKS} marks",
    ),
]


@pytest.mark.parametrize(
    ("first", "outcome", "said"),
    [case[1:] for case in HOSTILE],
    ids=[case[0] for case in HOSTILE],
)
def test_what_a_hostile_agent_sends_is_left_out_or_spoils_one_turn(
    first: Sequence[str | bytes], outcome: str, said: str
) -> None:
    turns = play(Bot("twilio", first), [AFTER_REPLY] * 3)
    assert [t.turn.outcome for t in turns] == ["answered", outcome, "answered"]
    remarks = [*turns[1].notes, turns[1].turn.error or ""]
    assert any(said in remark for remark in remarks), remarks


def test_an_agent_that_clears_without_end_is_heard_all_the_same() -> None:
    turns = play(Bot("twilio", [event("clear")] * 1000), [AFTER_REPLY] * 3)
    assert [t.turn.outcome for t in turns] == ["answered", "error", "answered"]
    assert turns[1].turn.error == "it sent more than 200 messages of Flush in one turn"
