"""Unknown utterances are not turned into the nearest sentence."""

import json
from dataclasses import replace

import numpy as np
import pytest

from training.unknown.takes import read, sentences
from training.whisper.speech import Voice, speak
from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir, library_paths
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import Recogniser
from turngap_services.stt.sentences import FEATURES, Heard, Known, Word, library_model, shipped

RATE = 16_000
SETTINGS = PocketsphinxSettings(pre_roll_ms=300)
# Two voices that nothing was recorded with, calibrated or fitted on.
VOICES = ("en-us+Annie", "en-us+michel")
LEAD_MS, TAIL_MS = 500, 500

SENTENCES = (("what", "time", "is", "it"), ("call", "a", "taxi"))
WORD = Word("call", frames=30, phones=3, sound=-0.1, order=-0.01)


def take(pcm: Pcm, start_ms: float = 0, end_ms: float | None = None) -> tuple[Pcm, float, float]:
    """The sound on a line that is never quite silent, and where its speech lies."""
    lead, tail = (np.zeros(RATE * ms // 1000, np.int16) for ms in (LEAD_MS, TAIL_MS))
    whole = np.concatenate((lead, pcm, tail)) + np.random.default_rng(0).normal(
        0, 10, len(lead) + len(pcm) + len(tail)
    )
    end_ms = len(pcm) * 1000 / RATE if end_ms is None else end_ms
    heard = np.clip(np.rint(whole), -32768, 32767).astype(np.int16)
    return heard, LEAD_MS + start_ms, LEAD_MS + end_ms


def test_other_sentences_by_unknown_voices_are_refused() -> None:
    model, refused, judged = library_model(None, ()), 0, sentences("judge")[::8]
    for n, text in enumerate(judged):
        spoken = speak(Voice("espeak-ng", VOICES[n % len(VOICES)]), text, 1.0)
        heard = read(Recogniser(model, SETTINGS), take(spoken)).heard
        refused += heard is None or not shipped().knows(heard)
    assert len(judged) >= 6
    assert refused >= 0.8 * len(judged)


def test_no_recording_of_the_library_is_refused() -> None:
    model = library_model(None, ())
    for path in library_paths(library_dir())[::4]:
        loaded = load_scenario(path)
        for turn in loaded.scenario.turns:
            assert turn.speech is not None
            pcm = loaded.clips[turn.audio].at_rate(RATE)
            sound = take(pcm, turn.speech.start_ms, turn.speech.end_ms)
            reading = read(Recogniser(model, SETTINGS), sound)
            assert reading.heard is not None
            assert shipped().knows(reading.heard), f"{turn.say!r} read {reading.text!r}"


def test_a_part_of_a_sentence_fits_and_other_words_do_not() -> None:
    part = replace(WORD, text="time"), replace(WORD, text="it")
    assert Heard(part, 600, SENTENCES).features()["misfit"] == 0
    other = replace(WORD, text="time"), replace(WORD, text="taxi")
    assert Heard(other, 600, SENTENCES).features()["misfit"] == 0.5


def test_sound_that_no_word_explains_counts() -> None:
    assert Heard((WORD,), 300, SENTENCES).features()["unread"] == 0
    assert Heard((WORD,), 1300, SENTENCES).features()["unread"] == 2
    assert Heard((WORD,), 60_000, SENTENCES).features()["unread"] == 4


def test_the_worst_word_and_the_oddest_place_count() -> None:
    odd = replace(WORD, text="a", order=-0.1, sound=-0.3, frames=60, phones=1)
    features = Heard((WORD, odd), 900, SENTENCES).features()
    assert features["oddest"] == pytest.approx(-2)
    assert features["worst"] == pytest.approx(-1.25)
    assert features["drawn"] == pytest.approx(np.log(60))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "known.json holds no fitted parameters"),
        (json.dumps({"about": "", "least_log_odds": 0, "log_odds": {"bias": 1}}), "wrong: drawn"),
        (
            json.dumps({"about": "", "least_log_odds": 0, "log_odds": dict.fromkeys(FEATURES)}),
            "valid number",
        ),
    ],
)
def test_a_broken_file_says_how_to_make_it(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        Known.read(text, "known.json")
    assert "training.unknown.fit" in str(error.value.hint)
