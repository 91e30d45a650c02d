"""How reports say how well something was measured: the caller, the instrument, the clocks."""

from turngap.core.budget import STARVED_MS
from turngap.core.results import CalibrationRecord
from turngap.core.run_record import PieceRecord, RunRecord
from turngap.core.summary import Summary
from turngap.core.untrusted import printable
from turngap.report import words

# The caller of a run in which no turn was starved.
ON_TIME = "on time in every turn"


def starved_words(summary: Summary) -> str:
    """Say in how many turns the caller was too late to be reliable; empty if in none."""
    if not summary.starved:
        return ""
    return (
        f"starved in {words.turns_words(summary.starved)} of {summary.turns}, which count in all "
        "figures (more than 5 % of the turns make a run invalid; of 5 turns or more, one alone "
        "does not)"
    )


def heard_words(summary: Summary) -> str:
    """Say what was heard of the agent beside its gaps; empty if that was nothing."""
    heard, said = summary.heard, list[str]()
    if heard.hold_phrases and heard.first_answer_ms_p50 is not None:
        said.append(
            f"a hold phrase in {words.turns_words(heard.hold_phrases)} (first answer p50 "
            f"{words.ms(heard.first_answer_ms_p50)} ms)"
        )
    for n, what in (
        (heard.discontiguous_replies, "replies with a hole in their first 2 s"),
        (heard.false_starts, "false starts"),
        (heard.backchannels_heard, "backchannels"),
    ):
        said += [f"{what}: {n}"] if n else []
    if n := heard.sound_before_word:
        said.append(f"other sound over 100 ms before the first word in {words.turns_words(n)}")
    if heard.greeting_ms_p50 is not None:
        said.append(f"greeting p50 {words.ms(heard.greeting_ms_p50)} ms")
    return "; ".join(said)


def onset_words(summary: Summary) -> str:
    """Say how well the agent's first words were placed; empty where none was."""
    heard = summary.heard
    if heard.onset_spread_ms_p50 is None:
        return ""
    figures = [("p50", heard.onset_spread_ms_p50), ("p95", heard.onset_spread_ms_p95)]
    known = " · ".join(f"{name} {words.ms(value)}" for name, value in figures if value is not None)
    unsure = f"over 20 ms in {heard.unsure_onsets} of {words.turns_words(heard.onsets)}"
    return f"the agent's first word is placed to within {known} ms ({unsure})"


def ambiguous_words(summary: Summary) -> str:
    """Say of how many turns the reply may be another's; empty of none."""
    n = summary.heard.ambiguous_turns
    return f"{n} of {words.turns_words(summary.turns)} may have another turn's reply" if n else ""


def lost_words(summary: Summary) -> str:
    """Say how many calls were lost; empty if none was."""
    n = summary.lost_calls
    return f"{n} of {summary.calls} calls, whose other turns count as errors" if n else ""


def accepted_words(starved_ms: float, caller_error_ms: float | None) -> str:
    """Say how late the caller may be, and how far its lateness may put the gaps off."""
    text = f"a caller up to {starved_ms:g} ms late is accepted"
    if starved_ms != STARVED_MS:
        text += f" (--starved-ms; by default {STARVED_MS:g})"
    if caller_error_ms is None:
        return text
    return f"{text}; as late as it was, a gap reads at most {words.ms(caller_error_ms)} ms long"


def label_words(label_error_ms: float) -> str:
    """Say how far off the labelled ends of speech may be, from which every gap is counted."""
    return (
        f"the person's last word ends within ±{words.ms(label_error_ms)} ms of its label (in the "
        "median turn), so a gap may be off by as much"
    )


def calibration_words(record: RunRecord | PieceRecord) -> str:
    """Format the instrument's own error, measured against injected truth."""
    spoken = record.agent.get("line_rate_hz") if isinstance(record, RunRecord) else None
    return instrument_words(record.calibration, spoken)


def instrument_words(calibration: CalibrationRecord | None, spoken: object = None) -> str:
    """Format the error of a calibration; `spoken` is the rate of the measured line in Hz."""
    if calibration is None:
        return "not calibrated in this run"
    error = calibration.error_ms
    figures = [("p50", error.p50), ("p95", error.p95), ("p99", error.p99), ("max", error.max)]
    known = " · ".join(f"{name} {value:.2f}" for name, value in figures if value is not None)
    note = f"; {calibration.note}" if calibration.note else ""
    if isinstance(spoken, int) and calibration.rate not in (None, spoken):
        note += f"; this run's line has {spoken:,} Hz"
    return f"error {known or 'not known'} ms (n={error.n}){_calibrated_in(calibration)}{note}"


def _calibrated_in(calibration: CalibrationRecord) -> str:
    """Say in which dialect, and at which rates, the calibration ran; empty if not known."""
    if not calibration.dialect:
        return ""
    rates = [rate for rate in (calibration.rate, calibration.agent_rate) if rate]
    at = " and ".join(f"{rate:,}" for rate in dict.fromkeys(rates))
    return f" in {calibration.dialect}" + (f" at {at} Hz" if at else "")


def piece_words(piece: PieceRecord) -> str:
    """Say when a piece of a continued run was played, by what, and how well it measured."""
    begun = words.instant(piece.started_utc)
    ended = f"from {begun} to {words.instant(piece.finished_utc)}" if piece.finished_utc else ""
    said = [
        f"{words.turns_words(piece.turns)}, {ended or f'begun {begun} and killed before its end'}",
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
        return "agent's clock not compared: no marks from the agent"
    if offset.offset_ns is None or offset.bound_ns is None:
        # The offset is of the answered exchanges: without one it has none.
        return "agent's clock not compared: no MarksObserver in the agent answered"
    return f"agent's marks are placed to within ±{offset.bound_ns / 1e6:.2f} ms (n={offset.n})"


def left_out_words(summary: Summary) -> str:
    """List the turns that no percentile counts, with the reasons."""
    reasons = {
        "cut_in": "an agent that cuts in is not quick",
        "typed": "nobody spoke, so there is no last word to count from",
        "device stall": "the person's own audio device stood still",
    }
    return " · ".join(
        f"{n} {printable(o)}" + (f" ({reasons[o]})" if o in reasons else "")
        for o, n in summary.left_out.items()
    )
