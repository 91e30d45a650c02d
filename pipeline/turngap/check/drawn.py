"""What only the page of a check shows: plots of the gaps and pairs, and its worst turns."""

from collections.abc import Sequence
from pathlib import Path

from turngap.check import charts, side_words
from turngap.check.pull_request import waterfalls
from turngap.check.record import CheckRecord
from turngap.core.budget import DEFAULT_BUDGET_MS, OUTCOMES
from turngap.report import turn_words
from turngap.report.charts import Agent, domain_of, gap_chart
from turngap.report.run import take, wait_ms
from turngap.report.sections import FILES, PAGE, Card, Cards, Drawing, Section, lines
from turngap.store.runs import Run


def drawn_sections(
    record: CheckRecord, candidate: Run, reference: Run | None, folder: Path | None
) -> list[Section]:
    """Build the sections that only a page shows."""
    taken = reference.turns if reference else ()
    agents = [
        Agent(turns, letter, f"{role}, {side_words.side_name(side)}: {pen}")
        for letter, role, pen, side, turns in (
            ("A", "reference", "dashed, hollow", record.reference, taken),
            ("B", "candidate", "solid, filled", record.candidate, candidate.turns),
        )
        if turns and side is not None
    ]
    if record.reference is None:
        agents = [Agent(candidate.turns)] if candidate.turns else []
    if not agents:
        return []
    budget_ms = candidate.record.budget_ms or DEFAULT_BUDGET_MS
    plot = gap_chart(agents, budget_ms, charts.curves_in_words(candidate.turns, taken))
    pairs = charts.paired(candidate.turns, taken)
    found = [Section("Turn gaps", [Drawing(plot)])]
    if (chart := charts.pairs_chart(pairs)) is not None:
        found.append(Section("Paired differences", [Drawing(chart)]))
    elif record.reference is not None:
        why = (
            "No turn has a gap on both sides."
            if record.reference.run
            else "A stored baseline is a file of its own: its turns are not in this check's folder "
            "to be drawn."
        )
        found.append(Section("Paired differences", [lines(("none", why), where=PAGE)]))
    worst = charts.worst(pairs)
    about = (
        "Turns that came out worse than with the reference, then those that were slowed the most."
        if record.reference is not None and record.reference.run
        else "Turns that were not answered within their budget."
    )
    cards = _cards(record, worst, folder or candidate.path.parent, candidate, reference)
    if not worst:
        return found
    items = [lines(("which", about), where=FILES), cards, *waterfalls(worst, record.verdict)]
    return [*found, Section("Worst turns", items)]


def _cards(
    record: CheckRecord,
    pairs: Sequence[charts.TurnPair],
    folder: Path,
    candidate: Run,
    reference: Run | None,
) -> Cards:
    """One domain for all of them: the two waterfalls of a turn are compared by eye."""
    turns = [t for p in pairs for t in (p.reference, p.candidate) if t is not None]
    domain = domain_of(turns, shown_whole=1.0)
    name = "" if record.reference is None else "B, the candidate"
    cards: list[Card] = []
    for number, pair in enumerate(pairs, start=1):
        takes = [take(candidate, pair.candidate, folder, domain, name)]
        if pair.reference is not None and reference is not None:
            takes.insert(0, take(reference, pair.reference, folder, domain, "A, the reference"))
        title = turn_words.turn_name(pair.candidate)
        if len(takes) > 1:  # of a single take the page adds what became of it
            title += f": {charts.heading(pair)}"
        cards.append(
            Card(
                anchor=f"worst-{number}",
                title=title,
                outcome=pair.candidate.outcome,
                wait_ms=wait_ms(pair.candidate),
                about=charts.moved_in(pair),
                takes=takes,
            )
        )
    return Cards(cards, [o for o in OUTCOMES if any(c.outcome == o for c in cards)])
