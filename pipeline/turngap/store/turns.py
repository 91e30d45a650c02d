"""A finished turn as it is stored: what is the same however it was measured."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from turngap.core.clock import ns_to_ms
from turngap.core.counts import AGENT_GAP, USER_BOT_LATENCY, add_counts
from turngap.core.events import AgentMarks, Event, calls_of
from turngap.core.results import AMBIGUOUS, MarkRecord
from turngap.core.spoken import OUTSIDE
from turngap.core.stages import AGENT_MARKS
from turngap.core.tokens import COLD, OTHERS, RATE, SERVER, THOUGHT, THOUGHT_MS, TTFT, WINDOW
from turngap.core.tracked import TrackedTurn

# Of a reply; what was never heard adds nothing to them.
_OF_THE_REPLY = frozenset(
    {"hold_ms", TTFT, RATE, WINDOW, THOUGHT, THOUGHT_MS, COLD, OTHERS, OUTSIDE, *SERVER.values()}
    | {AGENT_GAP, USER_BOT_LATENCY}
)


def stored_fields(turn: TrackedTurn) -> dict[str, Any]:
    """Return the fields of a `Turn` that follow from the turn itself."""
    heard = heard_agent_turn(turn)
    return {
        "turn": turn.turn,
        "speech_ms": ns_to_ms(turn.user_end_ns - turn.user_start_ns),
        "endpoints_ms": _endpoints(turn),
        "outcome": turn.outcome,
        "ended": turn.ended,
        "gap_ns": turn.gap_ns,
        "gap_ms": _ms(turn.gap_ns),
        "why_no_gap": turn.why_no_gap,
        "first_answer_ms": _ms(turn.first_answer_ns),
        "false_starts": turn.false_starts,
        "backchannels_heard": turn.backchannels_heard,
        "error": turn.error,
        "stages": turn.stages,
        "transcript": turn.transcript,
        "reply": turn.reply,
        "lead_ms": _ms(turn.lead_ns),
        "yield_ms": _ms(turn.yield_ns),
        "first_sound_ms": _ms(
            None if turn.first_sound_ns is None else turn.first_sound_ns - turn.user_end_ns
        ),
        "onset_spread_ms": _ms(turn.onset_spread_ns),
        "bed_dbfs": turn.bed_dbfs,
        "waited_ms": _ms(turn.waited_ns),
        "marks": _records(turn.marks, heard.raw if heard else {}, AGENT_MARKS),
        "agent_turns": tuple(_records(a.marks, a.raw, a.marks) for a in turn.agent_turns),
        "counts": _counts(turn, heard),
        "calls": calls_of(turn.agent_turns),
        "notes": {AMBIGUOUS + why: 1 for why in turn.ambiguous}
        | dict.fromkeys(turn.guesses, 1)
        | ({} if turn.why_no_marks is None else {f"no marks: {turn.why_no_marks}": 1}),
        "endpoint_why": heard.why if heard else None,
    }


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns_to_ms(ns)


def _endpoints(turn: TrackedTurn) -> tuple[float, ...] | None:
    if turn.endpoints_ns is None:
        return None
    return tuple(ns_to_ms(at - turn.user_start_ns) for at in turn.endpoints_ns)


def heard_agent_turn(turn: TrackedTurn) -> AgentMarks | None:
    """Return the agent's own turn that the stages are based on; None if it reported none.

    If none of its turns has marks on the caller's clock, it is the last one.
    """
    if (
        turn.onset_ns is not None
        and turn.agent_turns
        and not any(reported.marks for reported in turn.agent_turns)
    ):
        return turn.agent_turns[-1]
    for reported in turn.agent_turns:
        if reported.marks and reported.marks.items() <= turn.marks.items():
            return reported
    return None


def _counts(turn: TrackedTurn, heard: AgentMarks | None) -> dict[str, float]:
    """Sum the counts of all the agent's turns; some are those of the reply alone."""
    counts: dict[str, float] = {}
    for reported in turn.agent_turns:
        add_counts(counts, reported.counts)
    if heard is not None:
        counts = {name: n for name, n in counts.items() if name not in _OF_THE_REPLY}
        counts |= {name: n for name, n in heard.counts.items() if name in _OF_THE_REPLY}
    return counts


def plain_event(event: Event) -> dict[str, Any]:
    """Convert an event to the form in which JSON stores it."""
    return {"event": type(event).__name__, **dataclasses.asdict(event)}


def _records(
    marks: Mapping[str, int], raw: Mapping[str, int], of_agent: Collection[str]
) -> tuple[MarkRecord, ...]:
    return tuple(
        MarkRecord(
            name=name,
            at_ns=at_ns,
            vantage="agent" if name in of_agent else "caller",
            raw_ns=raw.get(name),
        )
        for name, at_ns in marks.items()
    )
