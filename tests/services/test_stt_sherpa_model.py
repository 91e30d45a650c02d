"""sherpa-onnx with the canned zipformer: what it hears, and files that it cannot use."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import sherpa_onnx
from canned_zipformer import canned_model, said_until
from hypothesis import given, settings
from hypothesis import strategies as st

from training.zipformer.canned import make_canned
from training.zipformer.encoder import write_encoder
from training.zipformer.shape import SHAPES
from training.zipformer.weights import Weights
from turngap.core.audio import Pcm
from turngap.core.errors import AgentError, InputError
from turngap_services.stt.sherpa import SPEC, SherpaSettings
from turngap_services.stt.sherpa.files import files_in, metadata
from turngap_services.stt.sherpa.model import Recogniser, recogniser_of, written

RATE = 16_000
SHAPE = SHAPES["toy"]


def recogniser(**values: object) -> Recogniser:
    return recogniser_of(SherpaSettings(model=str(canned_model()), **values))  # type: ignore


def sound(ms: float, silence_ms: float = 0) -> Pcm:
    """Noise as loud as a voice, then as a quiet room."""
    draw = np.random.default_rng(0)
    loud = draw.normal(0, 3277, round(ms * RATE / 1000))
    return np.concatenate((loud, draw.normal(0, 20, round(silence_ms * RATE / 1000)))).astype(
        np.int16
    )


def heard(pcm: Pcm, packet: int = 320) -> str:
    hearing = recogniser().begin(pcm[:RATE])
    for at in range(0, len(pcm), packet):
        hearing.hear(pcm[at : at + packet])
    return hearing.conclude()


@pytest.mark.parametrize("last_ms", [60, 300, 560, 1070, 2330])
@pytest.mark.parametrize("silence_ms", [0, 250])
def test_the_last_word_is_heard_wherever_the_audio_ends(last_ms: float, silence_ms: float) -> None:
    """A chunk is 320 ms, and the model looks 130 ms ahead: without a tail, words are lost."""
    assert heard(sound(last_ms, silence_ms)) == said_until(last_ms)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 6000), min_size=1, max_size=12))
def test_how_the_audio_is_cut_changes_nothing(cuts: list[int]) -> None:
    pcm = sound(1300, 200)
    hearing = recogniser().begin(pcm[:RATE])
    for piece in np.split(pcm, np.cumsum(cuts)):
        hearing.hear(piece)
    assert hearing.conclude() == said_until(1300)


def test_the_text_grows_while_it_is_spoken_and_silence_is_none() -> None:
    hearing = recogniser().begin(sound(500))
    texts = [hearing.hear(each) for each in np.split(sound(2000), 20)]
    assert texts[0] == ""
    assert 3 < len(set(texts)) <= 7  # at each chunk
    assert all(later.startswith(sooner) for sooner, later in pairwise(texts))
    assert heard(np.zeros(2 * RATE, np.int16)) == ""


def test_a_soft_voice_is_heard_as_a_loud_one() -> None:
    loud = sound(900, 100)
    assert heard((loud / 30).astype(np.int16)) == heard(loud) == said_until(900)


@pytest.mark.parametrize("last_ms", [300, 560, 1070])
def test_in_a_pause_every_word_is_there_and_what_follows_is_heard_too(last_ms: float) -> None:
    hearing = recogniser().begin(sound(last_ms))
    hearing.hear(sound(last_ms, 120))
    assert hearing.rest() == said_until(last_ms)
    more = hearing.hear(np.concatenate((sound(1000), sound(0, 600))))
    assert more.startswith(said_until(last_ms))
    assert len(more) > len(said_until(last_ms))


def test_two_utterances_at_a_time_do_not_mix() -> None:
    one, other = recogniser().begin(sound(500)), recogniser().begin(sound(500))
    for piece in np.split(sound(1530), 30):
        one.hear(piece)
    other.hear(sound(400))
    assert (one.conclude(), other.conclude()) == (said_until(1530), said_until(400))


def test_sessions_share_the_model_and_other_threads_are_another_one() -> None:
    assert recogniser(pre_roll_ms=100.0) is recogniser()
    assert recogniser(threads=2) is not recogniser()


def test_it_says_how_much_it_reads_at_once_and_how_long_an_end_takes() -> None:
    assert recogniser().chunk_ms == 10 * SHAPE.decode_chunk == 320
    assert recogniser().takes_s > 0
    assert recogniser().name == "canned"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AND I WOULD LIKE IT I'VE SAID", "and I would like it I've said"),
        ("Yes,  please. What's the NASA?", "Yes, please. What's the NASA?"),
        (" the fox ", "the fox"),
        ("", ""),
    ],
)
def test_text_is_written_as_people_do(text: str, expected: str) -> None:
    assert written(text) == expected


def broken(path: Path, how: Callable[[Path], None]) -> Path:
    directory = path / "model"
    shutil.copytree(canned_model(), directory)
    how(directory)
    return directory


def halve(name: str) -> Callable[[Path], None]:
    def do(directory: Path) -> None:
        data = (directory / name).read_bytes()
        (directory / name).write_bytes(data[: len(data) // 2])

    return do


def write(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(data) and None  # type: ignore


def without_metadata(name: str, key: str | None = None) -> Callable[[Path], None]:
    def do(directory: Path) -> None:
        model = onnx.load(directory / name)
        kept = [each for each in model.metadata_props if key is not None and each.key != key]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)
        onnx.save(model, directory / name)

    return do


def swap(directory: Path) -> None:
    shutil.copy(directory / "joiner.onnx", directory / "encoder.int8.onnx")


BROKEN = {
    "no encoder": (lambda d: (d / "encoder.int8.onnx").unlink(), "model.missing", "has no encoder"),
    "no joiner": (lambda d: (d / "joiner.onnx").unlink(), "model.missing", "has no joiner"),
    "no tokens": (lambda d: (d / "tokens.txt").unlink(), "model.missing", "has no tokens.txt"),
    "half an encoder": (halve("encoder.int8.onnx"), "model.damaged", "no complete ONNX model"),
    "half a decoder": (halve("decoder.onnx"), "model.damaged", "no complete ONNX model"),
    "an empty joiner": (write("joiner.onnx", b""), "model.damaged", "it is empty"),
    "a web page": (write("encoder.int8.onnx", b"<html>404</html>"), "model.damaged", "ONNX"),
    "another part": (swap, "model.type", "no encoder of a streaming transducer"),
    "no metadata": (without_metadata("encoder.int8.onnx"), "model.type", "model_type: none"),
    "no heads": (without_metadata("encoder.int8.onnx", "num_heads"), "model.type", "num_heads"),
    "no context": (without_metadata("decoder.onnx", "context_size"), "model.type", "context_size"),
    "few tokens": (write("tokens.txt", b"<blk> 0\nthe 1\n"), "model.damaged", "64 tokens"),
    "no tokens file": (write("tokens.txt", b"\xff\xfe"), "model.damaged", "cannot be read"),
    "words": (write("tokens.txt", b"hello\n"), "model.damaged", "cannot be read"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_files_that_it_cannot_use_are_an_error_and_not_the_end_of_the_process(
    tmp_path: Path, what: str
) -> None:
    how, kind, message = BROKEN[what]
    directory = broken(tmp_path, how)  # type: ignore
    with pytest.raises(AgentError, match=message) as e:
        Recogniser(SherpaSettings(model=str(directory)))
    assert e.value.kind == kind
    assert e.value.hint


def test_a_file_that_only_the_engine_finds_damaged_is_an_error_too(tmp_path: Path) -> None:
    def scramble(directory: Path) -> None:
        path = directory / "encoder.int8.onnx"
        model = onnx.load(path)
        model.graph.node[3].op_type = "NoSuchOperation"
        onnx.save(model, path)

    directory = broken(tmp_path, scramble)
    with pytest.raises(AgentError, match="cannot be loaded") as e:
        Recogniser(SherpaSettings(model=str(directory)))
    assert e.value.kind == "model.damaged"


def test_a_name_that_nobody_published_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no streaming model named 'whisper'") as e:
        recogniser_of(SherpaSettings(model="whisper"))
    assert "zipformer-en-2023-06-26" in e.value.hint
    with pytest.raises(AgentError, match="no model directory at /nowhere/model"):
        recogniser_of(SherpaSettings(model="/nowhere/model"))


def test_the_default_is_a_published_model_and_a_directory_downloads_nothing() -> None:
    (published,) = SPEC.downloads(SherpaSettings())
    assert published.licence == "Apache-2.0"
    assert all(file.sha256 for file in published.files)
    assert SPEC.downloads(SherpaSettings(model=str(canned_model()))) == []


@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), RuntimeError("bad allocation")])
def test_too_little_memory_is_said_as_such(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(**_: object) -> None:
        raise error

    monkeypatch.setattr(sherpa_onnx.OnlineRecognizer, "from_transducer", full)
    with pytest.raises(AgentError, match="too little memory") as e:
        Recogniser(SherpaSettings(model=str(canned_model())))
    assert e.value.kind == "model.memory"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_metadata_or_an_error(data: bytes) -> None:
    path = Path(canned_model().parent, "any.onnx")
    path.write_bytes(data)
    try:
        found = metadata(path)
    except AgentError as e:
        assert e.kind == "model.damaged"
    else:
        assert all(isinstance(each, str) for each in found.values())


def test_the_quantized_part_is_taken_where_there_are_several(tmp_path: Path) -> None:
    directory = broken(tmp_path, lambda _: None)
    whole, quantized = directory / "encoder-epoch-99.onnx", directory / "encoder.int8.onnx"
    shutil.copy(quantized, whole)
    assert files_in(directory).encoder == quantized
    quantized.unlink()
    assert files_in(directory).encoder == whole


def test_a_published_shape_has_as_many_parameters_as_published(tmp_path: Path) -> None:
    """icefall: 66,110,931, of which 513,000 are two layers that only training needs."""
    ours = make_canned(tmp_path / "model", shape=SHAPES["en-2023-06-26"])
    assert ours == pytest.approx(66_110_931 - 2 * (512 * 500 + 500), rel=2e-4)
    about = metadata(tmp_path / "model/encoder.int8.onnx")
    assert (about["T"], about["decode_chunk_len"]) == ("45", "32")
    assert about["left_context_len"] == "128,64,32,16,32,64"


def test_a_text_in_which_a_word_comes_twice_cannot_be_canned(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="each once"):
        make_canned(tmp_path, text="the fox and the dog")
    with pytest.raises(ValueError, match="at most 61 words"):
        make_canned(tmp_path, text=" ".join(f"w{n}" for n in range(62)))


def test_the_graph_is_one_that_onnx_finds_right() -> None:
    def finish(w: Weights, _x: str, _heard: str, encoded: str) -> str:
        return w.add("Identity", encoded, name="encoder_out")

    model, _ = write_encoder(replace(SHAPE, joiner=max(SHAPE.widths)), finish)
    onnx.checker.check_model(model, full_check=True)
