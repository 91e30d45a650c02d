"""Text to the TTS and speech from it, paced: the real processors on a manual clock."""

from contextlib import AbstractAsyncContextManager

import numpy as np
import pytest
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from speech_line import RATE, ClockedTTS, SpeechLine, running
from speech_simulation import tokens_of

from turngap.agent.feed import SpeechFeed
from turngap.agent.speech_output import speaking
from turngap.agent.stack import Stack
from turngap.core.voice import KEEP_MS, MOST_MS, LeadCut, Request, VoiceSpeed
from turngap.testing import ManualClock

REPLY = "The kitchen lights are off, and the door to the garden is closed."


def stack(aggregation: str = "adaptive", *, cut_lead_in: bool = False) -> Stack:
    engine = {"backend": "fake"}
    values = {
        "name": "fake",
        "audio": {"cut_lead_in": cut_lead_in},
        "text": {"aggregation": aggregation},
        **dict.fromkeys(("turn", "stt", "llm", "tts"), engine),
    }
    return Stack.model_validate(values)


def measured(request_ms: float, factor: float, chunk_ms: float) -> VoiceSpeed:
    """A voice as the `ClockedTTS` of these speeds would have been measured."""
    voice = VoiceSpeed()
    for chars in (8, 60, 20, 33) * 4:
        audio_ms = 50.0 * chars
        chunk = min(chunk_ms, audio_ms)
        made_ms, first_ms = request_ms + factor * audio_ms, request_ms + factor * chunk
        voice.add(Request(chars, audio_ms, made_ms, first_ms, chunk))
    return voice


class Agent:
    """The processors of a stack around a TTS of known speed, and what they counted."""

    def __init__(
        self,
        settings: Stack,
        *,
        request_ms: float = 20,
        factor: float = 0.1,
        chunk_ms: float = 100,
        lead_in_ms: float = 0,
        gated: bool = False,
    ) -> None:
        self.clock = ManualClock(settle_rounds=200)
        self.tts = ClockedTTS(
            self.clock,
            request_ms=request_ms,
            factor=factor,
            chunk_ms=chunk_ms,
            lead_in_ms=lead_in_ms,
        )
        self.counts: dict[str, float] = {}
        self.speech = speaking(
            settings,
            self.tts,
            self.clock,
            feed=SpeechFeed(measured(request_ms, factor, chunk_ms)),
            gated=gated,
            count=self._count,
        )

    def _count(self, name: str, n: float) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    def running(self) -> AbstractAsyncContextManager[SpeechLine]:
        return running(self.clock, *self.speech.processors)


async def test_two_words_go_first_and_the_rest_by_clauses() -> None:
    agent = Agent(stack())
    async with agent.running() as line:
        await line.say(tokens_of(REPLY))
        await line.passes(1000)
        assert agent.tts.spoken[0][1] == "The kitchen"
        assert " ".join(text for _, text in agent.tts.spoken) == REPLY
        assert len(agent.tts.spoken) <= 4
        assert line.breaks_ms == []
        assert line.kinds[-1] == "LLMFullResponseEndFrame"


async def test_the_first_piece_goes_with_the_token_that_completes_it() -> None:
    agent = Agent(stack())
    async with agent.running() as line:
        await line.say(["The", " kitchen"], every_ms=10, ends=False)
        assert agent.tts.spoken == []  # "kitchen" may go on
        await line.send(LLMTextFrame(" lights"))
        assert [text for _, text in agent.tts.spoken] == ["The kitchen"]
        await line.send(LLMFullResponseEndFrame())


async def test_when_the_llm_stalls_what_waits_is_spoken_before_speech_runs_dry() -> None:
    agent = Agent(stack())
    async with agent.running() as line:
        await line.say(["The", " kitchen", " lights", " are", " off", " and"], ends=False)
        assert [text for _, text in agent.tts.spoken] == ["The kitchen"]
        await line.passes(2000)
        assert " ".join(text for _, text in agent.tts.spoken) == "The kitchen lights are off"
        assert line.breaks_ms == []
        await line.send(LLMFullResponseEndFrame())


async def test_the_end_of_a_reply_waits_for_the_last_of_its_text() -> None:
    agent = Agent(stack(), factor=0.6, chunk_ms=10_000)
    async with agent.running() as line:
        await line.say(tokens_of(REPLY), every_ms=1)
        await line.passes(20)
        assert line.of(LLMFullResponseEndFrame) == []
        await line.passes(10_000)
        ((ended_ms, _),) = line.of(LLMFullResponseEndFrame)
        assert ended_ms >= line.of(TTSAudioRawFrame)[-1][0]
        assert " ".join(text for _, text in agent.tts.spoken) == REPLY
        assert len(agent.tts.spoken) >= 2
        assert line.breaks_ms == []


async def test_an_interruption_drops_the_rest_and_the_next_reply_is_a_new_one() -> None:
    agent = Agent(stack(), factor=0.5, chunk_ms=10_000)
    async with agent.running() as line:
        await line.say(tokens_of(REPLY), every_ms=1)
        await line.interrupt()
        spoken = len(agent.tts.spoken)
        await line.passes(5000)
        assert len(agent.tts.spoken) == spoken
        assert line.heard.size == 0
        await line.say(tokens_of("Sure, which day suits you?"), every_ms=1)
        await line.passes(5000)
        assert " ".join(text for _, text in agent.tts.spoken[spoken:]) == (
            "Sure, which day suits you?"
        )
        assert line.breaks_ms == []


async def test_speech_slower_than_it_sounds_is_held_until_it_lasts() -> None:
    agent = Agent(stack(), factor=1.3, chunk_ms=50)
    async with agent.running() as line:
        await line.say(tokens_of(REPLY), every_ms=1)
        await line.passes(500)
        assert len(agent.tts.spoken) >= 1
        assert line.heard.size == 0
        await line.passes(30_000)
        assert line.breaks_ms == []
        assert agent.counts == {}
        kinds = [k for k in line.kinds if not k.startswith(("TTSAudio", "Metrics"))]
        assert kinds.index("TTSStartedFrame") < kinds.index("TTSStoppedFrame")
        assert [f.text for _, f in line.of(TTSTextFrame)] == [t for _, t in agent.tts.spoken]


async def test_a_voice_that_is_slower_than_it_was_is_told_of() -> None:
    agent = Agent(stack(), factor=0.1, chunk_ms=100)
    agent.tts._factor = 3  # what was measured no longer holds
    async with agent.running() as line:
        await line.say(tokens_of(REPLY), every_ms=1)
        await line.passes(60_000)
        found = line.breaks_ms
        assert found
        assert agent.counts["ran_dry"] == len(found)
        assert agent.counts["dry_ms"] == pytest.approx(sum(found), abs=1)


async def test_where_somebody_else_lets_speech_out_its_time_begins_with_that() -> None:
    agent = Agent(stack(), gated=True)
    async with agent.running() as line:
        await line.say(["The", " kitchen", " lights", " are", " off", " and"], ends=False)
        await line.passes(3000)
        assert line.heard.size > 0  # which whoever is behind it holds
        assert [text for _, text in agent.tts.spoken] == ["The kitchen"]
        agent.speech.playing(agent.clock.now_ns())
        await line.passes(2000)
        assert " ".join(text for _, text in agent.tts.spoken) == "The kitchen lights are off"
        assert "ran_dry" not in agent.counts
        await line.send(LLMFullResponseEndFrame())


@pytest.mark.parametrize("aggregation", ["adaptive", "clause", "sentence"])
async def test_silence_before_the_speech_is_cut_and_told(aggregation: str) -> None:
    agent = Agent(stack(aggregation, cut_lead_in=True), lead_in_ms=200, chunk_ms=60)
    async with agent.running() as line:
        await line.say(tokens_of("The kitchen is dark. It is late."), every_ms=1)
        await line.passes(5000)
        heard = line.heard
        assert abs(heard[: round(RATE * (KEEP_MS + 1) / 1000)]).max() > 1000
        assert agent.counts["lead_cut_ms"] >= 200 - KEEP_MS - 1
        # Between sentences the voice may pause as it likes.
        silent = np.convolve(abs(heard) < 100, np.ones(RATE // 100), "valid") == RATE // 100
        if aggregation == "sentence":
            assert silent.any()


async def test_a_piece_that_goes_on_in_mid_clause_begins_without_a_pause() -> None:
    agent = Agent(stack(cut_lead_in=True), lead_in_ms=200, chunk_ms=60)
    async with agent.running() as line:
        await line.say(tokens_of("The kitchen lights are off."), every_ms=1)
        await line.passes(5000)
        assert len(line.pieces) == 2
        assert agent.counts["lead_cut_ms"] >= 2 * (200 - KEEP_MS - 1)


async def test_with_the_setting_off_silence_is_passed_on() -> None:
    agent = Agent(stack("clause"), lead_in_ms=200)
    async with agent.running() as line:
        await line.say(tokens_of("The kitchen."), every_ms=1)
        await line.passes(1000)
        assert abs(line.heard[: RATE // 10]).max() == 0
        assert agent.counts == {}


async def test_words_one_by_one() -> None:
    agent = Agent(stack("token"))
    async with agent.running() as line:
        await line.say(tokens_of("It's ten past nine, croissant!"), every_ms=1)
        await line.passes(2000)
        assert [text for _, text in agent.tts.spoken] == [
            "It's",
            "ten",
            "past",
            "nine,",
            "croissant!",
        ]


async def test_text_that_is_not_to_be_spoken_is_left_alone() -> None:
    agent = Agent(stack())
    async with agent.running() as line:
        silent = LLMTextFrame("not for the ear")
        silent.skip_tts = True
        await line.send(silent)
        await line.passes(100)
        assert agent.tts.spoken == []


# --- the silence before speech --------------------------------------------------------------------


def tone(ms: float) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return (np.cos(np.arange(round(RATE * ms / 1000)) / 12) * 8000).astype(np.int16)


def quiet(ms: float, level: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    noise = np.random.default_rng(1).integers(-1, 2, round(RATE * ms / 1000))
    return (noise * level).astype(np.int16)


@pytest.mark.parametrize("chunk_ms", [3, 10, 60, 1000])
@pytest.mark.parametrize("level", [0, 40])
def test_what_is_left_begins_with_the_first_sound(chunk_ms: float, level: int) -> None:
    lead = LeadCut(RATE)
    speech = np.concatenate((quiet(200, level), tone(300)))
    step = round(RATE * chunk_ms / 1000)
    rest = np.concatenate([lead.feed(speech[i : i + step]) for i in range(0, len(speech), step)])
    assert lead.sounds
    assert lead.cut_ms == pytest.approx(200 - KEEP_MS, abs=0.2)
    assert len(rest) + round(lead.cut_ms * RATE / 1000) == len(speech)
    np.testing.assert_array_equal(rest[round(KEEP_MS * RATE / 1000) :], speech[-len(tone(300)) :])


def test_speech_without_silence_is_left_as_it_is() -> None:
    lead = LeadCut(RATE)
    np.testing.assert_array_equal(lead.feed(tone(100)), tone(100))
    assert lead.cut_ms == 0


def test_a_very_long_silence_is_meant() -> None:
    lead = LeadCut(RATE)
    passed = sum(len(lead.feed(quiet(100))) for _ in range(20))
    assert lead.cut_ms <= MOST_MS
    assert passed >= RATE * (2000 - MOST_MS) / 1000 - 1
