"""LLM backends made of other LLM backends, each an ordinary one with its cost counted in full."""

from functools import partial
from typing import TYPE_CHECKING, Any

from turngap.backends import BackendSpec
from turngap.core.clock import Clock
from turngap_services.llm.combine.settings import (
    BestOfSettings,
    CombinedSettings,
    OpenerSettings,
    RaceSettings,
    RouteSettings,
)

if TYPE_CHECKING:
    from turngap_services.llm.combine.service import CombinedLLMService


def prepare(settings: CombinedSettings) -> None:
    """Load the models.

    Raises:
        AgentError: one of them needs what this machine lacks.
    """
    import turngap_services.llm.combine.service  # noqa: F401

    for spec, own in settings.parts():
        spec.require()
        if spec.prepare is not None:
            spec.prepare(own)


def create(which: str, settings: Any, clock: Clock) -> "CombinedLLMService":
    """A service for one session."""
    from turngap_services.llm.combine.best_of import BestOfLLMService
    from turngap_services.llm.combine.opener import OpenerLLMService
    from turngap_services.llm.combine.race import RaceLLMService
    from turngap_services.llm.combine.route import RouteLLMService

    kinds: dict[str, Any] = {
        "race": RaceLLMService,
        "route": RouteLLMService,
        "opener": OpenerLLMService,
        "best-of": BestOfLLMService,
    }
    return kinds[which](settings=settings, clock=clock)


def _spec(name: str, settings_type: type[CombinedSettings], notes: str) -> BackendSpec:
    return BackendSpec(
        name=name,
        kind="llm",
        settings_type=settings_type,
        create=partial(create, name),
        prepare=prepare,
        licence="BSD-2-Clause",
        notes=notes,
        tools=True,
        toolless=settings_type.why_no_tools,
        combines=True,
        judges=False,
    )


RACE = _spec(
    "race",
    RaceSettings,
    "Asks a fast and a full model; the full one wins if its first token is there in time.",
)
ROUTE = _spec(
    "route",
    RouteSettings,
    "Easy turns to a fast model, hard ones to a full one if there is time for it.",
)
OPENER = _spec(
    "opener",
    OpenerSettings,
    "A fast model says the first clause at once, a full one goes on from it and may take it back.",
)
BEST_OF = _spec(
    "best-of",
    BestOfSettings,
    "Asks several models at once and says what most of them agree on at the window's end.",
)
SPECS = (RACE, ROUTE, OPENER, BEST_OF)
