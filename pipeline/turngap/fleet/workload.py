"""Calls to simulate: turns drawn from those of stored runs, and the pauses between them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from turngap.core.clock import NS_PER_MS, ns_to_ms
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.stages import TOOL_MARKS, UNATTRIBUTED, USUAL_MARKS
from turngap.inference.server import PS_PER_MS

# A call of more turns than this many times the mean is cut there: prompts need a longest one.
LONGEST = 4
BLOCK = 256

Ps = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TurnSample:
    """A measured turn without its LLM.

    Future turns are drawn from these as a whole, so parts that belong together (a long question and
    its long answer) stay together.

    Attributes:
        before_ms: from the person's last word to the request at the LLM.
        after_ms: from the first speakable token to the first word at the caller's ear.
        speech_ms: how long the person speaks.
        reply_ms: how long the reply sounds.
        user_tokens: tokens that the person's words add to the prompt.
        reply_tokens: tokens of the reply.
        opening_tokens: tokens of the reply until the TTS has words to speak.
    """

    before_ms: float
    after_ms: float
    speech_ms: float
    reply_ms: float
    user_tokens: int
    reply_tokens: int
    opening_tokens: int

    def __post_init__(self) -> None:
        for name in ("before_ms", "after_ms", "reply_ms"):
            if not 0 <= getattr(self, name) < 1e7:
                raise _bad(name, getattr(self, name), "0 or more ms")
        # Without a floor a call could ask again in the instant in which it was answered.
        if not 1 <= self.speech_ms < 1e7:
            raise _bad("speech_ms", self.speech_ms, "1 ms or more")
        if self.user_tokens < 1:
            raise _bad("user_tokens", self.user_tokens, "1 or more")
        if not 1 <= self.opening_tokens <= self.reply_tokens:
            raise _bad(
                "opening_tokens", self.opening_tokens, f"1 to reply_tokens ({self.reply_tokens})"
            )


@dataclass(frozen=True, slots=True)
class Workload:
    """The callers of a fleet.

    Attributes:
        samples: measured turns, drawn with equal chance.
        system_tokens: the prompt before the first turn; the same in every call.
        turns: turns of a call, on average. Their number is geometric (each turn is equally likely
            to be the last), and at most `LONGEST` times the mean.
        think_ms: median of the pause between the reply's end and the person's next word.
        think_sigma: sigma of its lognormal spread.
    """

    samples: Sequence[TurnSample]
    system_tokens: int
    turns: float
    think_ms: float
    think_sigma: float

    def __post_init__(self) -> None:
        if not self.samples:
            raise _bad("samples", 0, "one turn or more")
        for name, low, high in (
            ("system_tokens", 1, 1e6),
            ("turns", 1, 1000),
            ("think_ms", 0, 1e6),
            ("think_sigma", 0, 3),
        ):
            if not low <= getattr(self, name) <= high:
                raise _bad(name, getattr(self, name), f"{low:g} to {high:g}")

    @property
    def most_turns(self) -> int:
        return max(1, round(LONGEST * self.turns))

    @property
    def longest_tokens(self) -> int:
        """Return the tokens of the longest conversation, for which a server must have room.

        It assumes a call of the longest turns only. That is next to impossible, but a server must
        not refuse even one request in a million.
        """
        most = max(s.user_tokens + s.reply_tokens for s in self.samples)
        return self.system_tokens + self.most_turns * most

    @property
    def mean_turn_ms(self) -> float:
        """Return the average length of a turn and the pause before it, without the LLM."""
        samples = self.samples
        own = sum(s.before_ms + s.after_ms + s.speech_ms + s.reply_ms for s in samples)
        return own / len(samples) + self.think_ms * float(np.exp(self.think_sigma**2 / 2))

    @property
    def least_turn_ps(self) -> int:
        """Return the least time from an opening to the same call's next request."""
        samples = self.samples
        answered = min(s.after_ms + s.reply_ms for s in samples)
        return round((answered + min(s.speech_ms + s.before_ms for s in samples)) * PS_PER_MS)


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls, and all of their turns in one row: call `c` has turns `first[c]` to `last[c]`.

    Attributes:
        start_ps: when each call begins.
        lead_ps: for each turn, from the end of the previous reply to the turn's request.
        tail_ps: for each turn, from the opening to the end of the reply.
        fixed_ps: each turn's gap without the LLM.
        prompt, output, opening: each turn's tokens, as in `Request`.
        call: the call that each turn belongs to.
    """

    start_ps: Ps
    first: Ps
    last: Ps
    lead_ps: Ps
    tail_ps: Ps
    fixed_ps: Ps
    prompt: Ps
    output: Ps
    opening: Ps
    call: Ps

    def __add__(self, more: "Calls") -> "Calls":
        """Append the other calls to these."""
        turns = len(self.lead_ps)
        joined = {
            name: np.concatenate((getattr(self, name), getattr(more, name)))
            for name in ("start_ps", "lead_ps", "tail_ps", "fixed_ps", "prompt", "output",
                         "opening")
        }  # fmt: skip
        return Calls(
            **joined,
            first=np.concatenate((self.first, more.first + turns)),
            last=np.concatenate((self.last, more.last + turns)),
            call=np.concatenate((self.call, more.call + len(self.first))),
        )


def draw_calls(workload: Workload, seed: int, start_ps: Ps, *, under_way: bool) -> Calls:
    """Draw one call for each start.

    Call number n is the same for any starts: it depends on `seed` and n alone. Calls that are
    `under_way` began some turns ago, and are somewhere in a turn now.
    """
    blocks = [
        _draw_block(workload, np.random.default_rng([seed, int(under_way), block]), under_way)
        for block in range(-(-len(start_ps) // BLOCK))
    ]
    counts = _joined([b.counts for b in blocks])[: len(start_ps)]
    behind = _joined([b.behind for b in blocks])[: len(start_ps)]
    phase = np.concatenate([b.phase for b in blocks] or [np.empty(0)])[: len(start_ps)]
    turns = int(counts.sum())
    drawn = _joined([b.drawn for b in blocks])[:turns]
    think_ps = _joined([b.think_ps for b in blocks])[:turns]
    table = _Table(workload.samples)
    ends = np.cumsum(counts)
    first = ends - counts + behind
    lead_ps, tail_ps = think_ps + table.asking_ps[drawn], table.answering_ps[drawn]
    if under_way and turns:
        whole = lead_ps[first] + tail_ps[first]
        lead_ps[first] = np.round(whole * phase).astype(np.int64)
    output = table.output[drawn]
    return Calls(
        start_ps=start_ps,
        first=first,
        last=ends - 1,
        lead_ps=lead_ps,
        tail_ps=tail_ps,
        fixed_ps=table.fixed_ps[drawn],
        prompt=_prompts(workload, table.user[drawn], output, ends, counts),
        output=output,
        opening=table.opening[drawn],
        call=np.repeat(np.arange(len(counts)), counts),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """`BLOCK` calls: turns of each, how many of these are over already, and each turn's draws."""

    counts: Ps
    behind: Ps
    phase: NDArray[np.float64]
    drawn: Ps
    think_ps: Ps


def _draw_block(workload: Workload, random: np.random.Generator, under_way: bool) -> _Block:
    chance = 1 / workload.turns
    counts = np.minimum(random.geometric(chance, BLOCK), workload.most_turns)
    behind = np.zeros(BLOCK, dtype=np.int64)
    if under_way:
        # Of a call whose every turn may be the last, age and rest are alike and independent.
        behind = np.minimum(random.geometric(chance, BLOCK) - 1, workload.most_turns - counts)
        counts = counts + behind
    total = int(counts.sum())
    think_ms = workload.think_ms * np.exp(workload.think_sigma * random.standard_normal(total))
    return _Block(
        counts=counts,
        behind=behind,
        phase=random.random(BLOCK),
        drawn=random.integers(len(workload.samples), size=total),
        think_ps=np.round(think_ms * PS_PER_MS).astype(np.int64),
    )


class _Table:
    """The samples as columns."""

    def __init__(self, samples: Sequence[TurnSample]) -> None:
        before, after = _ps([s.before_ms for s in samples]), _ps([s.after_ms for s in samples])
        self.asking_ps = _ps([s.speech_ms for s in samples]) + before
        self.answering_ps = after + _ps([s.reply_ms for s in samples])
        self.fixed_ps = before + after
        self.user = np.array([s.user_tokens for s in samples], dtype=np.int64)
        self.output = np.array([s.reply_tokens for s in samples], dtype=np.int64)
        self.opening = np.array([s.opening_tokens for s in samples], dtype=np.int64)


def _prompts(workload: Workload, user: Ps, output: Ps, ends: Ps, counts: Ps) -> Ps:
    """Count the tokens of each turn's prompt: the system's, and the whole call so far."""
    said = np.cumsum(user + output)
    before_call = np.concatenate(([0], said[ends[:-1] - 1])) if len(ends) else said
    return workload.system_tokens + said - output - np.repeat(before_call, counts)


def _joined(arrays: Sequence[Ps]) -> Ps:
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])


def _ps(ms: Sequence[float]) -> Ps:
    return np.round(np.array(ms, dtype=float) * PS_PER_MS).astype(np.int64)


def _bad(name: str, value: object, want: str) -> InputError:
    return InputError("simulate.workload", f"{name} is {value!r}, expected {want}")


# Stages before the LLM has the request, and those after it said enough to be spoken. What lies
# between is the LLM's, and is simulated.
BEFORE = USUAL_MARKS[1:4]
OF_LLM = USUAL_MARKS[4:6]
AFTER = USUAL_MARKS[6:]
# Silence that no mark explains may be the LLM's: a turn with more of it cannot be used.
MOST_UNATTRIBUTED_MS = 1.0


@dataclass(frozen=True, slots=True)
class MeasuredTurns:
    """Turns of a run that can be drawn from.

    Attributes:
        samples: one for each usable turn.
        left_out: turns that cannot be used, by reason.
        tokens_per_word: average for the replies; used for texts whose tokens were not counted.
    """

    samples: tuple[TurnSample, ...]
    left_out: Mapping[str, int]
    tokens_per_word: float | None


def measured_turns(turns: Sequence[Turn]) -> MeasuredTurns:
    """Convert each turn to a sample; count those that cannot be converted by reason."""
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
    """A reply, timed by the arrival of its text and its sound."""

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
