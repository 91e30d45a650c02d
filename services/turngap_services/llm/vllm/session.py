"""From settings to a server that has the model, and to the service that speaks with it."""

import os
import threading
from dataclasses import dataclass
from typing import Any

from turngap.core.errors import AgentError
from turngap.thoughts import BEGINS_IN_THOUGHT
from turngap_services.llm.vllm import VllmSettings, weights
from turngap_services.llm.vllm.server import Server
from turngap_services.llm.vllm.service import ServerTimes, VllmLLMService
from turngap_services.llm.wire import (
    Asking,
    bearer,
    begins_in_thought,
    connection_headers,
    served_models,
    without_reasoning,
)
from turngap_services.weights import folder_of


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


_CONNECTIONS: dict[str, Connection] = {}
_SERVERS: dict[str, Server] = {}
_CONNECTING = threading.Lock()


def connected(settings: VllmSettings) -> Connection:
    """Find or start the server of these settings and warm it up, once a process.

    Raises:
        AgentError: the server cannot be reached or started, or does not have the model.
    """
    key = settings.model_dump_json(exclude={"library"})
    with _CONNECTING:
        if (server := _SERVERS.get(key)) is not None and not server.running:
            raise AgentError(
                "vllm.died",
                f"the vLLM that turngap had started for {server.model} has ended",
                hint=f"its log says why: {server.log}",
            )
        if key not in _CONNECTIONS:
            _CONNECTIONS[key] = _connect(settings, key)
        return _CONNECTIONS[key]


def _connect(settings: VllmSettings, key: str) -> Connection:
    secret = os.environ.get(settings.api_key_env) or None
    base_url = settings.base_url
    if base_url is None:
        fetched = weights(settings)
        server = Server(settings, settings.model or "", fetched and folder_of(fetched))
        server.wait_until_healthy()
        _SERVERS[key] = server
        base_url = server.base_url
    asking = Asking(bearer(secret), settings.timeout_s, settings.api_key_env)
    models = served_models(f"{base_url.rstrip('/')}/models", asking)
    model = _chosen(settings.model, models, base_url)
    body, apart = _warmed_up(settings, base_url, model, asking)
    begun = not apart and begins_in_thought(base_url, model, asking, body)
    return Connection(base_url, model, secret, body, begun)


def _chosen(wanted: str | None, models: list[str], base_url: str) -> str:
    known = ", ".join(models) or "none"
    if wanted is None and len(models) == 1:
        return models[0]
    if wanted is None:
        raise AgentError(
            "llm.model",
            f"the server at {base_url} does not have exactly one model, but: {known}",
            hint="choose one: --set llm.model=NAME",
        )
    if wanted not in models:
        raise AgentError(
            "llm.model",
            f"the server at {base_url} has no model {wanted!r}",
            hint=f"it has: {known}",
        )
    return wanted


def _warmed_up(
    settings: VllmSettings, base_url: str, model: str, asking: Asking
) -> tuple[dict[str, Any], bool]:
    """Have the server do its one-time work, and return what `without_reasoning` does."""
    try:
        return without_reasoning(base_url, model, asking, _extra(settings))
    except AgentError as e:
        if e.kind != "llm.refused" or settings.request_priority is None:
            raise
        raise AgentError(
            e.kind,
            e.message,
            hint="priorities, and with them the low-batch lane of a running server, need one that "
            "was started with --scheduling-policy priority",
        ) from e


def _extra(settings: VllmSettings) -> dict[str, Any]:
    """Return what the settings add to each request."""
    body = dict(settings.extra_body)
    if settings.request_priority is not None:
        body["priority"] = settings.request_priority
    return body


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
