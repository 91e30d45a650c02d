"""An agent that is not there, speaks something else, or dies: nothing that was measured is lost."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from commandline import (
    ROOT,
    only_run,
    turngap_here,
    turns_on_disk,
)
from virtual_agents import VirtualAgents

from turngap.testing.agent import Reply, Script

Capsys = pytest.CaptureFixture[str]

QUICK = ("replay", "quick-questions", "--calibration", "0")


def test_an_unreachable_agent_is_one_line_and_exit_code_4(tmp_path: Path, capsys: Capsys) -> None:
    done = turngap_here(capsys, *QUICK, "--agent", "ws://127.0.0.1:9/ws", "--out", tmp_path)
    assert done.code == 4
    assert "nothing can be reached at ws://127.0.0.1:9/ws: Connection refused\n" in done.err
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
    tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents
) -> None:
    url = virtual_agents.url_of(Script(replies=(Reply(action="garbage"),)))
    done = turngap_here(capsys, *QUICK, "--agent", url, "--out", tmp_path)
    assert done.code == 4
    assert "does not speak the pipecat dialect" in done.err


def test_an_agent_that_dies_leaves_an_error_and_every_turn_before_it(
    tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents
) -> None:
    url = virtual_agents.url_of(Script(replies=(Reply(), Reply(), Reply(action="die"))))
    done = turngap_here(capsys, *QUICK, "--agent", url, "--out", tmp_path, "--json")
    assert done.code == 4
    outcomes = [t["outcome"] for t in turns_on_disk(only_run(tmp_path))]
    assert outcomes == ["answered", "answered", "error"]
    document = done.document()
    assert document["summary"]["outcomes"] == {"answered": 2, "error": 1}
    assert (document["summary"]["lost_calls"], document["valid"]) == (1, False)
    assert document["why_invalid"] == ["1 of 1 calls were lost"]
    assert "line was lost" in done.err


def test_an_agent_that_dies_in_mid_reply_makes_that_turn_an_error(
    tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents
) -> None:
    script = Script(replies=(Reply(), Reply(action="die_midway", speech_ms=1000)))
    url = virtual_agents.url_of(script)
    done = turngap_here(capsys, *QUICK, "--agent", url, "--out", tmp_path)
    assert done.code == 4
    turns = turns_on_disk(only_run(tmp_path))
    assert [t["outcome"] for t in turns] == ["answered", "error", "error"]
    assert turns[2]["why_no_gap"].startswith("not played: the line was lost")


# --- the agent that a replay starts, and the replay itself -------------------------------------


class Replay:
    """A replay against the built-in agent, in a process of its own.

    Attributes:
        agents: the processes that it had started.
        code: its exit code, once it has ended.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.process = subprocess.Popen(
            # Much more than is waited for, so that it does not end by itself.
            [sys.executable, "-m", "turngap", *QUICK, "--repeat", "5", "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def end(self, turns: int, how: "Callable[[Replay], None]") -> None:
        """End it when so many turns are stored, in the middle of the next one."""
        try:
            deadline = time.monotonic() + 300
            while sum(f.read_text().count("\n") for f in self.out.glob("*/turns.jsonl")) < turns:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no {turns} turns within 300 s")
                time.sleep(0.1)
            time.sleep(0.5)
            self.agents = psutil.Process(self.process.pid).children(recursive=True)
            how(self)
            _, self.err = self.process.communicate(timeout=180)
        finally:
            self.process.kill()
        self.code = self.process.returncode


def kill_the_agent(replay: Replay) -> None:
    (agent,) = [child for child in replay.agents if "serve" in child.cmdline()]
    agent.kill()


def kill(replay: Replay) -> None:
    replay.process.kill()


def interrupt(replay: Replay) -> None:
    replay.process.send_signal(signal.SIGINT)


Ended = dict[Callable[[Replay], None], Replay]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return the results of three replays, by how they ended. No test here depends on their
    time."""
    ways = {kill_the_agent: 1, kill: 2, interrupt: 1}
    replays = {how: Replay(tmp_path_factory.mktemp("runs")) for how in ways}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda how: replays[how].end(ways[how], how), ways))
    return replays


@pytest.mark.realtime
@pytest.mark.unhurried
def test_the_embedded_agent_killed_in_mid_turn(ended: Ended) -> None:
    replay = ended[kill_the_agent]
    assert replay.code == 4
    why = "the agent ended in mid-conversation (it was killed, perhaps because"
    assert why in replay.err
    outcomes = [t["outcome"] for t in turns_on_disk(only_run(replay.out))]
    assert outcomes[0] != "error"
    assert outcomes[-1] == "error"


@pytest.mark.realtime
@pytest.mark.unhurried
def test_a_killed_replay_leaves_every_finished_turn_readable(ended: Ended, capsys: Capsys) -> None:
    replay = ended[kill]
    assert replay.agents
    _, outlived_it = psutil.wait_procs(replay.agents, timeout=60)
    assert not outlived_it
    done = turngap_here(capsys, "report", only_run(replay.out), "--json")
    document = done.document()
    assert len(document["turns"]) >= 2
    assert done.code == 0
    assert document["valid"] is False
    assert "unfinished" in str(document["why_invalid"])


@pytest.mark.realtime
@pytest.mark.unhurried
def test_an_interrupted_replay_keeps_what_it_has_and_says_so(ended: Ended, capsys: Capsys) -> None:
    replay = ended[interrupt]
    document = turngap_here(capsys, "report", only_run(replay.out), "--json").document()
    assert document["failure"] == "interrupted by the user"
    assert document["turns"]
    assert replay.code not in (0, 1, 2, 3, 4)
