"""The drawing of a curve: the gap to the right, the share of turns cut in on upwards."""

from collections.abc import Sequence

import numpy as np

from turngap.report import words as report_words
from turngap.report.charts import (
    DASHES,
    Bar,
    Chart,
    Dot,
    Key,
    Label,
    Mark,
    Path,
    Rule,
    clear_of,
    polyline,
    round_step,
)
from turngap.turns import words
from turngap.turns.record import CurveRecord, TurnsRecord

HEIGHT_PX = 260
# At least so much is drawn, and no more than curves are computed for.
LEAST_MS, MOST_MS = 1000.0, 3000.0
MEASURED, WAITING, SILENCE = DASHES[0], DASHES[1], DASHES[2]


def curve_chart(record: TurnsRecord) -> Chart | None:
    """Draw the agent's points and curves, and silence alone; None if no curve has a point."""
    curves = [
        (curve, dash, name, style)
        for curve, dash, name, style in (
            (record.measured, MEASURED, words.MEASURED, "b"),
            (record.waiting, WAITING, words.WAITING, "b"),
            (record.silence, SILENCE, words.SILENCE, "silence"),
        )
        if curve.points
    ]
    if not curves:
        return None
    right, top = _right([c for c, *_ in curves]), _top([c for c, *_ in curves])
    at_gap = Mark(100 * record.gap_ms / right, f"{record.gap_ms:.0f} ms", strong=True)
    step = round_step(right, 6)
    ticks = (Mark(100 * n * step / right, f"{n * step:.0f}") for n in range(int(right / step) + 1))
    shares = [n * round_step(top) for n in range(round(top / round_step(top)) + 1)]

    def y(share: float) -> float:
        return HEIGHT_PX * (1 - share / top)

    placed = [
        (point, 100 * point.gap_ms / right, y(point.cut_ins)) for point in record.measured.points
    ]
    return Chart(
        spoken="; ".join(words.spoken(name, curve) for curve, _, name, _ in curves),
        height=HEIGHT_PX,
        name="turns",
        note="Median gap in ms to the right, share of turns that the agent was heard to cut in on "
        "upwards, with 95 % intervals. Lower and further left is better. The dashed rules are "
        f"where curves are read: {report_words.percent(record.share)} of turns and "
        f"{record.gap_ms:.0f} ms.",
        x_ticks=clear_of(ticks, at_gap, 13),
        y_ticks=[Mark(y(share), f"{share:.0%}", grid=True) for share in shares],
        bars=[
            Bar(x - 0.2, y(point.high), 0.4, y(point.low) - y(point.high))
            for point, x, _ in placed
            if point.low is not None and point.high is not None
        ],
        paths=[
            Path(
                polyline((100 * gap / right, y(share)) for gap, share in _within(curve, right)),
                style,
                dash,
            )
            for curve, dash, _, style in curves
        ],
        rules=[
            Rule(at_gap.at, style="target"),
            Rule(y(record.share), style="target", upright=False),
        ],
        dots=[
            Dot(x, at, "odd", title=f"{point.cut_ins:.1%} at {point.gap_ms:.0f} ms")
            for point, x, at in placed
        ],
        labels=[
            Label(x, at - 9, value, -7 if x > 85 else 7)
            for (_, x, at), value in zip(placed, words.values_by_gap(record), strict=False)
            if value
        ],
        legend=[Key(name, style, dash) for _, dash, name, style in curves],
    )


def _within(curve: CurveRecord, right: float) -> list[tuple[float, float]]:
    """Gaps and shares of a curve's points, cut at the drawing's right edge."""
    gaps = [point.gap_ms for point in curve.points]
    shares = [point.cut_ins for point in curve.points]
    inside = [(gap, share) for gap, share in zip(gaps, shares, strict=True) if gap < right]
    beyond = [(right, float(np.interp(right, gaps, shares)))] if gaps[-1] >= right else []
    return [*inside, *beyond]


def _right(curves: Sequence[CurveRecord]) -> float:
    read = [curve.gap_at_share_ms.value or 0.0 for curve in curves]
    played = [point.gap_ms for point in curves[0].points] if len(curves[0].points) < 20 else []
    return min(MOST_MS, max(LEAST_MS, *(1.2 * ms for ms in (*read, *played, 0.0))))


def _top(curves: Sequence[CurveRecord]) -> float:
    highest = max(p.high if p.high is not None else p.cut_ins for c in curves for p in c.points)
    return max(0.1, -(-highest // 0.1) * 0.1)
