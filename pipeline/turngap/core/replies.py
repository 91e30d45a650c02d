"""Speech heard from an agent, and the turn of its own that it belongs to."""

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from turngap.core.clock import ms_to_ns
from turngap.core.events import AgentMarks, AgentSilence, AgentSpeech, PlayoutFlushed, UserSpeech
from turngap.core.stages import AGENT_MARKS, Slack

# A flush this soon after the last that was audible found the agent speaking: words pause so long.
_CUT_OFF_MS = 300.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the agent's speech as the caller heard it; `end_ns` is None while it lasts."""

    start_ns: int
    end_ns: int | None
    received_ns: int
    lead_ns: int
    spread_ns: int | None = None
    dbfs: float | None = None  # while it lasts, of its beginning


class HeardSpeech:
    """The agent's speech as the caller heard it, from facts that come in any order."""

    def __init__(self) -> None:
        self._speech: list[AgentSpeech] = []  # these lists are in the order of their instants
        self._silences: list[int] = []
        self._levels: dict[int | None, float | None] = {}  # of the speech that a silence ends
        self._flushes: list[int] = []
        self._known: list[Stretch] | None = None  # until one of these changes

    def add(self, event: AgentSpeech | AgentSilence | PlayoutFlushed) -> None:
        """Take one event."""
        match event:
            case AgentSpeech():
                if (before := event.instead_of_ns) is not None:
                    self._speech = [e for e in self._speech if e.onset_ns != before]
                insort(self._speech, event, key=lambda e: e.onset_ns)
            case AgentSilence(at_ns, dbfs):
                insort(self._silences, at_ns)
                self._levels[at_ns] = dbfs
            case PlayoutFlushed(at_ns):
                insort(self._flushes, at_ns)
        self._known = None

    def stretches(self) -> list[Stretch]:
        """Return the agent's speech in order, without audio flushed before it was played."""
        if self._known is None:
            self._known = self._found()
        return self._known

    def flushed_after(self, ns: int) -> int | None:
        """Return when the line was next flushed after `ns`; None if it was not."""
        return _first_after(self._flushes, ns)

    def flush_of(self, stretch: Stretch) -> int | None:
        """Return when the line was flushed during this speech; None if it was not."""
        at_ns = self.flushed_after(stretch.start_ns)
        if at_ns is None or stretch.end_ns is None:
            return None
        return at_ns if at_ns - stretch.end_ns < ms_to_ns(_CUT_OFF_MS) else None

    def flushes_until(self, ns: int) -> int:
        """Count the flushes of the line up to `ns`."""
        return bisect_right(self._flushes, ns)

    def _found(self) -> list[Stretch]:
        heard: list[Stretch] = []
        for speech in self._speech:
            flushed_ns = self.flushed_after(speech.received_ns)
            if flushed_ns is not None and flushed_ns <= speech.onset_ns:
                continue
            silent_ns = _first_after(self._silences, speech.onset_ns - 1)
            ends = [ns for ns in (silent_ns, flushed_ns) if ns is not None]
            level = self._levels.get(silent_ns) or speech.dbfs
            about = (speech.received_ns, speech.lead_ns, speech.spread_ns, level)
            heard.append(Stretch(speech.onset_ns, min(ends, default=None), *about))
        return heard


def _first_after(instants: Sequence[int], ns: int) -> int | None:
    """Return the first of the sorted `instants` that is after `ns`."""
    i = bisect_right(instants, ns)
    return instants[i] if i < len(instants) else None


def reached_ns(told: AgentMarks) -> int | None:
    """Return when an agent turn's audio was first sent, or else its last mark; None if unknown."""
    return told.marks.get("sent", max(told.marks.values(), default=told.told_ns))


def heard_turn(
    agent_turns: Sequence[AgentMarks], reply: Stretch | None, slack: Slack
) -> AgentMarks | None:
    """Return the agent's own turn that was heard as the reply.

    Several can fall into one user turn after a false endpoint: the last one sent before the reply
    arrived is the one that was heard.
    """
    if reply is None:
        return None
    latest_ns = reply.received_ns + slack.at(reply.received_ns)
    sent = [a for a in agent_turns if a.marks.get("sent", inf) <= latest_ns]
    return max(sent, key=lambda a: a.marks["sent"], default=None)


def error_of(
    speech: UserSpeech,
    agent_turns: Sequence[AgentMarks],
    heard: AgentMarks | None,
    *,
    replied: bool,
) -> str | None:
    """Return why the agent made none or only part of the reply; ignore attempts that no one missed.

    Marks without `sent` do not show which attempt was heard. The last one is then assumed, unless
    it is known only from a report that came while the person still spoke.
    """
    if heard is not None:
        return heard.error or None
    if not replied:
        return next((a.error for a in agent_turns[::-1] if a.error), None)
    late = [a for a in agent_turns if a.marks or (a.told_ns or 0) >= speech.end_ns]
    return (late[-1].error or None) if late else None


def marks_of(speech: UserSpeech, heard: AgentMarks | None, reply: Stretch | None) -> dict[str, int]:
    """Merge the caller's marks of a turn with those of the agent's turn that was heard."""
    marks = {"user_end": speech.end_ns}
    if reply is None:
        return marks
    if heard is not None:
        # The caller's own marks are not the agent's to say.
        marks.update((name, at) for name, at in heard.marks.items() if name in AGENT_MARKS)
    marks["received"] = reply.received_ns
    marks["agent_onset"] = reply.start_ns
    return marks


def lead_of(reply: Stretch | None, gap_ns: int | None) -> int | None:
    """Return the part of the gap in which inaudible audio was played."""
    if reply is None or gap_ns is None or gap_ns < 0:
        return None
    return min(reply.lead_ns, gap_ns)


def yield_of(
    speech: UserSpeech, old: Sequence[Stretch], heard: HeardSpeech, *, tells_flushes: bool
) -> int | None:
    """Return how long the agent spoke over a person who barged in; None if it did not yield.

    If the protocol has a flush message and none came, the reply was not cut off.
    """
    if not old or old[-1].end_ns is None:
        return None
    if tells_flushes and heard.flush_of(old[-1]) is None:
        return None
    return old[-1].end_ns - speech.start_ns
