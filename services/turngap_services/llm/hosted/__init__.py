"""Models of providers that speak OpenAI's chat completions: one setting names the model."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.llm.hosted.settings import (
    CerebrasSettings,
    GroqSettings,
    HostedSettings,
    OpenAISettings,
)

if TYPE_CHECKING:
    from pipecat.services.llm_service import LLMService


def _prepare(settings: HostedSettings, *, provider: str) -> None:
    """See that the key is right and the model is there, before a conversation depends on it."""
    from turngap_services.llm.hosted.session import checked

    checked(provider, settings)


def _create(settings: HostedSettings, clock: Clock, *, provider: str) -> "LLMService[Any]":
    """A service for one session."""
    from turngap_services.llm.hosted.session import service

    return service(provider, settings)


def _spec(name: str, settings_type: type[HostedSettings], notes: str) -> BackendSpec:
    variable = settings_type.key
    create: Callable[[HostedSettings, Clock], LLMService[Any]] = partial(_create, provider=name)
    return BackendSpec(
        name=name,
        kind="llm",
        settings_type=settings_type,
        create=create,
        prepare=partial(_prepare, provider=name),
        requires=(Need("env", variable, f"export {variable}=… (your key)"),),
        licence="BSD-2-Clause",
        notes=notes,
        tools=True,
    )


OPENAI = _spec("openai", OpenAISettings, "OpenAI's models, over the network, for money.")
CEREBRAS = _spec("cerebras", CerebrasSettings, "Cerebras' models, over the network, for money.")
GROQ = _spec("groq", GroqSettings, "Groq's models, over the network, for money.")
