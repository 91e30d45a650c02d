"""The ways in which a latency test does not pass.

`LatencyError`: measured, and not as asserted. `turngap.core.errors` has the others:
`InconclusiveError` where the measurement says nothing either way (too few turns, a starved caller,
another machine's baseline), `InputError` and `AgentError` where there is none.
"""

from turngap.core.errors import TurngapError

# How the reason of a test begins that was skipped for being inconclusive.
INCONCLUSIVE = "inconclusive: "


class LatencyError(AssertionError):
    """The agent was measured, and it is slower than was asserted, or did something else."""


# Tracebacks and pytest's summary name exceptions with their module.
LatencyError.__module__ = "turngap"


def in_full(error: TurngapError, *more: str) -> TurngapError:
    """The same error with its hint in its text, where pytest shows it, and without its history.

    What pytest shows ends in a CI log: passwords and keys in URLs are taken out.
    """
    # Not at the top: it loads what no test run should that measures nothing.
    from turngap.core.secrets import without_url_secrets

    text = "\n".join(filter(None, (error.message, error.hint, *more)))
    return type(error)(error.kind, without_url_secrets(text))
