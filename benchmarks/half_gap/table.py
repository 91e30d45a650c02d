"""The figures as Markdown."""

from collections.abc import Sequence

from half_gap.figures import WAIT_MS, Group, Manners, Overhead, Row
from half_gap.ratios import Ratio
from turngap.core.cut_ins import EarlyTurns
from turngap.core.stats import Percentile, Proportion

HALVES_HEAD = (
    "recordings, time",
    "agent",
    "turns",
    "gap p50",
    "gap p95",
    f"p95 without waits of {WAIT_MS / 1000:g} s",
    "p50 to stock",
    "within 800 ms",
    "heard cut-ins",
    "false endpoints",
    "without words",
)
MANNERS_HEAD = (
    "agent",
    "cut in on pauses",
    "cut in on slow speech",
    "yield p50",
    "stopped by a backchannel",
    "ran dry",
    "caller starved",
)


def heading(group: Group) -> str:
    """Say what a group has played, and in which time."""
    time = "virtual" if group.virtual else "real"
    played = f"people, {group.condition}" if group.condition else "synthetic voices"
    what = {"steps": "each step", "overhead": "overhead"}.get(group.what)
    return f"{what or played}; {time}"


def halves_table(groups: Sequence[tuple[Group, Sequence[Row]]]) -> str:
    """Write how soon agents answer, and how often before the person has finished."""
    return _table(
        HALVES_HEAD,
        [
            (
                heading(group),
                row.name,
                str(row.n),
                ms(row.gap_p50),
                ms(row.gap_p95),
                ms(row.unwaited_p95),
                ratio(row.ratio_p50),
                share(row.hits),
                share(row.early.heard),
                decided(row.early),
                share(row.wordless),
            )
            for group, rows in groups
            for row in rows
        ],
    )


def steps_table(rows: Sequence[Row]) -> str:
    """Write each step's gap: too few turns for a p95."""
    return _table(
        ("agent", "turns", "gap p50", "p50 to stock", "within 800 ms", "heard cut-ins"),
        [
            (
                row.name,
                str(row.n),
                ms(row.gap_p50),
                ratio(row.ratio_p50),
                share(row.hits),
                share(row.early.heard),
            )
            for row in rows
        ],
    )


def manners_table(rows: Sequence[Manners]) -> str:
    """Write the behaviour, agent by agent."""
    return _table(
        MANNERS_HEAD,
        [
            (
                row.name,
                share(row.pauses),
                share(row.slow),
                ms(row.yields) + f" (n={row.barge_ins})" * (row.yields.value is not None),
                share(row.false_stops),
                share(row.ran_dry),
                share(row.starved),
            )
            for row in rows
        ],
    )


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rules = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rules, *lines))


def overhead_table(found: Sequence[Overhead], tracing: tuple[int, float] | None) -> str:
    """Write the time beyond the hold and the engines, and the cost of tracing."""
    lines = [
        "| agent | n | overhead p50 | overhead p95 | p95, answers begun late counted |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {o.name} | {o.n} | {ms(o.p50)} | {ms(o.p95)} | {ms(o.late_p95)} |" for o in found]
    if tracing is not None:
        lines += ["", f"Tracing: {tracing[1]:+.1f} ms in the median of {tracing[0]} paired turns."]
    return "\n".join(lines)


def ms(found: Percentile) -> str:
    """Whole milliseconds; where there is no figure, why."""
    return f"– ({found.why_none})" if found.value is None else f"{found.value:.0f}"


def share(found: Proportion) -> str:
    """Hits of n, with the interval."""
    if found.value is None or found.low is None or found.high is None:
        return "–"
    return f"{found.hits}/{found.n} ({found.low:.0%} to {found.high:.0%})"


def decided(early: EarlyTurns) -> str:
    """Count turns with a false endpoint, or say that the agent does not report them."""
    return "not told" if early.decided is None else share(early.decided)


def ratio(found: Ratio | None) -> str:
    """With its interval and n."""
    if found is None:
        return "–"
    if found.value is None:
        return f"– ({found.why_none})"
    ends = ("?" if end is None else f"{end:.2f}" for end in (found.low, found.high))
    return f"{found.value:.2f} ({' to '.join(ends)}; n={found.n})"
