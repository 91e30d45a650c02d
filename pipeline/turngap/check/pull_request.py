"""What a check tells whoever reviews a change: a sentence, and the worst pairs as text."""

from collections.abc import Sequence

from turngap.check import charts, words
from turngap.check.record import CUT_INS, HIT_RATE, CheckRecord, CheckVerdict, MetricVerdict
from turngap.core.untrusted import printable
from turngap.report import turn_words
from turngap.report import words as report_words
from turngap.report.console import turn_block
from turngap.report.sections import Folded

# Pages have more of them, with their recordings.
MOST_PAIRS = 3
# As wide as a comment shows without scrolling.
WIDTH = 84

_TYPICAL = "gap p50"
# What a metric is of, before how it changed.
_SUBJECTS = {
    _TYPICAL: "the typical turn",
    "gap p95": "p95 of the turn gap",
    HIT_RATE: "the hit rate",
    CUT_INS: "the share of turns that it cuts into",
}


def short_words(record: CheckRecord) -> str:
    """Say what got worse, by how much and in which stage; else what did not get worse.

    Return an empty text if nothing was compared, or the figures allow no verdict.
    """
    known = [m for m in record.metrics if m.difference is not None]
    if record.verdict == "cannot_compare" or not known:
        return ""
    shown = [m for m in known if m.verdict == "regressed"]
    shown = shown or [m for m in known if m.name == _TYPICAL] or known[:1]
    text = "; ".join(map(_changed, shown))
    stage = next((s for s in record.stages if s.name == record.moved_stage), None)
    if stage is not None:
        text += f". The stage that moved is {printable(stage.name)}: "
        text += f"{words.signed_ms(stage.shift_ms)} ms in the typical pair"
    return f"{text[:1].upper()}{text[1:]}."


def _changed(metric: MetricVerdict) -> str:
    interval = words.interval_words(metric)
    sure = f" (95 % interval {interval})" if interval else ""
    subject = _SUBJECTS.get(metric.name, printable(metric.name))
    if metric.unit == "ms" and metric.difference is not None:
        than = "quicker" if metric.difference < 0 else "slower"
        return f"{subject} is {report_words.ms(abs(metric.difference))} ms {than}{sure}"
    return f"{subject} changed by {words.difference_words(metric)}{sure}"


def waterfalls(pairs: Sequence[charts.TurnPair], verdict: CheckVerdict) -> list[Folded]:
    """Draw the first few of `pairs`, worst first; a regression unfolds the first.

    Pairs with a starved caller are shown only if there are no others: they may read long because of
    the machine.
    """
    shown = [p for p in pairs if not _starved(p)] or pairs
    return [
        Folded(
            title=f"{turn_words.turn_name(pair.candidate)}: {charts.heading(pair)}",
            about=charts.moved_in(pair),
            text=_text(pair),
            open=number == 0 and verdict == "regressed",
        )
        for number, pair in enumerate(shown[:MOST_PAIRS])
    ]


def _starved(pair: charts.TurnPair) -> bool:
    return any(t is not None and t.pacing.starved for t in (pair.reference, pair.candidate))


def _text(pair: charts.TurnPair) -> str:
    """Both takes of a turn as a terminal shows them, at the same scale."""
    takes = [("A, the reference", pair.reference), ("B, the candidate", pair.candidate)]
    if pair.reference is None:
        return turn_block(pair.candidate, WIDTH).plain
    return "\n".join(f"{name}\n{turn_block(t, WIDTH).plain}" for name, t in takes if t is not None)
