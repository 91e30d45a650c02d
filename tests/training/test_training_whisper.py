"""The parts of the Whisper training that need no torch."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from training.whisper.canned import SHAPES, make_canned
from training.whisper.files import END, NO_TIMESTAMPS, START, make_tokenizer, mark
from training.whisper.read import count, takes
from training.whisper.recipe import Recipe
from training.whisper.speech import (
    HELD_OUT,
    LEAD_MS,
    RATE,
    TAIL_MS,
    TRAINED,
    Voice,
    available,
    library_sentences,
    noise,
    on_the_line,
    sentences,
    speak,
    unseen_sentences,
)
from training.whisper.takes import Take, heard, planned
from turngap.core.audio import audible_end, audible_onset, rms_dbfs
from turngap.core.errors import InputError
from turngap_services.stt import WhisperSettings
from turngap_services.stt.whisper import Reader, Text
from turngap_services.text import spoken_words


def test_the_vocabulary_writes_anything_and_its_own_sentences_in_few_pieces() -> None:
    tokenizer = make_tokenizer(["turn off the lights", "turn on the lights"], 300)
    for text in (" turn off the lights", " Zoë's naïve 42 ♪ 「x」"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == text
    assert len(tokenizer.encode(" turn off the lights").ids) == 4


def test_its_marks_come_in_the_order_that_both_libraries_rely_on() -> None:
    tokenizer = make_tokenizer(["hello"], 300, room=1000)
    end, start, plain = (mark(tokenizer, each) for each in (END, START, NO_TIMESTAMPS))
    assert (end, start) == (1000, 1001)
    assert mark(tokenizer, "<|0.00|>") == plain + 1
    assert mark(tokenizer, "<|30.00|>") == tokenizer.get_vocab_size() - 1
    for each in ("<|translate|>", "<|transcribe|>", "<|startofprev|>", "<|nospeech|>"):
        assert start < mark(tokenizer, each) < plain


def test_a_model_of_tinys_shape_writes_its_text(tmp_path: Path) -> None:
    make_canned(tmp_path, text="so it is", token_ms=0, shape=SHAPES["tiny"])
    reader = Reader(WhisperSettings(model=str(tmp_path)))
    noise = np.random.default_rng(0).normal(0, 3000, RATE).astype(np.int16)
    noise[: RATE // 10] = 0
    assert reader.read(noise).text == "so it is"
    assert (tmp_path / "tokenizer.json").is_file()
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() < 2000


def test_a_text_that_is_too_long_to_be_canned_is_refused(tmp_path: Path) -> None:
    words = " ".join(f"{a}{b}" for a, b in itertools.permutations("abcdefghi", 2))
    with pytest.raises(ValueError, match="at most 62 can be canned"):
        make_canned(tmp_path, text=words)


def test_training_hears_the_library_and_is_tried_with_other_sentences() -> None:
    made = sentences(800, 3)
    assert made == sentences(800, 3)
    assert len(made) == 800
    library = set(library_sentences())
    share = sum(text in library for text in made) / len(made)
    assert 0.2 < share < 0.35
    unseen = unseen_sentences(60, 3, set(made))
    assert len(unseen) == 60
    assert not set(unseen) & set(made)
    assert HELD_OUT not in TRAINED
    # What the letters of the training cannot spell would be refused there.
    assert {c for text in (*made, *unseen) for c in text} <= set(" abcdefghijklmnopqrstuvwxyz'")


def test_a_voice_speaks_from_the_first_to_the_last_audible_sample() -> None:
    voice = next(v for v in TRAINED if v.engine == "espeak-ng")
    slow, quick = (speak(voice, "turn off the kitchen lights", pace) for pace in (0.8, 1.2))
    assert len(slow) > 1.2 * len(quick)
    for pcm in (slow, quick):
        assert audible_onset(pcm, RATE) == 0
        assert audible_end(pcm, RATE) == len(pcm) - 1
    with pytest.raises(InputError, match="no variant"):
        speak(Voice("espeak-ng", "en-us+nobody"), "hello", 1.0)


def test_a_line_adds_silence_and_noise_and_the_same_again_from_the_same_seed() -> None:
    speech = np.random.default_rng(0).normal(0, 3000, RATE).astype(np.int16)
    one, two = (on_the_line(speech, np.random.default_rng(5), gently=True) for _ in range(2))
    assert np.array_equal(one, two)
    assert len(one) > len(speech)
    tail = one[-600:]
    assert rms_dbfs(tail) == pytest.approx(-58, abs=2)
    loudest = max(
        rms_dbfs(on_the_line(speech, np.random.default_rng(n), gently=False)[-600:])
        for n in range(20)
    )
    assert loudest > -50


def test_a_room_is_noisier_and_its_people_are_of_any_size() -> None:
    speech = np.random.default_rng(0).normal(0, 3000, RATE).astype(np.int16)
    lengths = [len(on_the_line(speech, np.random.default_rng(n), gently=False)) for n in range(40)]
    silence = LEAD_MS[1] + TAIL_MS[1]
    assert min(lengths) < RATE + RATE * silence // 2000 < max(lengths)
    assert max(lengths) < 1.1 * RATE + silence * RATE / 1000
    spectra = []
    for slope in (0.0, 1.0):
        power = np.abs(np.fft.rfft(noise(RATE, slope, np.random.default_rng(1)))) ** 2
        spectra.append(power[100:400].sum() / power[1600:6400].sum())
    # Four octaves up a pink noise has, in bands 16 times as wide, as much power; a white one more.
    assert spectra[0] == pytest.approx(1 / 16, rel=0.2)
    assert spectra[1] == pytest.approx(1, rel=0.2)


def test_the_takes_of_the_training_are_those_of_the_recipe() -> None:
    recipe = Recipe(utterances=600)
    plan = planned(recipe)
    assert plan == planned(recipe)
    assert len(plan) == 600
    assert {take.voice for take in plan} == set(TRAINED)
    assert 60 < sum(len(take.parts) == 2 for take in plan) < 120
    assert 5 < sum(take.breaks_off for take in plan) < 60
    whole = set(sentences(600, recipe.seed))
    assert all(take.text in whole for take in plan if len(take.parts) == 2)


def test_a_pause_is_silent_and_a_cut_sentence_ends_before_it() -> None:
    voice = available(TRAINED)[0]
    apart = Take(("turn off", "the kitchen lights"), voice, 1.0, pause_ms=500.0)
    pcm = apart.recorded()
    silent = np.flatnonzero(pcm == 0)
    assert apart.text == "turn off the kitchen lights"
    pause = max(np.split(silent, np.flatnonzero(np.diff(silent) > 1) + 1), key=len)
    assert len(pause) == pytest.approx(RATE / 2, abs=100)
    # The same words at the end of a sentence are said longer.
    broken_off = Take(("turn off",), voice, 1.0, breaks_off=True).recorded()
    said_last = Take(("turn off",), voice, 1.0).recorded()
    assert abs(len(broken_off) - pause[0]) < abs(len(said_last) - pause[0])


def test_takes_are_recorded_once_and_those_that_do_not_fit_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def say(voice: Voice, text: str, pace: float) -> np.ndarray:
        made.append(text)
        return np.full(RATE * len(text.split()), 1000, np.int16)  # a second a word

    monkeypatch.setattr("training.whisper.takes.speak", say)
    monkeypatch.setattr("training.whisper.takes.available", list)
    recipe = Recipe(utterances=30)
    first = heard(recipe, tmp_path)
    assert 0 < len(first) < 30
    assert all(len(text.split()) <= recipe.window_s - 1 for text, _ in first)
    assert len(made) >= 30
    made.clear()
    for (text, pcm), (again, same) in zip(first, heard(recipe, tmp_path), strict=True):
        assert text == again
        assert np.array_equal(pcm, same)
    assert made == []
    heard(replace(recipe, seed=12), tmp_path)
    assert made


def test_without_flite_no_other_takes_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(SystemExit, match="apt-get install flite"):
        heard(Recipe(utterances=10), tmp_path)


def test_the_rates_rise_stay_and_fall_to_nothing() -> None:
    recipe = Recipe(steps=100, warmup=10, falling=20)
    heights = [recipe.height_at(step) for step in range(100)]
    assert heights[0] == pytest.approx(0.1)
    assert heights[9:81] == [1.0] * 72
    assert heights[90] == pytest.approx(0.5)
    assert 0 < heights[99] < 0.1
    assert recipe.as_json()["steps"] == 100


def test_a_run_may_become_longer_until_its_rates_fall() -> None:
    short, long = Recipe(steps=100, falling=20), Recipe(steps=200, falling=20)
    assert long.continues(short, 80)
    assert short.continues(long, 80)
    assert not long.continues(short, 81)
    assert short.continues(short, 99)
    assert not long.continues(replace(short, seed=1), 10)


class Parrot:
    """Reads the same into everything."""

    def read(self, pcm: np.ndarray) -> Text:
        return Text("Turn off the lights.")


def test_wrong_words_are_counted_without_marks_and_capitals() -> None:
    voice = available(TRAINED)[:1]
    spoken = takes(["turn off the lights", "turn on the light"], voice)
    counted = count(Parrot(), spoken)  # type: ignore
    assert counted == {"wrong": 2, "words": 8, "wer": 0.25}
    assert spoken_words("Turn off the lights.") == ["turn", "off", "the", "lights"]
