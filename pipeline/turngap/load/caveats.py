"""What a load test does not say, and what its answer must not be read without."""

from urllib.parse import urlsplit

from turngap.core.untrusted import printable
from turngap.load.curve import best_steps, gap_ms
from turngap.load.record import LoadRecord
from turngap.load.words import at_load, sessions_words

# A level does not say what it should if the calls at once differ from it by more than this share.
OFF_LEVEL = 0.1


def off_level_words(record: LoadRecord) -> str:
    """That fewer or more calls ran at once than the level says; empty where about as many did.

    A level stands for so many lines that dial again at fixed times. Where conversations are over
    sooner than they were in the rehearsal, lines wait; where they take longer, calls overlap.
    """
    certified = record.capacity.sessions if record.capacity else None
    told = best_steps(record.steps)
    told = [step for step in told if step.sessions == certified] or told
    off = [s for s in told if s.sessions and abs(s.at_once[0] / s.sessions - 1) > OFF_LEVEL]
    if not off:
        return ""
    step = off[-1]
    fewer = step.at_once[0] < (step.sessions or 0)
    why = (
        "calls were over sooner than planned, or were not opened. The agent held fewer calls"
        if fewer
        else "calls took longer than planned, and those of a line overlapped. The agent held more"
    )
    return (
        f"at {sessions_words(step.sessions)} {'only ' * fewer}{step.at_once[0]:.1f} calls ran at "
        f"once in the mean, {step.at_once[1]} at most: {why} than its level says, though it was "
        "asked as often as planned"
    )


def _is_here(record: LoadRecord) -> bool:
    """Whether the agent and its callers run on the same machine, as far as can be told."""
    from turngap.agent.access import is_loopback

    try:
        host = urlsplit(str(record.agent.get("url", ""))).hostname or ""
    except ValueError:
        return False
    return record.executor == "local" and ("stack" in record.agent or is_loopback(host))


def not_measured(record: LoadRecord) -> list[str]:
    """What this load test does not say, one sentence each."""
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
    if any(step.sessions is None for step in record.steps):
        said.append("a capacity in sessions: calls arrived at a rate")
    return said


def broken_off(record: LoadRecord) -> str:
    """Why it has no end; empty where it has one. Who is killed (`kill -9`) could not say why."""
    if record.finished_utc is not None:
        return ""
    if record.failure:
        return f"The load test broke off: {printable(record.failure)}"
    step = len(record.steps) + 1
    return f"The load test broke off: it ended in step {step} without saying why, or it still runs"


def voids(record: LoadRecord) -> list[str]:
    """Which steps say nothing of the agent, and why."""
    return [
        f"Step {number} ({at_load(step)}) is void and says nothing of the agent: "
        f"{printable(step.void)}"
        for number, step in enumerate(record.steps, start=1)
        if step.void is not None
    ]
