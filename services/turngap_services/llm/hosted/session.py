"""From settings to pipecat's service of a provider, once the provider has been seen to answer."""

import os
import threading
from typing import Any

from pipecat.services.cerebras.llm import CerebrasLLMService
from pipecat.services.groq.llm import GroqLLMService
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService

from turngap.core.errors import AgentError
from turngap_services.llm.hosted import HostedSettings, OpenAISettings
from turngap_services.llm.hosted.responses import responses
from turngap_services.llm.once import AskedOnce
from turngap_services.llm.wire import Asking, bearer, connection_headers, served_models


class _OpenAI(AskedOnce, OpenAILLMService):
    pass


class _Cerebras(AskedOnce, CerebrasLLMService):
    pass


class _Groq(AskedOnce, GroqLLMService):
    pass


_SERVICES: dict[str, type[OpenAILLMService]] = {
    "openai": _OpenAI,
    "cerebras": _Cerebras,
    "groq": _Groq,
}
_SEEN: set[str] = set()
_CHECKING = threading.Lock()


def checked(provider: str, settings: HostedSettings) -> None:
    """Ask once a process whether the key is right and the model is there.

    Raises:
        AgentError: the provider cannot be reached, refuses the key, or has no such model.
    """
    seen = f"{provider} {settings.model_dump_json(exclude={'library'})}"
    with _CHECKING:
        if seen in _SEEN:
            return
        asking = Asking(
            bearer(os.environ.get(settings.key)), settings.timeout_s, key_env=settings.key
        )
        models = served_models(f"{settings.base_url.rstrip('/')}/models", asking)
        if settings.model not in models:
            raise AgentError(
                "llm.model",
                f"{provider} has no model {settings.model!r} for this key",
                hint=f"--set llm.model=NAME, one of: {', '.join(sorted(models)) or 'none'}",
            )
        _SEEN.add(seen)


def service(provider: str, settings: HostedSettings) -> LLMService[Any]:
    """Pipecat's service for one session."""
    if isinstance(settings, OpenAISettings) and settings.transport == "websocket":
        return responses(settings)
    kind = _SERVICES[provider]
    # What is not set is left to the provider: some models refuse a temperature or a seed.
    chosen: dict[str, Any] = {
        name: value
        for name, value in (("temperature", settings.temperature), ("seed", settings.seed))
        if value is not None
    }
    return kind(
        api_key=os.environ.get(settings.key),
        base_url=settings.base_url,
        default_headers=connection_headers(keep_alive=settings.keep_alive),
        service_tier=settings.service_tier,
        settings=kind.Settings(
            model=settings.model,
            max_completion_tokens=settings.max_tokens,
            extra={"extra_body": settings.extra_body} if settings.extra_body else {},
            **chosen,
        ),
    )
