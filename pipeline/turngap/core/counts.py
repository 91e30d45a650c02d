"""Figures that an agent counts, by name, put together from the reports of its parts."""

from collections.abc import Mapping

# The gap as the agent knows it, in ms: by its own marks, and by pipecat's own measurement, which
# pipecat's traces hold as `turn.user_bot_latency_seconds`.
AGENT_GAP = "agent_gap_ms"
USER_BOT_LATENCY = "user_bot_latency_ms"


def claimed_gap(counts: Mapping[str, float]) -> tuple[float | None, str | None]:
    """Return the gap in ms as the agent claims it, and by what it does; None where it claims none.

    `pipecat` is that framework's own measurement, and `marks` are those of the agent.
    """
    for name, source in ((USER_BOT_LATENCY, "pipecat"), (AGENT_GAP, "marks")):
        if (ms := counts.get(name)) is not None:
            return ms, source
    return None, None


def add_counts(counts: dict[str, float], more: Mapping[str, float]) -> None:
    """Add further figures to `counts`."""
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n
