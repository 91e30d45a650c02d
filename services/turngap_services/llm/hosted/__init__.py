"""Models of providers, over the network, for money: one setting names the model."""

from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from turngap.backends import BackendSettings, BackendSpec, Need
from turngap_services.loading import lazily, needs


class HostedSettings(BackendSettings):
    """Settings of a provider that speaks OpenAI's chat completions."""

    key: ClassVar[str] = ""

    model: Annotated[str, Field(min_length=1)]
    """The provider's name for the model."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")]
    """The provider's address, or that of a server with the same API."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """The longest reply, in tokens, the model's reasoning included."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature; by default the provider's own, as some models refuse any other."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the sampling, for providers that take one."""
    service_tier: str | None = None
    """The provider's service tier, such as `priority`."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further keys of each request, such as `{reasoning_effort = "none"}`."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """How long the provider may take to answer the first question, in seconds."""
    keep_alive: bool = True
    """Use one connection for the whole session; if off, each request opens a connection."""


class OpenAISettings(HostedSettings):
    """Settings of `openai`."""

    key: ClassVar[str] = "OPENAI_API_KEY"

    model: Annotated[str, Field(min_length=1)] = "gpt-4.1"
    """OpenAI's name for the model."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.openai.com/v1"
    """OpenAI's address, or that of a server with the same API."""
    transport: Literal["http", "websocket"] = "http"
    """`http`: chat completions. `websocket`: the Responses API over one connection that stays
    open and carries only what is new in the conversation."""

    @model_validator(mode="after")
    def _known_to_the_api(self) -> Self:
        if self.transport == "websocket" and self.seed is not None:
            raise ValueError("the Responses API has no seed; leave it out, or use transport=http")
        if self.transport == "websocket" and not self.keep_alive:
            raise ValueError(
                "a WebSocket stays open; for a new connection each request use transport=http"
            )
        return self


class CerebrasSettings(HostedSettings):
    """Settings of `cerebras`."""

    key: ClassVar[str] = "CEREBRAS_API_KEY"

    model: Annotated[str, Field(min_length=1)] = "gpt-oss-120b"
    """Cerebras' name for the model."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.cerebras.ai/v1"
    """Cerebras' address, or that of a server with the same API."""


class GroqSettings(HostedSettings):
    """Settings of `groq`."""

    key: ClassVar[str] = "GROQ_API_KEY"

    model: Annotated[str, Field(min_length=1)] = "openai/gpt-oss-120b"
    """Groq's name for the model."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.groq.com/openai/v1"
    """Groq's address, or that of a server with the same API."""


class AnthropicSettings(BackendSettings):
    """Settings of `anthropic`."""

    key: ClassVar[str] = "ANTHROPIC_API_KEY"

    model: Annotated[str, Field(min_length=1)] = "claude-sonnet-4-6"
    """Anthropic's name for the model."""
    speed: Literal["standard", "fast"] = "standard"
    """`fast` asks for fast mode (a beta): more tokens a second for more money, on some models."""
    effort: str | None = None
    """How much the model spends on an answer; by default as little as pipecat knows it to allow."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """The longest reply, in tokens, thinking included."""
    caching: bool = True
    """Let the server cache the system prompt."""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] = "https://api.anthropic.com"
    """Anthropic's address, or that of a server with the same API."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """How long the server may take to answer the first question, in seconds."""
    keep_alive: bool = True
    """Use one connection for the whole session; if off, each request opens a connection."""


def _key(variable: str) -> Need:
    return Need("env", variable, f"export {variable}=… (your key)")


def _spec(name: str, settings_type: type[HostedSettings], notes: str) -> BackendSpec:
    return BackendSpec(
        name=name,
        kind="llm",
        settings_type=settings_type,
        create=partial(lazily("turngap_services.llm.hosted.session:create"), name),
        prepare=partial(lazily("turngap_services.llm.hosted.session:prepare"), name),
        requires=(_key(settings_type.key),),
        licence="BSD-2-Clause",
        notes=notes,
        tools=True,
    )


OPENAI = _spec(
    "openai",
    OpenAISettings,
    "OpenAI's models, over the network, for money; or any compatible server (base_url).",
)
CEREBRAS = _spec("cerebras", CerebrasSettings, "Cerebras' models, over the network, for money.")
GROQ = _spec("groq", GroqSettings, "Groq's models, over the network, for money.")
ANTHROPIC = BackendSpec(
    name="anthropic",
    kind="llm",
    settings_type=AnthropicSettings,
    create=lazily("turngap_services.llm.hosted.anthropic:create"),
    prepare=lazily("turngap_services.llm.hosted.anthropic:prepare"),
    requires=(*needs("anthropic", "anthropic"), _key(AnthropicSettings.key)),
    licence="MIT AND BSD-2-Clause",
    tools=True,
    notes="Anthropic's models, over the network, for money; speed=fast for fast mode.",
)
