"""Measures the turn gap of voice agents, as heard at the caller's ear.

    >>> import turngap
    >>> run = turngap.replay("ws://127.0.0.1:8765/ws", tag="smoke", repeat=3)
    >>> print("gap p50 in ms:", run.gap_ms.p50)
    gap p50 in ms: ... (95 % interval from ... to ...)
    >>> print("cut-ins:", run.cut_ins)
    cut-ins: ... (... of ...; 95 % interval from ... to ...)
    >>> run.to_csv("turns.csv")
    PosixPath('turns.csv')

The names in `__all__` are public: `replay`, `score`, `check`, `compare` and `load` with their
awaitable twins `replay_async`, `score_async` and so on; the nouns `Run`, `Turn` and `Scenario`;
`MarksObserver`, which gives any pipecat bot its marks; and the errors. `turngap.testing` (helpers
for tests) and `turngap.backends` (for packages that bring their own engines) are public, too.
Everything else may change from one version to the next.

Each name is imported when it is first used, so that `import turngap` alone loads nothing else. It
also turns off the telemetry that libraries send to their vendors.
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turngap._api import (
        check,
        check_async,
        compare,
        compare_async,
        load,
        load_async,
        replay,
        replay_async,
        score,
        score_async,
    )
    from turngap.core import __version__
    from turngap.core.errors import (
        AgentError,
        InconclusiveError,
        InputError,
        LatencyError,
        TurngapError,
    )
    from turngap.core.results import Turn
    from turngap.marks.observer import MarksObserver
    from turngap.scenario.model import Scenario
    from turngap.store.runs import Run

# Nothing that turngap starts reports to anybody. Libraries read these when they are imported, and
# processes that turngap starts inherit them: so they are set here, before anything else, and also
# over what was set before (docs/security.md, "What could phone home").
os.environ.update(
    ORT_DISABLE_TELEMETRY="1",  # onnxruntime: a device id, model paths and errors
    DO_NOT_TRACK="1",  # vLLM, the client of the Hugging Face hub, and others that know it
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_XET_TELEMETRY_ENABLED="0",  # the hub's downloads
    VLLM_NO_USAGE_STATS="1",
    RAY_USAGE_STATS_ENABLED="0",
)

__all__ = [
    "AgentError",
    "InconclusiveError",
    "InputError",
    "LatencyError",
    "MarksObserver",
    "Run",
    "Scenario",
    "Turn",
    "TurngapError",
    "__version__",
    "check",
    "check_async",
    "compare",
    "compare_async",
    "load",
    "load_async",
    "replay",
    "replay_async",
    "score",
    "score_async",
]

_HOMES = {
    "MarksObserver": "turngap.marks.observer",
    "Run": "turngap.store.runs",
    "Scenario": "turngap.scenario.model",
    "Turn": "turngap.core.results",
    "__version__": "turngap.core",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "turngap.core.errors" if name.endswith("Error") else _HOMES.get(name, "turngap._api")
    try:
        globals()[name] = value = getattr(import_module(home), name)
    except ModuleNotFoundError as e:
        from turngap.backends.needs import not_installed

        if (missing := not_installed(e)) is None:
            raise
        raise missing from e
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _FrontDoor(ModuleType):
    """A module whose functions stay functions despite subpackages that have their names.

    Importing a module from `turngap/check/` sets `turngap.check` to that package.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontDoor
