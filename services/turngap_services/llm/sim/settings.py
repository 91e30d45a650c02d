"""Settings of the simulated model."""

from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings


class SimSettings(BackendSettings):
    """Settings of `sim`.

    Attributes:
        ttft_ms: median time from the request to the first token.
        tokens_per_s: the median gap between two tokens is its inverse.
        jitter: sigma of the lognormal factor on each of these times; 0 for none.
        prefill_tokens_per_s: how fast the prompt is read before the first token, but for the part
            that this conversation's last prompt began with too (prefix caching); None: no time of
            its own.
        seed: with the conversation it decides every time, so that two runs are alike.
        default_reply: said where the library has no reply to what was heard.
    """

    ttft_ms: Annotated[float, Field(ge=0)] = 150.0
    tokens_per_s: Annotated[float, Field(gt=0)] = 65.0
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.15
    prefill_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    seed: int = 1
    default_reply: Annotated[str, Field(min_length=1)] = (
        "I am a simulated model and have no reply for that."
    )
