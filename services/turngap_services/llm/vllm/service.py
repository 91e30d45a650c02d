"""vLLM as a pipecat service: from settings to a server, and the server's own times of a reply."""

import asyncio
import os
import threading
import urllib.request
from dataclasses import dataclass
from typing import Any

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
from turngap.core.errors import AgentError
from turngap.core.tokens import OTHERS, SERVER
from turngap.thoughts import BEGINS_IN_THOUGHT
from turngap_services.llm.once import AskedOnce
from turngap_services.llm.vllm import VllmSettings, weights
from turngap_services.llm.vllm.server import Server
from turngap_services.llm.wire import (
    Asking,
    bearer,
    begins_in_thought,
    connection_headers,
    served_models,
    without_reasoning,
)
from turngap_services.weights import folder_of

# A turn's counts, and vLLM's histograms of them since 0.7 (V1), in seconds.
_HISTOGRAMS = {name: f"vllm:request_{phase}_time_seconds" for phase, name in SERVER.items()}
_TIMEOUT_S = 5.0

Reading = dict[str, float]


def reading(text: str) -> Reading:
    """Read a page of metrics: ms of each phase, and the number of requests, over all that ended.

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
        raise ValueError(f"no {e.args[0]} in it") from e


def between(before: Reading, after: Reading) -> dict[str, float]:
    """Return a turn's counts: each phase's mean, and how many requests besides its own ended.

    Empty if no request ended, or the server was restarted.
    """
    ended = after[OTHERS] - before[OTHERS]
    if ended < 1:
        return {}
    means = {name: (value - before[name]) / ended for name, value in after.items()}
    return {**means, OTHERS: ended - 1}


class ServerTimes:
    """Reads one server's metrics; never called while a reply is waited for.

    Args:
        base_url: the server's address, as OpenAI's clients take it.
        headers: sent with each reading, as a proxy may want the key here too.
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

    The server's own times are read when the reply has ended, so that nobody waits for them, and
    pushed then. Another reading when the person begins to speak excludes other people's earlier
    requests. An interrupted reply gets no times, as the server does not count it.
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
        # As with tokens, figures that nobody collects are not asked for.
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
        body: what each request holds beyond OpenAI's protocol.
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
            _CONNECTIONS[key] = _connect(settings)
        connection, server = _CONNECTIONS[key]
        if server is not None and not server.running:
            raise AgentError(
                "vllm.died",
                f"the vLLM that turngap had started for {server.model} has ended",
                hint=f"its log says why: {server.log}",
            )
        return connection


def _connect(settings: VllmSettings) -> tuple[Connection, Server | None]:
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
    return Connection(base_url, model, secret, body, begun), server


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
