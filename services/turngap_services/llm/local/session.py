"""Which model answers in place of `local`: that of a server here, or the project's own."""

import threading
from dataclasses import dataclass
from typing import Any

from loguru import logger
from pipecat.services.llm_service import LLMService

from turngap.core.clock import Clock
from turngap.core.untrusted import printable
from turngap_services.llm import small
from turngap_services.llm.local import PORTS, LocalSettings
from turngap_services.llm.local.finding import model_of, servers
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.vllm import VllmSettings
from turngap_services.llm.vllm.session import connected
from turngap_services.llm.vllm.session import service as service_of


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


_CHOICES: dict[str, Choice] = {}
_CHOOSING = threading.Lock()


def chosen(settings: LocalSettings) -> Choice:
    """Look for a server, once a process."""
    with _CHOOSING:
        key = settings.model_dump_json()
        if key not in _CHOICES:
            _CHOICES[key] = _choose(settings)
        return _CHOICES[key]


def _choose(settings: LocalSettings) -> Choice:
    own = SmallSettings(library=settings.library)
    if settings.base_url is not None:
        why = f"the server at {settings.base_url}, as llm.base_url says"
        return Choice(_server(settings, settings.base_url, settings.model), own, why)
    found = servers(settings.ports)
    able = [s for s in found if settings.model is None or settings.model in s.models]
    if not able:
        asked = ", ".join(f"{PORTS.get(port, 'port')} {port}" for port in settings.ports)
        lacks = f" with the model {settings.model!r}" if settings.model else ""
        why = (
            f"the project's own model, which knows its own domain only: no server{lacks} answers "
            f"on this machine ({asked or 'no port was asked'}); start one, or --set "
            "llm.base_url=http://HOST:PORT/v1"
        )
        return Choice(None, own, why)
    first, others = able[0], able[1:]
    model = settings.model or model_of(first)
    why = f"{printable(model)} of {first.name} at {first.base_url}, found on this machine"
    if others:
        why += f"; also there: {', '.join(f'{s.name} at {s.base_url}' for s in others)}"
    return Choice(_server(settings, first.base_url, model), own, why)


def _server(settings: LocalSettings, base_url: str, model: str | None) -> VllmSettings:
    # Every one of these servers is asked as vLLM is.
    return VllmSettings(
        base_url=base_url,
        model=model,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        extra_body=settings.extra_body,
        timeout_s=settings.timeout_s,
    )


def prepared(choice: Choice) -> None:
    """Say what answers, and have it ready.

    Raises:
        AgentError: the server does not answer as it should.
    """
    logger.warning(f"llm local: {choice.why}")
    if choice.server is not None:
        connected(choice.server)
    else:
        small.prepare(choice.own)


def service(choice: Choice, clock: Clock) -> LLMService[Any]:
    """Make the service of one session."""
    if choice.server is None:
        return small.create(choice.own, clock)
    return service_of(choice.server, connected(choice.server))
