"""Anthropic's models, in standard and in fast mode."""

from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.llm.anthropic.settings import AnthropicSettings

if TYPE_CHECKING:
    from pipecat.services.anthropic.llm import AnthropicLLMService

KEY = "ANTHROPIC_API_KEY"


def prepare(settings: AnthropicSettings) -> None:
    """See that the key is right and the model is there, before a conversation depends on it."""
    from turngap_services.llm.anthropic.session import checked

    checked(settings)


def create(settings: AnthropicSettings, clock: Clock) -> "AnthropicLLMService":
    """A service for one session."""
    from turngap_services.llm.anthropic.session import service

    return service(settings)


SPEC = BackendSpec(
    name="anthropic",
    kind="llm",
    settings_type=AnthropicSettings,
    create=create,
    prepare=prepare,
    requires=(
        Need("module", "anthropic", "pip install 'turngap[anthropic]'"),
        Need("env", KEY, f"export {KEY}=… (your key)"),
    ),
    licence="MIT AND BSD-2-Clause",
    tools=True,
    notes="Anthropic's models, over the network, for money; speed=fast for fast mode.",
)
