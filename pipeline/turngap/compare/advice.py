"""Which backend a comparison advises for a question of one turn, or why none."""

from turngap.compare.record import BackendRecord, ComparisonRecord
from turngap.compare.side_by_side import told_apart
from turngap.compare.words import figure, inconclusive, stated
from turngap.core.untrusted import printable
from turngap.report import words


def answer(record: ComparisonRecord) -> str:
    """Say which backend to take for a question of one turn, or why none can be named."""
    known = [b for b in record.backends if b.gap_ms["p50"].value is not None and b.correct.n]
    if len(known) < 2:
        return (
            "No answer: fewer than two backends have both a gap p50 and a share of right answers. "
            "Play more turns (--rounds), of scenarios that say what they expect."
        )
    quick = min(known, key=lambda b: b.gap_ms["p50"].value or 0.0)
    right = max(known, key=lambda b: (b.correct.value or 0.0, b is quick))
    others = [b for b in known if b is not quick]
    leading = {quick.name, right.name}
    if doubted := [p for p in record.inconclusive if leading & {p.one, p.other}]:
        said = "; ".join(inconclusive(p) for p in doubted)
        return f"No answer, the comparison is inconclusive: {said}."
    if quieter := [b.name for b in others if _cuts_in_more(record, quick, b)]:
        advice = (
            f"No answer: {printable(quick.name)} is the quickest (gap p50 "
            f"{figure(quick.gap_ms['p50'])}), but it cuts in more often than "
            f"{printable(' and '.join(quieter))}. A short gap bought with cut-ins is not fast."
        )
    elif quick is right:
        advice = _one_for_both(record, quick, others)
    else:
        advice = _one_for_each(record, quick, right)
    named = [b for b in known if b in (quick, right) or b.name in quieter]
    heard = (f"{printable(b.name)} {words.cut_in_sentence(b.cut_ins)}" for b in named)
    return f"{advice} {'; '.join(heard)}."


def _cuts_in_more(record: ComparisonRecord, one: BackendRecord, other: BackendRecord) -> bool:
    """Return whether the one cuts in more often than the other, beyond chance."""
    pair = next(p for p in record.pairs if {p.one, p.other} == {one.name, other.name})
    if pair.cut_ins is None:
        return False
    more = pair.cut_ins.value or 0.0
    return told_apart(pair.cut_ins) and (more > 0) == (pair.one == one.name)


def _one_for_each(record: ComparisonRecord, quick: BackendRecord, right: BackendRecord) -> str:
    """Write the sentence for the case that one backend is quickest and another most often right."""
    pair = next(p for p in record.pairs if {p.one, p.other} == {quick.name, right.name})
    quicker, more_right = told_apart(pair.gap_ms), told_apart(pair.right)
    names = printable(quick.name), printable(right.name)
    gaps = f"gap p50 {figure(quick.gap_ms['p50'])} against {figure(right.gap_ms['p50'])}"
    shares = f"{_percent(right)} against {_percent(quick)}"
    if quicker and more_right:
        return (
            f"For one-turn questions take {names[0]}: it is quicker ({gaps}); {names[1]} is right "
            f"more often ({shares}){_on_tasks(record, names)}."
        )
    if quicker:
        return (
            f"For one-turn questions take {names[0]}: it is quicker ({gaps}), and no difference in "
            f"right answers is beyond chance (n = {_n(pair.right_n, pair.right_recorded)})."
        )
    if more_right:
        return (
            f"For one-turn questions take {names[1]}: it is right more often ({shares}), and no "
            f"difference in the gap is beyond chance (n = {_n(pair.gap_n, pair.gap_recorded)})."
        )
    return (
        f"No answer: n = {_n(pair.right_n, pair.right_recorded)} is too small to tell {names[0]} "
        f"from {names[1]}, in the gap or in right answers. Play more scenarios."
    )


def _one_for_both(
    record: ComparisonRecord, best: BackendRecord, others: list[BackendRecord]
) -> str:
    """Write the sentence for the case that the quickest backend is also right as often as any."""
    pairs = [p for p in record.pairs if best.name in (p.one, p.other)]
    told = [p for p in pairs if told_apart(p.gap_ms) or told_apart(p.right)]
    name = printable(best.name)
    figures = f"gap p50 {figure(best.gap_ms['p50'])}, {_percent(best)} right"
    if len(told) == len(others):
        return (
            f"For one-turn questions take {name} ({figures}): none is quicker or right more often."
        )
    n = min((_n(p.right_n, p.right_recorded) for p in pairs if p not in told), default=0)
    rest = [printable(p.other if p.one == best.name else p.one) for p in pairs if p not in told]
    return (
        f"No answer: {name} is ahead ({figures}), but n = {n} is too small to tell it from "
        f"{' and '.join(rest) or 'the others'}. Play more scenarios."
    )


def _percent(backend: BackendRecord) -> str:
    return words.percent(backend.correct.value or 0.0)


def _n(n: int, recorded: int | None) -> int:
    """Return the n that an interval is based on: rounds of the same turns add little."""
    return n if recorded is None else recorded


def _on_tasks(record: ComparisonRecord, names: tuple[str, str]) -> str:
    """Say from which length of task the other one takes less time; empty if not known."""
    for found in stated(record):
        pair = (printable(found.leader), printable(found.follower))
        if found.what == "time" and pair == names and found.turns:
            return f", and takes less time for tasks of {found.turns} turns or more"
    return ""
