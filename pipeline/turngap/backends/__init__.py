"""What an engine must say of itself to be swappable, and where engines are found.

An engine is a frozen `BackendSpec` whose `create` returns a stock pipecat service. Specs arrive
through the entry-point group `turngap.backends`, each entry naming an iterable of them, so that
anybody's package plugs in as ours does.
"""

from turngap.backends.choice import (
    GROUP,
    MAX_VALUE,
    BackendChoice,
    ConfiguredBackend,
    find,
    specs,
    value_of,
)
from turngap.backends.needs import AGENT, Need, install, not_installed, remedies
from turngap.backends.spec import (
    COUNTS,
    KINDS,
    BackendSettings,
    BackendSpec,
    Decision,
    Floor,
    Kind,
    Price,
    TurnTaking,
    WeightFile,
    Weights,
    require,
)

__all__ = [
    "AGENT",
    "COUNTS",
    "GROUP",
    "KINDS",
    "MAX_VALUE",
    "BackendChoice",
    "BackendSettings",
    "BackendSpec",
    "ConfiguredBackend",
    "Decision",
    "Floor",
    "Kind",
    "Need",
    "Price",
    "TurnTaking",
    "WeightFile",
    "Weights",
    "find",
    "install",
    "not_installed",
    "remedies",
    "require",
    "specs",
    "value_of",
]
