"""Played turns as they are stored."""

import dataclasses
from statistics import median
from typing import Any

from turngap.caller.conversation import PlayedTurn
from turngap.core.clock import NS_PER_MS, ns_to_ms
from turngap.core.events import AgentMarks, Event
from turngap.core.lateness import STARVED_MS
from turngap.core.results import (
    AudioRecord,
    BackchannelRecord,
    MarkRecord,
    PacingRecord,
    StageRecord,
    TurnRecord,
)
from turngap.core.scenario import Scenario
from turngap.core.stages import AGENT_MARKS
from turngap.core.turns import Turn


def turn_record(
    scenario: Scenario,
    played: PlayedTurn,
    *,
    repeat: int,
    phase_ms: float,
    file: str,
    faults: tuple[str, ...],
    budget_ms: float | None,
    starved_ms: float = STARVED_MS,
) -> TurnRecord:
    """One line of `turns.jsonl`."""
    turn = played.turn
    asked = scenario.turns[turn.turn - 1]
    begun_ns = played.window[0]
    return TurnRecord(
        scenario=scenario.name,
        turn=turn.turn,
        repeat=repeat,
        phase_ms=phase_ms,
        say=asked.say,
        outcome=turn.outcome,
        ended=turn.ended,
        budget_ms=budget_ms or asked.expect.budget_ms,
        gap_ns=turn.gap_ns,
        gap_ms=None if turn.gap_ns is None else ns_to_ms(turn.gap_ns),
        why_no_gap=turn.why_no_gap,
        stages=tuple(StageRecord(name=s.name, ns=s.ns, ms=ns_to_ms(s.ns)) for s in turn.stages),
        transcript=turn.transcript,
        reply=turn.reply,
        lead_ms=None if turn.lead_ns is None else ns_to_ms(turn.lead_ns),
        yield_ms=None if turn.yield_ns is None else ns_to_ms(turn.yield_ns),
        backchannels=tuple(
            BackchannelRecord(
                say=asked.backchannels[b.index].say,
                start_ms=_since(begun_ns, b.start_ns),
                reply_stopped=b.reply_stopped,
            )
            for b in played.backchannels
        ),
        marks=_marks(turn),
        agent_turns=tuple(_reported(reported) for reported in turn.agent_turns),
        pacing=pacing_record(played.late_ns, played.lag_ns, starved_ms),
        audio=AudioRecord(
            file=file,
            user_start_ms=_since(begun_ns, turn.user_start_ns),
            user_end_ms=_since(begun_ns, turn.user_end_ns),
            onset_ms=None if turn.onset_ns is None else _since(begun_ns, turn.onset_ns),
        ),
        faults=faults,
        events=tuple(_plain(event) for event in played.events),
    )


def _since(origin_ns: int, at_ns: int) -> float:
    return (at_ns - origin_ns) / NS_PER_MS


def _marks(turn: Turn) -> tuple[MarkRecord, ...]:
    raw = _raw_of_heard(turn)
    return tuple(
        MarkRecord(
            name=name,
            at_ns=at_ns,
            vantage="agent" if name in AGENT_MARKS else "caller",
            raw_ns=raw.get(name),
        )
        for name, at_ns in turn.marks.items()
    )


def _raw_of_heard(turn: Turn) -> dict[str, int]:
    """The agent's own instants for the agent turn whose marks the stages were cut from."""
    for reported in turn.agent_turns:
        if reported.marks.items() <= turn.marks.items():
            return dict(reported.raw)
    return {}


def _reported(reported: AgentMarks) -> tuple[MarkRecord, ...]:
    return tuple(
        MarkRecord(name=n, at_ns=at, vantage="agent", raw_ns=reported.raw.get(n))
        for n, at in reported.marks.items()
    )


def pacing_record(
    late_ns: tuple[int, ...], lag_ns: int | None, starved_ms: float = STARVED_MS
) -> PacingRecord:
    """How late the caller was, from each packet's lateness and the loop's worst lag."""
    late_ms = [ns_to_ms(ns) for ns in late_ns]
    lag_ms = None if lag_ns is None else ns_to_ms(lag_ns)
    return PacingRecord(
        packets=len(late_ms),
        late_ms_p50=median(late_ms) if late_ms else None,
        late_ms_max=max(late_ms, default=None),
        loop_lag_ms_max=lag_ms,
        starved=max([*late_ms, lag_ms or 0.0]) > starved_ms,
    )


def _plain(event: Event) -> dict[str, Any]:
    return {"event": type(event).__name__, **dataclasses.asdict(event)}
