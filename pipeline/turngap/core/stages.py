"""Marks to stages: which part of the agent spent the turn gap."""

from collections.abc import Mapping
from dataclasses import dataclass

from turngap.core.clock import ns_to_ms

# In causal order. Each stage is named by the mark that ends it.
MARKS = (
    "user_end",
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
    "agent_onset",
)
AGENT_MARKS = MARKS[1:11]
# Of a turn in which the LLM called tools before it answered: the first call, and the last result.
TOOL_MARKS = frozenset({"tool_call", "tool_result"})
# Those that every answered turn has.
USUAL_MARKS = tuple(name for name in MARKS if name not in TOOL_MARKS)
UNATTRIBUTED = "unattributed"
# The names that a stage can have.
STAGES = (*MARKS[1:], UNATTRIBUTED)


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the turn gap.

    `ns` is exact, sums to the gap, and is negative only where the agent cut in; `ms` is the same
    for reading.
    """

    name: str
    ns: int
    ms: float


def stages_of(marks: Mapping[str, int]) -> tuple[Stage, ...]:
    """Cut the turn gap into stages that sum to it exactly.

    `marks` maps mark names to instants on one clock (ns) and must hold `user_end` and
    `agent_onset`. A mark that precedes its predecessor makes a stage of length 0: what was done
    ahead of time is hidden work. A span whose first or last mark is missing in between is
    `unattributed`, as is the whole of a negative gap, which no stage of the agent spent. The marks
    of tools are missing only where one of the two is there.

    Raises:
        KeyError: `user_end` or `agent_onset` is missing.
    """
    start, onset = marks["user_end"], marks["agent_onset"]
    if onset < start:
        return (_stage(UNATTRIBUTED, onset - start),)
    stages: list[Stage] = []
    at, previous_present = start, True
    expected = USUAL_MARKS if TOOL_MARKS.isdisjoint(marks) else MARKS
    for name in expected[1:]:
        instant = marks.get(name)
        if instant is None:
            previous_present = False
            continue
        instant = min(max(instant, at), onset)
        stages.append(_stage(name if previous_present else UNATTRIBUTED, instant - at))
        at, previous_present = instant, True
    return tuple(stages)


def _stage(name: str, ns: int) -> Stage:
    return Stage(name, ns, ns_to_ms(ns))
