"""Doubts about whose answer was heard that only the rest of a run raises."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median, median_low

from turngap.core.clock import ns_to_ms
from turngap.core.credits import HOLD_PHRASE_MS
from turngap.core.results import AMBIGUOUS, Turn, TurnKey

STILL_THERE = (
    "it came much later than other replies, and may be no answer but a question whether the person "
    "is still there"
)
HOLD_OVER = (
    "a short reply and then a long one: the first may be a hold phrase, and its answer have come "
    "over the second"
)
# A question whether the person is still there comes so late, and so many times as late as a reply.
ASKS_MS, ASKS_TIMES = 3000.0, 4.0
# Replies are short and long beside the median.
SHORT, LONG = 0.67, 1.5


def doubts_of(turns: Sequence[Turn]) -> dict[TurnKey, str]:
    """Return the notes of the turns that are in doubt."""
    gaps = [turn.gap_ms for turn in turns if turn.gap_ms is not None]
    if not gaps:
        return {}
    late_ms = max(ASKS_MS, ASKS_TIMES * median_low(gaps))
    telling = any(_is_told(turn) for turn in turns)
    lengths = {turn.key: _length_ms(turn) for turn in turns if turn.gap_ms is not None}
    found: dict[TurnKey, str] = {}
    if not telling:
        usual_ms = median(lengths.values())
        for one, then in pairwise(turn for turn in turns if turn.key in lengths):
            follows = one.call == then.call and then.turn == one.turn + 1
            short = lengths[one.key] < min(HOLD_PHRASE_MS, SHORT * usual_ms)
            if follows and short and lengths[then.key] > LONG * usual_ms:
                found |= dict.fromkeys((one.key, then.key), HOLD_OVER)
    for turn in turns:
        heard_ms = turn.first_answer_ms if turn.gap_ms is None else turn.gap_ms
        asks = not _is_told(turn) if telling else _length_ms(turn) < HOLD_PHRASE_MS
        if heard_ms is not None and heard_ms > late_ms and asks:
            found[turn.key] = AMBIGUOUS + STILL_THERE
    return found


def _is_told(turn: Turn) -> bool:
    """Return whether the agent said that it had heard the turn."""
    return bool(turn.endpoints_ms or turn.transcript)


def _length_ms(turn: Turn) -> float:
    """Return how long the agent spoke, from its first word in the turn to the last."""
    begun, ended = turn.instants("AgentSpeech", "onset_ns"), turn.instants("AgentSilence")
    return ns_to_ms(max(ended) - min(begun)) if begun and ended else 0.0
