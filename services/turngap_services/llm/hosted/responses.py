"""OpenAI's Responses API over a WebSocket that stays open."""

import os
from typing import Any

from loguru import logger
from pipecat.services.llm_service import WebsocketReconnectedError
from pipecat.services.openai.responses.llm import OpenAIResponsesLLMService

from turngap_services.llm.hosted import OpenAISettings

# What pipecat calls a reply that came to `max_tokens`.
_AT_ITS_END = "LLM response error: max_output_tokens"


class ResponsesService(OpenAIResponsesLLMService):
    """Pipecat's service, which does not ask again what it has asked.

    Pipecat 1.14 reconnects where a connection is lost and repeats the request: the person would
    hear the beginning of the reply twice, and a server that drops connections would seem slow.
    """

    async def _ws_recv(self) -> dict[str, Any]:
        try:
            return await super()._ws_recv()
        except WebsocketReconnectedError as e:  # the next request has a connection again
            raise ConnectionError("the server closed the connection instead of answering") from e

    async def push_error(self, error_msg: str, *args: Any, **kwargs: Any) -> None:
        """As pipecat's; but a reply that is as long as it may be is whole, as over HTTP."""
        if error_msg == _AT_ITS_END:
            logger.warning("a reply was cut at max_tokens")
        else:
            await super().push_error(error_msg, *args, **kwargs)

    async def cleanup(self) -> None:
        """Close the client for questions beside the conversation too."""
        await super().cleanup()
        await self._client.close()


def responses(settings: OpenAISettings) -> ResponsesService:
    """The service of one session; it connects when its session begins."""
    chosen: dict[str, Any] = {}
    if settings.temperature is not None:
        chosen["temperature"] = settings.temperature
    base_url = settings.base_url.rstrip("/")
    return ResponsesService(
        api_key=os.environ.get(settings.key),
        base_url=base_url,
        ws_url=f"{base_url.replace('http', 'ws', 1)}/responses",
        service_tier=settings.service_tier,
        settings=ResponsesService.Settings(
            model=settings.model,
            max_completion_tokens=settings.max_tokens,
            extra=settings.extra_body,
            **chosen,
        ),
    )
