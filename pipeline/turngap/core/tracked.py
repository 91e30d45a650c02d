"""A turn as it was tracked: what became of it, when, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

from turngap.core.budget import Outcome, TurnEnd
from turngap.core.counts import (
    AGENT_GAP,
    COLD,
    OTHERS,
    RATE,
    SERVER,
    THOUGHT,
    THOUGHT_MS,
    TTFT,
    USER_BOT_LATENCY,
    WINDOW,
    add_counts,
)
from turngap.core.events import AgentMarks, TurnEnded, UserSpeech
from turngap.core.spoken import OUTSIDE
from turngap.core.stages import Stage

# Of a reply; what was never heard adds nothing to them.
_OF_THE_REPLY = frozenset(
    {"hold_ms", TTFT, RATE, WINDOW, THOUGHT, THOUGHT_MS, COLD, OTHERS, OUTSIDE, *SERVER.values()}
    | {AGENT_GAP, USER_BOT_LATENCY}
)


@dataclass(frozen=True, slots=True)
class TrackedTurn:
    """One finished turn. Instants are ns of the caller's clock, None where they never came.

    Attributes:
        marks: the marks the stages were cut from, caller's and agent's, on the caller's clock.
        agent_turns: everything the agent reported in this turn, also for replies never heard.
        why_no_gap: the reason when `gap_ns` is None.
        why_no_marks: why the reply's stages hold none of the agent's marks, where it reports any.
        error: what the agent said that kept it from making the reply, or the whole of it; or what
            kept the caller from measuring the turn.
        first_answer_ns: from the user's end to the first word that is no hold phrase, also where
            it came after the caller had stopped waiting.
        parts_ns: the reply's stretches of speech; the end of one is None while it lasts.
        false_starts: how often the agent broke off what it had just begun, and said something else.
        backchannels_heard: how often the agent said "mm-hm" while the user spoke.
        ambiguous: why what was heard may belong to another turn.
        claimed_by: the earlier turn whose answer it may be, then.
        guesses: what was decided by the shape of the sound alone.
        yield_ns: barge-in only: from the user's onset to the agent's silence at the caller's ear;
            None where its reply ended by itself, or was still continuing when the turn ended.
        endpoints_ns: when the agent decided that this turn was over, too early or not, in order;
            None where it does not say.
        lead_ns: the part of the gap in which the agent played inaudible audio up to its onset.
        first_sound_ns: the first sound of the agent after the person's end, speech or not; from the
            person's start on if it cut in.
        onset_spread_ns: how far off the onset may be.
        bed_dbfs: the level of what the agent plays while no one speaks, where that is audible.
        waited_ns: from the user's end to the user's next word, of an abandoned turn.
    """

    turn: int
    outcome: Outcome
    ended: TurnEnd
    user_start_ns: int
    user_end_ns: int
    onset_ns: int | None
    gap_ns: int | None
    why_no_gap: str | None
    why_no_marks: str | None
    error: str | None
    stages: tuple[Stage, ...]
    marks: Mapping[str, int]
    agent_turns: tuple[AgentMarks, ...]
    transcript: str
    reply: str
    first_answer_ns: int | None
    parts_ns: tuple[tuple[int, int | None], ...]
    false_starts: int
    backchannels_heard: int
    ambiguous: tuple[str, ...]
    yield_ns: int | None
    lead_ns: int | None
    endpoints_ns: tuple[int, ...] | None
    ended_ns: int
    first_sound_ns: int | None = None
    onset_spread_ns: int | None = None
    bed_dbfs: float | None = None
    waited_ns: int | None = None
    claimed_by: int | None = None
    guesses: tuple[str, ...] = ()

    @property
    def heard_agent_turn(self) -> AgentMarks | None:
        """Return the agent's own turn that the stages are based on; None if it reported none.

        If none of its turns has marks on the caller's clock, it is the last one.
        """
        reported = self.agent_turns
        if self.onset_ns is not None and reported and not any(each.marks for each in reported):
            return reported[-1]
        return next(
            (each for each in reported if each.marks and each.marks.items() <= self.marks.items()),
            None,
        )

    @property
    def counts(self) -> dict[str, float]:
        """Return the sums of what all the agent's turns count; some are the reply's alone."""
        counts: dict[str, float] = {}
        for reported in self.agent_turns:
            add_counts(counts, reported.counts)
        if (heard := self.heard_agent_turn) is not None:
            counts = {name: n for name, n in counts.items() if name not in _OF_THE_REPLY}
            counts |= {name: n for name, n in heard.counts.items() if name in _OF_THE_REPLY}
        return counts


def unfinished(speech: UserSpeech, end: TurnEnded, why: str) -> TrackedTurn:
    """Build a turn from what the caller itself knows, where nothing else can be made of it."""
    return TrackedTurn(
        turn=speech.turn,
        outcome="error",
        ended=end.reason,
        user_start_ns=speech.start_ns,
        user_end_ns=speech.end_ns,
        onset_ns=None,
        gap_ns=None,
        why_no_gap=why,
        why_no_marks=None,
        error=why,
        stages=(),
        marks={"user_end": speech.end_ns},
        agent_turns=(),
        transcript="",
        reply="",
        first_answer_ns=None,
        parts_ns=(),
        false_starts=0,
        backchannels_heard=0,
        ambiguous=(),
        yield_ns=None,
        lead_ns=None,
        endpoints_ns=None,
        ended_ns=end.at_ns,
    )
