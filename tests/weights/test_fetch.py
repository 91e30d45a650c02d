"""Fetching published weights from a hub on loopback, and all that may go wrong on the way."""

import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hub import Hub

from turngap.backends import WeightFile, Weights
from turngap.core.errors import AgentError, ExitCode
from turngap.weights import cache, fetch, showing
from turngap.weights.cache import state_of
from turngap.weights.fetch import bring, folder_of

MODEL = bytes(range(256)) * 4000  # 1 MB: large enough to be kept by LFS, and for several pieces
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


# --- what is fetched, and used without a network afterwards ---------------------------------------


def test_the_files_are_fetched_checked_and_put_where_the_hubs_client_looks(hub: Hub) -> None:
    from huggingface_hub import hf_hub_download

    folder = folder_of(weights(hub))
    assert (folder / "model.bin").read_bytes() == MODEL
    assert (folder / "config.json").read_bytes() == CONFIG
    assert not (folder / "README.md").exists()
    commit = hub.repositories[REPOSITORY].commit
    found = hf_hub_download(
        REPOSITORY, "model.bin", revision=commit, cache_dir=cache.hub_cache(), local_files_only=True
    )
    assert Path(found) == folder / "model.bin"


def test_what_is_here_makes_no_connection_and_does_not_import_the_client(
    hub: Hub, tmp_path: Path
) -> None:
    wanted = weights(hub)
    folder_of(wanted)
    asked = len(hub.asked)
    code = (
        "import socket, sys\n"
        "def forbidden(*args): raise AssertionError('a connection')\n"
        "socket.socket.connect = socket.getaddrinfo = forbidden\n"
        "from turngap.backends import WeightFile, Weights\n"
        "from turngap.weights.fetch import folder_of\n"
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
    wanted = Weights("made up", REPOSITORY, "main", patterns=("*.bin", "config.*"))
    folder = folder_of(wanted)
    assert files_below(folder) == {"model.bin", "config.json"}
    assert folder.name == hub.repositories[REPOSITORY].commit
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert folder_of(wanted) == folder
    assert state_of(wanted).complete


def test_a_file_without_a_pin_that_differs_from_what_was_fetched_is_damaged(hub: Hub) -> None:
    wanted = Weights("made up", REPOSITORY, "main", patterns=("*.bin",))
    model = folder_of(wanted) / "model.bin"
    model.resolve().write_bytes(MODEL[:-1] + b"x")
    assert [file.path for file in state_of(wanted).damaged] == ["model.bin"]


def test_fetching_needs_no_other_files_of_a_branch_than_it_asks_for(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Weights("first", REPOSITORY, "main", patterns=("*.bin",))
    folder = folder_of(first)
    second = Weights("second", REPOSITORY, "main", patterns=("config.json",))
    assert not state_of(second).complete
    hub.add(REPOSITORY, {"config.json": CONFIG, "model.bin": MODEL + b"newer"})
    assert (folder_of(second) / "config.json").read_bytes() == CONFIG
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert folder_of(first) == folder
    assert state_of(second).complete


def test_a_damaged_file_is_replaced_and_told(hub: Hub) -> None:
    wanted = weights(hub)
    model = folder_of(wanted) / "model.bin"
    model.resolve().write_bytes(b"x" * len(MODEL))
    plans = shown(lambda: folder_of(wanted))
    assert model.read_bytes() == MODEL
    assert "damaged" in plans[0].remarks[0]


def test_another_file_than_the_pinned_one_stays_until_the_right_one_has_come(hub: Hub) -> None:
    folder = folder_of(weights(hub))
    another = weights(hub, **{"config.json": sha(b"another")})
    refused("digest", another)
    hub.faults.status = 503
    refused("hub", another)
    assert (folder / "config.json").read_bytes() == CONFIG
    assert state_of(weights(hub)).complete


def test_digests_are_calculated_once(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = weights(hub)
    folder_of(wanted)
    monkeypatch.setattr(cache, "sha256_of", lambda file: pytest.fail(f"{file} is read again"))
    assert state_of(wanted).complete


def test_what_another_program_fetched_is_checked_against_the_pins(hub: Hub) -> None:
    # In a process of its own, as the client reads the hub's address when it is imported.
    code = f"import huggingface_hub as h; h.snapshot_download({REPOSITORY!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
    assert state_of(weights(hub)).complete
    (damaged,) = state_of(weights(hub, **{"config.json": sha(b"another")})).damaged
    assert damaged.path == "config.json"


# --- what people are shown ------------------------------------------------------------------------


def shown(work: Callable[[], object]) -> list[showing.Plan]:
    plans: list[showing.Plan] = []

    @contextmanager
    def show(plan: showing.Plan) -> Iterator[showing.Told]:
        plans.append(plan)
        yield lambda _: None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(showing, "_show", show)
        work()
    return plans


def test_from_python_a_download_is_a_line_of_the_log(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loguru import logger

    monkeypatch.setattr(showing, "_show", None)  # as the command line may have left them
    monkeypatch.setattr(showing, "_say", None)
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message}")
    try:
        folder_of(weights(hub))
    finally:
        logger.remove(sink)
    (line,) = lines
    assert line.startswith("fetching made up (1 MB) from 127.0.0.1:")


def test_the_plan_comes_before_the_first_byte(hub: Hub) -> None:
    contents: list[int] = []

    def show(plan: showing.Plan) -> AbstractContextManager[showing.Told]:
        contents.append(len(hub.contents_sent()))
        assert plan.bytes == len(MODEL) + len(CONFIG)
        assert plan.hub == hub.endpoint.removeprefix("http://")
        raise KeyboardInterrupt  # somebody who does not like what is listed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(showing, "_show", show)
        folder_of(weights(hub))
    assert contents == [0]
    assert hub.contents_sent() == []


# --- a network that is slow or breaks off ---------------------------------------------------------


def test_a_download_that_breaks_off_goes_on_where_it_was(hub: Hub) -> None:
    hub.faults.cut_after = 300_000
    assert (folder_of(weights(hub)) / "model.bin").read_bytes() == MODEL
    ranges = [asked.range for asked in hub.contents_sent() if asked.path.startswith("/cdn/")]
    assert ranges[0] is None
    assert len(ranges) == 4
    assert None not in ranges[1:]


def test_a_stall_ends_in_an_error_and_the_next_start_goes_on_from_there(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.faults.stall_at = 400_000
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
        error = refused("stalled", weights(hub))
    assert "within 0.2 s" in error.message
    assert "400 kB of it are kept" in error.message
    assert "HF_HUB_DOWNLOAD_TIMEOUT" in error.hint
    hub.faults.stall_at = None
    before = len(hub.contents_sent())
    plans = shown(lambda: folder_of(weights(hub)))
    assert plans[0].begun_bytes == 400_000
    again = [a.range for a in hub.contents_sent()[before:] if a.path.startswith("/cdn/")]
    assert again == ["bytes=400000-"]


def test_a_hub_that_ignores_ranges_is_read_from_the_beginning(hub: Hub) -> None:
    hub.faults.cut_after = 300_000
    hub.faults.ignores_range = True
    refused("stalled", weights(hub))
    hub.faults.cut_after = None
    assert (folder_of(weights(hub)) / "model.bin").read_bytes() == MODEL


def test_an_interrupted_download_leaves_nothing_that_is_taken_for_whole(hub: Hub) -> None:
    wanted = weights(hub)

    @contextmanager
    def interrupted(plan: showing.Plan) -> Iterator[showing.Told]:
        def told(number: int) -> None:
            if number:
                raise KeyboardInterrupt

        yield told

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(showing, "_show", interrupted)
        folder_of(wanted)
    assert not state_of(wanted).complete
    assert all(name.endswith(".turngap-part") for name in files_below(cache.hub_cache() / "blobs"))
    assert (folder_of(wanted) / "model.bin").read_bytes() == MODEL


def test_two_at_once_fetch_each_file_once(hub: Hub) -> None:
    # Each opens the lock's file itself, as two processes do.
    hub.faults.bytes_per_s = 3_000_000
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(folder_of, [weights(hub), weights(hub)])
    assert first == second
    assert len([a for a in hub.contents_sent() if a.path.startswith("/cdn/")]) == 1


def test_who_waits_for_another_process_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    waits = threading.Event()

    def say(line: str) -> None:
        told.append(line)
        waits.set()

    monkeypatch.setattr(showing, "_say", say)
    with ThreadPoolExecutor() as pool:
        with fetch._alone([weights(hub)]):
            folder = pool.submit(folder_of, weights(hub))
            assert waits.wait(60)
        assert (folder.result() / "model.bin").read_bytes() == MODEL
    assert "another process is fetching somebody/made-up" in told[0]


# --- other files than expected --------------------------------------------------------------------


def test_a_file_with_a_wrong_digest_is_removed_and_told(hub: Hub) -> None:
    hub.faults.corrupt = True
    error = refused("digest", weights(hub))
    assert "model.bin of somebody/made-up" in error.message
    assert "what came was removed" in error.message
    assert "model.bin" not in files_below(cache.hub_cache())
    assert not list(cache.hub_cache().rglob("*.turngap-part"))
    hub.faults.corrupt = False
    assert (folder_of(weights(hub)) / "model.bin").read_bytes() == MODEL


def test_a_hub_that_states_another_digest_than_the_pinned_one_sends_nothing(hub: Hub) -> None:
    error = refused("digest", weights(hub, **{"model.bin": sha(b"what was published")}))
    assert "nothing was fetched" in error.message
    assert not [a for a in hub.contents_sent() if a.path.startswith("/cdn/")]


def test_a_small_file_is_checked_as_well(hub: Hub) -> None:
    refused("digest", weights(hub, **{"config.json": sha(b"what was published")}))
    assert "config.json" not in files_below(cache.hub_cache())


def test_without_a_pin_the_hubs_own_digest_is_checked(hub: Hub) -> None:
    hub.faults.corrupt = True
    refused("digest", Weights("made up", REPOSITORY, "main", patterns=("*.bin",)))


# --- a hub that refuses, or is none ---------------------------------------------------------------


def test_a_private_repository_needs_a_token_which_goes_to_the_hub_only(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private.add(REPOSITORY)
    hub.token = SECRET
    assert "HF_TOKEN" in refused("denied", weights(hub)).hint
    monkeypatch.setenv("HF_TOKEN", SECRET)
    folder_of(weights(hub))
    tokens = {asked.path.startswith("/cdn/"): asked.token for asked in hub.asked[-3:]}
    assert tokens[True] is None
    hub.faults.status = 403
    shutil.rmtree(cache.hub_cache())
    refused("denied", weights(hub))


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
    assert words in refused("unknown", replace(weights(hub), **wanted)).message  # type: ignore


@pytest.mark.parametrize("files", [True, False])
def test_a_login_page_is_no_hub(hub: Hub, files: bool) -> None:
    hub.faults.html = True
    wanted = weights(hub)
    if not files:
        wanted = replace(wanted, files=(), revision="main", patterns=("*",))
    error = refused("not_a_hub", wanted)
    assert "login page" in error.message
    assert not cache.of_repository(REPOSITORY).joinpath("snapshots").exists()


@pytest.mark.parametrize("etag", ["../../../outside", "0" * 39, "5f-2", "A" * 40])
def test_a_hub_that_states_no_digest_is_none(hub: Hub, etag: str, tmp_path: Path) -> None:
    hub.faults.etag = etag
    refused("not_a_hub", weights(hub))
    refused("not_a_hub", Weights("made up", REPOSITORY, "main", patterns=("config.json",)))
    assert "config.json" not in files_below(cache.hub_cache())
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize("path", ["../../../outside.bin", "/outside.bin"])
def test_a_hub_that_lists_files_outside_of_the_repository_is_none(hub: Hub, path: str) -> None:
    hub.add(REPOSITORY, {path: MODEL})
    refused("not_a_hub", Weights("made up", REPOSITORY, "main", patterns=("*.bin",)))


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_hub_that_fails_is_one_line(hub: Hub, status: int) -> None:
    hub.faults.status = status
    assert f"HTTP {status}" in refused("hub", weights(hub)).message


def test_a_hub_that_never_answers_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", 0.2)
    hub.faults.silent = True
    refused("stalled", weights(hub))
    refused("network", Weights("made up", REPOSITORY, "main", patterns=("*.bin",)))


def test_no_network_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "127.0.0.1:9 cannot be reached" in refused("network", weights(hub)).message


def test_offline_mode_is_kept_to(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "made up" in refused("offline", weights(hub)).message
    assert hub.asked == []


# --- the disk -------------------------------------------------------------------------------------


def test_the_room_on_the_disk_is_checked_before(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 500_000})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    error = refused("no_room", weights(hub))
    assert "no room for 1 MB" in error.message
    assert "500 kB are free" in error.message
    assert hub.contents_sent() == []


def test_a_disk_that_gets_full_is_one_line_and_is_not_left_full(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: fetch._Download, remote: object) -> None:
        self._part.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch._Download, "_read", read)
    refused("no_room", weights(hub))
    assert not list(cache.hub_cache().rglob("*.turngap-part"))


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
    (record,) = (cache.of_repository(REPOSITORY) / "turngap").glob("*.json")
    record.write_text(content)
    assert state_of(wanted).complete
    assert json.loads(record.read_text())["files"]["model.bin"]["sha256"] == sha(MODEL)


def test_the_same_weights_twice_are_fetched_once(hub: Hub) -> None:
    first, second = bring([weights(hub), weights(hub)])
    assert first == second
    assert len([a for a in hub.contents_sent() if a.path.startswith("/cdn/")]) == 1


def test_a_proxy_that_refuses_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils import close_session

    hub.faults.status = 403  # it answers CONNECT with 501, which will do as well
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.example")
    monkeypatch.setenv("HTTPS_PROXY", hub.endpoint)
    monkeypatch.delenv("NO_PROXY")
    close_session()  # the client reads the proxy when it makes its session
    try:
        assert "hub.example" in refused("proxy", weights(hub)).message
    finally:
        close_session()


def test_ctrl_c_says_that_the_next_start_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.faults.stall_at = 400_000
    code = (
        "import sys; sys.argv = ['turngap', 'fetch', 'whisper']\n"
        "from turngap.cli import main\n"
        "main()\n"
    )
    hub.add("Systran/faster-whisper-base.en", {"model.bin": MODEL})
    pins = hub.write_pins(tmp_path / "pins.toml")
    environment = {**os.environ, "TURNGAP_PINS": str(pins), "HF_HUB_DOWNLOAD_TIMEOUT": "60"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment
    )
    part = cache.of_repository("Systran/faster-whisper-base.en") / "blobs"
    for _ in range(3000):
        if any(file.stat().st_size > 0 for file in part.glob("*.turngap-part")):
            break
        assert process.poll() is None
        hub.gone.wait(0.02)
    else:
        pytest.fail("nothing came within a minute")
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert "interrupted: what came is kept" in said
    assert "Traceback" not in said
    assert process.returncode != 0
