"""The model of a server that runs on this machine, or else a small one in this process.

Servers are searched for only on loopback, and for half a second.
"""

import json
import os
import queue
import re
import threading
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from loguru import logger
from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, ConfiguredBackend, Weights
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.untrusted import printable
from turngap_services.llm.llama import SPEC as LLAMA
from turngap_services.llm.llama import LlamaSettings, weights_of
from turngap_services.llm.vllm import VllmSettings

if TYPE_CHECKING:
    from pipecat.services.llm_service import LLMService

# Where servers listen by default, in the order in which they are asked.
PORTS = {11434: "Ollama", 8080: "llama.cpp", 1234: "LM Studio", 8000: "vLLM"}


class LocalSettings(BackendSettings):
    """Settings of `local`."""

    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None
    """Address of a server, `http://HOST:PORT/v1`; without it one is looked for on this machine."""
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = tuple(PORTS)
    """Ports of 127.0.0.1 on which a server is looked for; the first whose model answers is
    taken."""
    model: str | None = None
    """The server's name for the model; by default the first that it lists whose name is not that of
    a model for embeddings, speech or another task."""
    api_key_env: str = "VLLM_API_KEY"
    """Environment variable that holds the key of the server at `base_url`, if it wants one. A
    server that was found is sent no key."""
    max_tokens: Annotated[int, Field(ge=1)] = 96
    """The longest reply, in tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 always takes the likeliest token."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further keys of each request, as `{reasoning_effort = "low"}`."""
    # Ollama and LM Studio load a model when they are first asked for it.
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """How long the server may take to answer the first question, in seconds."""


WAIT_S = 0.5
# A list of models is a few KB; what answers with more is no such server.
_MOST_BYTES = 2**20

# Parts of the names of models that answer no chat, as the servers list them among those that do:
# they make embeddings, rank texts, hear, speak, draw or judge what is unsafe.
_NO_TALK = re.compile(
    r"embed|rerank|minilm|paraphrase|whisper|parakeet|kokoro|piper|moderation|stable-diffusion"
    r"|(?:^|[/\-_])(?:bge|gte|e5|tts|stt|asr|clip|flux)(?:$|[\-_:.])"
)


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server that lists its models.

    Attributes:
        name: the usual server on its port, or vLLM if it says that it is one.
    """

    port: int
    name: str
    models: tuple[str, ...]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def servers(ports: Sequence[int], wait_s: float = WAIT_S) -> list[LocalServer]:
    """Return the servers that list a model at `/v1/models`, in the order of `ports`.

    All are asked at the same time, and each has `wait_s` to answer.
    """
    answers: queue.SimpleQueue[LocalServer | None] = queue.SimpleQueue()
    for port in ports:
        threading.Thread(
            target=lambda p=port: answers.put(_server_at(p, wait_s)), daemon=True
        ).start()
    found: list[LocalServer] = []
    due = monotonic() + wait_s
    for _ in ports:
        try:
            answer = answers.get(timeout=max(0.0, due - monotonic()))
        except queue.Empty:
            break
        if answer is not None:
            found.append(answer)
    return sorted(found, key=lambda server: ports.index(server.port))


def _server_at(port: int, wait_s: float) -> LocalServer | None:
    # A proxy of the company's has no business with this machine's own servers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/v1/models", timeout=wait_s) as response:
            listed = json.loads(response.read(_MOST_BYTES))["data"]
        models = tuple(str(model["id"]) for model in listed)
        owners = {model.get("owned_by") for model in listed}
    except Exception:  # whatever else listens there may answer anything
        return None
    name = "vLLM" if "vllm" in owners else PORTS.get(port, "a server")
    return LocalServer(port, name, models) if models else None


def model_of(models: Sequence[str]) -> str | None:
    """Return the first model whose name does not suggest another task; None without one."""
    return next((name for name in models if not _NO_TALK.search(name.lower())), None)


@dataclass(frozen=True, slots=True)
class Choice:
    """The source of an answer, and the reason for it.

    Attributes:
        server: the server and its model; None for the one in this process.
        own: settings of the model in this process.
    """

    server: VllmSettings | None
    own: LlamaSettings
    why: str


_CHOICES: dict[str, list[Choice]] = {}
_READY: dict[str, Choice] = {}
_CHOOSING = threading.Lock()


def chosen(settings: LocalSettings) -> Choice:
    """Return the choice that answers, or the first to be tried if none has answered."""
    with _CHOOSING:
        return _READY.get(settings.model_dump_json()) or _choices(settings)[0]


def ready(settings: LocalSettings) -> Choice:
    """Return the first choice that answers a question, once a process.

    Raises:
        AgentError: the server that was requested by its address does not answer as it should.
    """
    with _CHOOSING:
        key = settings.model_dump_json()
        if key not in _READY:
            _READY[key] = _tried(_choices(settings))
            logger.warning(f"llm local: {_READY[key].why}")
        return _READY[key]


def _choices(settings: LocalSettings) -> list[Choice]:
    """Look for servers, once a process; the model in this process is the last choice."""
    key = settings.model_dump_json()
    if key not in _CHOICES:
        own = LlamaSettings(
            library=settings.library,
            temperature=settings.temperature,
            max_tokens=min(settings.max_tokens, 4096),
        )
        if settings.base_url is not None:
            why = f"the server at {settings.base_url}, as llm.base_url says"
            server = _server(settings, settings.base_url, settings.model)
            _CHOICES[key] = [Choice(server, own, why)]
        else:
            _CHOICES[key] = _choices_here(settings, own)
    return _CHOICES[key]


def _choices_here(settings: LocalSettings, own: LlamaSettings) -> list[Choice]:
    able: list[tuple[LocalServer, str]] = []
    for server in servers(settings.ports):
        model = settings.model if settings.model in server.models else None
        model = model if settings.model else model_of(server.models)
        if model is not None:
            able.append((server, model))
    choices: list[Choice] = []
    for n, (server, model) in enumerate(able):
        why = f"{printable(model)} of {server.name} at {server.base_url}, found on this machine"
        if others := [f"{s.name} at {s.base_url}" for s, _ in able[n + 1 :]]:
            why += f"; also there: {', '.join(others)}"
        # It listed its models without a key, so it is sent none.
        choices.append(Choice(_server(settings, server.base_url, model, key_env=""), own, why))
    asked = ", ".join(f"{PORTS.get(port, 'port')} {port}" for port in settings.ports)
    lacks = f" with the model {settings.model!r}" if settings.model else ""
    why = (
        f"{own.model} in this process, a very small model: no server{lacks} answers on this "
        f"machine ({asked or 'no port was asked'}); start one, or --set "
        "llm.base_url=http://HOST:PORT/v1"
    )
    return [*choices, Choice(None, own, why)]


def _server(
    settings: LocalSettings, base_url: str, model: str | None, key_env: str | None = None
) -> VllmSettings:
    # Every one of these servers is asked as vLLM is.
    return VllmSettings(
        base_url=base_url,
        model=model,
        api_key_env=settings.api_key_env if key_env is None else key_env,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        extra_body=settings.extra_body,
        timeout_s=settings.timeout_s,
    )


def _tried(choices: list[Choice]) -> Choice:
    """Return the first choice that answers; if all fail, raise the last one's error."""
    failed = ""
    for choice in choices[:-1]:
        try:
            answering = _answering(choice)
            return replace(answering, why=answering.why + failed)
        except AgentError as e:
            logger.warning(f"llm local: not {choice.why}, because {e.message}")
            failed += f"; not {choice.why.partition(', found')[0]}, because {e.message}"
    last = _answering(choices[-1])
    return replace(last, why=last.why + failed)


def _answering(choice: Choice) -> Choice:
    if choice.server is None:
        ConfiguredBackend(LLAMA.name, LLAMA, choice.own).prepare()
        return choice
    from turngap_services.llm.vllm.service import connected

    server = choice.server
    if server.model is None:
        server = server.model_copy(update={"model": _first_model(server)})
    model = connected(server).model
    named = "" if choice.server.model else f"{printable(model)} of "
    return replace(choice, server=server, why=f"{named}{choice.why}")


def _first_model(server: VllmSettings) -> str | None:
    from turngap_services.llm.wire import Asking, bearer, served_models

    secret = os.environ.get(server.api_key_env) or None
    asking = Asking(bearer(secret), server.timeout_s, server.api_key_env)
    return model_of(served_models(f"{(server.base_url or '').rstrip('/')}/models", asking))


def create(settings: LocalSettings, clock: Clock) -> "LLMService[Any]":
    """Make the service of one session."""
    choice = ready(settings)
    if choice.server is None:
        return LLAMA.create(choice.own, clock)
    from turngap_services.llm.vllm.service import connected, service

    return service(choice.server, connected(choice.server))


def _toolless(settings: LocalSettings) -> str | None:
    """Return why `local` calls no tools: without a server, the model in this process calls none."""
    found = chosen(settings)
    return found.why if found.server is None else None


def _weights(settings: LocalSettings) -> Weights | None:
    """Return the weights that are loaded where no server answers."""
    choice = chosen(settings)
    return weights_of(choice.own) if choice.server is None else None


SPEC = BackendSpec(
    name="local",
    kind="llm",
    settings_type=LocalSettings,
    create=create,
    prepare=ready,
    requires=LLAMA.requires,
    weights=_weights,
    finds=lambda settings: chosen(settings).why,
    licence=LLAMA.licence,
    tools=True,
    toolless=_toolless,
    judges=False,
    notes="A server on this machine: "
    + ", ".join(f"{n} ({p})" for p, n in PORTS.items())
    + "; else SmolLM2-135M in process.",
)
