"""Published weights, where `tools/published-weights` laid them out: `local` and its engines."""

import json
import os
from pathlib import Path

import pytest
import quiet
import soundfile
import soxr
from commandline import SCENARIOS, turngap

from turngap.backends.weights import state_of
from turngap.core.audio import Pcm
from turngap_services.loading import pinned
from turngap_services.sound import RATE

pytestmark = pytest.mark.realtime  # after the quick tests, beside which they are laid out
SENTENCE = "What else have I planned for that day?"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the weights, in which engines look for them."""
    folder = Path(os.environ.get("TURNGAP_WEIGHTS") or "none")
    if not folder.is_dir():
        pytest.skip("no published weights: set TURNGAP_WEIGHTS to a DIR of tools/published-weights")
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def need(kind: str, name: str) -> None:
    weights = pinned(kind, name)
    assert weights is not None
    if not state_of(weights).complete:
        why = os.environ.get("TURNGAP_WEIGHTS_LACK") or "run tools/published-weights again"
        pytest.skip(f"TURNGAP_WEIGHTS lacks {kind} {name}: {why}")


def heard(model: str, pcm: Pcm) -> int:
    """Return how many of the sentence's words a recogniser hears."""
    from turngap_services.stt import WhisperSettings
    from turngap_services.stt.whisper import reader_of

    text = reader_of(WhisperSettings(model=model)).read(pcm).text
    return sum(word.strip("?") in text.lower() for word in SENTENCE.lower().split())


@pytest.mark.unhurried
@pytest.mark.parametrize("model", ["tiny.en", "base"])
def test_whisper_reads_a_recording_of_the_library(model: str) -> None:
    need("whisper", model)
    pcm, rate = soundfile.read(SCENARIOS / "day-planner/4.flac", dtype="int16")
    assert heard(model, soxr.resample(pcm, rate, RATE)) >= 6


@pytest.mark.unhurried
def test_piper_says_a_sentence_that_whisper_understands() -> None:
    need("piper", "en_US-joe-medium")
    need("whisper", "tiny.en")
    from turngap_services.tts import PiperSettings
    from turngap_services.tts.piper import speak

    pcm, rate = speak(PiperSettings(voice="en_US-joe-medium"), SENTENCE)
    assert 1 < len(pcm) / rate < 5
    assert heard("tiny.en", soxr.resample(pcm, rate, RATE)) >= 6


def test_local_plays_a_call_without_a_hub(tmp_path: Path) -> None:
    need("piper", "en_US-joe-medium")
    need("whisper", "tiny.en")
    # No server of this machine's may answer, nor a voice of this user's.
    alone = ("--set", "llm.ports=[]", "--set", f"tts.voices={tmp_path}")
    measure = ("--calibration", "0", "--starved-ms", "1000", "--out", tmp_path)
    done = turngap("replay", "phone-number", "--agent", "local", "--json", *alone, *measure)
    assert "Traceback" not in done.err
    assert "fetch" not in done.err
    turns = json.loads(done.out)["turns"]
    with quiet.measured():  # a reading that is late is an error of the turn, and of the command
        quiet.exited(done.code, done.err, *quiet.PLAYED)
        assert [turn["error"] for turn in turns] == [None] * len(turns)
        assert all(turn["reply"] and turn["transcript"] for turn in turns)
