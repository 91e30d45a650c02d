"""The model of whichever server runs on this machine, or else the project's own."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec
from turngap.core.clock import Clock
from turngap_services.llm import small
from turngap_services.llm.small import SPEC as SMALL

if TYPE_CHECKING:
    from pipecat.services.llm_service import LLMService

    from turngap.core.results import HeldOutRecord

# Where servers listen unless they are told otherwise, in the order in which they are asked.
PORTS = {11434: "Ollama", 8080: "llama.cpp", 1234: "LM Studio", 8000: "vLLM"}


class LocalSettings(BackendSettings):
    """Settings of `local`."""

    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None
    """Address of a server, `http://HOST:PORT/v1`; without it one is looked for on this machine."""
    ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = tuple(PORTS)
    """Ports of 127.0.0.1 on which a server is looked for; the first whose model answers is
    taken."""
    model: str | None = None
    """The server's name for the model; by default the first that it lists whose name is not that of
    a model for embeddings, speech or another task."""
    api_key_env: str = "VLLM_API_KEY"
    """Environment variable that holds the key of the server at `base_url`, if it wants one. A
    server that was found is sent no key."""
    max_tokens: Annotated[int, Field(ge=1)] = 96
    """The longest reply, in tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 always takes the likeliest token."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further keys of each request, as `{reasoning_effort = "low"}`."""
    # Ollama and LM Studio load a model when they are first asked for it.
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """How long the server may take to answer the first question, in seconds."""


def prepare(settings: LocalSettings) -> None:
    """Find the server and have it load its model; or load the project's own."""
    from turngap_services.llm.local.session import ready

    ready(settings)


def create(settings: LocalSettings, clock: Clock) -> "LLMService[Any]":
    """Make the service of one session."""
    from turngap_services.llm.local.session import ready, service

    return service(ready(settings), clock)


def _toolless(settings: LocalSettings) -> str | None:
    """Return why it calls no tools: without a server the project's own model knows none."""
    from turngap_services.llm.local.session import chosen

    found = chosen(settings)
    return found.why if found.server is None else None


def finds(settings: LocalSettings) -> str:
    """Return which model these settings would have answer on this machine, and why."""
    from turngap_services.llm.local.session import chosen

    return chosen(settings).why


def held_out_share(settings: LocalSettings) -> "HeldOutRecord | None":
    """Read what is known of the project's own model, once it is the one that answers."""
    from turngap_services.llm.local.session import tried

    answers = tried(settings)
    if answers is None or answers.server is not None:
        return None
    return small.held_out_share(answers.own)


def narrow(settings: LocalSettings) -> bool:
    """Return whether the project's own model is the one that answers."""
    from turngap_services.llm.local.session import tried

    answers = tried(settings)
    return answers is not None and answers.server is None


SPEC = BackendSpec(
    name="local",
    kind="llm",
    settings_type=LocalSettings,
    create=create,
    prepare=prepare,
    requires=SMALL.requires,
    finds=finds,
    held_out=held_out_share,
    narrow=narrow,
    licence=f"{SMALL.licence}",
    tools=True,
    toolless=_toolless,
    judges=False,
    notes="A server on this machine: "
    + ", ".join(f"{n} ({p})" for p, n in PORTS.items())
    + "; else the project's own model.",
)
