"""An agent that is not there, speaks something else, or dies: nothing that was measured is lost."""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from commandline import (
    ROOT,
    ScriptedProcess,
    only_run,
    turngap,
    turngap_here,
    turns_on_disk,
)

from turngap.testing.agent import Reply, Script

pytestmark = pytest.mark.realtime

Capsys = pytest.CaptureFixture[str]

QUICK = ("replay", "quick-questions", "--calibration", "0")


def test_an_unreachable_agent_is_one_line_and_exit_code_4(tmp_path: Path, capsys: Capsys) -> None:
    done = turngap_here(capsys, *QUICK, "--agent", "ws://127.0.0.1:9/ws", "--out", tmp_path)
    assert done.code == 4
    assert "nothing can be reached at ws://127.0.0.1:9/ws" in done.err
    assert "Traceback" not in done.err


def test_a_peer_that_is_no_websocket_is_one_line_and_exit_code_4(
    tmp_path: Path, capsys: Capsys
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

        server = threading.Thread(target=answer)
        server.start()
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}/"
        done = turngap_here(capsys, *QUICK, "--agent", url, "--out", tmp_path)
        server.join(10)
    assert done.code == 4
    assert "not as a WebSocket" in done.err


def test_a_peer_that_speaks_something_else_is_one_line_and_exit_code_4(
    tmp_path: Path, capsys: Capsys
) -> None:
    script = Script(replies=(Reply(action="garbage"),))
    with ScriptedProcess(script) as url:
        done = turngap_here(capsys, *QUICK, "--agent", url, "--out", tmp_path)
    assert done.code == 4
    assert "does not speak the pipecat dialect" in done.err


def test_an_agent_that_dies_leaves_an_error_and_every_turn_before_it(
    tmp_path: Path, capsys: Capsys
) -> None:
    script = Script(replies=(Reply(), Reply(), Reply(action="die")))
    with ScriptedProcess(script) as url:
        done = turngap_here(capsys, *QUICK, "--agent", url, "--out", tmp_path, "--json")
    assert done.code == 4
    outcomes = [t["outcome"] for t in turns_on_disk(only_run(tmp_path))]
    assert outcomes == ["answered", "answered", "error"]
    document = done.document()
    assert document["summary"]["outcomes"] == {"answered": 2, "error": 1}
    assert "line was lost" in document["failure"]


def test_an_agent_that_dies_in_mid_reply_makes_that_turn_an_error(
    tmp_path: Path, capsys: Capsys
) -> None:
    script = Script(replies=(Reply(), Reply(action="die_midway", speech_ms=1000)))
    with ScriptedProcess(script) as url:
        done = turngap_here(capsys, *QUICK, "--agent", url, "--out", tmp_path)
    assert done.code == 4
    turns = turns_on_disk(only_run(tmp_path))
    assert [t["outcome"] for t in turns] == ["answered", "error"]


def test_the_embedded_agent_killed_in_mid_turn(tmp_path: Path) -> None:
    process = _start_replay(tmp_path)
    try:
        _wait_for_turns(tmp_path, 1)
        (agent,) = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "serve" in child.cmdline()
        ]
        agent.kill()
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 4
    assert "line was lost" in err
    assert "the agent ended in mid-conversation (it was killed, as a system that is out of" in err
    outcomes = [t["outcome"] for t in turns_on_disk(only_run(tmp_path))]
    assert outcomes[0] == "answered"
    assert outcomes[-1] == "error"


def test_a_killed_replay_leaves_every_finished_turn_readable(tmp_path: Path) -> None:
    process = _start_replay(tmp_path)
    agents: list[psutil.Process] = []
    try:
        _wait_for_turns(tmp_path, 2)
        agents = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    finally:
        process.kill()
    _, outlived_it = psutil.wait_procs(agents, timeout=15)
    assert agents
    assert not outlived_it
    done = turngap("report", only_run(tmp_path), "--json")
    document = done.document()
    assert len(document["turns"]) >= 2
    assert done.code == 0
    assert "unfinished" in str(document["problems"])


def test_an_interrupted_replay_keeps_what_it_has_and_says_so(tmp_path: Path) -> None:
    process = _start_replay(tmp_path)
    try:
        _wait_for_turns(tmp_path, 1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    finally:
        process.kill()
    document = turngap("report", only_run(tmp_path), "--json").document()
    assert document["failure"] == "interrupted by the user"
    assert document["turns"]
    assert process.returncode not in (0, 1, 2, 3, 4)


def _start_replay(out: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "turngap", *QUICK, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def _wait_for_turns(out: Path, count: int) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        files = list(out.glob("*/turns.jsonl"))
        if files and files[0].read_text().count("\n") >= count:
            time.sleep(1.0)  # into the next turn
            return
        time.sleep(0.1)
    raise AssertionError(f"no {count} turns within 90 s")
