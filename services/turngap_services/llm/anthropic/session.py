"""From settings to pipecat's service, once Anthropic has been seen to answer."""

import os
import threading
from typing import Any

from anthropic import AsyncAnthropic
from pipecat.services.anthropic.llm import AnthropicLLMService

from turngap.core.errors import AgentError
from turngap_services.llm.anthropic import AnthropicSettings
from turngap_services.llm.once import WholeReply
from turngap_services.llm.wire import Asking, connection_headers, served_models

_KEY = "ANTHROPIC_API_KEY"
_VERSION = "2023-06-01"
# pipecat 1.14 sends the second by itself and has no setting for the first. A header of ours takes
# the place of its own, so both have to be in it; `betas` among the extras would be overwritten.
_FAST = "fast-mode-2026-02-01,interleaved-thinking-2025-05-14"

_SEEN: set[str] = set()
_CHECKING = threading.Lock()


class _Anthropic(AnthropicLLMService):
    """Pipecat's service; its client's connections are closed with the session."""

    async def _create_message_stream(self, api_call: Any, params: Any) -> Any:
        """The reply as it comes, up to the event that ends it."""
        stream = await super()._create_message_stream(api_call, params)
        return WholeReply(stream, lambda event: event.type == "message_stop")

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()


def checked(settings: AnthropicSettings) -> None:
    """Ask once a process whether the key is right and the model is there.

    Raises:
        AgentError: Anthropic cannot be reached, refuses the key, or has no such model.
    """
    seen = settings.model_dump_json(exclude={"library"})
    with _CHECKING:
        if seen in _SEEN:
            return
        headers = {"x-api-key": os.environ.get(_KEY, ""), "anthropic-version": _VERSION}
        # Anthropic's clients add the version to the path themselves.
        asking = Asking(headers, settings.timeout_s, key_env=_KEY, base_url="http://HOST:PORT")
        models = served_models(f"{settings.base_url.rstrip('/')}/v1/models?limit=1000", asking)
        # A name may be that of a family whose snapshots are listed by their dates.
        if not any(name.startswith(settings.model) for name in models):
            raise AgentError(
                "llm.model",
                f"anthropic has no model {settings.model!r} for this key",
                hint=f"--set llm.model=NAME, one of: {', '.join(sorted(models)) or 'none'}",
            )
        _SEEN.add(seen)


def service(settings: AnthropicSettings) -> AnthropicLLMService:
    """Pipecat's service for one session."""
    key = os.environ.get(_KEY, "")
    extra: dict[str, Any] = {}
    if settings.speed == "fast":
        extra = {"speed": "fast", "extra_headers": {"anthropic-beta": _FAST}}
    return _Anthropic(
        api_key=key,
        client=AsyncAnthropic(
            api_key=key,
            base_url=settings.base_url,
            max_retries=0,  # they would turn a server that refuses requests into a slow one
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
