"""Figures that an agent counts, by name, collected from the reports of its parts."""

from collections.abc import Mapping

# The gap as the agent knows it, in ms: by its own marks, and by pipecat's own measurement, which
# pipecat's traces hold as `turn.user_bot_latency_seconds`.
AGENT_GAP = "agent_gap_ms"
USER_BOT_LATENCY = "user_bot_latency_ms"

# The same as the platform claims it that recorded the call.
CLAIMED_GAP = "platform_gap_ms"

# Speed of the LLM.
# Of a turn's counts; each is of the answer that was heard.
TTFT = "llm_ttft_ms"
RATE = "llm_tokens_per_s"
WINDOW = "llm_window_tokens"
# Of fewer pieces, or in less time, a rate says how they were bundled and not how fast they came.
LEAST_PIECES, LEAST_MS = 5, 20.0
NO_RATE = (
    f"no reply came in {LEAST_PIECES} pieces over {LEAST_MS:g} ms from an LLM that says how many "
    "tokens it used"
)
# Pieces of what it thought besides, and what they took.
THOUGHT = "llm_thought_tokens"
THOUGHT_MS = "llm_thought_ms"
# Tokens of the prompt that were read from the provider's cache, or written to it. Anthropic prices
# them by the input's price (its documentation on prompt caching), others each by their own.
CACHE_READ, CACHE_READ_NET = "llm_cache_read_tokens", "llm_cache_read_cheap_tokens"
CACHE_WRITTEN = "llm_cache_written_tokens"
# 1 in the first turn that an LLM answers since the agent began.
COLD = "llm_cold"
# What the LLM's server says that a request took of each, in the order in which it does: waiting for
# its place in the batch, reading the prompt, making the reply. Means over the turn's own request
# and as many others as `OTHERS` says, where the server has reported them of all at once.
SERVER = {"queue": "llm_queue_ms", "prefill": "llm_prefill_ms", "decode": "llm_decode_ms"}
OTHERS = "llm_others"
# The transcript of speech that a closed-domain recogniser takes for nothing of its own, and the
# count of a turn that was answered without the LLM for that.
OUT_OF_DOMAIN = "[out of domain]"
OUTSIDE = "out_of_domain"


def claimed_gap(counts: Mapping[str, float]) -> tuple[float | None, str | None]:
    """Return the gap in ms that the agent itself claims, and the source of the claim; or None.

    The source `pipecat` is the framework's own measurement; `marks` are the agent's marks;
    `platform` is what the platform that recorded the call says.
    """
    sources = ((USER_BOT_LATENCY, "pipecat"), (AGENT_GAP, "marks"), (CLAIMED_GAP, "platform"))
    for name, source in sources:
        if (ms := counts.get(name)) is not None:
            return ms, source
    return None, None


def add_counts(counts: dict[str, float], more: Mapping[str, float]) -> None:
    """Add further figures to `counts`."""
    for name, n in more.items():
        counts[name] = counts.get(name, 0) + n
