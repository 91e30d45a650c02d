"""Files that are too large, too deep or none at all are refused."""

import os
import re
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from turngap.backends import MAX_VALUE, value_of
from turngap.core.errors import InputError
from turngap.core.untrusted import MAX_DEPTH, MAX_TOML_BYTES, parse_toml
from turngap.store import sound as sound_module
from turngap.store.files import read_bytes, read_text, read_toml
from turngap.store.sound import MAX_MS, read_sound
from turngap.store.yaml import load_yaml

HERE = Path("talk.yaml")


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.mkdir()


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (a_pipe, "it is a named pipe, not a file"),
        (a_folder, "Is a directory"),
        (a_loop, "Too many levels of symbolic links"),
        (a_device, "it is a device, not a file"),
        (nothing, "No such file or directory"),
    ],
)
@pytest.mark.parametrize("read", [read_bytes, read_toml, read_sound])
def test_only_a_regular_file_is_read(
    read: Callable[[Path, str], object], make: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "given"
    make(file)
    with pytest.raises(InputError, match=says) as excinfo:
        read(file, "mine")
    assert excinfo.value.kind == ("mine.not_audio" if read is read_sound else "mine.unreadable")
    assert str(file) in str(excinfo.value)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "half a pair \ud800"])
def test_a_name_that_no_file_has_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as excinfo:
        read_bytes(tmp_path / name, "mine")
    str(excinfo.value).encode()


def test_a_file_of_the_kernels_is_read_whatever_size_it_has() -> None:
    assert b"State:" in read_bytes(Path("/proc/self/status"), "input")


def test_a_file_is_not_read_beyond_its_bound(tmp_path: Path) -> None:
    file = tmp_path / "sparse.yaml"
    with file.open("wb") as opened:
        opened.truncate(10 * 2**40)  # ten TiB of nothing
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_bytes(file, "mine")


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(20)
)
YAMLS = [
    (BOMB, 3, "more than 500 keys and values"),
    ("a: &a [*a]", 1, r"\*a contains itself"),
    ("[" * 2**20, 1, f"nested deeper than {MAX_DEPTH}"),
    ("- " * 2**19, 1, f"nested deeper than {MAX_DEPTH}"),
    ("a:\n" + "- x\n" * 600, 501, "more than 500 keys and values"),
    ("a: 1\nb: " + "1" * 5000, 2, "is not a finite number of 64 bits"),
    ("a: 0x" + "f" * 5000, 1, "is not a finite number of 64 bits"),
    ("a: 1\nb: 1e999", 2, "is not a finite number of 64 bits"),
    ("a: .nan", 1, "is not a finite number of 64 bits"),
    ("a: 2026-99-99", 1, "a value that cannot be read"),
    ("a: *nobody", 1, "found undefined alias"),
    ("a: \x07", 1, "special characters are not allowed"),
]


@pytest.mark.parametrize("kind", ["rt", "safe"])
@pytest.mark.parametrize(("text", "line", "says"), YAMLS)
def test_yaml_that_would_run_away_is_refused_with_its_line(
    text: str, line: int, says: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngap.store.yaml.MAX_NODES", 500)
    with pytest.raises(InputError, match=says) as excinfo:
        load_yaml(text, HERE, "mine", kind=kind)  # type: ignore[arg-type]
    assert excinfo.value.kind == "mine.not_yaml"
    assert str(excinfo.value).startswith(f"talk.yaml:{line}: not YAML: ")
    assert len(str(excinfo.value)) < 300


def test_anchors_and_aliases_are_read_as_before() -> None:
    assert load_yaml("a: &x [1, 2]\nb: *x\nc: {<<: {d: 3}}\ne: &x 5\nf: *x", HERE, "mine") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": 3},
        "e": 5,
        "f": 5,
    }


TOMLS = [
    ("a = " + "[" * 100_000, f"nested deeper than {MAX_DEPTH}"),
    ("a = " + "[" * 150 + "]" * 150, f"nested deeper than {MAX_DEPTH}"),
    ("a = " + "{a=" * 50_000, f"nested deeper than {MAX_DEPTH}"),
    (".".join("a" * 30_000) + " = 1", "a key of more than 32 parts (at line 1)"),
    ("b = 1\n[" + " . ".join(['"a"'] * 30_000) + "]", "a key of more than 32 parts (at line 2)"),
    ("a = " + "1" * 5000, "4300 digits"),
    ("a = 0x" + "f" * 5000, "a whole number of more than 64 bits"),
    ("a = 1e999", "inf is not a finite number"),
    ("a = nan", "nan is not a finite number"),
    ("#" * (MAX_TOML_BYTES + 1), f"longer than {MAX_TOML_BYTES} characters"),
]


@pytest.mark.parametrize(("text", "says"), TOMLS)
def test_toml_that_would_run_away_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_toml(text)


@pytest.mark.parametrize(("text", "says"), TOMLS[:-1])
def test_so_is_a_flag(text: str, says: str) -> None:
    flag = text.partition("= ")[2]
    if says.startswith("a key"):
        flag = "{" + text.rpartition("\n")[2].strip("[]").partition(" = ")[0] + " = 1}"
        says = "a key of more"
    if len(flag) > MAX_VALUE:
        says = f"expected at most {MAX_VALUE}"
    with pytest.raises(InputError) as excinfo:
        value_of(flag)
    assert excinfo.value.kind == "backend.value"
    assert says in str(excinfo.value)
    assert len(str(excinfo.value)) < 300


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80", 80),
        ("-9223372036854775808", -(2**63)),
        ('["a", "b"]', ["a", "b"]),
        ("a bare word", "a bare word"),
        ("1\nb = 2", "1\nb = 2"),
        ("[[[", "[[["),
    ],
)
def test_a_flag_is_toml_or_a_bare_word(text: str, value: object) -> None:
    assert value_of(text) == value


@given(st.text(max_size=200))
def test_any_text_is_a_value_or_refused(text: str) -> None:
    for read in (value_of, lambda text: load_yaml(text, HERE, "mine")):
        try:
            read(text)
        except InputError as e:
            assert e.message


# Audio


def header(frames: int, rate: int = 16_000, channels: int = 1) -> bytes:
    """Return the bytes of a WAV file with 16 bits a sample."""
    data = frames * channels * 2
    size = [4, 4, 4, 4, 4, 2, 2, 4, 4, 2, 2, 4, 4]
    values = [b"RIFF", data + 36, b"WAVE", b"fmt ", 16, 1, channels, rate]
    values += [rate * channels * 2, channels * 2, 16, b"data", data]
    return b"".join(
        v if isinstance(v, bytes) else (v % 256**n).to_bytes(n, "little")
        for v, n in zip(values, size, strict=True)
    )


def sparse(file: Path, frames: int, rate: int = 16_000, channels: int = 1) -> Path:
    """A WAV file of silence that takes no room on the disk."""
    with file.open("wb") as opened:
        opened.write(header(frames, rate, channels))
        opened.truncate(44 + frames * channels * 2)
    return file


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many frames were decoded, block by block."""
    blocks: list[int] = []
    read = soundfile.SoundFile.read

    def counting(self: soundfile.SoundFile, frames: int = -1, *args: object, **more: object):
        block = read(self, frames, *args, **more)  # type: ignore[arg-type]
        blocks.append(len(block))
        return block

    monkeypatch.setattr(soundfile.SoundFile, "read", counting)
    return blocks


@pytest.mark.parametrize(
    ("form", "kind", "says"),
    [
        ({"frames": 24 * 3600 * 16_000}, "mine.too_long", "lasts 86400 s, by its header"),
        ({"frames": 1600, "rate": 1}, "mine.rate", "1 samples a second, expected 8000 to 192000"),
        ({"frames": 1600, "rate": 2**31 - 1}, "mine.rate", "2147483647 samples a second"),
        ({"frames": 100, "channels": 1024}, "mine.not_mono", "has 1024 channels, expected 1"),
        ({"frames": 100, "rate": 0}, "mine.not_audio", "is not audio that can be read"),
    ],
)
def test_nothing_is_decoded_of_what_its_header_forbids(
    form: dict[str, int], kind: str, says: str, tmp_path: Path, decoded: list[int]
) -> None:
    with pytest.raises(InputError, match=says) as excinfo:
        read_sound(sparse(tmp_path / "1.wav", **form), "mine")
    assert excinfo.value.kind == kind
    assert decoded == []


def riff(
    data: bytes, *, float_: bool = False, size: int | None = None, before: bytes = b""
) -> bytes:
    """A WAV file at 16 kHz; `size` stands in its header in place of its samples' true one."""
    width = 4 if float_ else 2
    form = struct.pack("<HHIIHH", 3 if float_ else 1, 1, 16_000, 16_000 * width, width, width * 8)
    head = b"WAVEfmt " + struct.pack("<I", len(form)) + form + before + b"data"
    size = len(data) if size is None else size
    return (
        b"RIFF"
        + struct.pack("<I", min(size + 36, 2**32 - 1))
        + head
        + struct.pack("<I", size)
        + data
    )


PCM = np.arange(-4000, 4000, dtype="<i2")
RAW = PCM.tobytes()
LIST = b"LIST" + struct.pack("<I", 5) + b"INFO1"


@pytest.mark.parametrize("size", [len(RAW), 2_000_000_000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_size_that_a_streaming_writer_made_up_is_no_fault(size: int, tmp_path: Path) -> None:
    (tmp_path / "1.wav").write_bytes(riff(RAW, size=size, before=LIST + b"\0"))
    assert np.array_equal(read_sound(tmp_path / "1.wav", "mine").samples[:, 0], PCM)


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (riff(RAW, size=0), "holds no samples, and 16,000 bytes follow", "sox --ignore-length "),
        (riff(RAW, size=1000), "holds 1,000 bytes of samples, and 16,000", "sox --ignore-length "),
        (riff(RAW) + riff(RAW), "a second file begins at byte 16,044", "head -c 16044 "),
        (riff(RAW, size=2**32 - 1) + riff(RAW), "a second file begins at", "head -c 16044 "),
        (riff(RAW, before=LIST), "its chunk 'LIST' of 5 bytes is not padded", ""),
        (riff(PCM.astype("<f4").tobytes(), float_=True), "up to 4,000, expected at most 1", ""),
    ],
)
def test_audio_that_is_not_as_its_header_says_is_refused_with_what_mends_it(
    content: bytes, says: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / "my call.wav"
    file.write_bytes(content)
    with pytest.raises(InputError, match=says) as excinfo:
        read_sound(file, "mine")
    assert excinfo.value.kind == "mine.not_audio"
    assert f"{hint}'{file}'" in excinfo.value.hint or not hint


def test_floats_a_little_over_full_scale_are_cut(tmp_path: Path) -> None:
    loud = np.array([0.5, 1.5, -2.0], dtype="<f4")
    (tmp_path / "1.wav").write_bytes(riff(loud.tobytes(), float_=True))
    assert read_sound(tmp_path / "1.wav", "mine").samples[:, 0].tolist() == [16384, 32767, -32768]


def test_of_a_stereo_call_one_side_is_taken_and_never_a_mix(tmp_path: Path) -> None:
    file = tmp_path / "my call.wav"
    soundfile.write(file, np.zeros((1600, 2)), 16_000)
    with pytest.raises(InputError, match="has 2 channels") as excinfo:
        read_sound(file, "mine")
    assert f"sox '{file}' mono.wav remix 1" in excinfo.value.hint


@pytest.mark.parametrize("form", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_text_in_utf_16_says_so(form: str, tmp_path: Path) -> None:
    for name, read in (("1.yaml", read_text), ("1.toml", read_toml)):
        (tmp_path / name).write_text("name = 'café'\n", encoding=form)
        with pytest.raises(InputError, match="it is UTF-16: save it as UTF-8"):
            read(tmp_path / name, "mine")


def test_a_text_in_another_encoding_says_in_which_line(tmp_path: Path) -> None:
    for name, read in (("1.yaml", read_text), ("1.toml", read_toml)):
        (tmp_path / name).write_text("\n\nname = 'café'\n", encoding="cp1252")
        with pytest.raises(InputError, match="line 3 is not UTF-8: save it as UTF-8"):
            read(tmp_path / name, "mine")
        (tmp_path / name).write_text("name = 'café'\n", encoding="utf-8-sig")
        assert "café" in str(read(tmp_path / name, "mine"))


def flac(file: Path, seconds: float, frames: int | None = None) -> Path:
    """A FLAC file of silence; its header says that it has `frames`."""
    soundfile.write(file, np.zeros(round(seconds * 16_000), np.int16), 16_000)
    if frames is not None:
        raw = bytearray(file.read_bytes())
        raw[21] = (raw[21] & 0xF0) | (frames >> 32)
        raw[22:26] = (frames % 2**32).to_bytes(4, "big")
        file.write_bytes(raw)
    return file


def test_a_small_flac_file_that_decodes_to_gigabytes_is_refused(
    tmp_path: Path, decoded: list[int]
) -> None:
    file = flac(tmp_path / "1.flac", MAX_MS / 1000 + 1)
    assert file.stat().st_size < 300_000
    with pytest.raises(InputError, match="lasts 601 s, by its header; expected at most 600 s"):
        read_sound(file, "mine")
    assert decoded == []


@pytest.mark.parametrize("claimed", [0, 2**36 - 1, 16_000 * 500])
def test_a_header_that_lies_about_the_length_costs_no_memory(tmp_path: Path, claimed: int) -> None:
    file = flac(tmp_path / "1.flac", 1, claimed)
    tracemalloc.start()
    try:
        with pytest.raises(InputError):
            read_sound(file, "mine")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_wav_file_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = tmp_path / "1.wav"
    file.write_bytes(header(2**29) + b"\1\0" * 1600)
    assert read_sound(file, "mine").samples.shape == (1600, 1)


def test_samples_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    for value in (np.nan, np.inf):
        soundfile.write(
            tmp_path / "1.wav", np.array([0, value], np.float32), 16_000, subtype="FLOAT"
        )
        with pytest.raises(InputError, match="samples that are not numbers"):
            read_sound(tmp_path / "1.wav", "mine")


def test_other_formats_are_refused_whatever_their_name(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "1.wav", np.zeros(100), 16_000, format="AU", subtype="PCM_16")
    with pytest.raises(InputError, match="is AU, expected WAV or FLAC"):
        read_sound(tmp_path / "1.wav", "mine")


def test_a_part_of_a_long_file_is_read_alone(tmp_path: Path, decoded: list[int]) -> None:
    file = sparse(tmp_path / "1.wav", 24 * 3600 * 16_000, channels=2)
    part = read_sound(file, "mine", channels=2, part_ms=(3_600_000, 3_601_000))
    assert part.samples.shape == (16_000, 2)
    assert sum(decoded) == 16_000
    beyond = read_sound(file, "mine", channels=2, part_ms=(90_000_000, 90_001_000))
    assert beyond.samples.shape == (0, 2)
    with pytest.raises(InputError, match="expected at most 600 s"):
        read_sound(file, "mine", channels=2, part_ms=(0, MAX_MS + 1000))


def test_blocks_are_put_together_as_they_were(tmp_path: Path, decoded: list[int]) -> None:
    samples = np.random.default_rng(1).integers(-(2**15), 2**15, 200_000, dtype=np.int16)
    soundfile.write(tmp_path / "1.flac", samples, 48_000)
    read = read_sound(tmp_path / "1.flac", "mine")
    assert np.array_equal(read.samples[:, 0], samples)
    assert read.rate == 48_000
    assert max(decoded) <= sound_module._BLOCK < len(samples)
