"""Cut-ins and false endpoints, heard or not, and the pauses that caused them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import inf
from typing import Any

from turngap.core.budget import Outcome
from turngap.core.clusters import Take
from turngap.core.results import Turn
from turngap.core.stats import Proportion, proportion_of
from turngap.core.stored import PauseRecord

# A decision this soon after a pause was drawn by it, as VADs and labels are no finer. So was what
# is heard this soon after it, if the agent does not say when it decided: answers take their time.
DECIDED_LATE_MS, HEARD_LATE_MS = 200.0, 2000.0
# Pauses are counted by their length, in ms, from one of these up to the next.
LENGTHS_MS = (0.0, 200.0, 400.0, 800.0, 1600.0, inf)


@dataclass(frozen=True, slots=True)
class TooEarly:
    """An instant before the person's end at which the agent was heard, or called the turn over.

    Attributes:
        at_ms: counted from the person's first sound.
        decided_ms: when the agent decided; None if it does not say.
        pause: the last pause that had begun when the agent decided, or else when it was heard; None
            if no labelled pause had begun.
    """

    at_ms: float
    decided_ms: float | None
    pause: PauseRecord | None

    @property
    def over_speech(self) -> bool:
        """Return whether the person was speaking, according to the labels."""
        return self.pause is None or self.at_ms >= self.pause.end_ms


def heard_cut_in(turn: Turn) -> TooEarly | None:
    """Find when the agent was heard before the person's end; None if it was not."""
    if turn.outcome != "cut_in" or turn.gap_ms is None or turn.speech_ms is None:
        return None
    onset_ms = turn.speech_ms + turn.gap_ms
    decided_ms = max((at for at in turn.endpoints_ms or () if at <= onset_ms), default=None)
    if decided_ms is None:
        return TooEarly(onset_ms, None, _begun(turn, onset_ms, HEARD_LATE_MS))
    return TooEarly(onset_ms, decided_ms, _begun(turn, decided_ms, DECIDED_LATE_MS))


def false_endpoints(turn: Turn) -> tuple[TooEarly, ...] | None:
    """List when the agent considered the turn over too early, whether it was heard or not.

    Return None if the agent does not report it.
    """
    if turn.endpoints_ms is None or turn.speech_ms is None:
        return None
    early = (at for at in turn.endpoints_ms if at < turn.speech_ms)
    return tuple(TooEarly(at, at, _begun(turn, at, DECIDED_LATE_MS)) for at in early)


def _begun(turn: Turn, at_ms: float, late_ms: float) -> PauseRecord | None:
    """Return the last pause that began before `at_ms` and ended at most `late_ms` before it."""
    begun = [pause for pause in turn.pauses or () if pause.start_ms < at_ms]
    return begun[-1] if begun and at_ms <= begun[-1].end_ms + late_ms else None


@dataclass(frozen=True, slots=True)
class CutIns(Proportion):
    """The turns in which the agent was heard before the person's end, as a share of all turns.

    `paused` is the number of turns with a labelled pause, because pauses cause cut-ins. It is None
    if no turn has one and some turns were not searched for pauses.
    """

    paused: int | None = None

    @classmethod
    def of(cls, taken: Sequence[tuple[Outcome, Take]], paused: int | None = None) -> "CutIns":
        """Count the cut-ins; `taken` has each turn's outcome and take."""
        share = proportion_of([o == "cut_in" for o, _ in taken], [take for _, take in taken])
        return cls(**asdict(share), paused=paused)

    def as_json(self) -> dict[str, Any]:
        return {
            "hits": self.hits,
            "n": self.n,
            "recorded": self.recorded,
            "value": self.value,
            "ci95": [self.low, self.high],
            "turns_with_pauses": self.paused,
        }


NO_ENDPOINTS = "the agent does not say when it takes a turn to be over"


@dataclass(frozen=True, slots=True)
class EarlyTurns:
    """The number of turns that the agent considered over too early.

    Attributes:
        heard: turns in which the agent was heard before the person's end, of all turns.
        decided: turns that the agent called over before the person's end, heard or not, of the
            turns in which it says when it decides; None with the reason in `why_none`.
    """

    heard: CutIns
    decided: Proportion | None
    why_none: str | None = None


def cut_ins_of(turns: Sequence[Turn]) -> CutIns:
    """Count the turns that the agent cut into, and those that hold a pause."""
    paused = sum(bool(turn.pauses) for turn in turns)
    looked = all(turn.pauses is not None for turn in turns)
    return CutIns.of([(t.outcome, t.take) for t in turns], paused if paused or looked else None)


def early_turns(turns: Sequence[Turn]) -> EarlyTurns:
    """Count the turns with a heard cut-in, and those with a false endpoint."""
    heard = cut_ins_of(turns)
    reported = [(turn, found) for turn in turns if (found := false_endpoints(turn)) is not None]
    if not reported:
        return EarlyTurns(heard, None, NO_ENDPOINTS)
    decided = proportion_of(
        [bool(found) for _, found in reported], [turn.take for turn, _ in reported]
    )
    return EarlyTurns(heard, decided)


@dataclass(frozen=True, slots=True)
class PausesOfLength:
    """The pauses from `from_ms` up to `to_ms` long, and the early turns that they caused.

    Attributes:
        to_ms: None without an upper limit.
        heard: pauses that caused a heard cut-in, of the pauses with no cut-in earlier in the turn.
        decided: pauses that caused a false endpoint, of the pauses in turns whose agent says when
            it decides; None if it never says.
    """

    from_ms: float
    to_ms: float | None
    heard: Proportion
    decided: Proportion | None


def by_pause_length(turns: Sequence[Turn]) -> tuple[PausesOfLength, ...]:
    """Count the early turns that pauses caused, by length; skip turns without labelled pauses."""
    heard: list[_Drawn] = []
    decided: list[_Drawn] = []
    for turn in turns:
        cut_in, early = heard_cut_in(turn), false_endpoints(turn)
        # A cut-in ends what can be heard of the turn: its later pauses could draw none.
        upto_ms = inf if cut_in is None else cut_in.at_ms
        heard += _drawn(turn, () if cut_in is None else (cut_in,), upto_ms)
        decided += () if early is None else _drawn(turn, early)
    return tuple(
        PausesOfLength(
            from_ms=low,
            to_ms=None if high == inf else high,
            heard=_share([d for d in heard if low <= d.ms < high]),
            decided=_share([d for d in decided if low <= d.ms < high]) if decided else None,
        )
        for low, high in pairwise(LENGTHS_MS)
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A pause that could make the agent speak, and whether it did."""

    ms: float
    did: bool
    take: Take


def _drawn(turn: Turn, found: Sequence[TooEarly], upto_ms: float = inf) -> list[_Drawn]:
    """List the pauses that began before `upto_ms`, and whether each caused one of `found`."""
    return [
        _Drawn(pause.ms, any(one.pause == pause for one in found), turn.take)
        for pause in turn.pauses or ()
        if pause.start_ms < upto_ms
    ]


def _share(drawn: Sequence[_Drawn]) -> Proportion:
    return proportion_of([d.did for d in drawn], [d.take for d in drawn])
