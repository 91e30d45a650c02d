"""Settings of the simulated model."""

from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings


class SpokenSettings(BackendSettings):
    """Settings of everything that answers from the library.

    Attributes:
        seed: with the conversation it decides every time, so that two runs are alike.
        default_reply: said where the library has no reply to what was heard.
    """

    seed: int = 1
    default_reply: Annotated[str, Field(min_length=1)] = (
        "I am a simulated model and have no reply for that."
    )


class SimSettings(SpokenSettings):
    """Settings of `sim`.

    Attributes:
        ttft_ms: median time from the request to the first token.
        tokens_per_s: the median gap between two tokens is its inverse.
        jitter: sigma of the lognormal factor on each of these times; 0 for none.
        prefill_tokens_per_s: how fast the prompt is read before the first token, but for the part
            that this conversation's last prompt began with too (prefix caching); None: no time of
            its own.
    """

    ttft_ms: Annotated[float, Field(ge=0)] = 150.0
    tokens_per_s: Annotated[float, Field(gt=0)] = 65.0
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.15
    prefill_tokens_per_s: Annotated[float, Field(gt=0)] | None = None


class ServedSettings(SpokenSettings):
    """Settings of the served profiles.

    Attributes:
        accuracy: share of replies that are right; the others are another turn's reply.
        streams: other people's requests in the same batch, in the mean; None: the profile's own.
        network_ms: added before the first token: what lies between the agent and the server.
    """

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    streams: Annotated[int, Field(ge=0, le=2000)] | None = None
    network_ms: Annotated[float, Field(ge=0)] = 0.0
