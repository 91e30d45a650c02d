"""Words for a curve: the cells of its tables and the sentences beneath."""

from collections.abc import Sequence

from turngap.core.cut_ins import PausesOfLength, heard_cut_in
from turngap.core.stats import Percentile, Proportion
from turngap.core.untrusted import printable
from turngap.report import words
from turngap.store.comparisons import CurveRecord, PointRecord, Reading, TurnsRecord
from turngap.store.runs import Run

MEASURED = "the agent, as measured"
WAITING = "the agent, had it waited longer"
SILENCE = "silence alone"

# Figures that others published, of another data set and with another beginning and end.
PUBLISHED_NOTE = (
    "For orientation, what eot-bench published: English, 400 turns with real pauses. That is "
    "another data set, and its latency ends with the decision that the turn is over, so that no "
    "model, voice or line is in it: a gap is longer"
)
PUBLISHED = (
    ("LiveKit v1", 0.099, 543),
    ("turn-1", 0.106, 553),
    ("Deepgram Flux", 0.129, 1151),
    ("turn-1-mini", 0.226, 849),
    ("Smart Turn v3.2", 0.352, 1051),
    ("silence alone", 0.556, 1600),
)

VIRTUAL = (
    "virtual: no time passed while anything computed, but for smart turn. Cut-ins are those of a "
    "machine that keeps up; gaps lack a few ms of computing and are lower bounds"
)

ASSUMPTIONS = (
    (
        "waiting",
        "had the agent waited d ms more before each decision, each gap would be d longer. It would "
        "have cut in as long as it had still decided within a pause. Turns that were not cut in on "
        "stay so. Turns that were cut in on have no gap and are in no median.",
    ),
    (
        "silence",
        "silence alone is computed from the labelled pauses: with a hold of h it cuts in on each "
        "turn with a pause of h or more, and its gap is h. No engine's time is in it.",
    ),
    (
        "pauses",
        "a pause that is shorter than the silence which the agent waits for cannot draw it. A "
        "cut-in belongs to the last pause that had begun when the agent decided.",
    ),
)


def point_name(record: TurnsRecord, point: PointRecord) -> str:
    """Return the name that tells a point from the others."""
    name = record.agent if point.value is None else point.value
    return printable(name) + ("" if point.valid else " (invalid)")


def values_by_gap(record: TurnsRecord) -> list[str]:
    """Return the values behind the points of the measured curve, in its order."""
    known = [(p.gap_ms.value, p.value or "") for p in record.points if p.gap_ms.value is not None]
    return [printable(value) for _, value in sorted(known, key=lambda one: one[0])]


def figure(p: Percentile) -> str:
    """Format a percentile in ms with its interval, for a cell."""
    if p.value is None:
        return "–"
    return words.ms(p.value) + _between(p.low, p.high, words.ms)


def share(p: Proportion | None) -> str:
    """Format a count of turns with its share and interval, for a cell."""
    if p is None or p.value is None:
        return "–"
    return f"{p.hits} of {p.n}, {percent(p.value)}" + _between(p.low, p.high, percent)


def percent(value: float) -> str:
    """Format a share, with a tenth if it is small: curves are read at 5 %."""
    return f"{value * 100:.1f} %" if 0 < value < 0.1 else words.percent(value)


def _between(low: float | None, high: float | None, how: object) -> str:
    if not callable(how) or low is high is None:
        return ""
    if low is None or high is None:
        return f" (at most {how(high)})" if low is None else f" (at least {how(low)})"
    return f" ({how(low)} to {how(high)})"


def at_share(reading: Reading) -> str:
    """Format the gap at the share, for a cell."""
    if reading.value is None:
        return "–"
    return f"{words.ms(reading.value)} ms" + _between(reading.low, reading.high, words.ms)


def at_gap(reading: Reading) -> str:
    """Format the share at the gap, for a cell."""
    if reading.value is None:
        return "–"
    return percent(reading.value) + _between(reading.low, reading.high, percent)


def why_not_read(record: TurnsRecord) -> list[tuple[str, str]]:
    """List why a curve cannot be read at the share or the gap, for each that cannot."""
    found: list[tuple[str, str]] = []
    for label, (_, curve) in zip(("measured", "waiting", "silence"), curves(record), strict=True):
        if curve.why_none is not None:
            found.append((label, curve.why_none))
            continue
        for what, reading in (
            (f"at {words.percent(record.share)} cut-ins", curve.gap_at_share_ms),
            (f"at a gap of {record.gap_ms:.0f} ms", curve.cut_ins_at_gap),
        ):
            if reading.why_none is not None:
                found.append((label, f"not known {what}: {reading.why_none}"))
    return found


def curves(record: TurnsRecord) -> list[tuple[str, CurveRecord]]:
    """List the curves by name, the agent's own first."""
    return [(MEASURED, record.measured), (WAITING, record.waiting), (SILENCE, record.silence)]


def spoken(name: str, curve: CurveRecord) -> str:
    """Describe a curve for a screen reader."""
    first, last = curve.points[0], curve.points[-1]
    ends = f"{percent(first.cut_ins)} cut-ins at {words.ms(first.gap_ms)} ms"
    if first != last:
        ends += f" to {percent(last.cut_ins)} at {words.ms(last.gap_ms)} ms"
    return f"{name}: {ends}"


def length(row: PausesOfLength) -> str:
    """Format the lengths of a row of pauses."""
    if row.to_ms is None:
        return f"{row.from_ms:.0f} ms and more"
    return (
        f"{row.from_ms:.0f} to {row.to_ms:.0f} ms" if row.from_ms else f"up to {row.to_ms:.0f} ms"
    )


def unexplained(runs: Sequence[Run]) -> str:
    """Say how many cut-ins no labelled pause explains; empty if none."""
    labelled = [turn for run in runs for turn in run.turns if turn.pauses is not None]
    found = [cut_in for turn in labelled if (cut_in := heard_cut_in(turn)) is not None]
    n = sum(cut_in.pause is None for cut_in in found)
    return f"{n} of {len(found)} cut-ins came before any labelled pause had begun" if n else ""


def labelled(record: TurnsRecord) -> str:
    """Say how many of the recorded turns are labelled with their pauses."""
    if record.labelled == record.recorded:
        return f"labelled in all {record.recorded} recorded turns"
    how = "; `turngap label FILE` finds those of the others" if record.labelled else ""
    return f"labelled in {record.labelled} of {record.recorded} recorded turns{how}"
