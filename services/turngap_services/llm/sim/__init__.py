"""A simulated language model: seeded, with explicit timing, its words from the scenario library."""

from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.llm.sim.settings import SimSettings

if TYPE_CHECKING:
    from turngap_services.llm.sim.service import SimLLMService


def prepare(settings: SimSettings) -> None:
    """Read the library and import what a session needs."""
    import turngap_services.llm.sim.service  # noqa: F401
    from turngap_services.script import scenarios

    scenarios(settings.library)


def create(settings: SimSettings, clock: Clock) -> "SimLLMService":
    """A model for one session."""
    from turngap_services.llm.sim.script import lines
    from turngap_services.llm.sim.service import SimLLMService
    from turngap_services.script import scenarios

    return SimLLMService(settings=settings, script=lines(scenarios(settings.library)), clock=clock)


SPEC = BackendSpec(
    name="sim",
    kind="llm",
    settings_type=SimSettings,
    create=create,
    prepare=prepare,
    requires=(Need("module", "rapidfuzz", "pip install 'turngap[embedded]'"),),
    licence="BSD-2-Clause",
    tools=True,
    judges=False,
    notes="No model: the library's replies, with set time to first token, rate and jitter.",
)
