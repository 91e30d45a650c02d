"""Nothing that turngap starts reports to a vendor, or opens a connection but to this machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import ROOT, SCENARIOS, only_run
from phones_home import addresses, is_here

# What libraries read, and what tells them to be quiet.
OFF = {
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_XET_TELEMETRY_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# The VAD of every agent is a model that onnxruntime runs.
LOAD_VAD = "from turngap_services.turn.voice import silero_model; silero_model(16_000)"
# Started by Python before anything else, in whatever process inherits PYTHONPATH: it notes each
# address that a socket is connected or sent to, and each name that is looked up.
TRAP = """
import os, sys

def note(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        what = arguments[0] if event == "socket.getaddrinfo" else arguments[1]
        host = what[0] if isinstance(what, tuple) else what
        with open(os.environ["TRAP"], "a") as file:
            print(os.getpid(), event, host, file=file)

sys.addaudithook(note)
"""

ONE_TURN = """\
name: time
turns:
  - say: "what time is it"
    audio: 1.flac
    speech: {start_ms: 120, end_ms: 925.1}
    reply: "Ten past nine, sir."
"""


def run_python(code: str, home: Path, **environment: str) -> str:
    """Return the output of a Python without the machine's settings, with `home` as its home."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HOME": str(home), "PATH": os.environ["PATH"], **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    "module", ["turngap", "turngap.pytest_plugin", "turngap_services", "training"]
)
def test_whatever_is_imported_of_turngap_switches_reports_off(module: str, tmp_path: Path) -> None:
    show = f"import {module}, os; print(*(os.environ.get(name) for name in {list(OFF)!r}))"
    assert run_python(show, tmp_path).split() == list(OFF.values())


def test_reports_that_were_switched_on_are_switched_off(tmp_path: Path) -> None:
    show = "import turngap, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert run_python(show, tmp_path, ORT_DISABLE_TELEMETRY="0").strip() == "1"


def test_the_vad_leaves_no_queue_of_reports_and_no_device_id(tmp_path: Path) -> None:
    run_python(LOAD_VAD, tmp_path)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


def test_a_replay_and_its_agent_connect_to_loopback_only(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(TRAP, encoding="utf-8")
    trap, out = tmp_path / "trap", tmp_path / "runs"
    (tmp_path / "library").mkdir()
    shutil.copy(SCENARIOS / "quick-questions" / "1.flac", tmp_path / "library")
    one_turn = tmp_path / "library" / "time.yaml"
    one_turn.write_text(ONE_TURN, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "turngap", "replay", one_turn),
            *("--calibration", "0", "--starved-ms", "1000", "--set", "tts.speed_wpm=400"),
            *("--out", out),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TRAP": str(trap), "HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1, 3), done.stderr  # whatever a busy machine makes of its turns
    assert (only_run(out) / "run.json").is_file()
    rows = [line.split() for line in trap.read_text("utf-8").splitlines()]
    assert {host for _, _, host in rows} <= {"127.0.0.1", "localhost", "None"}
    assert any(event == "socket.connect" for _, event, _ in rows), "the trap caught nothing"


STRACE = """\
71 connect(3, {sa_family=AF_UNIX, sun_path="/run/nscd"}, 110) = -1 ENOENT (No such file)
71 connect(8, {sa_family=AF_INET, sin_port=htons(8765), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
72 connect(9, {sa_family=AF_INET6, sin6_port=htons(443), sin6_flowinfo=htonl(0), \
inet_pton(AF_INET6, "2001:db8::1", &sin6_addr), sin6_scope_id=0}, 28 <unfinished ...>
72 connect(9, {sa_family=AF_INET6, sin6_port=htons(80), sin6_flowinfo=htonl(0), \
inet_pton(AF_INET6, "::1", &sin6_addr), sin6_scope_id=0}, 28) = 0
73 sendto(5, "GET", 3, MSG_NOSIGNAL, NULL, 0) = 3
73 sendto(5, "\\4\\1", 2, MSG_NOSIGNAL, {sa_family=AF_INET, sin_port=htons(53), \
sin_addr=inet_addr("192.0.2.1")}, 16) = 2
73 sendmmsg(5, [{msg_hdr={msg_name={sa_family=AF_INET, sin_port=htons(123), \
sin_addr=inet_addr("192.0.2.2")}, msg_namelen=16}, msg_len=2}], 1, 0) = 1
"""


def test_the_tracer_reads_every_address_that_strace_writes() -> None:
    found = addresses(STRACE.splitlines())
    assert sorted((host, port) for _, host, port in found if not is_here(host)) == [
        ("192.0.2.1", "53"),
        ("192.0.2.2", "123"),
        ("2001:db8::1", "443"),
    ]
    assert {host for _, host, _ in found if is_here(host)} == {"unix", "127.0.0.1", "::1"}
