"""Makes pipecat's service for Anthropic from settings, after a check that Anthropic answers."""

import os
from typing import Any

from anthropic import AsyncAnthropic
from pipecat.services.anthropic.llm import AnthropicLLMService

from turngap.core.clock import Clock
from turngap.core.secrets import remember
from turngap_services.llm.hosted import AnthropicSettings
from turngap_services.llm.wire import Asking, WholeReply, check_model, connection_headers

_VERSION = "2023-06-01"
# pipecat 1.14 sends the second by itself and has no setting for the first. A header of ours takes
# the place of its own, so both have to be in it; `betas` among the extras would be overwritten.
_FAST = "fast-mode-2026-02-01,interleaved-thinking-2025-05-14"


class _Anthropic(AnthropicLLMService):
    """pipecat's service, but a cut reply fails, and the client closes with the session."""

    async def _create_message_stream(self, api_call: Any, params: Any) -> Any:
        stream = await super()._create_message_stream(api_call, params)
        return WholeReply(stream, lambda event: event.type == "message_stop")

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()


def prepare(settings: AnthropicSettings) -> None:
    """Check the key and the model; raises AgentError as `check_model` does."""
    remember(os.environ.get(settings.key, ""))
    headers = {"x-api-key": os.environ.get(settings.key, ""), "anthropic-version": _VERSION}
    # Anthropic's clients add the version to the path themselves.
    asking = Asking(headers, settings.timeout_s, key_env=settings.key, base_url="http://HOST:PORT")
    models_url = f"{settings.base_url.rstrip('/')}/v1/models?limit=1000"
    check_model("anthropic", settings.model, models_url, asking, dated=True)


def create(settings: AnthropicSettings, clock: Clock) -> AnthropicLLMService:
    """Make the service of one session."""
    key = os.environ.get(settings.key, "")
    extra: dict[str, Any] = {}
    if settings.speed == "fast":
        extra = {"speed": "fast", "extra_headers": {"anthropic-beta": _FAST}}
    return _Anthropic(
        api_key=key,
        client=AsyncAnthropic(
            api_key=key,
            base_url=settings.base_url,
            max_retries=0,  # retries would turn a server that refuses requests into a slow one
            default_headers=connection_headers(keep_alive=settings.keep_alive),
        ),
        settings=AnthropicLLMService.Settings(
            model=settings.model,
            max_tokens=settings.max_tokens,
            enable_prompt_caching=settings.caching,
            effort=settings.effort,
            extra=extra,
        ),
    )
