"""piper with voices of the project's own: one that can be understood, one of realistic load."""

import asyncio
import json
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from onnx import TensorProto, helper
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.worker import PipelineParams
from rapidfuzz.distance import Levenshtein
from running_line import InstantClock, Line, running

from turngap.backends import COUNTS
from turngap.core.audio import audible_onset
from turngap.core.errors import AgentError, InputError
from turngap.core.voice import KEEP_MS, LEAD_DBFS
from turngap_services.sound import RATE
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import Recogniser
from turngap_services.stt.sentences import Model, Saying, build_model
from turngap_services.text import scenarios, spoken_words
from turngap_services.tts import PiperSettings, piper
from turngap_services.tts.piper import PiperTTSService, Voice, create, prepare, voice_of

OWN_RATE = 22_050
TWO_CLAUSES = "A large oat latte with cream, coming up in a moment."
LONG = "and two more large pizzas " * 200


def of_voice(path: Path, **more: Any) -> PiperSettings:
    return PiperSettings(voice=str(path), **more)


async def spoken(settings: PiperSettings, *replies: str, rate: int = OWN_RATE) -> Line:
    """Have each reply spoken as a turn of its own."""
    prepare(settings)
    params = PipelineParams(audio_out_sample_rate=rate)
    async with running(create(settings, InstantClock()), params=params) as line:
        for n, reply in enumerate(replies, 1):
            await line.send(*turn(reply))
            await line.until(lambda n=n: len(line.of(TTSStoppedFrame)) == n)
    return line


def turn(text: str) -> tuple[LLMFullResponseStartFrame, LLMTextFrame, LLMFullResponseEndFrame]:
    return LLMFullResponseStartFrame(), LLMTextFrame(text), LLMFullResponseEndFrame()


def frames(line: Line, context: str | None = None) -> list[TTSAudioRawFrame]:
    return [f for f in line.of(TTSAudioRawFrame) if context in (None, f.context_id)]


def pcm(line: Line, context: str | None = None) -> np.ndarray:
    return np.frombuffer(b"".join(f.audio for f in frames(line, context)), np.int16)


async def made(settings: PiperSettings, text: str, rate: int = OWN_RATE) -> np.ndarray:
    """Return the voice's sound for a text, with its silence."""
    voice = voice_of(settings)
    return await voice.speak(text, voice.manner(settings), rate)


# --- that it speaks -------------------------------------------------------------------------------


def replies() -> list[str]:
    """Return the sentences of the library's agents, each once, without those that need a tool."""
    turns = (turn for scenario in scenarios(None) for turn in scenario.turns)
    found = dict.fromkeys(turn.reply for turn in turns if turn.reply and not turn.calls)
    return list(found)


@cache
def listener() -> Model:
    """A recogniser that knows these sentences alone."""
    return build_model([Saying(str(n), text) for n, text in enumerate(replies())], {})


def heard(speech: np.ndarray, rate: int) -> list[str]:
    """The words that it makes of speech."""
    hearing = Recogniser(listener(), PocketsphinxSettings())
    hearing.start()
    around = np.zeros(RATE // 4)  # nobody's first sound is the first of the recording
    at_16k = soxr.resample(speech.astype(np.float32), rate, RATE)
    hearing.audio(np.concatenate((around, at_16k, around)).astype(np.int16).tobytes())
    return hearing.stop().split()


# Of all 260 words of either, 1 and 5 are misheard; every third sentence is enough to say so.
@pytest.mark.parametrize(("speaker", "rate"), [("en-us+klatt4", 22_050), (1, 24_000)])
async def test_it_says_the_words(speaker: int | str, rate: int, speaking_voice: Path) -> None:
    said = replies()[::3]
    line = await spoken(of_voice(speaking_voice, speaker=speaker), *said, rate=rate)
    wrong = words = 0
    for text, started in zip(said, line.of(TTSStartedFrame), strict=True):
        wanted = spoken_words(text)
        words += len(wanted)
        wrong += Levenshtein.distance(wanted, heard(pcm(line, started.context_id), rate))
    assert words > 70
    assert wrong <= 0.06 * words


async def test_speakers_differ_and_do_not_disturb_each_other(speaking_voice: Path) -> None:
    one, other = of_voice(speaking_voice, speaker=0), of_voice(speaking_voice, speaker=1)
    alone = [await made(one, TWO_CLAUSES), await made(other, TWO_CLAUSES)]
    together = await asyncio.gather(made(one, TWO_CLAUSES), made(other, TWO_CLAUSES))
    assert not np.array_equal(alone[0][:20_000], alone[1][:20_000])
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a, b)
    assert voice_of(one) is voice_of(other)


async def test_length_scale_draws_it_out(speaking_voice: Path) -> None:
    usual, slow = of_voice(speaking_voice), of_voice(speaking_voice, length_scale=1.5)
    ratio = len(await made(slow, TWO_CLAUSES)) / len(await made(usual, TWO_CLAUSES))
    assert ratio == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize("rate", [16_000, 22_050, 24_000])
async def test_audio_has_the_rate_of_the_output(rate: int, speaking_voice: Path) -> None:
    line = await spoken(of_voice(speaking_voice), TWO_CLAUSES, rate=rate)
    assert {f.sample_rate for f in frames(line)} == {rate}
    own = await spoken(of_voice(speaking_voice), TWO_CLAUSES)
    assert len(pcm(line)) / rate == pytest.approx(len(pcm(own)) / OWN_RATE, abs=0.03)


async def test_a_voice_of_medium_size_speaks_as_long_as_people_do(heavy_voice: Path) -> None:
    words = len(TWO_CLAUSES.split())
    audio = await made(of_voice(heavy_voice), TWO_CLAUSES)
    assert 1.5 < words / (len(audio) / OWN_RATE) < 5
    assert audible_onset(audio, OWN_RATE) is not None


async def test_audio_is_framed_by_one_start_and_stop(speaking_voice: Path) -> None:
    line = await spoken(of_voice(speaking_voice), TWO_CLAUSES)
    kinds = [type(f) for f in line.frames]
    first, stop = kinds.index(TTSAudioRawFrame), kinds.index(TTSStoppedFrame)
    assert kinds.count(TTSStartedFrame) == kinds.count(TTSStoppedFrame) == 1
    assert kinds.index(TTSStartedFrame) < first < stop
    assert TTSAudioRawFrame not in kinds[stop:]


async def test_what_cannot_be_spoken_is_no_audio(speaking_voice: Path) -> None:
    service = create(of_voice(speaking_voice), InstantClock())
    async with running(service, params=PipelineParams(audio_out_sample_rate=OWN_RATE)):
        assert [f async for f in service.run_tts("…", "context")] == []


# --- the first clause first, without the silence before it ----------------------------------------


async def test_the_first_clause_comes_by_itself(speaking_voice: Path) -> None:
    settings = of_voice(speaking_voice)
    first, second = frames(await spoken(settings, TWO_CLAUSES))
    for frame, clause in ((first, TWO_CLAUSES[:29]), (second, TWO_CLAUSES[30:])):
        alone = await made(settings, clause)
        assert frame.num_frames < len(alone)
        assert frame.audio == alone[-frame.num_frames :].tobytes()
    whole = frames(await spoken(of_voice(speaking_voice, clauses=False), TWO_CLAUSES))
    assert len(whole) == 1


async def test_the_first_clause_is_there_before_the_rest_is_made(speaking_voice: Path) -> None:
    settings = of_voice(speaking_voice)
    prepare(settings)
    voice = voice_of(settings)
    asked: list[str] = []

    class Asked(Voice):
        def __init__(self) -> None:
            self.__dict__.update(voice.__dict__)

        async def speak(self, text: str, manner: Any, rate: int) -> np.ndarray:
            asked.append(text)
            return await voice.speak(text, manner, rate)

    service = PiperTTSService(settings=settings, clock=InstantClock(), voice=Asked())
    async with running(service, params=PipelineParams(audio_out_sample_rate=OWN_RATE)):
        speech = service.run_tts(TWO_CLAUSES, "context")
        frame = await anext(speech)
        await speech.aclose()
    assert isinstance(frame, TTSAudioRawFrame)
    assert asked == [TWO_CLAUSES[:29]]


async def test_silence_before_a_reply_is_cut_off_and_reported(speaking_voice: Path) -> None:
    settings, text = of_voice(speaking_voice), "The lights are off."
    raw = await made(settings, text)
    onset = audible_onset(raw, OWN_RATE, LEAD_DBFS)
    assert onset is not None
    assert onset > 0.08 * OWN_RATE
    silent = onset - round(KEEP_MS * OWN_RATE / 1000)
    line = await spoken(settings, text, text)
    for started in line.of(TTSStartedFrame):
        (frame,) = frames(line, started.context_id)
        assert frame.audio == raw[silent:].tobytes()
        assert frame.metadata[COUNTS] == {"lead_cut_ms": silent * 1000 / OWN_RATE}


# --- beside everything else -----------------------------------------------------------------------


async def test_the_event_loop_goes_on_while_speech_is_made(heavy_voice: Path) -> None:
    loop, rounds = asyncio.get_running_loop(), 0

    def again() -> None:
        nonlocal rounds
        rounds += 1
        if not speech.done():
            loop.call_soon(again)

    speech = asyncio.create_task(made(of_voice(heavy_voice), TWO_CLAUSES))
    again()
    assert len(await speech)
    assert rounds > 100


class Watched:
    """The ends of the syntheses since then: "finished", or broken off."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.outcomes: list[str] = []

    def wrap(self, run: Any) -> Any:
        def watched(*args: Any) -> Any:
            self.begun.set()
            try:
                result = run(*args)
            except Exception as e:
                self.outcomes.append(str(e))
                raise
            else:
                self.outcomes.append("finished")
                return result
            finally:
                self.ended.set()

        return watched


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watch = Watched()
    run = piper._Breakable.run
    monkeypatch.setattr(piper._Breakable, "run", watch.wrap(run))
    yield watch


async def test_an_interruption_ends_the_synthesis(heavy_voice: Path, watched: Watched) -> None:
    settings = of_voice(heavy_voice)
    params = PipelineParams(audio_out_sample_rate=OWN_RATE)
    async with running(create(settings, InstantClock()), params=params) as line:
        await line.send(*turn(LONG))  # a minute of speech: seconds of work
        assert await asyncio.to_thread(watched.begun.wait, 20)
        await line.send(InterruptionFrame())
        assert await asyncio.to_thread(watched.ended.wait, 20)
        assert len(watched.outcomes) == 1
        assert "terminate" in watched.outcomes[0]
        assert line.of(TTSAudioRawFrame) == []
        await line.send(*turn("Yes."))
        await line.until(lambda: bool(line.of(TTSStoppedFrame)))
    assert watched.outcomes[1:] == ["finished"]
    assert len(pcm(line))


# --- what may be missing or wrong -----------------------------------------------------------------


def refused(settings: PiperSettings) -> AgentError:
    with pytest.raises(AgentError) as e:
        prepare(settings)
    assert "\n" not in e.value.message + e.value.hint
    return e.value


def test_a_voice_that_cannot_be_fetched_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = refused(PiperSettings(voices=tmp_path))
    assert error.kind == "weights.offline"
    assert "turngap fetch" in error.hint


def test_a_path_to_nothing_is_named(tmp_path: Path) -> None:
    error = refused(of_voice(tmp_path / "gone.onnx"))
    assert "gone.onnx not found" in error.message.replace("gone.onnx.json", "gone.onnx")
    assert ".onnx.json in the same folder" in error.hint


def test_a_voice_without_its_symbols_is_named(tmp_path: Path) -> None:
    (tmp_path / "half.onnx").write_bytes(b"any")
    assert "half.onnx.json not found" in refused(of_voice(tmp_path / "half.onnx")).message


def voice_of_files(folder: Path, network: bytes, config: str) -> PiperSettings:
    path = folder / "made.onnx"
    path.write_bytes(network)
    path.with_name("made.onnx.json").write_text(config, encoding="utf-8")
    return of_voice(path)


def test_a_broken_voice_file_is_one_line(tmp_path: Path, speaking_voice: Path) -> None:
    network = speaking_voice.read_bytes()
    config = speaking_voice.with_name(f"{speaking_voice.name}.json").read_text(encoding="utf-8")
    error = refused(voice_of_files(tmp_path, network[: len(network) // 2], config))
    assert error.kind == "voice.damaged"
    assert "made.onnx cannot be read as a piper voice" in error.message
    assert "remove it" in error.hint
    for broken in (config[:100], "{}"):
        error = refused(voice_of_files(tmp_path, network, broken))
        assert "made.onnx.json cannot be read as a piper voice" in error.message


def test_another_network_is_no_voice(tmp_path: Path, speaking_voice: Path) -> None:
    info = helper.make_tensor_value_info
    node = helper.make_node("Identity", ["picture"], ["same"])
    value = {name: info(name, TensorProto.FLOAT, [1]) for name in ("picture", "same")}
    graph = helper.make_graph([node], "other", [value["picture"]], [value["same"]])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, ir_version=10, opset_imports=opsets)
    config = speaking_voice.with_name(f"{speaking_voice.name}.json").read_text(encoding="utf-8")
    error = refused(voice_of_files(tmp_path, model.SerializeToString(), config))
    assert "is not a piper voice: it takes picture" in error.message
    assert "input, input_lengths, scales, sid" in error.hint


def test_symbols_that_the_network_does_not_know_are_found_at_the_start(
    tmp_path: Path, speaking_voice: Path
) -> None:
    path = speaking_voice.with_name(f"{speaking_voice.name}.json")
    config = json.loads(path.read_text(encoding="utf-8"))
    config["phoneme_id_map"] = {name: [9_999] for name in config["phoneme_id_map"]}
    settings = voice_of_files(tmp_path, speaking_voice.read_bytes(), json.dumps(config))
    assert "made failed to speak" in refused(settings).message


@pytest.mark.parametrize(("speaker", "hint"), [("nobody", "en-us+klatt4"), (2, "en-us+edward")])
def test_an_unknown_speaker_is_refused_with_those_there_are(
    speaker: int | str, hint: str, speaking_voice: Path
) -> None:
    with pytest.raises(InputError, match="has no speaker") as e:
        prepare(of_voice(speaking_voice, speaker=speaker))
    assert hint in e.value.hint


async def test_failure_in_a_reply_is_an_error_frame_and_the_voice_lives(
    speaking_voice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = create(of_voice(speaking_voice), InstantClock())
    async with running(service, params=PipelineParams(audio_out_sample_rate=OWN_RATE)):
        with monkeypatch.context() as patch:
            patch.setattr(piper._Breakable, "run", _out_of_memory)
            (frame,) = [f async for f in service.run_tts("Hello there.", "context")]
        assert isinstance(frame, ErrorFrame)
        assert "too little memory on this machine for the piper voice" in frame.error
        assert "a voice of a lower quality" in frame.error
        (frame,) = [f async for f in service.run_tts("Hello there.", "context")]
        assert isinstance(frame, TTSAudioRawFrame)


def _out_of_memory(*_: object) -> None:
    raise MemoryError
