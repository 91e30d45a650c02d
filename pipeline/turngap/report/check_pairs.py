"""The turns of a check side by side, and which of them are worth a look."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from turngap.core.results import TurnRecord
from turngap.core.summary import counted_turns
from turngap.core.tokens import token_figures
from turngap.report import check_words, words

# Of these, at most so many are shown; the runs beside the check hold the rest.
MOST_SHOWN = 8
# Turns that came out worse with the candidate take at most this part of them.
MOST_FAILED = 5
# Slower by less than this is not worth a recording.
WORTH_MS = 20.0
# From good to bad; `abandoned` says nothing about the agent.
BADNESS = {"answered": 0, "abandoned": 0, "late": 1, "cut_in": 2, "no_reply": 3, "error": 4}


@dataclass(frozen=True, slots=True)
class TurnPair:
    """The same turn as both agents took it; `reference` is None where only one did.

    `shift_ms`: candidate's gap less reference's; None where either has none to compare.
    """

    candidate: TurnRecord
    reference: TurnRecord | None
    shift_ms: float | None

    @property
    def worse_outcome(self) -> bool:
        """Whether the candidate failed the person where the reference did less so, or is alone."""
        before = BADNESS[self.reference.outcome] if self.reference else 0
        return BADNESS[self.candidate.outcome] > before


def paired(candidate: Sequence[TurnRecord], reference: Sequence[TurnRecord]) -> list[TurnPair]:
    """Every turn of the candidate with the reference's same turn, in the candidate's order."""
    by_key = {_key(turn): turn for turn in reference}
    return [_pair(turn, by_key.get(_key(turn))) for turn in candidate]


def _key(turn: TurnRecord) -> tuple[str, int, float, int]:
    return (turn.scenario, turn.turn, turn.phase_ms, turn.repeat)


def _pair(candidate: TurnRecord, reference: TurnRecord | None) -> TurnPair:
    comparable = all(
        t is not None and t.outcome in ("answered", "late") for t in (candidate, reference)
    )
    if not comparable or reference is None or candidate.gap_ms is None or reference.gap_ms is None:
        return TurnPair(candidate, reference, None)
    return TurnPair(candidate, reference, candidate.gap_ms - reference.gap_ms)


def worst(pairs: Sequence[TurnPair]) -> list[TurnPair]:
    """Turns with a worse outcome first, the worst of them leading; then the most slowed."""
    failed = [p for p in pairs if p.worse_outcome]
    failed.sort(key=lambda p: (-BADNESS[p.candidate.outcome], -(p.shift_ms or 0.0)))
    chosen = failed[:MOST_FAILED]
    slowed = [p for p in pairs if (p.shift_ms or 0.0) >= WORTH_MS and p not in chosen]
    slowed.sort(key=lambda p: -(p.shift_ms or 0.0))
    return [*chosen, *slowed][:MOST_SHOWN]


def stage_medians(turns: Sequence[TurnRecord]) -> dict[str, float]:
    """Each stage's median in ms over the turns that were answered and have it."""
    found: dict[str, list[float]] = {}
    for turn in turns:
        if turn.outcome in ("answered", "late"):
            for name, ms in _stages(turn).items():
                found.setdefault(name, []).append(ms)
    return {name: median(values) for name, values in found.items()}


def _stages(turn: TurnRecord) -> dict[str, float]:
    """Stages of one name are one stage."""
    stages: dict[str, float] = {}
    for stage in turn.stages:
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.ms
    return stages


def llm_words(candidate: Sequence[TurnRecord], reference: Sequence[TurnRecord]) -> list[str]:
    """How fast each side's language model was: a line for whoever told anything of it."""
    sides = (("reference", reference), ("candidate", candidate))
    return [
        f"language model of the {name}: {words.token_figures_words(figures)}"
        for name, turns in sides
        if (figures := token_figures(counted_turns(turns))) is not None
    ]


def moved_in(pair: TurnPair) -> str:
    """The stages that made this turn slower or quicker, the largest first; empty where unknown."""
    if pair.shift_ms is None or pair.reference is None:
        return ""
    before, after = _stages(pair.reference), _stages(pair.candidate)
    moved = {n: after.get(n, 0.0) - before.get(n, 0.0) for n in dict.fromkeys([*before, *after])}
    largest = sorted(moved.items(), key=lambda item: -abs(item[1]))[:3]
    return ", ".join(
        f"{words.clean(name)} {check_words.signed_ms(ms)} ms"
        for name, ms in largest
        if abs(ms) >= 1
    )


def heading(pair: TurnPair) -> str:
    """What became of the turn, in words."""
    if pair.shift_ms is not None:
        slower = "slower" if pair.shift_ms > 0 else "quicker"
        return f"{words.ms(abs(pair.shift_ms))} ms {slower} than the reference"
    if pair.reference is None:
        return pair.candidate.outcome
    return f"{pair.candidate.outcome} (reference: {pair.reference.outcome})"
