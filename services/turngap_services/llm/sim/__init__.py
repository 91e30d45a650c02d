"""Simulated models: words from the scenario library, with set or simulated timing."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Price
from turngap.inference.server import Precision
from turngap_services.loading import lazily, needs


class LibrarySettings(BackendSettings):
    """Settings of the models that answer from the scenario library."""

    seed: int = 1
    """Seed of all random times and choices; two runs with the same seed are alike."""
    default_reply: Annotated[str, Field(min_length=1)] = (
        "I am a simulated model and have no reply for that."
    )
    """What the model says if the library has no reply to what was heard."""


class SimSettings(LibrarySettings):
    """Settings of `sim`."""

    ttft_ms: Annotated[float, Field(ge=0)] = 150.0
    """Median time to first token, in ms."""
    tokens_per_s: Annotated[float, Field(gt=0)] = 65.0
    """Tokens a second; its inverse is the median gap between two tokens."""
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.15
    """Sigma of the lognormal factor on each of these times; 0 for none."""
    prefill_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    """Prompt tokens read per second before the first token, except for those with which the last
    prompt began too (prefix caching); by default reading takes no time of its own."""


class ServedSettings(LibrarySettings):
    """Settings of the served profiles."""

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of replies that are right, 0 to 1, by default the profile's; a wrong reply is that of
    another turn."""
    streams: Annotated[int, Field(ge=0, le=2000)] | None = None
    """Mean number of other people's requests in the batch; by default the profile's."""
    network_ms: Annotated[float, Field(ge=0)] = 0.0
    """Delay between the agent and the server before the first token, in ms."""


_SERVICE = "turngap_services.llm.sim.service"

SPEC = BackendSpec(
    name="sim",
    kind="llm",
    settings_type=SimSettings,
    create=lazily(f"{_SERVICE}:create"),
    prepare=lazily(f"{_SERVICE}:prepare"),
    requires=needs("agent", "rapidfuzz"),
    licence="BSD-2-Clause",
    simulated=True,
    tools=True,
    judges=False,
    notes="Simulated: the scenarios' own replies, with set time to first token, rate and jitter.",
)


# Served models to pick from: one model in a full batch and nearly alone, and a distilled one.
# Their prices, rates and accuracies are those that two vendors announced in February 2026: a large
# model at about 65 tokens/s for $5/$25 a million tokens in and out; the same model at up to 2.5
# times that for $30/$150 (platform.claude.com, fast mode); and a model at over 1,000 tokens/s on a
# wafer, distilled from one that solves 77.3 % of an agent benchmark (Terminal-Bench 2.0), of which
# it solves 58.4 %. The engine of `turngap.inference` runs them in real time. The vendors' servers
# are not known outside: ours are chosen so that the rates come out.


@dataclass(frozen=True, slots=True)
class Profile:
    """A served model.

    Attributes:
        hardware, parts, model, weights: the server, in the words of `turngap simulate`.
        streams: mean number of other people's requests in its batch.
        accuracy: share of replies that are right, 0 to 1.
    """

    name: str
    hardware: str
    parts: int
    model: str
    weights: Precision
    streams: int
    accuracy: float
    price: Price
    notes: str


FULL = Profile(
    "sim:full", "h200", 8, "llama-3.3-70b", "fp8", 392, 0.773, Price(5, 25),
    "Simulated: a large model in a full batch. About 65 tokens/s; the scenarios' own replies.",
)  # fmt: skip
LOW_BATCH = Profile(
    "sim:full-low-batch", "h200", 8, "llama-3.3-70b", "fp8", 10, 0.773, Price(30, 150),
    "Simulated: the model of sim:full, nearly alone on its server. About 170 tokens/s at six "
    "times the price.",
)  # fmt: skip
DISTILLED = Profile(
    # The distilled model had no price: it was a free preview. This is the list price of its
    # vendor's small model of that time (18.75 and 113 credits of $0.04).
    "sim:distilled", "wafer", 1, "20b", "fp16", 0, 0.584, Price(0.75, 4.5),
    "Simulated: a small distilled model on a wafer-scale chip. Over 1,000 tokens/s, and less "
    "often right.",
)  # fmt: skip
PROFILES = (FULL, LOW_BATCH, DISTILLED)


SERVED = tuple(
    BackendSpec(
        name=profile.name,
        kind="llm",
        settings_type=ServedSettings,
        create=partial(lazily(f"{_SERVICE}:create_served"), profile),
        prepare=lazily(f"{_SERVICE}:prepare"),
        requires=needs("agent", "rapidfuzz"),
        price=profile.price,
        licence="BSD-2-Clause",
        simulated=True,
        tools=True,
        judges=False,
        notes=profile.notes,
    )
    for profile in PROFILES
)
