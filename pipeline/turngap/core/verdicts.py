"""Verdicts beside the rule's on the agent's own words: by the sound of it, and a judge model's."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from turngap.core.results import TurnRecord
from turngap.core.stats import Proportion, proportion_of_takes


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Another way to judge the same turns.

    Attributes:
        right: of those that it judged.
        not_judged: turns that it did not judge, by the reason.
        both: turns that it and the rule on the agent's text judged; `agree`: alike.
        alone: of these, turns that are right by it alone; `rule_alone`: by the rule alone.
    """

    right: Proportion
    not_judged: dict[str, int]
    both: int
    agree: int
    alone: int
    rule_alone: int

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "right": self.right.hits,
            "n": self.right.n,
            "recorded": self.right.recorded,
            "value": self.right.value,
            "ci95": [self.right.low, self.right.high],
            "not_judged": self.not_judged,
            "agree": self.agree,
            "both": self.both,
            "alone": self.alone,
            "rule_alone": self.rule_alone,
        }


# The turn, the rule's verdict on the agent's text and the other one, each None where it has none,
# and why the other has none.
_Pair = tuple[tuple[str, int], bool | None, bool | None, str | None]

_RIGHT = {"right": True, "wrong": False, "not_judged": None}


def transcribed_verdicts(turns: Sequence[TurnRecord]) -> Verdicts | None:
    """By the sound of the agent; None where no recogniser was asked."""
    return _verdicts(
        (
            (turn.scenario, turn.turn),
            _RIGHT[turn.answer.verdict],
            _RIGHT[turn.transcribed.verdict],
            turn.transcribed.why,
        )
        for turn in turns
        if turn.transcribed is not None
    )


def judge_verdicts(turns: Sequence[TurnRecord]) -> Verdicts | None:
    """A judge model's; None where none was asked."""
    return _verdicts(
        (
            (turn.scenario, turn.turn),
            _RIGHT[turn.answer.verdict],
            turn.judged.right,
            turn.judged.why,
        )
        for turn in turns
        if turn.judged is not None
    )


def _verdicts(pairs: Iterable[_Pair]) -> Verdicts | None:
    known = list(pairs)
    if not known:
        return None
    takes: dict[tuple[str, int], list[bool]] = {}
    for turn, _, other, _ in known:
        if other is not None:
            takes.setdefault(turn, []).append(other)
    both = [(rule, other) for _, rule, other, _ in known if rule is not None and other is not None]
    reasons = (why or "not known" for *_, other, why in known if other is None)
    return Verdicts(
        right=proportion_of_takes(takes.values()),
        not_judged=dict(Counter(reasons)),
        both=len(both),
        agree=sum(rule == other for rule, other in both),
        alone=both.count((False, True)),
        rule_alone=both.count((True, False)),
    )
