"""The sentences that reports share: figures, a run, and the quality of its measurement."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from turngap.core import clock
from turngap.core.budget import STARVED_MS
from turngap.core.clusters import NO_INTERVAL
from turngap.core.cut_ins import CutIns
from turngap.core.results import Turn
from turngap.core.run_record import (
    CalibrationRecord,
    HeldOutRecord,
    JudgedWith,
    OffsetRecord,
    PieceRecord,
    RunRecord,
)
from turngap.core.stages import unmarked
from turngap.core.stats import Percentile, Proportion, n_needed
from turngap.core.summary import PERCENTILES, Summary, Verdicts
from turngap.core.untrusted import printable
from turngap.report import looks
from turngap.store.comparisons import PointRecord, TurnsRecord


def ms(value: float) -> str:
    """Format milliseconds: whole ones, and tenths below 10."""
    if value == 0:
        return "0"
    if abs(value) < 0.05:
        return "<0.1"
    text = f"{abs(value):.1f}" if abs(value) < 9.95 else f"{abs(value):.0f}"
    return f"−{text}" if value < 0 else text


def percent(share: float) -> str:
    """Format a share in whole per cent; 100 is only for all, and 0 only for none."""
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
        return f"at least {ms(p.low)}, with 95 % confidence"
    if p.high is not None:
        return f"at most {ms(p.high)}, with 95 % confidence"
    return "too few independent turns for an interval"


def percentile_words(p: Percentile) -> tuple[str, str]:
    """Format a percentile as figure and remark; a dash and the reason if it is missing."""
    if p.value is None:
        return "–", p.why_none or "not known"
    return f"{ms(p.value)} ms", interval(p)


def turn_name(turn: Turn) -> str:
    """Return the turn's name: its scenario, number and repeat."""
    return take_name(turn.scenario, turn.turn, turn.repeat)


def take_name(scenario: str, number: int, repeat: int) -> str:
    """Return the name of the turn that has this key."""
    repeated = f", repeat {repeat}" if repeat > 1 else ""
    return f"{printable(scenario)}, turn {number}{repeated}"


def median_words(turns: Sequence[Turn], summary: Summary) -> tuple[str, str]:
    """Format the headline: the median gap, with its interval and the slowest turn."""
    p50 = summary.gap_ms["p50"]
    value = "–" if p50.value is None else f"{ms(p50.value)} ms"
    gaps = [
        (t.gap_ms, t) for t in turns if t.left_out is None and t.replied and t.gap_ms is not None
    ]
    if not gaps:
        return value, p50.why_none or "no turn was answered"
    remarks = [f"median of {turns_words(summary.gap_n)}"]
    if p50.value is None:
        remarks = [f"no median: {p50.why_none}"]
    elif p50.low is not None or p50.high is not None:
        remarks.append(interval(p50))
    least, (most, slowest) = min(g for g, _ in gaps), max(gaps, key=lambda g: g[0])
    mean = sum(g for g, _ in gaps) / len(gaps)
    remarks.append(f"min {ms(least)}, mean {ms(mean)}, max {ms(most)} ms")
    return value, f"{'; '.join(remarks)} ({turn_name(slowest)})"


def no_percentiles_words(turns: Sequence[Turn], summary: Summary) -> str:
    """Say why a run has no p90 or p95, and how often to play it for them; empty if it has both."""
    missing = {n: p for n, p in summary.gap_ms.items() if n != "p50" and p.value is None}
    if not missing or not turns:
        return ""
    needed = n_needed(PERCENTILES[max(missing)])
    if summary.gap_n >= needed:
        return "; ".join(dict.fromkeys(p.why_none or "not known" for p in missing.values()))
    rounds = len({(t.repeat, t.phase_ms) for t in turns})
    each = max(1, summary.gap_n // rounds)
    repeat = math.ceil(needed / each)
    lacking = " and ".join(f"{n} takes {n_needed(PERCENTILES[n])}" for n in missing)
    return f"{lacking} turns; there are {summary.gap_n}: --repeat {repeat} plays {repeat * each}"


def hit_rate_words(rate: Proportion) -> tuple[str, str]:
    """Format the headline as figure and interval."""
    if rate.value is None:
        return "–", "no turns"
    if rate.low is None or rate.high is None:
        return percent(rate.value), NO_INTERVAL
    return percent(rate.value), f"95 % interval {percent(rate.low)} to {percent(rate.high)}"


_SHORT_COMMIT = 9
NOT_LOOKED = "pauses not labelled (turngap label does it)"


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
        return "none has a pause to cut into"
    have = "has" if cut_ins.paused == 1 else "have"
    return f"{cut_ins.paused} {have} a pause to cut into"


def instant(utc: str) -> str:
    """Format a stored instant for reading; text that is not an instant is returned as it is."""
    try:
        return f"{clock.instant(utc):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        return printable(utc)


def commit(sha: str | None) -> str:
    """Shorten a commit; `+` marks one whose files differed, a dash stands for none."""
    if not sha:
        return "–"
    bare, dirty, _ = printable(sha).partition("-dirty")
    return bare[:_SHORT_COMMIT] + ("+" if dirty else "")


def turns_words(n: int, recorded: int | None = None) -> str:
    """Format a number of turns, and of different ones if some were played again."""
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
    """Name the simulated parts of a measurement, and the limits that they put on its figures."""
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
    """Format a model's right answers on held-out dialogues, as figure and remark."""
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
    """Return the agent's name, its stack or URL if that differs, and its dialect and rate."""
    agent = str(described.get("stack") or described.get("url") or "")
    # An agent at a URL is named by its host and port, which its URL says better.
    shown = agent if name and f"://{name}" in agent else name
    names = dict.fromkeys(filter(None, (printable(shown), printable(agent))))
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


ADD_MARKS = (
    "from turngap import MarksObserver",
    "MarksObserver().attach(worker)  # after worker = PipelineWorker(pipeline)",
)


def marks_words(stages: Iterable[str], offset: OffsetRecord | None = None) -> list[str]:
    """Say how to see stages, if the agent reports none, with the lines to add; else nothing.

    `offset`: an agent whose clock was compared has a MarksObserver already.
    """
    if not unmarked(stages):
        return []
    if offset is not None and offset.offset_ns is not None:
        return [
            "the agent has a MarksObserver, which saw no user turn: its pipeline needs a user "
            "aggregator, as the one of LLMContextAggregatorPair"
        ]
    return [
        "the agent sends no marks. To see the stages, add two lines to a pipecat bot:",
        *ADD_MARKS,
    ]


# Which settings of a built-in agent decide on a group of stages.
_BUILT_IN = {
    "listen": "its `turn` and `stt` engines: --set turn=NAME, --set turn.KEY=VALUE, --set stt=NAME",
    "think": "its LLM: --llm NAME",
    "speak": "its LLM and its voice: --llm NAME, --set tts=NAME",
}


def advice_words(record: RunRecord, summary: Summary) -> str:
    """Name the stage that took most of the silence, and its cause; empty if not known."""
    stage = next((s for s in summary.stages if s.name == summary.slowest_stage), None)
    if stage is None or not stage.share or not (owner := looks.look_of(stage.name).owner):
        return ""
    if not record.agent.get("url"):
        owner = _BUILT_IN.get(looks.look_of(stage.name).group, owner)
    return (
        f"{looks.full_name(stage.name)}, {percent(stage.share)} of the silence, depends on {owner}"
    )


def curve_words(curve: TurnsRecord, point: PointRecord) -> str:
    """Compare a point of a curve with the next quicker one; empty without one."""
    played = sorted(
        (p.gap_ms.value, p.heard.value, printable(p.value or ""))
        for p in curve.points
        if p.gap_ms.value is not None and p.heard.value is not None
    )
    values = [value for *_, value in played]
    now = printable(point.value or "")
    if now not in values[1:]:
        return ""
    here = values.index(now)
    (quicker_ms, quicker_cut_ins, quicker), (now_ms, now_cut_ins, _) = played[here - 1 : here + 1]
    return (
        f"{printable(curve.setting or '')} {now} → {quicker}: about −{now_ms - quicker_ms:.0f} ms, "
        f"cut-ins {percent(now_cut_ins)} → {percent(quicker_cut_ins)} (turngap turns on "
        f"{curve.recorded} recorded turns)"
    )


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return nested settings as rows of dotted name and value."""
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


# How well something was measured: the caller, the instrument, the clocks.


# The caller of a run in which no turn was starved.
ON_TIME = "on time in every turn"


def starved_words(summary: Summary) -> str:
    """Say in how many turns the caller was too late to be reliable; empty if in none."""
    if not summary.starved:
        return ""
    return (
        f"starved in {turns_words(summary.starved)} of {summary.turns}, which count in all "
        "figures (more than 5 % of the turns make a run invalid; of 5 turns or more, one alone "
        "does not)"
    )


def heard_words(summary: Summary) -> str:
    """Describe the agent's sound apart from its gaps; empty if there is nothing to say."""
    heard, said = summary.heard, list[str]()
    if heard.hold_phrases and heard.first_answer_ms_p50 is not None:
        said.append(
            f"a hold phrase in {turns_words(heard.hold_phrases)} (first answer p50 "
            f"{ms(heard.first_answer_ms_p50)} ms)"
        )
    for n, what in (
        (heard.discontiguous_replies, "replies with a hole in their first 2 s"),
        (heard.false_starts, "false starts"),
        (heard.backchannels_heard, "backchannels"),
    ):
        said += [f"{what}: {n}"] if n else []
    if n := heard.sound_before_word:
        said.append(f"other sound over 100 ms before the first word in {turns_words(n)}")
    if heard.playout_gap_ms_p50 is not None and heard.playout_ms_p50 is not None:
        gap, later = ms(heard.playout_gap_ms_p50), ms(heard.playout_ms_p50)
        said.append(f"gap p50 {gap} ms behind a playout buffer, which adds {later} ms")
    if heard.greeting_ms_p50 is not None:
        said.append(f"greeting p50 {ms(heard.greeting_ms_p50)} ms")
    return "; ".join(said)


def onset_words(summary: Summary) -> str:
    """Say how exactly the agent's first words or answers were placed; empty if there are none."""
    heard = summary.heard
    if heard.onset_spread_ms_p50 is None:
        return ""
    figures = [("p50", heard.onset_spread_ms_p50), ("p95", heard.onset_spread_ms_p95)]
    known = " · ".join(f"{name} {ms(value)}" for name, value in figures if value is not None)
    unsure = f"over 20 ms in {heard.unsure_onsets} of {turns_words(heard.onsets)}"
    return f"the agent's first word or answer is placed to within {known} ms ({unsure})"


def ambiguous_words(summary: Summary) -> str:
    """Count the turns whose reply may belong to another turn; empty if there are none."""
    n = summary.heard.ambiguous_turns
    return f"{n} of {turns_words(summary.turns)} may have another turn's reply" if n else ""


def lost_words(summary: Summary) -> str:
    """Say how many calls were lost; empty if none was."""
    n = summary.lost_calls
    return f"{n} of {summary.calls} calls, whose other turns count as errors" if n else ""


def over_words(line: object) -> str:
    """Name the line over which something was played."""
    return f"over the line {printable(str(line), 80)}" if line else "without a line"


def accepted_words(starved_ms: float, caller_error_ms: float | None) -> str:
    """Say how late the caller may be, and by how much that may change the gaps."""
    text = f"a caller up to {starved_ms:g} ms late is accepted"
    if starved_ms != STARVED_MS:
        text += f" (--starved-ms; by default {STARVED_MS:g})"
    if caller_error_ms is None:
        return text
    return f"{text}; as late as it was, a gap may read at most {ms(caller_error_ms)} ms too long"


def label_words(label_error_ms: float) -> str:
    """Say how far off the labelled ends of speech may be, from which every gap is counted."""
    return (
        f"the person's last word ends within ±{ms(label_error_ms)} ms of its label (in the "
        "median turn), so a gap may be off by as much"
    )


def error_words(calibration: CalibrationRecord) -> str:
    """Format the error that a calibration found."""
    error = calibration.error_ms
    figures = [("p50", error.p50), ("p95", error.p95), ("p99", error.p99), ("max", error.max)]
    known = " · ".join(f"{name} {value:.2f}" for name, value in figures if value is not None)
    return f"error {known or 'not known'} ms (n={error.n})"


def brief_words(record: RunRecord) -> str:
    """Format the instrument's error, and how precisely the agent's marks are placed, in a line."""
    calibration, offset = record.calibration, record.clock_offset
    text = "not calibrated in this run" if calibration is None else error_words(calibration)
    if offset is None or offset.bound_ns is None:
        return text
    return f"{text}; agent's marks to within ±{offset.bound_ns / 1e6:.2f} ms"


def calibration_words(record: RunRecord | PieceRecord) -> str:
    """Format the instrument's own error, measured against injected truth."""
    spoken = record.agent.get("line_rate_hz") if isinstance(record, RunRecord) else None
    return instrument_words(record.calibration, spoken)


def instrument_words(calibration: CalibrationRecord | None, spoken: object = None) -> str:
    """Format the error of a calibration; `spoken` is the rate of the measured line in Hz."""
    if calibration is None:
        return "not calibrated in this run"
    note = f"; {calibration.note}" if calibration.note else ""
    if isinstance(spoken, int) and calibration.rate not in (None, spoken):
        note += f"; this run's line has {spoken:,} Hz"
    return f"{error_words(calibration)}{_calibrated_in(calibration)}{note}"


def _calibrated_in(calibration: CalibrationRecord) -> str:
    """Say in which dialect, and at which rates, the calibration ran; empty if not known."""
    if not calibration.dialect:
        return ""
    rates = [rate for rate in (calibration.rate, calibration.agent_rate) if rate]
    at = " and ".join(f"{rate:,}" for rate in dict.fromkeys(rates))
    return f" in {calibration.dialect}" + (f" at {at} Hz" if at else "")


def piece_words(piece: PieceRecord) -> str:
    """Say when a piece of a continued run was played, by what, and how well it measured."""
    begun = instant(piece.started_utc)
    ended = f"from {begun} to {instant(piece.finished_utc)}" if piece.finished_utc else ""
    said = [
        f"{turns_words(piece.turns)}, {ended or f'begun {begun} and killed before its end'}",
        *([f"ended by: {piece.failure}"] if piece.failure else []),
        f"instrument: {calibration_words(piece)}",
        f"clock: {offset_words(piece)}",
        f"turngap {piece.turngap_version} on {piece.machine.cpu} ({piece.machine.fingerprint}), "
        f"Python {piece.machine.python}",
    ]
    return "; ".join(said)


def offset_words(record: RunRecord | PieceRecord) -> str:
    """Say how precisely the agent's marks are placed on the caller's clock."""
    offset = record.clock_offset
    if offset is None:
        return "not compared: the agent sends no marks"
    if offset.offset_ns is None or offset.bound_ns is None:
        # The offset is of the answered exchanges: without one it has none.
        return "not compared: no MarksObserver in the agent answered"
    return f"agent's marks are placed to within ±{offset.bound_ns / 1e6:.2f} ms (n={offset.n})"


def left_out_words(summary: Summary) -> str:
    """List the turns that no percentile counts, with the reasons."""
    reasons = {
        "cut_in": "an agent that cuts in is not quick",
        "typed": "no one spoke, so there is no last word to count from",
        "device stall": "the person's own audio device stood still",
    }
    return " · ".join(
        f"{n} {printable(o)}" + (f" ({reasons[o]})" if o in reasons else "")
        for o, n in summary.left_out.items()
    )
