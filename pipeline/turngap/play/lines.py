"""Runs over a line: the same conversations without it, and peers that lost each other."""

from turngap.caller.line.running import Crossings
from turngap.caller.line.spec import LineSpec
from turngap.core.budget import REPLIED
from turngap.core.clock import ns_to_ms
from turngap.core.events import TrackedTurn
from turngap.core.results import Turn, TurnKey
from turngap.core.run_record import DeadPeerRecord, LineRecord
from turngap.core.stored import PacingRecord

CallKey = tuple[str, float, int]


class PlainPlays:
    """Turns that were also played without the line, and why others were not."""

    def __init__(self) -> None:
        self._turns: dict[TurnKey, TrackedTurn] = {}
        self._lost: dict[TurnKey | CallKey, str] = {}

    def keep(self, key: TurnKey, turn: TrackedTurn, pacing: PacingRecord) -> None:
        """Keep a turn to compare with, unless its gap is in doubt."""
        if pacing.starved or turn.ambiguous:
            self._lost[key] = "the caller was starved" if pacing.starved else turn.ambiguous[0]
        else:
            self._turns[key] = turn

    def lose(self, call: CallKey, why: str) -> None:
        """Note why a call was not played to its end."""
        self._lost[call] = why

    def beside(self, turn: Turn, why_unknown: str = "") -> Turn:
        """Add to a turn how it went without the line, or why that is not known."""
        if turn.line is None:
            return turn
        if (plain := self._turns.get(turn.key)) is not None:
            gap_ns = plain.gap_ns if plain.outcome in REPLIED else None
            times = {"plain_gap_ms": gap_ns, "plain_yield_ms": plain.yield_ns}
            known = {name: ns_to_ms(ns) for name, ns in times.items() if ns is not None}
            return turn.model_copy(update={"line": turn.line.model_copy(update=known)})
        why = self._lost.get(turn.key) or self._lost.get(turn.call) or why_unknown
        note = {f"not heard without the line: {why}": 1} if why else {}
        return turn.model_copy(update={"notes": {**turn.notes, **note}}) if note else turn


def line_record(line: LineSpec) -> LineRecord:
    """Build the stored record of a line."""
    return LineRecord(
        text=line.text,
        name=line.name,
        source=line.source,
        seed=line.seed,
        settings=line.numbers(),
    )


def with_dead_peer(
    record: LineRecord, scenario: str, repeat: int, crossings: Crossings, failed_ns: int | None
) -> LineRecord:
    """Add how soon each side noticed that the line of a call was half-open, if it was."""
    if (begun_ns := crossings.half_open_ns) is None:
        return record
    noticed = (failed_ns, crossings.agent_left_ns)
    caller_ms, agent_ms = (None if at is None else ns_to_ms(at - begun_ns) for at in noticed)
    dead = DeadPeerRecord(scenario=scenario, repeat=repeat, caller_ms=caller_ms, agent_ms=agent_ms)
    return record.model_copy(update={"dead_peers": (*record.dead_peers, dead)})
