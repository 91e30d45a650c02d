"""`turngap fetch`, from the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import ROOT, turngap, turngap_here
from hub import VOICE, Hub

from turngap.core.errors import ExitCode
from turngap.play.doctor import wanted_by

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as hub:
        hub.use(monkeypatch, tmp_path / "hub")
        hub.add_folder("Systran/faster-whisper-tiny.en", ROOT / "models/whisper")
        hub.add("rhasspy/piper-voices", {VOICE: b"voice", f"{VOICE}.json": b"{}"})
        monkeypatch.setenv("TURNGAP_PINS", str(hub.write_pins(tmp_path / "pins.toml")))
        yield hub


def test_it_lists_what_it_fetches_and_then_where_it_lies(
    hub: Hub, tmp_path: Path, capsys: Capsys
) -> None:
    done = turngap_here(capsys, "fetch", "whisper,model=tiny.en", "piper")
    assert done.code == 0
    listed = done.err.splitlines()
    assert listed[0].startswith(f"fetching from 127.0.0.1:{hub.port} to {tmp_path / 'hub'} (")
    assert listed[1].startswith("  whisper tiny.en, 3 MB, Systran/faster-whisper-tiny.en at ")
    assert "licence: MIT" in listed[1]
    assert listed[2].endswith("licence: MIT; made from recordings in the public domain")
    assert listed[3] == f"  pins from {tmp_path / 'pins.toml'}, in place of turngap's own"
    assert listed[4] == "fetched; it is used without a network from now on"
    folder = Path(done.out.splitlines()[0].removeprefix("whisper tiny.en: "))
    assert (folder / "model.bin").is_file()


def test_json_is_one_document_and_a_second_time_nothing_is_said(
    hub: Hub, tmp_path: Path, capsys: Capsys
) -> None:
    done = turngap("fetch", "piper", "--json")
    (row,) = done.document()
    assert row["name"] == "piper en_US-ljspeech-medium"
    assert Path(row["folder"], VOICE).read_bytes() == b"voice"
    again = turngap_here(capsys, "fetch", "piper", "--json")
    assert again.document() == [row]
    assert again.err == ""


def test_an_agent_that_fetches_shows_it_and_not_within_its_own_document(
    hub: Hub, capsys: Capsys, tmp_path: Path
) -> None:
    hub.faults.corrupt = True
    done = turngap_here(
        capsys, "replay", "--set", "stt=whisper", "--set", "stt.model=tiny.en", "--json"
    )
    assert done.code == 4
    assert done.document()["error"]["kind"] == "weights.digest"
    assert "whisper tiny.en, 3 MB" in done.err


@pytest.mark.parametrize(
    "what", ["nope", "embeded", "whisper,modl=tiny.en", "whisper,model=gigantic"]
)
def test_what_there_is_not_is_bad_input(what: str, capsys: Capsys) -> None:
    done = turngap_here(capsys, "fetch", what)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_an_agent_without_weights_needs_none(capsys: Capsys) -> None:
    assert "nothing has to be fetched" in turngap_here(capsys, "fetch", "embedded").out


@pytest.mark.parametrize("what", ["gpu", "local", "whisper,model=a/b", "piper,voice=en_US-amy-low"])
def test_without_a_network_the_way_by_a_folder_names_what_is_missing(
    what: str, hub: Hub, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("TURNGAP_PINS")
    wanted = wanted_by(what)
    named = " ".join(weights.fetched_as for weights in wanted)
    done = turngap_here(capsys, "fetch", what)
    assert done.code == ExitCode.AGENT_FAILED
    assert f"`HF_HUB_CACHE=weights turngap fetch {named}` where" in done.err
    assert [each for name in named.split() for each in wanted_by(name)] == wanted
