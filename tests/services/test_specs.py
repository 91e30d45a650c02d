import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from commandline import turngap_here
from faster_whisper.utils import _MODELS
from running_line import InstantClock

from turngap.agent.stack import load_stack, resolved, stack_files
from turngap.backends import GROUP, KINDS, BackendSpec, Need, find, specs
from turngap.backends.weights import is_commit
from turngap.core.errors import AgentError, InputError
from turngap_services import SPECS
from turngap_services.loading import pinned, pinned_names
from turngap_services.stt import WhisperSettings
from turngap_services.tts import PiperSettings

ENGINES = (
    "pipecat",
    "pocketsphinx",
    "espeakng_loader",
    "piper",
    "rapidfuzz",
    "numpy",
    "onnxruntime",
    "faster_whisper",
)
BY_NAME = {spec.name: spec for spec in SPECS}


def test_every_kind_has_an_engine_and_the_registry_has_them_all() -> None:
    assert {spec.kind for spec in SPECS} == set(KINDS)
    assert set(SPECS) <= set(specs())
    assert [entry.load() for entry in entry_points(group=GROUP)].count(SPECS) == 1


def test_listing_the_engines_imports_none() -> None:
    code = (
        "import sys, turngap_services\n"
        "assert len(turngap_services.SPECS) >= 5\n"
        "assert {n.kind for spec in turngap_services.SPECS for n in spec.missing()} <= {'env'}\n"
        f"print([m for m in {ENGINES} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_unknown_settings_are_refused_with_those_there_are(spec: BackendSpec) -> None:
    with pytest.raises(InputError, match="extra_thing") as e:
        spec.settings({"extra_thing": 1})
    assert e.value.kind == "backend.settings"
    assert "library" in e.value.hint


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("vad", {"stop_secs": -0.1}),
        ("vad", {"confidence": 1.5}),
        ("smart-turn", {"wait_secs": 0}),
        ("pocketsphinx", {"cmninit": "forty"}),
        ("pocketsphinx", {"pre_roll_ms": -1}),
        ("whisper", {"language": "English"}),
        ("whisper", {"compute_type": "int4"}),
        ("whisper", {"window": "half"}),
        ("whisper", {"model": ""}),
        ("sim", {"tokens_per_s": 0}),
        ("vllm", {"base_url": "127.0.0.1:8000"}),
        ("vllm", {"max_tokens": 0}),
        ("sim", {"default_reply": ""}),
        ("espeak", {"pitch": 101}),
        ("espeak", {"lead_in_ms": -1}),
        ("espeak", {"realtime_factor": 0}),
        ("piper", {"voice": ""}),
        ("piper", {"length_scale": 0}),
        ("piper", {"speaker": -1}),
    ],
)
def test_settings_out_of_range_are_refused_by_key(name: str, values: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(values))):
        BY_NAME[name].settings(values)


@pytest.mark.parametrize(
    ("name", "module", "remedy"),
    [
        ("pocketsphinx", "pocketsphinx", "pip install 'turngap[embedded]'"),
        ("espeak", "espeakng_loader", "pip install 'turngap[embedded]'"),
        ("sim", "rapidfuzz", "pip install 'turngap[agent]'"),
        ("piper", "piper", "pip install 'turngap[piper]'"),
        ("whisper", "faster_whisper", "pip install 'turngap[whisper]'"),
    ],
)
def test_a_missing_engine_is_an_instruction(
    name: str, module: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda m, *a: None if m == module else really(m, *a)
    )
    with pytest.raises(AgentError, match=f"needs module {module}") as e:
        BY_NAME[name].require()
    assert e.value.hint == remedy


def test_a_command_that_settings_may_do_without_is_shown_and_not_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = BY_NAME["vllm"]
    (need,) = spec.by_default
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    here = tmp_path / need.name
    lacking = replace(spec, by_default=(replace(need, name=str(here)),))
    monkeypatch.setattr("turngap.backends.specs", lambda: (lacking,))
    lacking.require()
    (row,) = turngap_here(capsys, "backends", "--json").document()
    assert row["available"] is True
    assert (row["missing"], row["missing_by_default"]) == ([], [str(here)])
    assert row["remedy"] == [need.remedy]
    shown = turngap_here(capsys, "backends").out
    assert "not by default" in shown
    assert need.remedy in shown
    here.parent.mkdir(parents=True, exist_ok=True)
    here.touch(0o755)
    (row,) = turngap_here(capsys, "backends", "--json").document()
    assert row["missing_by_default"] == []


def test_what_an_engine_lacks_is_listed_with_a_command_that_can_be_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = "pip install 'turngap[piper]' and a voice of some length, as its own page has it"
    lacking = replace(BY_NAME["piper"], requires=(Need("module", "no_such_module", remedy),))
    monkeypatch.setattr("turngap.backends.specs", lambda: (lacking, BY_NAME["espeak"]))
    monkeypatch.setenv("COLUMNS", "60")
    shown = turngap_here(capsys, "backends").out
    assert "piper lacks no_such_module" in shown
    assert f"\n  {remedy}\n" in shown
    assert "espeak lacks" not in shown


@pytest.mark.parametrize("name", [name for name in _MODELS if name != "distil-large-v2"])
def test_a_size_is_the_repository_that_faster_whisper_takes_and_pinned(name: str) -> None:
    weights = BY_NAME["whisper"].downloads(WhisperSettings(model=name))[0]
    owner, repository = _MODELS[name].split("/")
    # The hub has renamed one owner, and leads there from the old name.
    assert weights.repository == f"{owner.replace('mobiuslabsgmbh', 'dropbox-dash')}/{repository}"
    assert is_commit(weights.revision)
    (model,) = (file for file in weights.files if file.path == "model.bin")
    assert model.size and model.sha256
    assert weights.licence == "MIT"


def test_pins_are_digests_and_commits() -> None:
    for kind in ("whisper", "piper", "llm"):
        for name in pinned_names(kind):
            weights = pinned(kind, name)
            assert weights is not None
            assert is_commit(weights.revision)
            assert weights.licence
            assert not weights.pins
            digests = [file.sha256 for file in weights.files if file.sha256 is not None]
            assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)


PINS = f"""[piper.mine]
repository = "a/b"
revision = "{"0" * 40}"
licence = "MIT"
files = [{{ path = "mine.onnx", size = 5, sha256 = "{"a" * 64}" }}]
"""


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (PINS, "x", "Expected '=' after a key"),
        (PINS, "[piper]\nmine = 1", "piper.mine: "),
        (PINS, "[piper.mine]\nfiles = []", "piper.mine.repository: missing"),
        ('"a/b"', "5", "piper.mine.repository: expected a valid string"),
        ('"a/b"', '"../b"', "piper.mine.repository: "),
        ("0" * 40, "main", "piper.mine.revision: "),
        ("size = 5", 'size = "big"', "piper.mine.files.0.size: expected a valid integer"),
        ("size = 5", "size = 0", "piper.mine.files.0.size: expected greater than 0"),
        ("size = 5", "length = 5", "piper.mine.files.0.length: unknown key"),
        ("a" * 64, "ABC", "piper.mine.files.0.sha256: "),
        ("mine.onnx", "../../../mine.onnx", "piper.mine.files.0.path: expected a path in"),
        ("mine.onnx", "/mine.onnx", "piper.mine.files.0.path: expected a path in"),
    ],
)
def test_pins_that_pin_nothing_are_refused(
    right: str, wrong: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text(PINS.replace(right, wrong))
    monkeypatch.setenv("TURNGAP_PINS", str(pins))
    with pytest.raises(InputError, match="is no file of pins") as e:
        pinned("piper", "mine")
    assert words in e.value.message
    assert e.value.kind == "weights.pins"


def test_other_pins_take_their_place_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "pins.toml"
    monkeypatch.setenv("TURNGAP_PINS", str(pins))
    with pytest.raises(InputError, match="is no file of pins"):
        pinned("piper", "mine")
    pins.write_text(PINS)
    weights = pinned("piper", "mine")
    assert weights is not None
    assert (weights.repository, weights.pins) == ("a/b", str(pins))


def test_weights_that_are_files_here_are_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "en_US-ljspeech-medium.onnx").touch()
    assert BY_NAME["piper"].downloads(PiperSettings(voices=tmp_path)) == []
    assert BY_NAME["piper"].downloads(PiperSettings(voice="./mine.onnx")) == []
    assert BY_NAME["whisper"].downloads(WhisperSettings(model=str(tmp_path))) == []


def test_what_is_not_pinned_is_looked_for_on_the_hub(tmp_path: Path) -> None:
    voice = PiperSettings(voice="de_DE-thorsten-medium", voices=tmp_path)
    (weights,) = BY_NAME["piper"].downloads(voice)
    assert weights.patterns[0] == "de/de_DE/thorsten/medium/de_DE-thorsten-medium.onnx"
    (weights,) = BY_NAME["whisper"].downloads(WhisperSettings(model="somebody/whisper"))
    assert (weights.repository, weights.files) == ("somebody/whisper", ())
    with pytest.raises(InputError, match="no piper voice 'nobody'"):
        BY_NAME["piper"].downloads(PiperSettings(voice="nobody", voices=tmp_path))


@pytest.mark.parametrize(
    ("name", "licence"),
    [
        ("espeak", "GPL-3.0-or-later"),
        ("piper", "GPL-3.0-or-later AND MIT"),
    ],
)
def test_copyleft_in_the_process_is_declared(name: str, licence: str) -> None:
    assert BY_NAME[name].licence == licence


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_every_licence_is_an_spdx_expression(spec: BackendSpec) -> None:
    known = r"(BSD-2-Clause|MIT|Apache-2\.0|L?GPL-[23]\.[01]-or-later)"
    assert re.fullmatch(rf"{known}( AND {known})*", spec.licence)


@pytest.mark.parametrize("name", ["embedded", "stock"])
def test_the_stacks_are_complete_and_their_engines_run_here(name: str) -> None:
    assert name in stack_files()
    for spec, settings in resolved(load_stack(name), None):
        assert find(spec.kind, spec.name) is spec
        if spec.prepare is not None:
            spec.prepare(settings)
        assert spec.create(settings, InstantClock()) is not None


def test_the_stacks_differ_in_the_agent_and_not_in_its_stt_llm_and_tts() -> None:
    embedded, stock = load_stack("embedded"), load_stack("stock")
    for kind in ("stt", "llm", "tts"):
        assert embedded.engine(kind).backend == stock.engine(kind).backend
    assert (embedded.turn.backend, stock.turn.backend) == ("adaptive", "smart-turn")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.name}")
def test_every_setting_is_described(spec: BackendSpec) -> None:
    fields = spec.settings_type.model_fields
    assert [name for name, field in fields.items() if not field.description] == []
