"""How a comparison is said: the cells of its tables and the sentences beneath."""

from turngap.core.comparison_record import (
    BackendRecord,
    ComparisonRecord,
    CrossingRecord,
    FigureRecord,
    ShareRecord,
)
from turngap.report import words

HEAD = (
    "backend", "turns", "gap p50", "p95", "hit rate", "first answer", "first token", "tokens/s",
    "window tokens", "right answers", "$/1000 turns", "$/1000 right",
)  # fmt: skip
CHAIN_HEAD = ("turns in a row",)


def rows(record: ComparisonRecord) -> list[tuple[str, ...]]:
    """The table of backends, a row each, as `HEAD` has it."""
    return [row(backend) for backend in record.backends]


def row(backend: BackendRecord) -> tuple[str, ...]:
    """One backend's cells."""
    return (
        words.clean(backend.name) + ("" if backend.valid else " (invalid)"),
        str(backend.turns),
        figure(backend.gap_ms["p50"]),
        figure(backend.gap_ms["p95"]),
        share(backend.hit_rate),
        figure(backend.first_answer_ms),
        "–" if backend.ttft_ms is None else f"{words.ms(backend.ttft_ms)} ms",
        "–" if backend.tokens_per_s is None else f"{backend.tokens_per_s:.0f}",
        "–" if backend.window_tokens is None else f"{backend.window_tokens:g}",
        share(backend.correct),
        thousand(backend.price.usd_per_turn),
        thousand(backend.price.usd_per_right),
    )


def figure(value: FigureRecord) -> str:
    """A percentile in ms."""
    return "–" if value.value is None else f"{words.ms(value.value)} ms"


def share(value: ShareRecord) -> str:
    """A share with its interval."""
    if value.value is None or value.low is None or value.high is None:
        return "–"
    bounds = f"{words.percent(value.low)} to {words.percent(value.high)}"
    return f"{words.percent(value.value)} ({bounds})"


def thousand(usd: float | None) -> str:
    """The price of a thousand, three digits of it."""
    return "–" if usd is None else f"{usd * 1000:.3g}"


def missing(record: ComparisonRecord) -> list[str]:
    """Why figures are missing, and what counts for nothing."""
    notes: list[str] = []
    for backend in record.backends:
        reasons = [
            *(f"{q}: {f.why_none}" for q, f in backend.gap_ms.items() if f.why_none),
            *([f"price: {backend.price.why_none}"] if backend.price.why_none else []),
            *([llm_words(backend)] if backend.llm_n < backend.turns else []),
            *(f"{n} answers not judged ({why})" for why, n in backend.not_judged.items()),
            *([backend.why_invalid] if backend.why_invalid else []),
        ]
        if reasons:
            notes.append(words.clean(f"{backend.name}: {'; '.join(reasons)}"))
    return notes


def llm_words(backend: BackendRecord) -> str:
    """Of how many turns the language model's figures are."""
    return f"first token, tokens/s and window tokens: of {backend.llm_n} of {backend.turns} turns"


def chain_rows(record: ComparisonRecord) -> list[tuple[str, ...]]:
    """The task's table: a row for each length, of each backend the success, time and price."""
    lengths = list(record.chain[0].success) if record.chain else []
    return [
        (
            str(n),
            *(chain_cell(chain.success[n], chain.ms[n], chain.usd[n]) for chain in record.chain),
        )
        for n in lengths
    ]


def chain_cell(success: float, ms: float | None, usd: float | None) -> str:
    """How likely at once; and until it went well, how long and how dear."""
    time = "never" if ms is None else seconds(ms)
    price = "" if usd is None else f", ${usd:.2g}"
    return f"{words.percent(success)}, {time}{price}"


def seconds(ms: float) -> str:
    """A time for people."""
    s = ms / 1000
    if s < 60:
        return f"{s:.1f} s"
    if s < 3600:
        return f"{s / 60:.1f} min"
    return f"{s / 3600:.1f} h" if s < 100 * 3600 else "over 100 h"


def crossing(found: CrossingRecord) -> str:
    """Where one backend overtakes another, and how sure that is."""
    leader, follower = words.clean(found.leader), words.clean(found.follower)
    if found.turns is None:
        text = f"in {found.what}, {leader} stays ahead of {follower} up to {found.longest} turns"
    else:
        turns = _many(found.turns, "turn")
        text = f"in {found.what}, {follower} overtakes {leader} at a task of {turns}"
    return f"{text} ({_sure(found)})"


def _sure(found: CrossingRecord) -> str:
    if found.earliest is None:
        return f"by the intervals of the right answers at none up to {found.longest}"
    latest = found.latest or f"none up to {found.longest}"
    return f"by the intervals of the right answers: {found.earliest} to {latest}"


def basis(record: ComparisonRecord) -> str:
    """What it rests on."""
    scenarios = _many(len(record.scenarios), "scenario")
    return (
        f"{words.clean(record.agent)}, {scenarios}, {_many(record.rounds, 'round')}, in turns on "
        f"one machine ({words.clean(record.machine.cpu)}, {record.machine.cores} cores)"
    )


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


CHAIN_NOTE = (
    "all turns right at once; then time and price until a whole task went well, begun anew each "
    "time that it did not, and that noticed only at its end"
)
