"""The figures as Markdown."""

from collections.abc import Sequence

from half_gap.contenders import FULL, STOCK
from half_gap.figures import WAIT_MS, Group, Manners, Overhead, Row
from half_gap.ratios import Ratio
from turngap.core.cut_ins import EarlyTurns
from turngap.core.stats import Percentile, Proportion

# The issues' figures: ratios to stock, ms, shares.
RATIO, PEOPLE_RATIO, OVERHEAD_MS, TRACING_MS, YIELD_MS = 0.5, 0.6, (15.0, 40.0), 2.0, 250.0
GAP_MS, HIT_RATE = (300.0, 600.0), 0.99

HALVES_HEAD = (
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
    """What a group's tables show, as a line above them."""
    time = "virtual" if group.virtual else "real"
    played = f"people, {group.condition}" if group.condition else "the library's synthetic voices"
    what = {"steps": "each step", "overhead": "overhead"}.get(group.what)
    return f"**{(what or played).capitalize()}**, in {time} time:"


def halves_table(rows: Sequence[Row]) -> str:
    """How soon they answer, and how often before the person has finished, agent by agent."""
    return _table(
        HALVES_HEAD,
        [
            (
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
            for row in rows
        ],
    )


def steps_table(rows: Sequence[Row]) -> str:
    """What each step is worth: too few turns for a p95."""
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
    """How they behave, agent by agent."""
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
    """What is left beyond the hold and the engines, and what tracing costs."""
    lines = [
        "| agent | n | overhead p50 | overhead p95 | p95, answers begun late counted |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {o.name} | {o.n} | {ms(o.p50)} | {ms(o.p95)} | {ms(o.late_p95)} |" for o in found]
    if tracing is not None:
        lines += ["", f"Tracing: {tracing[1]:+.1f} ms in the median of {tracing[0]} paired turns."]
    return "\n".join(lines)


def targets(
    groups: Sequence[tuple[Group, Sequence[Row], Sequence[Manners]]],
    overheads: Sequence[Overhead],
    tracing: tuple[int, float] | None,
) -> str:
    """Each of the figures to reach, and whether it was."""
    lines: list[str] = []
    for group, rows, manners in groups:
        named = {row.name: row for row in rows}
        if FULL in named and STOCK in named:
            against = _on_people if group.what == "people" else _on_the_library
            lines += against(group, named[FULL], named[STOCK])
        behaved = {row.name: row for row in manners}
        if FULL in behaved and STOCK in behaved:
            lines += _patient(behaved[FULL], behaved[STOCK])
    for over in (o for o in overheads if o.name == FULL):
        for which, figure, limit in (
            ("p50", over.p50, OVERHEAD_MS[0]),
            ("p95", over.p95, OVERHEAD_MS[1]),
        ):
            what = f"overhead {which} at most {limit:g} ms"
            lines.append(_target(what, ms(figure), _under(figure, limit)))
    if tracing is not None:
        found = f"{tracing[1]:+.1f} ms (n={tracing[0]})"
        lines.append(_target(f"tracing at most {TRACING_MS:g} ms", found, tracing[1] <= TRACING_MS))
    head = ["| to reach | found | reached, as measured |", "| --- | --- | --- |"]
    return "\n".join([*head, *lines]) if lines else ""


def _on_people(group: Group, full: Row, stock: Row) -> list[str]:
    where = f"people, {group.condition}"
    p50 = full.ratio_p50
    what = f"{where}: gap p50 at most {PEOPLE_RATIO} of stock"
    return [
        _target(what, ratio(p50), _at_most(p50, PEOPLE_RATIO)),
        _no_more_than(f"{where}: heard cut-ins", full.early.heard, stock.early.heard),
    ]


def _on_the_library(_: Group, full: Row, stock: Row) -> list[str]:
    ratios = (("p50", full.ratio_p50), ("p95", full.ratio_p95))
    without = (("p50", full.vad_p50), ("p95", full.vad_p95))
    figures = (("gap p50", full.gap_p50, GAP_MS[0]), ("gap p95", full.gap_p95, GAP_MS[1]))
    hits = None if full.hits.value is None else full.hits.value >= HIT_RATE
    return [
        *(
            _target(f"gap {which} at most {RATIO} of stock", ratio(found), _at_most(found, RATIO))
            for which, found in ratios
        ),
        *(
            _target(f"the same, of stock without smart turn: {which}", ratio(found), None)
            for which, found in without
        ),
        *(
            _target(f"{what} at most {limit:g} ms", ms(found), _under(found, limit))
            for what, found, limit in figures
        ),
        _no_more_than("heard cut-ins", full.early.heard, stock.early.heard),
        _target(f"hit rate at least {HIT_RATE:.0%}", share(full.hits), hits),
    ]


def _patient(full: Manners, stock: Manners) -> list[str]:
    yields = f"yield p50 at most {YIELD_MS:g} ms"
    return [
        _no_more_than("cut-ins on pauses", full.pauses, stock.pauses),
        _no_more_than("cut-ins on slow speech", full.slow, stock.slow),
        _target(yields, ms(full.yields), _under(full.yields, YIELD_MS)),
    ]


def _no_more_than(what: str, ours: Proportion, theirs: Proportion) -> str:
    found = f"{share(ours)}, stock {share(theirs)}"
    return _target(f"{what} no more than stock's", found, _no_more(ours, theirs))


def _target(what: str, found: str, reached: bool | None) -> str:
    return f"| {what} | {found} | {'' if reached is None else 'yes' if reached else '**no**'} |"


def _at_most(found: Ratio | None, limit: float) -> bool | None:
    return None if found is None or found.value is None else found.value <= limit


def _under(found: Percentile, limit: float) -> bool | None:
    return None if found.value is None else found.value <= limit


def _no_more(ours: Proportion, theirs: Proportion) -> bool | None:
    if ours.value is None or theirs.value is None:
        return None
    return ours.value <= theirs.value


def ms(found: Percentile) -> str:
    """Whole milliseconds; where there is no figure, why."""
    return f"– ({found.why_none})" if found.value is None else f"{found.value:.0f}"


def share(found: Proportion) -> str:
    """Hits of n, with the interval."""
    if found.value is None or found.low is None or found.high is None:
        return "–"
    return f"{found.hits}/{found.n} ({found.low:.0%} to {found.high:.0%})"


def decided(early: EarlyTurns) -> str:
    """Turns with a false endpoint, or that the agent does not say when it takes one to be over."""
    return "not told" if early.decided is None else share(early.decided)


def ratio(found: Ratio | None) -> str:
    """With its interval and n."""
    if found is None:
        return "–"
    if found.value is None:
        return f"– ({found.why_none})"
    ends = ("?" if end is None else f"{end:.2f}" for end in (found.low, found.high))
    return f"{found.value:.2f} ({' to '.join(ends)}; n={found.n})"
