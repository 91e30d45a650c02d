"""The line of a run: a drawing of each turn that crossed it, and what it did to the figures."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np

from turngap.core.line_figures import LineFigures
from turngap.core.results import Turn
from turngap.core.run_record import LineRecord
from turngap.core.stages import LINE_MARKS
from turngap.core.stored import LineTurn
from turngap.core.summary import Summary
from turngap.core.untrusted import printable
from turngap.core.wording import several
from turngap.report import looks, words
from turngap.report.charts import Bar, Chart, Domain, Mark, Path, Rule, polyline, time_ticks
from turngap.report.evidence import PLACES, TRACK_PX, Levels, levels_of, skyline, speech_of
from turngap.report.sections import PAGE, Figure, Figures, Item, Lines, lines
from turngap.store.runs import Run

# From the top, in pixels: what was sent, what the agent got, the gap, what it sent, what was heard.
BETWEEN_PX, GAP_PX, HOLE_PX = 12, 16, 5
SENT_PX = TRACK_PX
GOT_PX = SENT_PX + BETWEEN_PX + TRACK_PX
REPLY_PX = GOT_PX + GAP_PX + TRACK_PX
HEARD_PX = REPLY_PX + BETWEEN_PX + TRACK_PX
HEIGHT_PX = HEARD_PX + HOLE_PX + 3
# Time drawn before the person's end and after the last that happened, in ms.
BEFORE_MS, AFTER_MS, LONGEST_MS = (1200.0, 2500.0), 600.0, 10_000.0
# A reply that ends less late is in time.
LATE_MS = 50.0
# A lag that grows by less than this in a minute, in ms, is none.
STEADY_MS = 100.0
KEY = (
    "Each turn is drawn below: what the person sent, what of it had reached the agent, the reply "
    "where it would have played without the line's delay and holes, and the reply as heard. "
    "Slanted lines lead from sending to arrival. Hatched: nothing came out of the line; what had "
    "waited then came at once. Below the last track: holes in the reply, filled if inside a word. "
    "In the middle the gap: light grey is the line's part, yellow the agent's, dark grey the "
    "caller's playout."
)


def line_words(record: LineRecord) -> str:
    """Name a run's line: its profile or settings, its seed, and where its numbers are from."""
    named = printable(record.text)
    source = f"; {printable(record.source)}" if record.source else ""
    return f"{named}, seed {record.seed}{source}"


# --- a turn ---------------------------------------------------------------------------------------


def crossing_words(turn: Turn) -> str:
    """Say what the line did to a turn; empty for a turn without a line."""
    crossed = turn.line
    if crossed is None:
        return ""
    found = [
        f"{name} {words.ms(value)} ms"
        for name, value in (("up", crossed.up_ms), ("down", crossed.down_ms))
        if value is not None
    ]
    if crossed.plain_gap_ms is not None:
        found.append(f"gap without it {words.ms(crossed.plain_gap_ms)} ms")
    if dry := crossed.dry:
        in_word = sum(hole.in_word for hole in dry)
        inside = f", {in_word} inside a word" if in_word else ""
        found.append(f"{several(len(dry), 'hole')} of {_sum_ms(h.ms for h in dry)} ms{inside}")
    for way in ("up", "down"):
        if stalled := [stall.ms for stall in crossed.stalls if stall.way == way]:
            longest = f", the longest {words.ms(max(stalled))} ms" if len(stalled) > 1 else ""
            found.append(
                f"{several(len(stalled), 'stall')} {way} of {_sum_ms(stalled)} ms{longest}"
            )
    if (later := crossed.lag_ms) is not None and later >= LATE_MS:
        found.append(f"at its end the reply was {words.ms(later)} ms late")
    return "; ".join(found)


def _sum_ms(values: Iterator[float] | Sequence[float]) -> str:
    return words.ms(sum(values))


def drawing(run: Run, turn: Turn) -> Chart | None:
    """Draw the audio of a turn at both ends of the line; None for a turn without a line."""
    crossed = turn.line
    if crossed is None:
        return None
    gap_ms = turn.gap_ms or 0.0
    ends = [end for _, end in speech_of(turn, LONGEST_MS) if end < LONGEST_MS]
    ends += [gap_ms, *(gap_ms + hole.at_ms + hole.ms for hole in crossed.dry)]
    before_ms = min(max(turn.speech_ms or 0.0, BEFORE_MS[0]), BEFORE_MS[1])
    after_ms = min(max(max(ends) + AFTER_MS, BEFORE_MS[1]), LONGEST_MS)
    domain = Domain(-before_ms / turn.budget_ms, after_ms / turn.budget_ms)

    def x(ms: float) -> float:
        return domain.x(ms, turn.budget_ms)

    bars: list[Bar] = []

    def draw(from_ms: float, ms: float, row: tuple[int, int], style: str, title: str) -> None:
        left = x(from_ms)
        width = round(max(x(from_ms + ms) - left, 0.3), 3)
        bars.append(Bar(left, row[0], width, row[1], style, title=f"{title}: {words.ms(ms)} ms"))

    for stall in crossed.stalls:
        if -before_ms < stall.at_ms + stall.ms and stall.at_ms < after_ms:
            top = (GOT_PX if stall.way == "up" else HEARD_PX) - TRACK_PX
            draw(stall.at_ms, stall.ms, (top, TRACK_PX), "unknown", f"stall {stall.way}")
    for name, begin_ms, end_ms in _cut(turn):
        style = "line" if name in LINE_MARKS else "" if name == "agent_onset" else "think"
        row = (GOT_PX + 4, GAP_PX - 8)
        draw(begin_ms, end_ms - begin_ms, row, style, looks.short_name(name))
    for hole in crossed.dry:
        style, told = ("bad", "hole inside a word") if hole.in_word else ("hole", "hole")
        draw(gap_ms + hole.at_ms, hole.ms, (HEARD_PX + 2, HOLE_PX), style, told)
    paths = [
        Path(polyline([(x(a), top), (x(b), top + BETWEEN_PX)]), "silence", "4 3")
        for a, b, top in _slants(turn)
    ]
    levels, _ = levels_of(run, turn, before_ms, after_ms)
    if levels is not None:
        each_ms = (before_ms + after_ms) / PLACES
        at_ms = [each_ms * (place + 0.5) - before_ms for place in range(PLACES)]
        got = _moved(levels[:, 0], [_reached(t, run, crossed) for t in at_ms], at_ms)
        sent = _moved(levels[:, 1], [_entered(t, turn, crossed) for t in at_ms], at_ms)
        tracks = (levels[:, 0], SENT_PX, "person"), (got, GOT_PX, "person")
        tracks += (sent, REPLY_PX, "agent"), (levels[:, 1], HEARD_PX, "agent")
        paths += [Path(skyline(level, px), style, area=True) for level, px, style in tracks]
    names = ("person", SENT_PX), ("→ agent", GOT_PX), ("agent", REPLY_PX), ("→ person", HEARD_PX)
    return Chart(
        spoken=f"The line: {crossing_words(turn)}",
        height=HEIGHT_PX,
        name="evidence",
        x_ticks=time_ticks(domain, turn.budget_ms),
        y_ticks=[Mark(px - TRACK_PX / 2, name) for name, px in names],
        bars=bars,
        paths=paths,
        rules=[Rule(x(0), style="zero"), Rule(x(turn.budget_ms))],
    )


def _cut(turn: Turn) -> Iterator[tuple[str, float, float]]:
    """Yield the stages of the gap: the name, where it begins and where it ends, in ms."""
    ends = accumulate(stage.ms for stage in turn.stages)
    for stage, end_ms in zip(turn.stages, ends, strict=True):
        yield stage.name, end_ms - stage.ms, end_ms


def _slants(turn: Turn) -> Iterator[tuple[float, float, int]]:
    """Yield the lines between two tracks: begin and end in ms, and the upper one's base."""
    for name, begin_ms, end_ms in _cut(turn):
        if name in LINE_MARKS:
            yield begin_ms, end_ms, SENT_PX if name == "line_up" else REPLY_PX


def _reached(at_ms: float, run: Run, crossed: LineTurn) -> float:
    """Return when what the person sent at `at_ms` had reached the agent."""
    up = run.record.line.settings.get("up") if run.record.line else None
    known = up.get("delay_ms") if isinstance(up, dict) else None
    at_ms += known if isinstance(known, int | float) else crossed.up_ms or 0.0
    for stall in crossed.stalls:
        if stall.way == "up" and stall.at_ms <= at_ms < stall.at_ms + stall.ms:
            at_ms = stall.at_ms + stall.ms
    return at_ms


def _entered(at_ms: float, turn: Turn, crossed: LineTurn) -> float | None:
    """Return where what was heard at `at_ms` would have played without the line; None in a hole."""
    gap_ms, later_ms = turn.gap_ms or 0.0, crossed.down_ms or 0.0
    for hole in crossed.dry:
        begun_ms = gap_ms + hole.at_ms
        if begun_ms <= at_ms < begun_ms + hole.ms:
            return None
        later_ms += hole.ms if begun_ms < at_ms else 0.0
    return at_ms - later_ms


def _moved(levels: Levels, to_ms: Sequence[float | None], at_ms: Sequence[float]) -> Levels:
    """Move the levels at the places `at_ms` to other instants; the louder of two stays."""
    moved = np.zeros_like(levels)
    each_ms = at_ms[1] - at_ms[0]
    for level, to in zip(levels.tolist(), to_ms, strict=True):
        if to is not None and at_ms[0] <= to <= at_ms[-1]:
            place = round((to - at_ms[0]) / each_ms)
            moved[place] = max(level, moved[place])
    return moved


# --- a run ----------------------------------------------------------------------------------------


def line_items(run: Run, summary: Summary) -> list[Item]:
    """Build the section of a run over a line: the gap with it and without, and what it broke."""
    record, found = run.record.line, summary.line
    if record is None:
        return []
    paired = None
    if found is not None:
        paired = found.difference_ms.why_none if found.pairs else "no turn was played without it"
    return [
        Figures(_compared(found)) if found is not None else Lines([]),
        lines(
            ("line", line_words(record)),
            ("paired", f"no difference: {paired}" if paired else ""),
            *(("dead peer", text) for text in dead_words(record)),
            *(_broken(found, breaks=record.breaks) if found is not None else ()),
        ),
        lines(("drawings", KEY if found is not None else ""), where=PAGE),
    ]


def _compared(found: LineFigures) -> list[Figure]:
    figures = [
        Figure(name, f"{words.ms(p.value)} ms", f"median of {words.turns_words(found.pairs)}")
        for name, p in (("no line", found.plain_ms), ("with line", found.with_ms))
        if p.value is not None
    ]
    d = found.difference_ms
    if d.value is None:
        return figures
    known = d.low is not None and d.high is not None
    between = f"95 % interval {signed(d.low)} to {signed(d.high)}" if known else words.interval(d)
    about = f"median of the same {words.turns_words(found.pairs)}, each against itself"
    return [*figures, Figure("difference", f"{signed(d.value)} ms", f"{about}; {between}")]


def signed(ms: float | None) -> str:
    """Format a difference in ms with its sign."""
    return "–" if ms is None else f"+{words.ms(ms)}" if ms > 0 else words.ms(ms)


def _broken(found: LineFigures, *, breaks: bool) -> Iterator[tuple[str, str]]:
    """Yield the line's part and what broke, by name; what was not measured is left out."""
    if found.part_ms.value is not None:
        slow, ours = found.part_p95_ms.value, found.agent_ms.value
        said = f"p50 {words.ms(found.part_ms.value)} ms of the gap, up and down"
        said += "" if slow is None else f", p95 {words.ms(slow)} ms"
        said += "" if ours is None else f"; the agent's p50 {words.ms(ours)} ms"
        yield "line's part", f"{said} (n={found.parts})"
    of = "1 reply" if found.replies == 1 else f"{found.replies} replies"
    if found.parts and not found.replies:
        yield "holes", "not counted: over WebRTC, the notes say which packets were lost"
    elif not found.dry and found.replies:
        yield "holes", f"none in {of}"
    elif found.dry:
        holes = f"{several(found.dry, 'hole')} of {words.ms(found.dry_ms)} ms in all"
        yield "holes", f"{holes}, {found.dry_in_word} inside a word, in {found.dry_replies} of {of}"
    if found.dry and found.buffer_ms.value is not None:
        gap = found.buffer_gap_ms.value
        then = "" if gap is None else f"; with it the gap is p50 {words.ms(gap)} ms"
        buffer = f"{words.ms(found.buffer_ms.value)} ms of playout buffer"
        yield "buffer", f"{buffer} leave 95 % of the replies whole{then}"
    if (grown := found.lag_ms_per_minute) is not None:
        of = f"(median of {several(found.lag_calls, 'call')})"
        more = f"{'grows' if grown > 0 else 'shrinks'} by {words.ms(abs(grown))} ms a minute"
        yield "lag", f"{more if abs(grown) >= STEADY_MS else 'does not grow in a call'} {of}"
    if (over := found.yield_ms.value) is not None and found.plain_yield_ms.value is not None:
        times = f"{words.ms(over)} ms, without the line {words.ms(found.plain_yield_ms.value)}"
        yield "barge-in", f"the agent is silent after p50 {times} ms (n={found.yields})"
    if (n := found.backlog_bytes) and not breaks:
        yield "backlog", f"at most {n:,} bytes waited in the line"


def dead_words(record: LineRecord) -> list[str]:
    """Say of each call whose peer died how soon the caller and the agent noticed."""
    return [
        f"{printable(dead.scenario)}: the caller {_noticed(dead.caller_ms, 'did not notice')}, the "
        f"agent {_noticed(dead.agent_ms, 'was still there after 15 s')}"
        for dead in record.dead_peers
    ]


def _noticed(ms: float | None, never: str) -> str:
    return never if ms is None else f"noticed after {ms / 1000:.1f} s"
