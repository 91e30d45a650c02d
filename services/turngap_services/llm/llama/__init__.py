"""A published language model in this process, by llama.cpp."""

from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Weights
from turngap.backends.weights import at_home
from turngap.core.errors import InputError
from turngap_services.loading import lazily, needs, pinned, pinned_names

MODEL = "SmolLM2-135M-Instruct"


class LlamaSettings(BackendSettings):
    """Settings of `llama`."""

    model: Annotated[str, Field(min_length=1)] = MODEL
    """A model that turngap knows by name, or the path of a `.gguf` file with a chat template."""
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 64
    """The longest reply, in tokens."""
    max_sentences: Annotated[int, Field(ge=1)] | None = 2
    """The longest reply, in sentences: small models talk on."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 always takes the likeliest token, so that two runs say the same."""
    dry_multiplier: Annotated[float, Field(ge=0)] = 0.8
    """Strength of DRY, a penalty on repeating a sequence of tokens of the conversation; 0 for none.
    Without it, small models loop: "I'm sorry, I'm sorry, I'm sorry"."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of the sampling above temperature 0."""
    context: Annotated[int, Field(ge=256)] = 2048
    """The longest conversation and reply together, in tokens; more takes more memory. The oldest
    messages are left out beyond it."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads for one reply. Two wait for each other where other engines need the CPU, too."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Replies made at the same time; further ones wait."""


def weights_of(settings: LlamaSettings) -> Weights | None:
    """Return the weights that the settings name; None if the model is a local file.

    Raises:
        InputError: it is neither a known name nor a `.gguf` file's path.
    """
    if at_home(settings.model).suffix == ".gguf":
        return None
    if (weights := pinned("gguf", settings.model)) is None:
        raise InputError(
            "model.name",
            f"unknown model {settings.model!r}",
            hint=f"use the path of a .gguf file, or one of: {', '.join(pinned_names('gguf'))}",
        )
    return weights


SPEC = BackendSpec(
    name="llama",
    kind="llm",
    settings_type=LlamaSettings,
    create=lazily("turngap_services.llm.llama.model:create"),
    prepare=lazily("turngap_services.llm.llama.model:prepare"),
    requires=needs("llama", "xllamacpp"),
    weights=weights_of,
    licence="MIT",
    notes="llama.cpp on the CPU, in process; SmolLM2-135M unless told otherwise.",
    judges=False,
)
