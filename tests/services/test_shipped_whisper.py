"""The Whisper in the repository: what the recipe says it is, and that it really reads."""

import json
from pathlib import Path

import pytest

from training.whisper.read import Count, count, recordings, takes
from training.whisper.recipe import Recipe
from training.whisper.speech import HELD_OUT, library_sentences
from turngap_services.stt import WhisperSettings
from turngap_services.stt.whisper import Reader

MODEL = Path(__file__).parents[2] / "models" / "whisper"


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(WhisperSettings(model=str(MODEL)))


def told() -> dict[str, Count]:
    return json.loads((MODEL / "made.json").read_text(encoding="utf-8"))["read"]


def test_it_was_made_by_the_recipe_that_is_in_the_code() -> None:
    made = json.loads((MODEL / "made.json").read_text(encoding="utf-8"))
    assert made["recipe"] == Recipe().as_json()
    extractor = json.loads((MODEL / "preprocessor_config.json").read_text(encoding="utf-8"))
    assert extractor["chunk_length"] == Recipe().window_s
    assert extractor["hop_length"] == Recipe().hop


def test_it_is_as_small_as_was_promised() -> None:
    assert sum(file.stat().st_size for file in MODEL.iterdir()) < 3.5e6


def test_it_reads_the_recordings_of_the_library(reader: Reader) -> None:
    read = count(reader, recordings())
    assert read["words"] == told()["the library's recordings"]["words"]
    assert read["wer"] <= 0.05


def test_it_reads_a_voice_that_it_never_heard(reader: Reader) -> None:
    assert count(reader, takes(library_sentences(), [HELD_OUT]))["wer"] <= 0.1
