"""Settings of the providers' models."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngap.backends import BackendSettings


class HostedSettings(BackendSettings):
    """Settings of a provider that speaks OpenAI's chat completions.

    Attributes:
        model: the provider's name of the model.
        base_url: the provider's address, or that of something that speaks as it does.
        max_tokens: a reply ends after so many at the latest, a model's reasoning included.
        temperature: left out: the provider's default; some models refuse any other.
        seed: for providers that have one.
        service_tier: where the provider has several, such as `priority`.
        extra_body: whatever else goes into each request, such as `{reasoning_effort = "none"}`.
        timeout_s: how long the provider may take to answer the first question.
        keep_alive: ask over one connection as long as the session lasts; off: each request has a
            connection of its own, and pays for making it.
    """

    key: ClassVar[str] = ""

    model: Annotated[str, Field(min_length=1)]
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")]
    max_tokens: Annotated[int, Field(ge=1)] = 256
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    service_tier: str | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    keep_alive: bool = True


class OpenAISettings(HostedSettings):
    """Settings of `openai`.

    Attributes:
        transport: `http` asks by chat completions. `websocket` asks by the Responses API over one
            connection that stays open, and sends what is new of a conversation only.
    """

    key: ClassVar[str] = "OPENAI_API_KEY"

    model: Annotated[str, Field(min_length=1)] = "gpt-4.1"
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.openai.com/v1"
    transport: Literal["http", "websocket"] = "http"

    @model_validator(mode="after")
    def _known_to_the_api(self) -> Self:
        if self.transport == "websocket" and self.seed is not None:
            raise ValueError("the Responses API has no seed; leave it out, or use transport=http")
        if self.transport == "websocket" and not self.keep_alive:
            raise ValueError("a WebSocket is one connection; for one a request use transport=http")
        return self


class CerebrasSettings(HostedSettings):
    """Settings of `cerebras`."""

    key: ClassVar[str] = "CEREBRAS_API_KEY"

    model: Annotated[str, Field(min_length=1)] = "gpt-oss-120b"
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.cerebras.ai/v1"


class GroqSettings(HostedSettings):
    """Settings of `groq`."""

    key: ClassVar[str] = "GROQ_API_KEY"

    model: Annotated[str, Field(min_length=1)] = "openai/gpt-oss-120b"
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.groq.com/openai/v1"
