"""Models behind vLLM: a server that is running, or one that turngap starts and stops."""

from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.llm.vllm.settings import VllmSettings

if TYPE_CHECKING:
    from turngap_services.llm.vllm.service import VllmLLMService


def prepare(settings: VllmSettings) -> None:
    """Start the server or find it, see that it has the model, and warm it up."""
    import pipecat.services.openai.llm  # noqa: F401

    from turngap_services.llm.vllm.session import connected

    connected(settings)


def create(settings: VllmSettings, clock: Clock) -> "VllmLLMService":
    """A service for one session."""
    from turngap_services.llm.vllm.session import connected, service

    return service(settings, connected(settings))


SPEC = BackendSpec(
    name="vllm",
    kind="llm",
    settings_type=VllmSettings,
    create=create,
    prepare=prepare,
    by_default=(
        Need(
            "command",
            "vllm",
            "--set llm.base_url=http://HOST:PORT/v1 of a running server, or install vLLM in an "
            "environment of its own and --set llm.command=DIR/bin/vllm",
        ),
    ),
    licence="Apache-2.0",
    tools=True,
    notes="Needs base_url of a vLLM server, or a model and the command `vllm` to start one; "
    "VLLM_API_KEY where it wants a key.",
)
