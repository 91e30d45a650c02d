"""Words for a comparison: the cells of its tables and the sentences beneath."""

from decimal import Decimal

from turngap.compare.side_by_side import told_apart
from turngap.core.budget import REPLIED
from turngap.core.clusters import NO_INTERVAL
from turngap.core.cut_ins import CutIns
from turngap.core.run_record import JudgedWith
from turngap.core.stats import Percentile, Proportion
from turngap.core.summary import Verdicts
from turngap.core.untrusted import printable
from turngap.core.wording import several
from turngap.report import words
from turngap.store.comparisons import (
    INCONCLUSIVE,
    BackendRecord,
    ChainRecord,
    ComparisonRecord,
    CrossingRecord,
    PairRecord,
)

HEAD = (
    "backend", "turns", "gap p50", "p95", "cut-ins", "hit rate", "right answers",
    "$/1000 turns", "$/1000 right", "first answer", "first token", "tokens/s", "window tokens",
)  # fmt: skip
RIGHT_AT = HEAD.index("right answers")
MOST_USD = 10_000
# The upper end of a task's success may be this many times the lower one. Beyond this nothing can be
# said of how long the task takes: with two of three turns right (21 % to 94 %), between 1 % and
# 83 % of tasks of three turns would go well at once.
MOST_UNSURE = 10.0


def head(record: ComparisonRecord) -> tuple[str, ...]:
    """Return the table's head; if a judge was used, it names the source of each share."""
    if record.judged_with is None:
        return HEAD
    verdicts = ("right by the rules", f"right by {judge_name(record.judged_with)}")
    return (*HEAD[:RIGHT_AT], *verdicts, *HEAD[RIGHT_AT + 1 :])


def rows(record: ComparisonRecord) -> list[tuple[str, ...]]:
    """Build the table of backends, one row each, with the columns of `head`."""
    found = [row(backend) for backend in record.backends]
    if record.judged_with is None:
        return found
    judged = ["–" if b.judged is None else right(b.judged.right) for b in record.backends]
    behind = RIGHT_AT + 1
    return [
        (*cells[:behind], cell, *cells[behind:]) for cells, cell in zip(found, judged, strict=True)
    ]


def row(backend: BackendRecord) -> tuple[str, ...]:
    """Format one backend's cells."""
    return (
        printable(backend.name) + ("" if backend.valid else " (invalid)"),
        str(backend.turns) + words.recorded_words(backend.hit_rate.n, backend.hit_rate.recorded),
        figure(backend.gap_ms["p50"]),
        figure(backend.gap_ms["p95"]),
        cut_ins(backend.cut_ins),
        share(backend.hit_rate),
        right(backend.correct),
        thousand(backend.price.usd_per_turn),
        thousand(backend.price.usd_per_right),
        figure(backend.first_answer_ms),
        "–" if backend.ttft_ms is None else f"{words.ms(backend.ttft_ms)} ms",
        "–" if backend.tokens_per_s is None else f"{backend.tokens_per_s:.0f}",
        "–" if backend.window_tokens is None else f"{backend.window_tokens:g}",
    )


def figure(value: Percentile) -> str:
    """Format a percentile in ms."""
    return "–" if value.value is None else f"{words.ms(value.value)} ms"


def share(value: Proportion) -> str:
    """Format a share with its interval."""
    if value.value is None:
        return "–"
    return f"{words.percent(value.value)} ({_bounds(value)})"


def cut_ins(value: CutIns | None) -> str:
    """Format the number of turns that the agent cut into, with the share's interval."""
    if value is None or value.value is None:
        return "–"
    return f"{value.hits} of {value.n} ({_bounds(value)})"


def _bounds(value: Proportion) -> str:
    if value.low is None or value.high is None:
        return "no interval"
    return f"{words.percent(value.low)} to {words.percent(value.high)}"


def right(value: Proportion) -> str:
    """Format a share of right answers with its interval and its n."""
    if value.value is None:
        return "–"
    return f"{share(value)} of {value.n}{words.recorded_words(value.n, value.recorded)}"


def thousand(usd: float | None) -> str:
    """Format the price of 1000 turns or right answers from the price of one, to three digits."""
    return "–" if usd is None else digits(usd * 1000, 3)


def digits(value: float, most: int) -> str:
    """Format a number with `most` significant digits, at least to its point; no exponent."""
    return f"{value:,.0f}" if value >= 10**most else f"{Decimal(f'{value:.{most}g}'):f}"


def missing(record: ComparisonRecord) -> list[str]:
    """List why figures are missing and what does not count; shared reasons once."""
    reasons = {backend.name: _reasons(backend) for backend in record.backends}
    shared = [
        reason
        for reason in next(iter(reasons.values()), [])
        if len(reasons) > 1 and all(reason in others for others in reasons.values())
    ]
    own = {name: [r for r in said if r not in shared] for name, said in reasons.items()}
    return [
        printable(f"{name}: {'; '.join(said)}")
        for name, said in {"each of them": shared, **own}.items()
        if said
    ]


def _reasons(backend: BackendRecord) -> list[str]:
    other = {o: n for o, n in backend.outcomes.items() if o not in REPLIED}
    fell_back = (
        f"a part failed in {backend.fell_back} of {backend.turns} turns, and another answered "
        "(agent.log in its run says why)"
    )
    llm = f"first token, tokens/s and window tokens: of {backend.llm_n} of {backend.turns} turns"
    return [
        *(f"{n} of {backend.turns} turns {o}" for o, n in other.items()),
        *([failed(backend)] if backend.failed else []),
        *([fell_back] if backend.fell_back else []),
        *(f"{q}: {f.why_none}" for q, f in backend.gap_ms.items() if f.why_none),
        *([f"price: {backend.price.why_none}"] if backend.price.why_none else []),
        *([llm] if backend.llm_n < backend.turns else []),
        *(f"{n} answers not judged ({why})" for why, n in backend.not_judged.items()),
        *([backend.why_invalid] if backend.why_invalid else []),
    ]


def judge_name(used: JudgedWith) -> str:
    """Name the judge, with its model if its settings name one."""
    model = used.settings.get("model")
    return "judge " + printable(f"{used.backend} {model}" if model else used.backend)


def judge_notes(record: ComparisonRecord) -> list[str]:
    """Say how often judge and rules disagree, and which figures use the rules."""
    if record.judged_with is None:
        return []
    return [
        f"{judge_name(record.judged_with)} counts in its own column only: prices, pairs, tasks "
        "and crossings use the rules",
        *(f"{printable(b.name)}: {_judged(b.judged)}" for b in record.backends if b.judged),
    ]


def _judged(judged: Verdicts) -> str:
    disagree = judged.alone + judged.rule_alone
    said = ["no turn has a verdict of both"]
    if judged.both:
        said = [f"judge and rules disagree in {disagree} of {words.turns_words(judged.both)}"]
    if disagree:
        said[0] += f" (right by the judge alone {judged.alone}, by the rules {judged.rule_alone})"
    if judged.transcribed:
        said.append(f"in {judged.transcribed} it read a recogniser's words")
    said += [f"{n} not judged by it ({printable(why)})" for why, n in judged.not_judged.items()]
    return "; ".join(said)


def failed(backend: BackendRecord) -> str:
    """Say in how many turns the agent failed, with its first error."""
    said = printable(backend.first_failure or "")
    return f"the agent failed in {backend.failed} of {backend.turns} turns, first: {said}"


def inconclusive(found: PairRecord) -> str:
    """Name the pairs that a late caller leaves without an answer, and why."""
    return printable(f"{found.one} and {found.other}: {found.inconclusive}")


def pair(found: PairRecord) -> str:
    """Describe how two backends differ over the same turns, as far as caller lateness allows."""
    doubt = f"{INCONCLUSIVE}, {inconclusive(found)}" if found.inconclusive else ""
    if found.gap_ms.why_none == INCONCLUSIVE:
        return doubt
    gap = f"gap {_signed(found.gap_ms, 1, ' ms')}"
    if found.gap_ms.value is not None:
        gap += f" in the median, n = {words.turns_words(found.gap_n, found.gap_recorded)}"
    if found.cut_ins is not None:
        gap += f"; cut-ins {_signed(found.cut_ins, 100, ' points')}"
    shares = f"right answers {_signed(found.right, 100, ' points')}"
    if found.right_n:
        shares += f", n = {words.turns_words(found.right_n, found.right_recorded)}"
        shares += f", it alone right in {found.only_one}, the other alone in {found.only_other}"
    said = f"{printable(found.one)} less {printable(found.other)}: {gap}; {shares}"
    return "; ".join(filter(None, (doubt, said + _late(found))))


def _late(found: PairRecord) -> str:
    """Say how much the caller's own lateness may add to either side's gap."""
    if found.caller is None:
        return ""
    mine, its = found.caller.candidate_ms, found.caller.reference_ms
    return (
        f"; in the typical turn the caller itself may have added {mine:.1f} ms to the gap of "
        f"{printable(found.one)} and {its:.1f} ms to that of {printable(found.other)}, which "
        "the intervals allow for"
    )


def _signed(figure: Percentile, factor: float, unit: str) -> str:
    if figure.value is None:
        return f"– ({printable(figure.why_none or '')})"
    low, high = (
        "?" if bound is None else f"{factor * bound:+.0f}" for bound in (figure.low, figure.high)
    )
    bounds = NO_INTERVAL if low == high == "?" else f"95 % interval {low} to {high}"
    return f"{factor * figure.value:+.0f}{unit} ({bounds})"


def chain_rows(record: ComparisonRecord) -> list[tuple[str, ...]]:
    """Build the task's table: one row a length, with each backend's success, time and price."""
    lengths = list(record.chain[0].success) if record.chain else []
    return [(str(n), *(chain_cell(chain, n) for chain in record.chain)) for n in lengths]


def chain_cell(chain: ChainRecord, n: int) -> str:
    """Format the chance of success at once, with its interval, and the expected time and price."""
    bounds, sure = "", True
    if n in chain.success_low and n in chain.success_high:
        low, high = chain.success_low[n], chain.success_high[n]
        bounds = f" ({words.percent(low)} to {words.percent(high)})"
        sure = high <= MOST_UNSURE * low
    at_once = f"{words.percent(chain.success[n])}{bounds}"
    if not sure:
        return f"{at_once}, too few turns to say"
    ms, usd = chain.ms[n], chain.usd[n]
    time = "never" if ms is None else seconds(ms)
    price = "" if usd is None else f", {dollars(usd)}"
    return f"{at_once}, {time}{price}"


def bears_out(right: Proportion, n: int) -> bool:
    """Return whether the share of right answers is precise enough for a task of `n` turns."""
    low, high = right.low or 0.0, 1.0 if right.high is None else right.high
    return high**n <= MOST_UNSURE * low**n


def dollars(usd: float) -> str:
    """Format the price of a task; beyond a limit, say only that it is over the limit."""
    return f"${digits(usd, 2)}" if usd <= MOST_USD else f"over ${MOST_USD:,}"


def seconds(ms: float) -> str:
    """Format a time for people."""
    s = ms / 1000
    if s < 60:
        return f"{s:.1f} s"
    if s < 3600:
        return f"{s / 60:.1f} min"
    return f"{s / 3600:.1f} h" if s < 100 * 3600 else "over 100 h"


def stated(record: ComparisonRecord) -> list[CrossingRecord]:
    """Select the crossings that the turns support, to be shown.

    Their intervals are bounded, and the two backends differ beyond chance in the gap or in right
    answers. Tasks that neither completes, and pairs that are alike, are included too.
    """
    differ = {
        frozenset((pair.one, pair.other))
        for pair in record.pairs
        if told_apart(pair.right) or told_apart(pair.gap_ms)
    }
    return [
        found
        for found in record.crossings
        if found.why_none is not None
        or (_bounded(found) and frozenset((found.leader, found.follower)) in differ)
    ]


def _bounded(found: CrossingRecord) -> bool:
    """Return whether the interval proves that one backend overtakes the other, or never does."""
    return found.earliest is None if found.turns is None else found.latest is not None


def crossing(found: CrossingRecord) -> str:
    """Say where one backend overtakes another, with its interval; see `stated`."""
    leader, follower = printable(found.leader), printable(found.follower)
    n = "" if found.n is None else f"; n = {found.n}"
    if found.why_none is not None:
        return f"in {found.what}, {leader} and {follower}: {printable(found.why_none)}"
    if not _bounded(found):
        return (
            f"in {found.what}, these turns do not decide whether {follower} overtakes {leader}"
            f" within {found.longest} turns{n}"
        )
    if found.turns is None:
        return (
            f"in {found.what}, {leader} stays ahead of {follower} up to {found.longest} turns "
            f"(and so by the 95 % intervals{n})"
        )
    text = (
        f"in {found.what}, {follower} is ahead of {leader} from a task of 1 turn on"
        if found.turns == 1
        else f"in {found.what}, {follower} overtakes {leader} at a task of {found.turns} turns"
    )
    return f"{text} (95 % interval: {found.earliest} to {found.latest}{n})"


def basis(record: ComparisonRecord) -> str:
    """Say what the comparison is based on."""
    scenarios = several(len(record.scenarios), "scenario")
    return (
        f"{printable(record.agent)}, {scenarios}, {several(record.rounds, 'round')}, in turns on "
        f"one machine ({printable(record.machine.cpu)}, {record.machine.cores} cores); "
        f"{words.accepted_words(record.starved_ms, None)}"
    )


CHAIN_NOTE = (
    "all turns right at once; then time and price until a whole task went well, begun anew after "
    "each failure, which is noticed only at the end"
)


def answer(record: ComparisonRecord) -> str:
    """Name the backend to take for a question of one turn, or say why none can be named."""
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
    """Return whether one backend cuts in more often than another, beyond chance."""
    pair = next(p for p in record.pairs if {p.one, p.other} == {one.name, other.name})
    if pair.cut_ins is None:
        return False
    more = pair.cut_ins.value or 0.0
    return told_apart(pair.cut_ins) and (more > 0) == (pair.one == one.name)


def _one_for_each(record: ComparisonRecord, quick: BackendRecord, right: BackendRecord) -> str:
    """Write the sentence for two winners: one backend is quickest, another most often right."""
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
        f"No answer: n = {_n(pair.right_n, pair.right_recorded)} is too small to distinguish "
        f"{names[0]} from {names[1]}, in the gap or in right answers. Play more scenarios."
    )


def _one_for_both(
    record: ComparisonRecord, best: BackendRecord, others: list[BackendRecord]
) -> str:
    """Write the sentence for one winner: the quickest backend is also right as often as any."""
    pairs = [p for p in record.pairs if best.name in (p.one, p.other)]
    apart = [p for p in pairs if told_apart(p.gap_ms) or told_apart(p.right)]
    name = printable(best.name)
    figures = f"gap p50 {figure(best.gap_ms['p50'])}, {_percent(best)} right"
    if len(apart) == len(others):
        return (
            f"For one-turn questions take {name} ({figures}): none is quicker or right more often."
        )
    n = min((_n(p.right_n, p.right_recorded) for p in pairs if p not in apart), default=0)
    rest = [printable(p.other if p.one == best.name else p.one) for p in pairs if p not in apart]
    return (
        f"No answer: {name} is ahead ({figures}), but n = {n} is too small to distinguish it "
        f"from {' and '.join(rest) or 'the others'}. Play more scenarios."
    )


def _percent(backend: BackendRecord) -> str:
    return words.percent(backend.correct.value or 0.0)


def _n(n: int, recorded: int | None) -> int:
    """Return the n that an interval is based on: rounds of the same turns add little."""
    return n if recorded is None else recorded


def _on_tasks(record: ComparisonRecord, names: tuple[str, str]) -> str:
    """Say from which length of task the other backend takes less time; empty if not known."""
    for found in stated(record):
        pair = (printable(found.leader), printable(found.follower))
        if found.what == "time" and pair == names and found.turns:
            return f", and takes less time for tasks of {found.turns} turns or more"
    return ""
