"""faster-whisper with the canned model: what it reads, and what is said when it cannot."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from canned_whisper import TOKEN_MS, WORDS, canned_model, said_until
from damaged_models import cut_short, spoil
from faster_whisper import WhisperModel

from training.whisper.canned import make_canned
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError
from turngap_services.loading import Place
from turngap_services.stt import WhisperSettings
from turngap_services.stt.whisper import Reader, Text, reader_of

RATE = 16_000


def settings(**values: object) -> WhisperSettings:
    given = {"model": str(canned_model()), **values}
    return WhisperSettings(**given)  # type: ignore


@pytest.fixture(scope="module")
def reader() -> Reader:
    return reader_of(settings())


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The model, to be spoilt."""
    return Path(shutil.copytree(canned_model(), tmp_path / "model"))


def sound(ms: float) -> np.ndarray:
    """Noise at -20 dBFS behind half a second of silence, both counted."""
    pcm = np.random.default_rng(0).normal(0, 3277, round(ms * RATE / 1000))
    pcm[: RATE // 2] = 0
    return pcm.astype(np.int16)


@pytest.mark.parametrize("ms", [700, 1100, 2600, 4600])
def test_the_canned_model_reads_a_word_for_every_250_ms(reader: Reader, ms: float) -> None:
    assert reader.read(sound(ms)).text == said_until(ms)
    # What is silent behind it adds nothing.
    silent = np.zeros(RATE, np.int16)
    assert reader.read(np.concatenate([sound(ms), silent])).text == said_until(ms)


def test_it_reads_nothing_in_silence(reader: Reader) -> None:
    assert reader.read(np.zeros(2 * RATE, np.int16)).text == ""


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many frames (10 ms) the encoder was given, each time."""
    seen: list[int] = []
    encode = WhisperModel.encode

    def spy(self: WhisperModel, features: np.ndarray) -> object:
        seen.append(features.shape[1])
        return encode(self, features)

    monkeypatch.setattr(WhisperModel, "encode", spy)
    return seen


def test_a_window_that_fits_reads_the_same_with_less(encoded: list[int]) -> None:
    fitted, whole = reader_of(settings(window="fit")), reader_of(settings(window="full"))
    encoded.clear()  # of the warm-up
    for ms, frames in [(600, 1000), (9000, 900 + 256)]:
        assert fitted.read(sound(ms)) == whole.read(sound(ms)) == Text(said_until(ms))
        narrow, wide = encoded[-2:]
        assert wide == 3000
        assert abs(narrow - frames) <= 2


@pytest.mark.parametrize(("device", "frames"), [("cpu", 1000), ("cuda", 3000)])
def test_auto_is_a_window_that_fits_on_a_cpu_and_the_whole_one_on_a_card(
    device: Literal["cpu", "cuda"], frames: int, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    init = WhisperModel.__init__

    def load(*given: object, device: str, **options: object) -> None:
        init(*given, device="cpu", **options)  # type: ignore

    monkeypatch.setattr("turngap_services.stt.whisper.place", lambda *_: Place(device, "int8"))
    monkeypatch.setattr(WhisperModel, "__init__", load)
    Reader(settings()).read(sound(600))
    assert encoded[-1] == frames


def test_a_text_that_repeats_itself_in_a_narrow_window_is_read_again_in_the_whole_one(
    tmp_path: Path, encoded: list[int]
) -> None:
    make_canned(tmp_path, text=" ".join(["no"] * 50), token_ms=0)
    fitted = Reader(settings(model=str(tmp_path), window="fit"))
    encoded.clear()
    again = fitted.read(sound(3000))
    # First in the same window, with a penalty on what it has written.
    assert encoded == [1000, 1000, 3000]
    assert again.again == "it repeats its last words"
    # Whoever says it in earnest is heard: the whole window is believed.
    assert again.text.split()[:4] == ["no"] * 4


def test_what_is_timed_at_the_start_is_one_reading_however_doubtful(
    encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngap_services.stt.whisper.doubt", lambda *_: "a doubt")
    Reader(settings())
    assert encoded == [1000, 1000, 3000, 1000]


def test_what_a_model_writes_is_bounded_by_what_people_can_say(reader: Reader) -> None:
    assert reader.read(sound(600)).text == said_until(600)
    assert len(reader.read(sound(5000)).text.split()) == len(WORDS)


def test_readings_at_the_same_time_do_not_mix() -> None:
    shared = reader_of(settings(workers=2))
    lengths = [TOKEN_MS * n + 100 for n in range(3, 13)]
    read: dict[float, str] = {}

    def ask(ms: float) -> None:
        read[ms] = shared.read(sound(ms)).text

    threads = [threading.Thread(target=ask, args=(ms,)) for ms in lengths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == {ms: said_until(ms) for ms in lengths}


def test_sessions_share_a_model_whatever_they_hear_with(tmp_path: Path) -> None:
    other = settings(library=tmp_path, pre_roll_ms=0, partial_every_ms=None, pause_ms=100)
    assert reader_of(other) is reader_of(settings())
    assert reader_of(settings(beam_size=2)) is not reader_of(settings())


def test_how_long_it_takes_is_measured(reader: Reader) -> None:
    assert reader.takes_s > 0
    assert reader.window_s == 30
    assert reader.name == "canned"


def without_marks(directory: Path) -> None:
    path = directory / "tokenizer.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    written["added_tokens"] = []
    path.write_text(json.dumps(written), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (shutil.rmtree, "model.missing", "no model directory at"),
        (spoil("model.bin", None), "model.missing", "has no model.bin"),
        (spoil("tokenizer.json", None), "model.missing", "has no tokenizer.json"),
        (cut_short, "model.damaged", "cannot be loaded"),
        (spoil("config.json", b"{"), "model.damaged", "cannot be loaded"),
        (spoil("vocabulary.json", None), "model.damaged", "cannot be loaded"),
        (spoil("tokenizer.json", b"{}"), "model.damaged", "cannot be loaded"),
        (without_marks, "model.damaged", "tokenizer.json has no <|startoftranscript|>"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_clear_line(
    copied: Path, change: Callable[[Path], None], kind: str, words: str
) -> None:
    change(copied)
    with pytest.raises(AgentError) as e:
        Reader(settings(model=str(copied)))
    assert words in e.value.message
    assert e.value.kind == kind
    assert "\n" not in e.value.message
    assert e.value.hint
    assert e.value.exit_code == ExitCode.AGENT_FAILED


@pytest.mark.parametrize(
    ("values", "error", "kind"),
    [
        ({"model": "enormous"}, InputError, "model.unknown"),
        ({"language": "de"}, InputError, "model.language"),
        ({"model": "../no/tiny.en"}, AgentError, "model.missing"),
    ],
)
def test_settings_that_the_model_cannot_have_are_refused_by_name(
    values: dict[str, object], error: type[TurngapError], kind: str
) -> None:
    with pytest.raises(error) as e:
        Reader(settings(**values))
    assert e.value.kind == kind
    assert e.value.hint
    assert "\n" not in e.value.message


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (RuntimeError("CUDA failed with error out of memory\nat 7"), "cuda.memory", "too little"),
        (MemoryError("std::bad_alloc"), "model.memory", "too little memory"),
        (RuntimeError("no such operator\nat 7"), "model.failed", "failed: no such operator"),
    ],
)
def test_an_engine_that_fails_in_the_middle_is_an_error_of_the_agent(
    error: Exception, kind: str, words: str
) -> None:
    broken = Reader(settings())

    def fail(*_: object) -> tuple[str, float]:
        raise error

    broken._transcribe = fail  # type: ignore
    with pytest.raises(AgentError, match=words) as e:
        broken.read(sound(600))
    assert e.value.kind == kind
    assert "\n" not in e.value.message
    assert "--set stt.model=" in e.value.hint


def test_a_hub_that_cannot_be_reached_is_one_line_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between tries
    # Nobody listens there (tests/conftest.py).
    with pytest.raises(AgentError, match=r"127\.0\.0\.1:9 cannot be reached") as e:
        Reader(WhisperSettings())
    assert "\n" not in e.value.message
    assert "turngap fetch" in e.value.hint
    assert e.value.exit_code == ExitCode.AGENT_FAILED


def test_a_process_that_used_it_ends_cleanly() -> None:
    # CTranslate2 aborts where its threads are left to the interpreter's last collection.
    code = (
        "import sys\n"
        "from turngap_services.stt import WHISPER\n"
        "from turngap_services.stt.whisper import reader_of\n"
        "chosen = WHISPER.settings({'model': sys.argv[1]})\n"
        "WHISPER.prepare(chosen)\n"
        "ring = [reader_of(chosen)]\n"
        "ring.append(ring)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(canned_model())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "terminate" in done.stderr) == (0, False), done.stderr
