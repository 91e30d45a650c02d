"""Settings of the vLLM backend."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from turngap.backends import BackendSettings

Lane = Literal["shared", "low-batch"]


class VllmSettings(BackendSettings):
    """Settings of `vllm`.

    Attributes:
        base_url: of a running server, `http://HOST:PORT/v1`; left out: turngap starts one for
            `model`, and stops it when the agent ends.
        model: the name of the served model, or what to serve: a directory or a hub's model id.
            With a `base_url` it may be left out where the server has only one.
        api_key_env: the environment variable that holds the server's key, where it wants one.
        max_tokens: a reply ends after so many at the latest.
        temperature: 0 always takes the likeliest token.
        seed: of the sampling, where the temperature is above 0.
        lane: `shared` is answered in one batch with whoever else asks the server. `low-batch` is
            not: a server that turngap starts answers `low_batch_seqs` at a time, and a running one
            is asked to take the requests before others' (`priority`).
        low_batch_seqs: how many replies a low-batch server makes at the same time.
        priority: of the requests, lower first, on a server with `--scheduling-policy priority`;
            left out: none, or −1 in the low-batch lane of a running server.
        extra_body: whatever else goes into each request, such as
            `{chat_template_kwargs = {enable_thinking = false}}`.
        timeout_s: how long a running server may take to answer the first question.
        keep_alive: ask over one connection as long as the session lasts; off: each request has a
            connection of its own, and pays for making it.
        command: the vLLM executable, which may live in an environment of its own; or the Python of
            that environment.
        serve_args: further arguments of `vllm serve`.
        serve_env: further environment of it.
        nice: how much of the processor a server that turngap starts leaves to other processes, 0
            to 19. On a CPU its engine waits for its worker by asking again and again; on two cores
            a client that shared one with it stood still for over 2 s at times.
        start_timeout_s: how long it may take until it is healthy; a large model takes minutes.
        log: where its output goes; left out: a file in the system's directory for these.
    """

    base_url: Annotated[str, Field(pattern=r"^https?://[^/]")] | None = None
    model: str | None = None
    api_key_env: str = "VLLM_API_KEY"
    max_tokens: Annotated[int, Field(ge=1)] = 96
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 1
    lane: Lane = "shared"
    low_batch_seqs: Annotated[int, Field(ge=1)] = 2
    priority: int | None = None
    extra_body: dict[str, Any] = Field(default_factory=dict[str, Any])
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    keep_alive: bool = True
    command: str = "vllm"
    serve_args: tuple[str, ...] = ()
    serve_env: dict[str, str] = Field(default_factory=dict[str, str])
    nice: Annotated[int, Field(ge=0, le=19)] = 10
    start_timeout_s: Annotated[float, Field(gt=0)] = 600.0
    log: Path | None = None

    @model_validator(mode="after")
    def _something_to_speak_with(self) -> Self:
        if self.base_url is None and self.model is None:
            raise ValueError(
                "neither a server nor a model to serve; expected base_url=http://HOST:PORT/v1, or "
                "model=DIRECTORY_OR_MODEL_ID"
            )
        return self

    @property
    def request_priority(self) -> int | None:
        """What each request says of its own importance; None: nothing."""
        ahead = self.lane == "low-batch" and self.base_url is not None
        return -1 if self.priority is None and ahead else self.priority
