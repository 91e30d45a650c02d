"""Anthropic's models, in standard and in fast mode."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.extras import needs

if TYPE_CHECKING:
    from pipecat.services.anthropic.llm import AnthropicLLMService

KEY = "ANTHROPIC_API_KEY"


class AnthropicSettings(BackendSettings):
    """Settings of `anthropic`."""

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


def prepare(settings: AnthropicSettings) -> None:
    """Check the key and the model before a conversation depends on them."""
    from turngap_services.llm.anthropic.session import checked

    checked(settings)


def create(settings: AnthropicSettings, clock: Clock) -> "AnthropicLLMService":
    """Make the service of one session."""
    from turngap_services.llm.anthropic.session import service

    return service(settings)


SPEC = BackendSpec(
    name="anthropic",
    kind="llm",
    settings_type=AnthropicSettings,
    create=create,
    prepare=prepare,
    requires=(
        *needs("anthropic", "anthropic"),
        Need("env", KEY, f"export {KEY}=… (your key)"),
    ),
    licence="MIT AND BSD-2-Clause",
    tools=True,
    notes="Anthropic's models, over the network, for money; speed=fast for fast mode.",
)
