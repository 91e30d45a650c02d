"""How reports say figures, and whatever is said of a whole run: one spelling for all of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from turngap.core import instants
from turngap.core.clusters import NO_INTERVAL
from turngap.core.cut_ins import CutIns
from turngap.core.results import HeldOutRecord, JudgedWith
from turngap.core.run_record import RunRecord
from turngap.core.stages import unmarked
from turngap.core.stats import Percentile, Proportion
from turngap.core.summary import Summary, Verdicts
from turngap.core.untrusted import printable


def ms(value: float) -> str:
    """Milliseconds for reading: whole ones, and tenths below 10."""
    if value == 0:
        return "0"
    if abs(value) < 0.05:
        return "<0.1"
    text = f"{abs(value):.1f}" if abs(value) < 9.95 else f"{abs(value):.0f}"
    return f"−{text}" if value < 0 else text


def percent(share: float) -> str:
    """Format a share in whole per cent; only all is 100 and only none is 0."""
    if 0 < share < 0.01:
        return "<1 %"
    if 0.99 < share < 1:
        return ">99 %"
    return f"{share * 100:.0f} %"


def interval(p: Percentile) -> str:
    """Format the 95 % interval of a percentile, one-sided if n bounds only one side."""
    if p.low is not None and p.high is not None:
        return f"95 % interval {ms(p.low)} to {ms(p.high)}"
    if p.low is not None:
        return f"95 % sure: at least {ms(p.low)}"
    if p.high is not None:
        return f"95 % sure: at most {ms(p.high)}"
    return "too few independent turns for an interval"


def percentile_words(p: Percentile) -> tuple[str, str]:
    """Format a percentile as figure and remark; a dash and the reason if it is missing."""
    if p.value is None:
        return "–", p.why_none or "not known"
    return f"{ms(p.value)} ms", interval(p)


def hit_rate_words(rate: Proportion) -> tuple[str, str]:
    """Format the headline as figure and interval."""
    if rate.value is None:
        return "–", "no turns"
    if rate.low is None or rate.high is None:
        return percent(rate.value), NO_INTERVAL
    return percent(rate.value), f"95 % interval {percent(rate.low)} to {percent(rate.high)}"


_SHORT_COMMIT = 9
NOT_LOOKED = "nobody looked for pauses in them (turngap label does)"


def cut_ins_words(cut_ins: CutIns) -> tuple[str, str]:
    """Format the turns that the agent cut into as figure and remark."""
    figure, bounds = hit_rate_words(cut_ins)
    if cut_ins.value is None:
        return figure, bounds
    counted = f"{cut_ins.hits} of {turns_words(cut_ins.n, cut_ins.recorded)}; {bounds}"
    return figure, f"{counted}; {_pauses_words(cut_ins) or NOT_LOOKED}"


def cut_in_sentence(cut_ins: CutIns | None) -> str:
    """Say how many turns the agent cut into, for a sentence about a gap."""
    if cut_ins is None or cut_ins.value is None:
        return "cut-ins not known"
    recorded = recorded_words(cut_ins.n, cut_ins.recorded).strip(" ()")
    about = filter(None, (recorded, hit_rate_words(cut_ins)[1], _pauses_words(cut_ins)))
    return f"cut in on {cut_ins.hits} of {turns_words(cut_ins.n)} ({'; '.join(about)})"


def _pauses_words(cut_ins: CutIns) -> str:
    """Say how many turns have a pause: without pauses there is little to cut into."""
    if cut_ins.paused is None:
        return ""
    if not cut_ins.paused:
        return "none of them has a pause in which an agent could cut in"
    have = "has" if cut_ins.paused == 1 else "have"
    return f"{cut_ins.paused} of them {have} a pause in which an agent could cut in"


def instant(utc: str) -> str:
    """Format a stored instant for reading; text that is not an instant is returned as it is."""
    try:
        return f"{instants.instant(utc):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return printable(utc)


def commit(sha: str | None) -> str:
    """Shorten a commit; `+` marks one whose files differed, a dash stands for none."""
    if not sha:
        return "–"
    bare, dirty, _ = printable(sha).partition("-dirty")
    return bare[:_SHORT_COMMIT] + ("+" if dirty else "")


def turns_words(n: int, recorded: int | None = None) -> str:
    """`n` turns, and how many different ones these are where some were played again."""
    return ("1 turn" if n == 1 else f"{n} turns") + recorded_words(n, recorded)


def recorded_words(n: int, recorded: int | None) -> str:
    """Format the number of different turns, if rounds repeat them; else empty."""
    return "" if recorded in (None, n) else f" ({recorded} different)"


def scenarios_words(names: Sequence[str]) -> str:
    """Name the scenarios that were played: up to two by name, else one and how many more."""
    if len(names) < 3:
        return " and ".join(map(printable, names))
    return f"{printable(names[0])} and {len(names) - 1} more scenarios"


def stand_ins_words(stand_ins: Sequence[str]) -> str:
    """Say what was not real in a measurement, and what its figures therefore do not show."""
    if not stand_ins:
        return ""
    about = ["another model"] if any("LLM" in name for name in stand_ins) else []
    about += ["real callers"] if any("LLM" not in name for name in stand_ins) else []
    names = ", ".join(map(printable, stand_ins))
    return f"{names}: these figures say nothing about {' or '.join(about)}"


def right_words(summary: Summary) -> tuple[str, str] | None:
    """Format the share of right answers as figure and remark; None if none was expected."""
    right = summary.right
    left = [f"{n} not judged ({printable(why)})" for why, n in summary.not_judged.items()]
    if right.value is None:
        return None
    share, bounds = hit_rate_words(right)
    counted = f"{right.hits} of {turns_words(right.n, right.recorded)}; {bounds}"
    return share, "; ".join([counted, *left])


def held_out_words(known: HeldOutRecord) -> tuple[str, str]:
    """Say how a model did on dialogues that its training held out, as figure and remark."""
    share, bounds = hit_rate_words(known.right)
    counted = f"{known.right.hits} of {turns_words(known.right.n)}"
    return share, (
        f"not of this run: the model {printable(known.model)} was right in {counted} of "
        f"{known.dialogues} written dialogues that it was not trained on; {bounds}"
    )


def other_right_words(record: RunRecord, summary: Summary) -> list[tuple[str, str, str]]:
    """List the other verdicts: name, share of right answers, and what the share is based on."""
    rows: list[tuple[str, str, str]] = []
    for name, figures, used in (
        ("by sound", summary.transcribed, record.transcribed_with),
        ("judge", summary.judged, record.judged_with),
    ):
        if figures is not None and used is not None:
            rows.append((name, *_verdicts_words(figures, used)))
    return rows


def _verdicts_words(figures: Verdicts, used: JudgedWith) -> tuple[str, str]:
    right = figures.right
    remarks = [f"{printable(used.backend)}" + (", closed domain" if used.closed_domain else "")]
    share, bounds = hit_rate_words(right)
    if right.n:
        remarks = [f"{right.hits} of {turns_words(right.n, right.recorded)}; {bounds}", *remarks]
    if figures.both:
        remarks.append(f"as by the agent's text in {figures.agree} of {figures.both}")
    remarks += [f"{n} not judged ({printable(why)})" for why, n in figures.not_judged.items()]
    return share, "; ".join(remarks)


def run_words(record: RunRecord) -> tuple[str, ...]:
    """Name the run and its agent; once if the run is named after its agent."""
    return agent_words(record.name, record.agent)


def agent_words(name: str, described: Mapping[str, Any]) -> tuple[str, ...]:
    """Name whatever has this name and was played against the agent that is described."""
    agent = described.get("stack") or described.get("url") or ""
    names = dict.fromkeys(filter(None, (printable(name), printable(str(agent)))))
    return (*(names or ("run",)), *spoken_words(described))


def spoken_words(agent: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the dialect and the rate of the line to an agent at a URL."""
    dialect, rate = agent.get("dialect"), agent.get("line_rate_hz")
    if not dialect or not isinstance(rate, int):
        return ()
    return (f"{printable(str(dialect))}, {rate / 1000:g} kHz",)


def validity_words(record: RunRecord) -> str:
    """Say whether the run may be used, and if not, why."""
    if record.valid:
        return "valid"
    reasons = "; ".join(map(printable, record.why_invalid)) or "no reason was stored"
    return f"INVALID, do not use these figures: {reasons}"


def versions(record: RunRecord) -> str:
    """Format the versions of the program, the metrics and the schema."""
    return (
        f"turngap {record.turngap_version}, metrics {record.metrics_version}, "
        f"schema {record.schema_version}"
    )


def marks_words(stages: Iterable[str]) -> str:
    """Say how to see stages, if the agent reports none; else empty."""
    if not unmarked(stages):
        return ""
    return (
        "the agent sends no marks, so all of its time is unattributed: add the two lines of "
        "MarksObserver to a pipecat bot to see which stage takes it (README.md, “Measure my bot”)"
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as rows of dotted name and value."""
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, _setting(value)


def _setting(value: Any) -> str:
    """Format a setting's value for people, without Python's own words."""
    if value is None:
        return "–"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
