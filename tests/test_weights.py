"""Fetching published weights from a hub on loopback, and what may go wrong on the way."""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub import Hub

from turngap.backends import WeightFile, Weights
from turngap.backends.weights import bring, folder_of, hub_cache, state_of
from turngap.core import wording
from turngap.core.errors import AgentError, ExitCode

MODEL = bytes(range(256)) * 4000  # 1 MB: large enough to be kept by LFS
CONFIG = b'{"made": "up"}'
REPOSITORY = "somebody/made-up"
SECRET = "hf_SecretOfTheUser123"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as hub:
        hub.use(monkeypatch, tmp_path / "hub")
        hub.add(REPOSITORY, {"model.bin": MODEL, "config.json": CONFIG, "README.md": b"not wanted"})
        yield hub


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def weights(hub: Hub, **changes: str) -> Weights:
    pins = {"model.bin": sha(MODEL), "config.json": sha(CONFIG), **changes}
    files = (
        WeightFile("model.bin", len(MODEL), pins["model.bin"]),
        WeightFile("config.json", len(CONFIG), pins["config.json"]),
    )
    return Weights("made up", REPOSITORY, hub.repositories[REPOSITORY].commit, files, "MIT")


def unpinned(*patterns: str) -> Weights:
    return Weights("made up", REPOSITORY, "main", patterns=patterns)


def refused(kind: str, wanted: Weights) -> AgentError:
    with pytest.raises(AgentError) as e:
        folder_of(wanted)
    error = e.value
    assert (error.kind, error.exit_code) == (f"weights.{kind}", ExitCode.AGENT_FAILED)
    assert "\n" not in error.message + error.hint
    assert "HF_HUB_CACHE=weights turngap fetch" in error.hint, "the way by a folder is not told"
    for secret in (SECRET, "secret-signature"):
        assert secret not in error.message + error.hint
    return error


def files_below(folder: Path) -> set[str]:
    return {file.name for file in folder.rglob("*") if file.is_file()}


def test_the_files_are_fetched_and_not_what_is_not_wanted(hub: Hub) -> None:
    folder = folder_of(weights(hub))
    assert (folder / "model.bin").read_bytes() == MODEL
    assert files_below(folder) == {"model.bin", "config.json"}


def test_what_is_here_makes_no_connection_and_does_not_import_the_client(hub: Hub) -> None:
    wanted = weights(hub)
    folder_of(wanted)
    asked = len(hub.asked)
    code = (
        "import socket, sys\n"
        "def forbidden(*args): raise AssertionError('a connection')\n"
        "socket.socket.connect = socket.getaddrinfo = forbidden\n"
        "from turngap.backends import WeightFile, Weights\n"
        "from turngap.backends.weights import folder_of\n"
        f"print(folder_of({wanted!r}))\n"
        "assert 'huggingface_hub' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ
    )
    assert Path(done.stdout.strip(), "model.bin").read_bytes() == MODEL
    assert len(hub.asked) == asked


def test_a_copied_folder_of_weights_is_used_without_a_network(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = weights(hub)
    folder_of(wanted)
    # As a stick without links has it: every link is a file, and the times are new.
    shutil.copytree(tmp_path / "hub", tmp_path / "stick", copy_function=shutil.copyfile)
    shutil.rmtree(tmp_path / "hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "stick"))
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert (folder_of(wanted) / "model.bin").read_bytes() == MODEL


def test_files_without_pins_are_those_that_the_hub_lists_and_are_remembered(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = unpinned("*.bin", "config.*")
    folder = folder_of(wanted)
    assert files_below(folder) == {"model.bin", "config.json"}
    assert folder.name == hub.repositories[REPOSITORY].commit
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert folder_of(wanted) == folder


def test_what_was_fetched_of_a_branch_stays_where_the_branch_moves_on(hub: Hub) -> None:
    first = unpinned("*.bin")
    folder = folder_of(first)
    hub.add(REPOSITORY, {"model.bin": MODEL + b"newer", "config.json": CONFIG})
    second = unpinned("config.*")
    assert files_below(folder_of(second)) == {"config.json"}
    assert folder_of(first) == folder
    assert state_of(second).complete


@pytest.mark.parametrize("pinned", [True, False])
def test_a_damaged_file_is_replaced(hub: Hub, pinned: bool) -> None:
    wanted = weights(hub) if pinned else unpinned("*.bin")
    model = folder_of(wanted) / "model.bin"
    model.resolve().write_bytes(MODEL[:-1] + b"x")
    assert [file.path for file in state_of(wanted).damaged] == ["model.bin"]
    assert folder_of(wanted) == model.parent
    assert model.read_bytes() == MODEL


def test_digests_are_calculated_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = weights(hub)
    folder_of(wanted)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("it is read again"))
    assert state_of(wanted).complete


def test_what_another_program_fetched_is_checked_against_the_pins(hub: Hub) -> None:
    # In a process of its own, as the client reads the hub's address when it is imported.
    code = f"import huggingface_hub as h; h.snapshot_download({REPOSITORY!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
    assert state_of(weights(hub)).complete
    (damaged,) = state_of(weights(hub, **{"config.json": sha(b"another")})).damaged
    assert damaged.path == "config.json"


def test_from_python_a_download_is_told_in_the_log(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loguru import logger

    monkeypatch.setattr(wording, "_say", None)  # as the command line may have left it
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    try:
        folder_of(weights(hub))
    finally:
        logger.remove(sink)
    assert lines[0].startswith("fetching from 127.0.0.1:")
    assert lines[1].startswith("  made up, 1 MB, somebody/made-up at ")


def test_it_is_listed_before_the_first_byte(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def say(line: str) -> None:
        if "made up" in line:
            raise KeyboardInterrupt  # somebody who does not like what is listed

    monkeypatch.setattr(wording, "_say", say)
    with pytest.raises(KeyboardInterrupt):
        folder_of(weights(hub))
    assert hub.asked == []


@pytest.mark.parametrize("file", ["model.bin", "config.json"])
def test_a_file_with_a_wrong_digest_is_removed_and_told(hub: Hub, file: str) -> None:
    error = refused("digest", weights(hub, **{file: sha(b"what was published")}))
    assert f"{file} of somebody/made-up" in error.message
    assert "the download was removed" in error.message
    assert files_below(hub_cache() / "models--somebody--made-up" / "snapshots") == {
        "model.bin",
        "config.json",
    } - {file}
    assert (folder_of(weights(hub)) / file).is_file()


def test_a_file_that_is_changed_on_the_way_is_removed(hub: Hub) -> None:
    hub.faults.corrupt = True
    refused("digest", weights(hub))
    hub.faults.corrupt = False
    assert (folder_of(weights(hub)) / "model.bin").read_bytes() == MODEL


def test_a_private_repository_needs_a_token_which_goes_to_the_hub_only(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private.add(REPOSITORY)
    hub.token = SECRET
    assert "HF_TOKEN" in refused("hub", weights(hub)).hint
    monkeypatch.setenv("HF_TOKEN", SECRET)
    folder_of(weights(hub))
    tokens = {asked.path.startswith("/cdn/"): asked.token for asked in hub.asked}
    assert tokens[True] is None


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"repository": "somebody/else"}, "somebody/else"),
        ({"revision": "0" * 40}, "0" * 40),
        ({"files": (WeightFile("gone.bin"),)}, "gone.bin"),
        ({"files": (), "revision": "main", "patterns": ("*.gone",)}, "*.gone"),
    ],
)
def test_what_the_hub_has_not_is_named(hub: Hub, wanted: dict[str, object], words: str) -> None:
    assert words in refused("hub", replace(weights(hub), **wanted)).message  # type: ignore


@pytest.mark.parametrize("pinned", [True, False])
def test_a_login_page_is_no_hub(hub: Hub, pinned: bool) -> None:
    hub.faults.html = True
    assert "is no hub" in refused("hub", weights(hub) if pinned else unpinned("*")).message


def test_a_hub_that_fails_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client tries it again, for 23 s
    hub.faults.status = 500
    assert "HTTP 500" in refused("hub", weights(hub)).message


def test_no_network_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda _: None)  # the client tries it again, for 23 s
    assert "127.0.0.1:9 cannot be reached" in refused("hub", weights(hub)).message


def test_offline_mode_is_kept_to(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "made up" in refused("offline", weights(hub)).message
    assert hub.asked == []


def test_a_cache_that_cannot_be_written_to_is_one_line(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file"))
    assert "HF_HUB_CACHE" in refused("cache", weights(hub)).hint


@pytest.mark.parametrize("content", ["", "[]", '{"files": 1}', '{"files": {"model.bin": 1}}'])
def test_a_damaged_record_only_costs_a_reading(hub: Hub, content: str) -> None:
    wanted = weights(hub)
    folder_of(wanted)
    (record,) = (hub_cache() / "models--somebody--made-up" / "turngap").glob("*.json")
    record.write_text(content)
    assert state_of(wanted).complete
    assert sha(MODEL) in record.read_text()


def test_the_same_weights_twice_are_fetched_once(hub: Hub) -> None:
    first, second = bring([weights(hub), weights(hub)])
    assert first == second
    assert len([a for a in hub.asked if a.method == "GET" and a.path.startswith("/cdn/")]) == 1
