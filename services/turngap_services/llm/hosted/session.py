"""Makes pipecat's service for a provider from settings, after a check that it answers."""

import os
from typing import Any

from loguru import logger
from pipecat.services.cerebras.llm import CerebrasLLMService
from pipecat.services.groq.llm import GroqLLMService
from pipecat.services.llm_service import LLMService, WebsocketReconnectedError
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.responses.llm import OpenAIResponsesLLMService

from turngap.core.clock import Clock
from turngap_services.llm.hosted import HostedSettings, OpenAISettings
from turngap_services.llm.wire import AskedOnce, Asking, bearer, check_model, connection_headers

# What pipecat calls a reply that came to `max_tokens`.
_AT_ITS_END = "LLM response error: max_output_tokens"


class _OpenAI(AskedOnce, OpenAILLMService):
    pass


class _Cerebras(AskedOnce, CerebrasLLMService):
    pass


class _Groq(AskedOnce, GroqLLMService):
    pass


class _Responses(OpenAIResponsesLLMService):
    """OpenAI's Responses API over a WebSocket that stays open, with each request sent once.

    pipecat 1.14 reconnects if a connection is lost and repeats the request: the person would hear
    the beginning of the reply twice, and a server that drops connections would seem slow.
    """

    async def _ws_recv(self) -> dict[str, Any]:
        try:
            return await super()._ws_recv()
        except WebsocketReconnectedError as e:  # the next request has a connection again
            raise ConnectionError("the server closed the connection instead of answering") from e

    async def push_error(self, error_msg: str, *args: Any, **kwargs: Any) -> None:
        if error_msg == _AT_ITS_END:  # not an error over HTTP either
            logger.warning("a reply was cut at max_tokens")
        else:
            await super().push_error(error_msg, *args, **kwargs)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()  # for questions besides the conversation


_SERVICES: dict[str, type[OpenAILLMService]] = {
    "openai": _OpenAI,
    "cerebras": _Cerebras,
    "groq": _Groq,
}


def prepare(provider: str, settings: HostedSettings) -> None:
    """Check the key and the model; raises AgentError as `check_model` does."""
    asking = Asking(bearer(os.environ.get(settings.key)), settings.timeout_s, key_env=settings.key)
    check_model(provider, settings.model, f"{settings.base_url.rstrip('/')}/models", asking)


def create(provider: str, settings: HostedSettings, clock: Clock) -> LLMService[Any]:
    """Make the service of one session; over a WebSocket it connects when the session begins."""
    # What is not set is left to the provider: some models refuse a temperature or a seed.
    chosen: dict[str, Any] = {
        name: value
        for name, value in (("temperature", settings.temperature), ("seed", settings.seed))
        if value is not None
    }
    if isinstance(settings, OpenAISettings) and settings.transport == "websocket":
        base_url = settings.base_url.rstrip("/")
        return _Responses(
            api_key=os.environ.get(settings.key),
            base_url=base_url,
            ws_url=f"{base_url.replace('http', 'ws', 1)}/responses",
            service_tier=settings.service_tier,
            settings=_Responses.Settings(
                model=settings.model,
                max_completion_tokens=settings.max_tokens,
                extra=settings.extra_body,
                **chosen,
            ),
        )
    kind = _SERVICES[provider]
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
