"""A simulated language model: seeded, with explicit timing, its words from the scenario library."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec
from turngap.core.clock import Clock
from turngap_services.extras import needs

if TYPE_CHECKING:
    from turngap_services.llm.sim.service import SimLLMService


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
    """Prompt tokens read a second before the first token, those that the last prompt began with
    excepted (prefix caching); by default reading takes no time of its own."""


class ServedSettings(LibrarySettings):
    """Settings of the served profiles."""

    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of replies that are right, 0 to 1, by default the profile's; a wrong reply is that of
    another turn."""
    streams: Annotated[int, Field(ge=0, le=2000)] | None = None
    """Mean number of other people's requests in the batch; by default the profile's."""
    network_ms: Annotated[float, Field(ge=0)] = 0.0
    """Delay between the agent and the server before the first token, in ms."""


def prepare(settings: LibrarySettings) -> None:
    """Read the library and import what a session needs."""
    import turngap_services.llm.sim.service  # noqa: F401
    from turngap_services.script import scenarios

    scenarios(settings.library)


def create(settings: SimSettings, clock: Clock) -> "SimLLMService":
    """Make the service of one session."""
    from turngap_services.llm.sim.script import library_turns
    from turngap_services.llm.sim.service import SimLLMService
    from turngap_services.script import scenarios

    script = library_turns(scenarios(settings.library))
    return SimLLMService(settings=settings, script=script, clock=clock)


SPEC = BackendSpec(
    name="sim",
    kind="llm",
    settings_type=SimSettings,
    create=create,
    prepare=prepare,
    requires=needs("agent", "rapidfuzz"),
    licence="BSD-2-Clause",
    simulated=True,
    tools=True,
    judges=False,
    notes="Simulated: the scenarios' own replies, with set time to first token, rate and jitter.",
)
