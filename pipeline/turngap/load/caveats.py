"""What a load test does not say, and what its answer must not be read without."""

from collections import Counter
from urllib.parse import urlsplit

from turngap.core.errors import NOTHING_THERE
from turngap.core.untrusted import MOST_SENTENCE, is_loopback, printable
from turngap.load.curve import best_steps, gap_ms
from turngap.load.record import LoadRecord
from turngap.load.words import at_load, sessions_words

# So many reasons are named for calls that were refused or broke off.
MOST_REASONS = 3
# A level does not say what it should if the calls at once differ from it by more than this share.
OFF_LEVEL = 0.1


def off_level_words(record: LoadRecord) -> str:
    """Warn if fewer or more calls ran at once than the level says; else empty.

    A level is this many lines that dial again at fixed times. If conversations end sooner than they
    did in the rehearsal, lines wait; if they take longer, calls overlap.
    """
    certified = record.capacity.sessions if record.capacity else None
    told = best_steps(record.steps)
    told = [step for step in told if step.sessions == certified] or told
    off = [s for s in told if s.sessions and abs(s.at_once[0] / s.sessions - 1) > OFF_LEVEL]
    if not off:
        return ""
    step = off[-1]
    fewer = step.at_once[0] < (step.sessions or 0)
    sooner = "refused or dropped" if step.refused or step.dropped else "over sooner than planned"
    why = (
        f"calls were {sooner}. The agent held fewer calls"
        if fewer
        else "calls took longer than planned, and those of a line overlapped. The agent held more"
    )
    return (
        f"at {sessions_words(step.sessions)} {'only ' * fewer}{step.at_once[0]:.1f} calls ran at "
        f"once in the mean, {step.at_once[1]} at most: {why} than its level says, though it was "
        "asked as often as planned"
    )


def _is_here(record: LoadRecord) -> bool:
    """Return whether the agent and its callers run on the same machine, as far as known."""
    try:
        host = urlsplit(str(record.agent.get("url", ""))).hostname or ""
    except ValueError:
        return False
    return record.executor == "local" and ("stack" in record.agent or is_loopback(host))


def not_measured(record: LoadRecord) -> list[str]:
    """List what this load test does not measure, one sentence each."""
    if not record.steps:
        return []
    said: list[str] = []
    found = record.capacity
    if found is not None and found.sessions is not None and found.not_held is None:
        said.append(f"more than {sessions_words(found.sessions)}: the search ended there")
    if _is_here(record):
        said.append("the network: agent and callers share this machine, and its processors")
    if all(step.yield_ms.value is None for step in record.steps):
        why = printable(record.steps[0].yield_ms.why_none or "no turn was interrupted")
        said.append(f"yield, how fast it falls silent: too few turns were interrupted ({why})")
    if all(step.holes is None for step in record.steps):
        said.append("holes in the audio: no reply was heard")
    few = [s.gap_ms["p95"].why_none for s in record.steps if gap_ms(s, "p95") is None]
    if len(few) == len(record.steps):
        said.append(f"p95 of the gap: too few turns ({printable(few[0] or '')})")
    cut = {
        sessions_words(step.sessions): None
        for step in record.steps
        if step.not_played and not step.void
    }
    if cut:
        said.append(
            f"what {' and '.join(cut)} would have ended with: so many turns had missed that the "
            "search needed no more of them, and their figures are of the turns until then"
        )
    if any(step.sessions is None for step in record.steps):
        said.append("a capacity in sessions: calls arrived at a rate")
    return said


def refused_words(record: LoadRecord) -> str:
    """Say how many calls were refused or dropped, and the main reason; empty if none."""
    failed = {
        "refused": sum(step.refused for step in record.steps),
        "dropped": sum(step.dropped for step in record.steps),
    }
    how = " and ".join(f"{n:,} {name}" for name, n in failed.items() if n)
    if not how:
        return ""
    why = Counter[str]()
    for step in record.steps:
        for reason, n in step.reasons.items():
            why[_reason(reason)] += n
    calls = sum(step.calls for step in record.steps)
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in why.most_common(MOST_REASONS))
    return f"of {calls:,} calls, {how}{': ' * bool(reasons)}{reasons}"


def _reason(why: str) -> str:
    if why.startswith(NOTHING_THERE):
        return "not reachable"
    return f"'{printable(why.removeprefix('the line was lost: '), MOST_SENTENCE)}'"


def broken_off(record: LoadRecord) -> str:
    """Say why the load test has no end; a killed one (`kill -9`) could not record why."""
    if record.finished_utc is not None:
        return ""
    if record.failure:
        return f"The load test broke off: {printable(record.failure)}"
    step = len(record.steps) + 1
    return f"The load test broke off: it ended in step {step} without saying why, or it still runs"


def voids(record: LoadRecord) -> list[str]:
    """List the void steps, with the reasons."""
    return [
        f"Step {number} ({at_load(step)}) is void and says nothing of the agent: "
        f"{printable(step.void)}"
        for number, step in enumerate(record.steps, start=1)
        if step.void is not None
    ]
