"""Which model answers in place of `local`: that of a server here, or the project's own."""

import os
import threading
import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from loguru import logger
from pipecat.services.llm_service import LLMService

from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.untrusted import printable
from turngap_services.llm import small
from turngap_services.llm.local import PORTS, LocalSettings
from turngap_services.llm.local.finding import Found, model_of, servers
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.vllm import VllmSettings
from turngap_services.llm.vllm.service import connected
from turngap_services.llm.vllm.service import service as service_of
from turngap_services.llm.wire import Asking, bearer, served_models


@dataclass(frozen=True, slots=True)
class Choice:
    """What answers, and why.

    Attributes:
        server: where and with what it is asked; None for the project's own model.
        own: settings of the project's own model.
    """

    server: VllmSettings | None
    own: SmallSettings
    why: str


_CHOICES: dict[str, list[Choice]] = {}
_READY: dict[str, Choice] = {}
_CHOOSING = threading.Lock()


def chosen(settings: LocalSettings) -> Choice:
    """Return what answers, or before it was tried, what is tried first."""
    with _CHOOSING:
        return _READY.get(settings.model_dump_json()) or _choices(settings)[0]


def tried(settings: LocalSettings) -> Choice | None:
    """Return what answers, if `ready` has found it out."""
    return _READY.get(settings.model_dump_json())


def ready(settings: LocalSettings) -> Choice:
    """Return the first choice that answers a question, once a process.

    Raises:
        AgentError: the server that was asked for by its address does not answer as it should.
    """
    with _CHOOSING:
        key = settings.model_dump_json()
        if key not in _READY:
            _READY[key] = _tried(_choices(settings))
            logger.warning(f"llm local: {_READY[key].why}")
        return _READY[key]


def _choices(settings: LocalSettings) -> list[Choice]:
    """Look for servers, once a process; the project's own model is the last choice."""
    key = settings.model_dump_json()
    if key not in _CHOICES:
        own = SmallSettings(library=settings.library, system_prompt=_own_prompt())
        if settings.base_url is not None:
            why = f"the server at {settings.base_url}, as llm.base_url says"
            server = _server(settings, settings.base_url, settings.model)
            _CHOICES[key] = [Choice(server, own, why)]
        else:
            _CHOICES[key] = _found(settings, own)
    return _CHOICES[key]


def _own_prompt() -> str:
    """Return what the project's own model has to be told: without the facts it makes them up."""
    stack = resources.files("turngap_services.stacks").joinpath("embedded.toml").read_text("utf-8")
    return str(tomllib.loads(stack)["pipeline"]["system_prompt"])


def _found(settings: LocalSettings, own: SmallSettings) -> list[Choice]:
    able: list[tuple[Found, str]] = []
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
        # It listed its models without a key. Whoever may listen there is not told one.
        choices.append(Choice(_server(settings, server.base_url, model, key_env=""), own, why))
    asked = ", ".join(f"{PORTS.get(port, 'port')} {port}" for port in settings.ports)
    lacks = f" with the model {settings.model!r}" if settings.model else ""
    why = (
        f"the project's own model, which knows its own domain only: no server{lacks} answers "
        f"on this machine ({asked or 'no port was asked'}); start one, or --set "
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
    """Return the first that answers; the last has to."""
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
        small.prepare(choice.own)
        return choice
    server = choice.server
    if server.model is None:
        server = server.model_copy(update={"model": _first_model(server)})
    model = connected(server).model
    named = "" if choice.server.model else f"{printable(model)} of "
    return replace(choice, server=server, why=f"{named}{choice.why}")


def _first_model(server: VllmSettings) -> str | None:
    secret = os.environ.get(server.api_key_env) or None
    asking = Asking(bearer(secret), server.timeout_s, server.api_key_env)
    return model_of(served_models(f"{(server.base_url or '').rstrip('/')}/models", asking))


def service(choice: Choice, clock: Clock) -> LLMService[Any]:
    """Make the service of one session."""
    if choice.server is None:
        return small.create(choice.own, clock)
    return service_of(choice.server, connected(choice.server))
