"""Turns of a stored run as material for simulated ones."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from turngap.core.clock import NS_PER_MS, ns_to_ms
from turngap.core.results import Turn
from turngap.core.stages import TOOL_MARKS, UNATTRIBUTED, USUAL_MARKS
from turngap.fleet.workload import TurnSample

# Stages before the LLM has the request, and those after it said enough to be spoken. What lies
# between is the LLM's, and is simulated.
BEFORE = USUAL_MARKS[1:4]
OF_LLM = USUAL_MARKS[4:6]
AFTER = USUAL_MARKS[6:]
# Silence that no mark explains may be the LLM's: a turn with more of it tells nothing.
MOST_UNATTRIBUTED_MS = 1.0


@dataclass(frozen=True, slots=True)
class MeasuredTurns:
    """Turns of a run that can be drawn from.

    Attributes:
        samples: one for each usable turn.
        left_out: turns that cannot be used, by reason.
        tokens_per_word: of the replies, in the mean; for texts whose tokens were not counted.
    """

    samples: tuple[TurnSample, ...]
    left_out: Mapping[str, int]
    tokens_per_word: float | None


def measured_turns(turns: Sequence[Turn]) -> MeasuredTurns:
    """Take each turn apart; those that cannot be are counted by reason."""
    left_out: Counter[str] = Counter()
    usable: list[tuple[Turn, _Reply]] = []
    for turn in turns:
        reply = _reply(turn)
        why = _why_unusable(turn, reply)
        if why is None and reply is not None:
            usable.append((turn, reply))
        elif why is not None:
            left_out[why] += 1
    words = sum(len(turn.reply.split()) for turn, _ in usable)
    per_word = sum(reply.tokens for _, reply in usable) / words if words else None
    samples = tuple(_sample(turn, reply, per_word or 1.0) for turn, reply in usable)
    return MeasuredTurns(samples, dict(left_out), per_word)


@dataclass(frozen=True, slots=True)
class _Reply:
    """A reply as its text and its sound came in."""

    tokens: int
    opening: int
    sounded_ms: float


def _why_unusable(turn: Turn, reply: _Reply | None) -> str | None:
    """Return the first reason why a turn cannot be used."""
    names = turn.stage_ms
    unexplained_ms = names.get(UNATTRIBUTED, 0.0)
    missing = [name for name in OF_LLM if name not in names]
    reasons = {
        f"outcome {turn.outcome}": not turn.replied,
        turn.left_out or "": turn.left_out is not None,
        "the caller was starved": turn.pacing.starved,
        "no bounds of the person's speech": turn.audio is None,
        "silence that no mark explains": unexplained_ms > MOST_UNATTRIBUTED_MS,
        "the LLM called a tool": not TOOL_MARKS.isdisjoint(names),
        f"no stage {', '.join(missing)}": bool(missing),
        "the reply was not heard out": turn.ended != "reply_done",
        "the agent did not report its reply's text token by token": reply is None,
    }
    return next((why for why, holds in reasons.items() if holds), None)


def _sample(turn: Turn, reply: _Reply, tokens_per_word: float) -> TurnSample:
    spent: Counter[str] = Counter()
    for stage in turn.stages:
        spent[stage.name] += stage.ns
    audio = turn.audio
    assert audio is not None
    words = len((turn.transcript or turn.say).split())
    return TurnSample(
        before_ms=ns_to_ms(sum(spent[name] for name in BEFORE)),
        after_ms=ns_to_ms(sum(spent[name] for name in AFTER)),
        speech_ms=max(1.0, audio.user_end_ms - audio.user_start_ms),
        reply_ms=reply.sounded_ms,
        user_tokens=max(1, round(words * tokens_per_word)),
        reply_tokens=reply.tokens,
        opening_tokens=reply.opening,
    )


def _reply(turn: Turn) -> _Reply | None:
    """Read a reply's tokens, how many of them were out at the TTS request, and its sound."""
    marks = {mark.name: mark.at_ns for mark in turn.marks}
    if not {"agent_onset", "tts_request"} <= marks.keys():
        return None
    came = turn.instants("AgentText")
    after = [at for at in turn.instants("AgentSilence") if at >= marks["agent_onset"]]
    if len(came) < 2 or not after:
        return None
    gaps = [b - a for a, b in pairwise(came)]
    # The text travels to the caller as the audio does, so it comes a little after the mark: half a
    # token's time, and no less than a packet takes to be sent and read.
    slack_ns = max(median(gaps) / 2, 2 * NS_PER_MS)
    opening = sum(at <= marks["tts_request"] + slack_ns for at in came)
    return _Reply(
        tokens=len(came),
        opening=min(max(1, opening), len(came)),
        sounded_ms=ns_to_ms(max(after) - marks["agent_onset"]),
    )
