"""How fast the language model was, in one turn and over a run."""

from collections.abc import Mapping

from turngap.core.budget import LLM_WINDOW_MS
from turngap.core.results import Turn
from turngap.core.tokens import (
    COLD,
    OTHERS,
    RATE,
    SERVER,
    THOUGHT,
    THOUGHT_MS,
    TTFT,
    WINDOW,
    TokenFigures,
)
from turngap.report.words import ms


def tokens_words(turn: Turn) -> str | None:
    """Say how fast the turn's LLM was, and why; None if the agent reported nothing about it."""
    first, rate, window = (turn.counts.get(name) for name in (TTFT, RATE, WINDOW))
    if first is None:
        return None
    parts = [f"first token after {ms(first)} ms"]
    if thought := turn.counts.get(THOUGHT):
        took = ms(turn.counts.get(THOUGHT_MS, 0.0))
        parts.append(
            f"before that it thought for {took} ms, {thought:.0f} pieces that nobody heard"
        )
    parts += [f"{rate:.0f} tokens/s"] if rate is not None else []
    parts += [f"{window:.0f} tokens within {ms(LLM_WINDOW_MS)} ms"] if window is not None else []
    told = {name: turn.counts[count] for name, count in SERVER.items() if count in turn.counts}
    if told:
        others = turn.counts.get(OTHERS, 0.0)
        means = f" (means, with {others:.0f} more that ended meanwhile)" if others else ""
        parts.append(_server_words(told) + means)
    parts += ["cold: its first turn since the agent began"] if COLD in turn.counts else []
    return " · ".join(parts)


def _server_words(server_ms: Mapping[str, float]) -> str:
    return "at the server " + ", ".join(f"{name} {ms(took)}" for name, took in server_ms.items())


def token_figures_words(figures: TokenFigures) -> str:
    """Say how fast a run's LLM was; first turns are kept apart."""
    parts: list[str] = []
    if figures.ttft_ms is not None:
        parts.append(f"first token p50 {ms(figures.ttft_ms)} ms")
    if figures.ttft_p95_ms.value is not None:
        parts.append(f"p95 {ms(figures.ttft_p95_ms.value)} ms")
    if figures.per_s is not None:
        parts.append(f"p50 {figures.per_s:.0f} tokens/s")
    if figures.in_window is not None:
        parts.append(f"p50 {figures.in_window:g} tokens within {ms(LLM_WINDOW_MS)} ms")
    if figures.server_ms:
        parts.append(f"p50 {_server_words(figures.server_ms)} ms")
    said = [f"{' · '.join(parts)} (n={figures.n})"] if figures.n else []
    if figures.cold_ttft_ms is not None:
        median = "" if figures.cold_n == 1 else "p50 "
        said.append(f"cold: first token {median}{ms(figures.cold_ttft_ms)} ms (n={figures.cold_n})")
    return "; ".join(said)
