"""A load test's figures as people read them."""

from collections import Counter

from turngap.core.budget import STARVED_MS
from turngap.core.stats import Percentile
from turngap.core.untrusted import printable
from turngap.load.curve import best_steps, enough, gap_ms, knee
from turngap.load.record import LoadRecord, StepFigures
from turngap.report import words
from turngap.report.levels import HELD, interval, share, tenths
from turngap.report.looks import Style
from turngap.report.sections import Cell

# Why a planned turn was missed, in words; the outcomes of played turns have their own.
MISSED = {
    "refused": "refused",
    "late_start": "opened too late",
    "dropped": "dropped",
    "not_reached": "not reached",
    "worker_lost": "lost with a caller",
    "waited": "waited for the line",
}


def sessions_words(n: int | None) -> str:
    """`8 sessions`."""
    return "–" if n is None else "1 session" if n == 1 else f"{n:,} sessions"


def load_words(step: StepFigures) -> str:
    """Format a step's load: sessions, or the rate at which calls were dialled."""
    return rate_words(step.offered_per_s) if step.sessions is None else f"{step.sessions:,}"


def rate_words(per_s: float) -> str:
    """Format calls a second or a minute, as `--rate` takes them: `2/s`, `12/min`."""
    return f"{per_s:.3g}/s" if per_s >= 1 else f"{60 * per_s:.3g}/min"


def at_load(step: StepFigures) -> str:
    """Format a step's load for a sentence."""
    if step.sessions is None:
        n = round(step.offered_per_s * step.seconds)
        return f"{n:,} call{'s' * (n != 1)} in {step.seconds:.0f} s"
    return sessions_words(step.sessions)


def _loaded(step: StepFigures, record: LoadRecord) -> str:
    """Format a step's load for a sentence, with the requested rate."""
    asked = record.settings.get("calls_per_s")
    if step.sessions is not None or not isinstance(asked, int | float):
        return at_load(step)
    how = "drawn" if record.arrivals == "poisson" else "dialled"
    return f"{rate_words(asked)} asked; {at_load(step)} {how}"


def at_once_words(at_once: tuple[float, int] | None) -> str:
    """Format the calls at the same time, in brackets; empty if not known."""
    if at_once is None:
        return ""
    return f" ({at_once[0]:.1f} calls at once in the mean, {at_once[1]} at most)"


def percent(target: float) -> str:
    """`95 %` of a share that somebody chose."""
    return f"{100 * target:.4g} %"


def wanted(record: LoadRecord) -> str:
    """Say what the target is."""
    return f"{percent(record.target)} of turns within {record.budget_ms:.0f} ms"


def ms(quantile: Percentile) -> str:
    """Milliseconds, or a dash."""
    return "–" if quantile.value is None else words.ms(quantile.value)


def late_words(late_ms: float | None) -> str:
    """Format how late the caller was; a dash if not known."""
    return "–" if late_ms is None else f"{late_ms:.1f}"


def verdict(record: LoadRecord) -> Cell:
    """Give the answer in a word or two."""
    found = record.capacity
    if found is not None and found.sessions is not None:
        return Cell(f"✓ {sessions_words(found.sessions).upper()} CERTIFIED", "good")
    if not record.steps:
        return Cell("✗ NOT MEASURED", "bad")
    if record.finished_utc is None:
        return Cell("? BROKEN OFF", "unsure")
    # A search goes on below a step that was to explore and is void.
    if record.steps[-1].void or any(step.void and step.confirms for step in record.steps):
        return Cell("≠ VOID", "odd")
    if record.mode == "search":
        return Cell("✗ NOTHING CERTIFIED", "bad" if not_even_one(record) else "unsure")
    holds = {step.holds for step in record.steps}
    if len(holds) > 1:
        return Cell("UP TO " + _most_held(record).upper(), "good" if True in holds else "unsure")
    held, style = HELD[holds.pop()]
    return Cell(f"{ {'good': '✓', 'bad': '✗'}.get(style, '?') } {held.upper()}", style)


def _most_held(record: LoadRecord) -> str:
    held = [s.sessions for s in best_steps(record.steps) if s.holds and s.sessions is not None]
    return f"{sessions_words(max(held))} held" if held else "no level held"


def not_even_one(record: LoadRecord) -> bool:
    """Return whether even the fewest sessions that were played surely do not hold."""
    return any(step.holds is False for step in best_steps(record.steps)[:1])


def answer(record: LoadRecord) -> str:
    """Answer in one sentence."""
    found = record.capacity
    if found is not None and found.sessions is not None:
        late = found.caller_late_ms
        return (
            f"{sessions_words(found.sessions)}{at_once_words(found.at_once)}: at least "
            f"{wanted(record)}, with "
            f"{percent(found.confidence)} confidence"
            + ("" if late is None else f"; the caller was late by at most {late:.1f} ms (p99)")
        )
    if found is not None:
        return f"nothing is certified: {printable(found.why or 'the turns say too little')}"
    told = [step for step in record.steps if step.void is None]
    if not told:
        return "no step says anything of the agent" if record.steps else "no step was played"
    if len(told) == 1:
        return _one(told[0], record)
    return _several(record, told)


def _one(step: StepFigures, record: LoadRecord) -> str:
    held = HELD[step.holds][0]
    return (
        f"{_loaded(step, record)}{at_once_words(step.at_once)}: {share(step.hit_rate)} of "
        f"{words.turns_words(step.turns)} within {record.budget_ms:.0f} ms (95 % interval "
        f"{interval(step.hit_rate)}), and {percent(record.target)} are asked for: {held}"
    )


def _several(record: LoadRecord, told: list[StepFigures]) -> str:
    """List which loads are held: `held at 1, 2 and 4; not sure at 8; not held at 16`."""
    unit = "sessions" if told[0].sessions is not None else "of arrivals"
    found: dict[str, list[str]] = {}
    for step in best_steps(told) or told:
        found.setdefault(HELD[step.holds][0], []).append(load_words(step))
    each = "; ".join(f"{held} at {_listed(loads)}" for held, loads in found.items())
    return f"{wanted(record)}: {each} {unit}"


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


# What `--min-sessions` came to.
_ENOUGH: dict[bool | None, tuple[str, Style]] = {
    True: ("certified", "good"),
    False: ("surely not", "bad"),
    None: ("not sure", "unsure"),
}


def min_sessions_words(record: LoadRecord) -> Cell | None:
    """Format the result of `--min-sessions`: `8 sessions or more: certified`; else None."""
    asked = record.settings.get("min_sessions")
    if not isinstance(asked, int) or record.failure is not None:
        return None
    certified = record.capacity.sessions if record.capacity else None
    found, style = _ENOUGH[enough(certified, record.steps, asked)]
    return Cell(f"{sessions_words(asked)} or more: {found}", style)


def knee_words(record: LoadRecord) -> str:
    """Where the gap begins to grow; empty where fewer than two levels were played."""
    drawn = best_steps(record.steps)
    if len(drawn) < 2:
        return ""
    if gap_ms(drawn[0], "p95") is None:
        return f"not known: no p95 at {sessions_words(drawn[0].sessions)}"
    if sum(gap_ms(step, "p95") is not None for step in drawn) < 2:
        return "not known: too few turns for a p95 of the gap"
    found = knee(record.steps)
    if found is None:
        return "none seen: the gap's p95 stays within 1.5 times that of the fewest sessions"
    before, after = found
    p95 = after.gap_ms["p95"]
    grown = "longer than any that was answered" if p95.value is None else f"{ms(p95)} ms"
    return (
        f"after {sessions_words(before.sessions)}: the gap's p95 is {ms(before.gap_ms['p95'])} ms "
        f"there, and {grown} at {after.sessions}, the next that was looked at"
    )


def certificate_words(record: LoadRecord) -> str:
    """Say what the certificate is based on; empty without one."""
    found = record.capacity
    if found is None or found.hit_rate is None or found.low is None:
        return ""
    return (
        f"{tenths(found.hit_rate)} of {words.turns_words(found.turns)} that confirm it"
        + ("" if found.seconds is None else f", in {found.seconds:.0f} s,")
        + f" were on time, which is at least {tenths(found.low)} with "
        f"{percent(found.confidence)} confidence after all looks"
    )


def next_words(record: LoadRecord) -> str:
    """Say what is known above the certified level; empty if nothing is."""
    found = record.capacity
    if found is None or found.sessions is None or found.not_held is None:
        return ""
    if any(step.void and step.sessions == found.not_held for step in record.steps):
        more = sessions_words(found.not_held)
        return f"{more}: not known of the agent, since the callers could not call that many in time"
    above = [s for s in best_steps(record.steps) if s.sessions == found.not_held]
    seen = f"; there {share(above[0].hit_rate)} were on time" if above else ""
    return f"{sessions_words(found.not_held)} could not be certified{seen}"


def missed_words(record: LoadRecord) -> str:
    """Count the outcomes of turns that were not on time, over all steps; else empty."""
    found = Counter[str]()
    for step in record.steps:
        found.update(became(step))
    total = found.total()
    each = [
        f"{n:,} {MISSED.get(name, name.replace('_', ' '))}"
        for name, n in found.most_common()
        if name != "answered" and n
    ]
    if not each:
        return ""
    return f"{', '.join(each)}, of {words.turns_words(total)} in all steps; each is in the hit rate"


def outcomes_words(step: StepFigures) -> str:
    """`112 answered, 5 late, 3 refused`."""
    return ", ".join(
        f"{n:,} {MISSED.get(name, name.replace('_', ' '))}" for name, n in became(step).items()
    )


def became(step: StepFigures) -> dict[str, int]:
    """Count the turns by outcome; those answered in time after a wait are separate."""
    if not step.waited:
        return step.outcomes
    answered = step.outcomes.get("answered", 0) - step.waited
    return {**step.outcomes, "answered": answered, "waited": step.waited}


def caller_words(record: LoadRecord) -> str:
    """Say where the callers ran, and how late they may be and were."""
    who = {"local": "on this machine", "ray": "on Ray's nodes"}.get(record.executor, "")
    n = record.workers
    processes = f"{n} processes" if n != 1 else "1 process"
    late = [s.caller_late_ms for s in record.steps if s.caller_late_ms is not None]
    was = f"; it was late by at most {max(late):.1f} ms (p99 of a step)" if late else ""
    limit = record.caller_late_limit_ms
    flag = "" if limit == STARVED_MS else f" (--starved-ms; by default {STARVED_MS:g})"
    return f"{processes} {who}{was}; a step is void from {limit:g} ms on{flag}"


def schedule_words(record: LoadRecord) -> str:
    """Say how calls arrive, and what is left out."""
    how = {
        "held": "each line dials its next call at fixed times, whatever the agent does",
        "poisson": "calls arrive at random (Poisson)",
        "constant": "calls arrive at a constant rate",
    }.get(record.arrivals, printable(record.arrivals))
    return (
        f"open loop: {how}; seed {record.seed}. The first {record.warm_up_s:.0f} s of each step, "
        "and what lies behind its measured window, are left out"
    )


def ended(record: LoadRecord) -> str:
    """Say why the test ended; empty if the answer or a warning already says so."""
    said = {record.failure, *(step.void for step in record.steps)}
    if record.capacity is not None and record.capacity.sessions is None:
        said.add(record.capacity.why)
    return "" if record.ended in said else printable(record.ended)


def holes(step: StepFigures) -> str:
    """Format the share of replies with a hole in their audio; a dash if not known."""
    return "–" if step.holes is None else tenths(step.holes)


def purpose(step: StepFigures) -> str:
    """Return what a step of a search is for."""
    return "confirm" if step.confirms else "explore"
