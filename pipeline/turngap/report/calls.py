"""The parts of a report that only a run has which was scored from recorded calls."""

import math
from collections.abc import Iterable, Sequence
from statistics import median

from turngap.core.results import Turn
from turngap.core.run_record import ScoredCall, ScoredRecord
from turngap.core.summary import Summary
from turngap.core.untrusted import printable
from turngap.core.wording import several
from turngap.report import words
from turngap.report.sections import EVERYWHERE, FILES, TERMINAL, Column, Figure, Item, Table, lines
from turngap.store.runs import Run

NO_STAGES = (
    "a recording does not hold them: which stage took the time, and what was sent when, only "
    "`turngap replay` against the agent shows"
)
# On a terminal, the calls of a larger run are counted and not listed.
MOST_LISTED = 5

# A page lists so many turns: the first ones, which it draws, and those with the longest wait.
FIRST_TURNS, LONGEST_WAITS = 200, 800


def listed(run: Run) -> range | set[int]:
    """Return the numbers of the turns that a page lists: all, but of a large set of calls."""
    every = range(1, len(run.turns) + 1)
    if run.record.scored is None or len(every) <= FIRST_TURNS + LONGEST_WAITS:
        return every
    waits = [math.inf if turn.gap_ms is None else turn.gap_ms for turn in run.turns]
    longest = sorted(every[FIRST_TURNS:], key=lambda number: waits[number - 1], reverse=True)
    return {*every[:FIRST_TURNS], *longest[:LONGEST_WAITS]}


def unlisted_words(run: Run) -> str:
    """Say which turns a page leaves out; empty if it lists all."""
    n = len(listed(run))
    return (
        f"the first {FIRST_TURNS} and the {LONGEST_WAITS} with the longest wait or no reply, of "
        f"{len(run.turns)}: `turngap report --csv FILE` writes all"
        if n < len(run.turns)
        else ""
    )


def is_scored(turn: Turn) -> bool:
    """Return whether a turn was found in a recording, and not played."""
    return turn.talk_over_ms is not None


def error_words(turn: Turn) -> str:
    """Say how far off both ends of a scored turn's gap may be; empty for other turns."""
    if turn.audio is None or turn.gap_ms is None or not is_scored(turn):
        return ""
    ends = (("the person's end", turn.audio.label_error_ms), ("first word", turn.onset_spread_ms))
    known = [f"{name} ±{words.ms(error)} ms" for name, error in ends if error is not None]
    return ", ".join(known)


def claimed_figures(run: Run) -> list[Figure]:
    """Show the platforms' own latency against the heard gap of the same calls."""
    calls = [c for c in run.record.scored.calls if c.claims] if run.record.scored else []
    gaps = _gaps(run.turns)
    both = [
        (median(c.claims.latency_ms), median(gaps[c.name]))
        for c in calls
        if c.claims is not None and c.claims.latency_ms and gaps.get(c.name)
    ]
    if not both:
        return []
    platforms = sorted({c.claims.platform for c in calls if c.claims is not None})
    claimed, heard = (median(each) for each in zip(*both, strict=True))
    return [
        Figure(
            "claimed",
            f"{words.ms(claimed)} ms",
            f"by {printable(' and '.join(platforms))}, median of {several(len(both), 'call')}; "
            f"heard in the same: {words.ms(heard)} ms",
        )
    ]


def _gaps(turns: Iterable[Turn]) -> dict[str, list[float]]:
    """List the gaps of answered turns, by call."""
    found: dict[str, list[float]] = {}
    for turn in turns:
        if turn.left_out is None and turn.replied and turn.gap_ms is not None:
            found.setdefault(turn.scenario, []).append(turn.gap_ms)
    return found


def _total(turns: Iterable[Turn], name: str) -> str:
    """Add up a duration of turns, in s."""
    ms = sum(getattr(turn, name) or 0.0 for turn in turns)
    return f"{ms / 1000:.1f}" if ms else "0"


def call_items(run: Run, scored: ScoredRecord) -> list[Item]:
    """List the calls: the person's channel, the gap, the claim, and what may spoil the figures."""
    gaps = _gaps(run.turns)
    of: dict[str, list[Turn]] = {}
    for turn in run.turns:
        of.setdefault(turn.scenario, []).append(turn)
    claims = any(c.claims and c.claims.latency_ms for c in scored.calls)
    head = (
        Column("call"),
        Column("turns"),
        Column("minutes"),
        Column("gap p50"),
        Column("claimed", where=EVERYWHERE if claims else frozenset()),
        Column("greeting"),
        Column("talk-over s", spare=True),
        Column("dead air s", spare=True),
        Column("person", left=True),
        Column("because", left=True, where=FILES),
        Column("notes", left=True, where=FILES),
    )
    rows = [
        (
            printable(c.name),
            str(c.turns),
            f"{c.seconds / 60:.1f}",
            words.ms(median(gaps[c.name])) if gaps.get(c.name) else "–",
            words.ms(median(c.claims.latency_ms)) if c.claims and c.claims.latency_ms else "–",
            "–" if c.greeting_ms is None else words.ms(c.greeting_ms),
            _total(of.get(c.name, ()), "talk_over_ms"),
            _total(of.get(c.name, ()), "dead_air_ms"),
            c.side,
            printable(c.why_side),
            printable("; ".join(c.notes)),
        )
        for c in scored.calls
    ]
    few = len(rows) <= MOST_LISTED
    found: list[Item] = [
        Table(head, rows, "Times in ms unless named", where=EVERYWHERE if few else FILES),
        lines(("calls", _calls_words(run, scored.calls)), where=TERMINAL),
        lines(("channels", _side_words(scored.calls)), ("notes", _notes_words(scored.calls))),
    ]
    if scored.unscored:
        left_out = [(printable(u.file), printable(u.why)) for u in scored.unscored]
        head = (Column("file"), Column("why it was not scored", left=True))
        found.append(Table(head, left_out, where=FILES))
    return found


def _calls_words(run: Run, calls: Sequence[ScoredCall]) -> str:
    minutes = sum(call.seconds for call in calls) / 60
    over, dead = (_total(run.turns, name) for name in ("talk_over_ms", "dead_air_ms"))
    said = [several(len(calls), "call"), f"{minutes:.1f} min"]
    return ", ".join([*said, f"both speak for {over} s", f"dead air {dead} s"])


def _side_words(calls: Sequence[ScoredCall]) -> str:
    """Say which channel holds the person, and why in the first call of each."""
    sides = {side: [call for call in calls if call.side == side] for side in ("left", "right")}
    return "; ".join(
        f"the person is {side} in {len(of)} ({printable(of[0].why_side)})"
        for side, of in sides.items()
        if of
    )


def _notes_words(calls: Sequence[ScoredCall]) -> str:
    """Give the note of a single call, or count the calls that have notes."""
    noted = [call for call in calls if call.notes]
    if len(calls) == 1 or not noted:
        return printable("; ".join(noted[0].notes)) if noted else ""
    first = f"{printable(noted[0].name)}: {printable('; '.join(noted[0].notes))}"
    return f"in {len(noted)} of {several(len(calls), 'call')}; {first}"


def measured_items(summary: Summary) -> list[Item]:
    """Say how exactly the ends of the gaps were placed."""
    error_ms = summary.label_error_ms
    ends = (
        "" if error_ms is None else f"the person's last word ends within ±{words.ms(error_ms)} ms"
    )
    return [
        lines(
            ("person", ends and f"{ends} of where it was heard (in the median turn)"),
            ("agent", words.onset_words(summary)),
        )
    ]
