"""`turngap fetch`, from the command line."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import ROOT, turngap, turngap_here
from hub import VOICE, Hub

from turngap.backends import WeightFile, Weights
from turngap.cli import progress
from turngap.core.errors import ExitCode
from turngap.play.weights import wanted_by
from turngap.weights.showing import Item, Plan

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
    assert listed[1].endswith("licence: MIT")
    assert listed[2].endswith("licence: MIT; made from recordings in the public domain")
    assert listed[3] == f"  pins from {tmp_path / 'pins.toml'}, in place of turngap's own"
    assert listed[4].startswith("fetched 3 MB")
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
        capsys, "replay", "--stt", "whisper", "--set", "stt.model=tiny.en", "--json"
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


def test_where_there_is_no_terminal_a_line_is_written_now_and_then(
    capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = Weights("made up", "a/b", "main", (WeightFile("x"),))
    plan = Plan((Item(weights, 4_000_000, 1_000_000, 1),), "hub", Path("/cache"), 10**9, ("odd",))
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.fetching(plan) as told:
        told(1_000_000)
        told(2_000_000)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "fetching from hub to /cache (1.0 GB free):"
    assert said[1] == "  made up, 4 MB, a/b at main; licence: not known here"
    assert said[2] == "    digest not pinned for one file: the hub's own is checked"
    assert said[3] == "    going on after 1 MB"
    assert said[4] == "  odd"
    assert said[6].startswith("3 MB fetched, 2 MB/s, less than a minute left of 4 MB")
    assert said[-1].startswith("fetched 2 MB")


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
