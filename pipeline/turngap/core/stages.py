"""Stages made from marks: how much of the turn gap each part of the agent took."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from turngap.core.clock import ms_to_ns, ns_to_ms

# In causal order. Each stage is named by the mark that ends it.
MARKS = (
    "user_end",
    "line_up",
    "endpoint",
    "transcript",
    "llm_request",
    "tool_call",
    "tool_result",
    "llm_first_token",
    "tts_request",
    "tts_first_audio",
    "tts_first_audible",
    "sent",
    "received",
    "line_down",
    "agent_onset",
)
AGENT_MARKS = MARKS[2:12]
# Of a turn in which the LLM called tools before it answered: the first call, and the last result.
TOOL_MARKS = frozenset({"tool_call", "tool_result"})
# Of a turn over a line: the person's end has reached the agent, and the first word the caller. What
# was `received` has then only entered the line.
LINE_MARKS = frozenset({"line_up", "line_down"})
# Those that every answered turn has.
USUAL_MARKS = tuple(name for name in MARKS if name not in TOOL_MARKS | LINE_MARKS)
UNATTRIBUTED = "unattributed"
# What cannot be otherwise on one clock. Other marks may lie before their predecessor, because what
# was done ahead of time is hidden work: an answer to a guess is older than the decision to give it.
_ALWAYS_BEFORE = (
    ("llm_request", "llm_first_token"),
    ("tool_call", "tool_result"),
    ("tts_request", "tts_first_audio"),
    ("tts_first_audio", "tts_first_audible"),
    ("tts_first_audio", "sent"),
    ("endpoint", "sent"),
)
# By this much marks may lie outside of what was heard, however well the clocks were compared: an
# agent notes them when it gets to it.
CLOCK_SLACK_MS = 50.0
# Two machines' clocks drift apart after their comparison, by up to 50 ppm each: 120 ms in 20
# minutes.
DRIFT_PPM = 100
# The names that a stage can have.
STAGES = (*MARKS[1:], UNATTRIBUTED)


@dataclass(frozen=True, slots=True)
class Slack:
    """The possible error of the agent's marks on the caller's clock.

    `bound_ns` is the bound of the clocks' comparison; `compared_ns` is when they were compared.
    """

    bound_ns: int = 0
    compared_ns: int = 0

    def at(self, ns: int) -> int:
        """Return the slack at an instant, in ns."""
        drifted_ns = abs(ns - self.compared_ns) * DRIFT_PPM // 1_000_000
        return ms_to_ns(CLOCK_SLACK_MS) + self.bound_ns + drifted_ns


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the turn gap.

    All `ns` sum exactly to the gap. `ns` is negative only if the agent began before the person's
    labelled end. `ms` is the same in milliseconds, for reading.
    """

    name: str
    ns: int
    ms: float


def stages_of(marks: Mapping[str, int]) -> tuple[Stage, ...]:
    """Cut the turn gap into stages that sum to it exactly.

    `marks` maps mark names to instants on one clock (ns) and must hold `user_end` and
    `agent_onset`. A mark that precedes its predecessor makes a stage of length 0: work done ahead
    of time is hidden. A span whose first or last mark is missing is `unattributed`. So is the whole
    of a negative gap, which no stage of the agent took. The two marks of a tool, or of a line,
    count as missing only if one of them is there.

    Raises:
        KeyError: `user_end` or `agent_onset` is missing.
    """
    start, onset = marks["user_end"], marks["agent_onset"]
    if onset < start:
        return (_stage(UNATTRIBUTED, onset - start),)
    stages: list[Stage] = []
    at, previous_present = start, True
    absent = [name for pair in (TOOL_MARKS, LINE_MARKS) if pair.isdisjoint(marks) for name in pair]
    for name in (name for name in MARKS[1:] if name not in absent):
        instant = marks.get(name)
        if instant is None:
            previous_present = False
            continue
        instant = min(max(instant, at), onset)
        stages.append(_stage(name if previous_present else UNATTRIBUTED, instant - at))
        at, previous_present = instant, True
    return tuple(stages)


def unmarked(stages: Iterable[str]) -> bool:
    """Return whether the agent reported no mark of its own, judging by the names of the stages.

    The caller's marks alone give an unattributed stage, and `agent_onset` from `received` on.
    """
    found = set(stages) - LINE_MARKS
    return UNATTRIBUTED in found and found <= {UNATTRIBUTED, MARKS[-1]}


def why_impossible(marks: Mapping[str, int], begun_ns: int, slack_ns: int) -> str | None:
    """Return why the agent's marks of a turn cannot be true, or None if they can.

    `marks` also holds the caller's own, on its clock. The agent's must lie between `begun_ns`, when
    the person began to speak, and the reply's onset, each cause before its effect.
    """
    reported = {name: marks[name] for name in AGENT_MARKS if name in marks}
    for name, at in reported.items():
        if at < begun_ns - slack_ns:
            ms = ns_to_ms(begun_ns - at)
            return f"{name} lies {ms:.0f} ms before the person began to speak"
        if at > marks["agent_onset"] + slack_ns:
            ms = ns_to_ms(at - marks["agent_onset"])
            return f"{name} lies {ms:.0f} ms after the reply was heard"
    for first, then in _ALWAYS_BEFORE:
        if first in reported and then in reported and reported[first] > reported[then]:
            return f"{first} lies {ns_to_ms(reported[first] - reported[then]):.0f} ms after {then}"
    return None


def _stage(name: str, ns: int) -> Stage:
    return Stage(name, ns, ns_to_ms(ns))
