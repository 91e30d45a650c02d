"""Settings of Anthropic's models."""

from typing import Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings


class AnthropicSettings(BackendSettings):
    """Settings of `anthropic`.

    Attributes:
        model: Anthropic's name of the model.
        speed: `fast` asks for fast mode, which is a beta: more tokens a second for more money, on
            the models that have it.
        effort: how much the model spends on an answer, thinking included; left out: as little as
            pipecat knows the model to allow.
        max_tokens: a reply ends after so many at the latest, thinking included.
        caching: let the system prompt be cached.
        base_url: Anthropic's address, or that of something that speaks as it does.
        timeout_s: how long it may take to answer the first question.
        keep_alive: ask over one connection as long as the session lasts; off: each request has a
            connection of its own, and pays for making it.
    """

    model: Annotated[str, Field(min_length=1)] = "claude-sonnet-4-6"
    speed: Literal["standard", "fast"] = "standard"
    effort: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 256
    caching: bool = True
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.anthropic.com"
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    keep_alive: bool = True
