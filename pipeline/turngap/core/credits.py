"""Decide which of the agent's speech is the reply to a turn, and what the other speech is.

`HeardSpeech` puts the facts in order, `credits_of` sorts them by turn.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from turngap.core.budget import LABEL_ERROR_MS
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.events import AgentSilence, AgentSpeech, Flush, Marks, UserSpeech
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
    playout_ns: int | None = None


class HeardSpeech:
    """The agent's speech as the caller heard it, from facts that come in any order."""

    def __init__(self) -> None:
        self._speech: list[AgentSpeech] = []  # these lists are in the order of their instants
        self._silences: list[int] = []
        self._levels: dict[int | None, float | None] = {}  # of the speech that a silence ends
        self._flushes: list[int] = []
        self._known: list[Stretch] | None = None  # until one of these changes

    def add(self, event: AgentSpeech | AgentSilence | Flush) -> None:
        """Take one event."""
        match event:
            case AgentSpeech():
                if (before := event.instead_of_ns) is not None:
                    self._speech = [e for e in self._speech if e.onset_ns != before]
                insort(self._speech, event, key=lambda e: e.onset_ns)
            case AgentSilence(at_ns, dbfs):
                insort(self._silences, at_ns)
                self._levels[at_ns] = dbfs
            case Flush(at_ns=at_ns):
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
            about = (speech.received_ns, speech.lead_ns, speech.spread_ns, level, speech.playout_ns)
            heard.append(Stretch(speech.onset_ns, min(ends, default=None), *about))
        return heard


def _first_after(instants: Sequence[int], ns: int) -> int | None:
    """Return the first of the sorted `instants` that is after `ns`."""
    i = bisect_right(instants, ns)
    return instants[i] if i < len(instants) else None


# --- replies --------------------------------------------------------------------------------------


def reached_ns(told: Marks) -> int | None:
    """Return when an agent turn's audio was first sent, else its last mark's instant, else None."""
    return told.marks.get("sent", max(told.marks.values(), default=told.told_ns))


def heard_turn(agent_turns: Sequence[Marks], reply: Stretch | None, slack: Slack) -> Marks | None:
    """Return the agent's own turn that was heard as the reply.

    Several agent turns can fall into one user turn after a false endpoint: the last one sent before
    the reply arrived is the one that was heard.
    """
    if reply is None:
        return None
    latest_ns = reply.received_ns + slack.at(reply.received_ns)
    sent = [a for a in agent_turns if a.marks.get("sent", inf) <= latest_ns]
    return max(sent, key=lambda a: a.marks["sent"], default=None)


def error_of(
    speech: UserSpeech,
    agent_turns: Sequence[Marks],
    heard: Marks | None,
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


def marks_of(speech: UserSpeech, heard: Marks | None, reply: Stretch | None) -> dict[str, int]:
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


# --- credits --------------------------------------------------------------------------------------

# Agents pause up to about 400 ms between their sentences: while an interrupted reply dies away,
# speech that follows the last of it sooner is still it, and a silence this long parts a reply.
PAUSE_MS = 500.0
# No one answers what they have heard this little of, unless it was all.
EARLY_MS = 300.0
# What still comes in so short a time after a flush, and lasts so long at most, was on its way.
LEFTOVER_MS, LEFTOVER_LENGTH_MS = 100.0, 250.0
# A sound of assent is shorter, and is over well before the person is; or it is as short as a filler
# ("hmm"), and a silence parts it from the reply.
BACKCHANNEL_MS, BACKCHANNEL_ENDS_MS, FILLER_MS = 1000.0, 100.0, 600.0
# An agent drops a false start this soon after it began.
FALSE_START_MS = 500.0
# A hold phrase ("one moment, please") is shorter, and so is the silence between two sentences; or
# it is as short as one, and so is the silence.
HOLD_PHRASE_MS, HOLD_SILENCE_MS, SENTENCE_MS, SENTENCES_APART_MS = 3500.0, 2000.0, 1500.0, 800.0
# What ended so long before a flush was not cut off by it.
OVER_MS = 40.0
# Speech so far below the agent's loudest is another's in the background.
BACKGROUND_DB = 15.0


@dataclass(frozen=True, slots=True)
class Credits:
    """The agent's speech during one turn, sorted by its part in the turn.

    Attributes:
        old: the end of the previous reply, over which the person began.
        early: other speech that cannot answer this turn, or that belongs to another turn.
        backchannels: sounds of assent ("mm-hm") while the person spoke.
        false_starts: speech that the agent dropped soon after it began, and replaced.
        reply: all other speech.
        background: whether all speech is too soft to be the agent's usual voice. dropped: whether
            the last of the reply may be a false start that is not yet replaced.
    """

    old: tuple[Stretch, ...] = ()
    early: tuple[Stretch, ...] = ()
    backchannels: tuple[Stretch, ...] = ()
    false_starts: tuple[Stretch, ...] = ()
    reply: tuple[Stretch, ...] = ()
    dropped: bool = False
    background: bool = False

    def parts(self, speech: UserSpeech) -> list[Stretch]:
        """Return the speech after the person's end, in parts with a silence between them.

        A cut-in that lasts well beyond the person's end is not a part, and nor is its continuation.
        """
        found: list[Stretch] = []
        over_ns = speech.end_ns + ms_to_ns(EARLY_MS)
        for one in self.reply:
            if one.start_ns < earliest_ns(speech) and (one.end_ns or inf) < over_ns:
                continue
            if found and _goes_on(found[-1], one):
                found[-1] = replace(found[-1], end_ns=one.end_ns)
            else:
                found.append(one)
        return [part for part in found if part.start_ns >= earliest_ns(speech)]

    def answer(self, speech: UserSpeech) -> Stretch | None:
        """Return the first part that is not a hold phrase; None if there is none yet.

        A part is a hold phrase if 2 s of silence follow, and then another part. It is also one if
        it is as short as a filler, or as a sentence before a long pause, and a longer part follows.
        """
        parts = self.parts(speech)
        for i, (part, then) in enumerate(pairwise(parts)):
            length_ns = (part.end_ns or then.start_ns) - part.start_ns
            silent_ns = then.start_ns - part.start_ns - length_ns
            longer = any((p.end_ns or inf) - p.start_ns > length_ns for p in parts[i + 1 :])
            apart = silent_ns >= ms_to_ns(SENTENCES_APART_MS)
            short = is_short(part, SENTENCE_MS if apart else FILLER_MS)
            holds = silent_ns >= ms_to_ns(HOLD_SILENCE_MS) or (short and longer)
            if not (is_short(part) and holds):
                return part
        return parts[-1] if parts else None


def earliest_ns(speech: UserSpeech) -> int:
    """Return the time before which an onset is a cut-in."""
    return speech.end_ns - ms_to_ns(LABEL_ERROR_MS)


def is_short(part: Stretch, most_ms: float = HOLD_PHRASE_MS) -> bool:
    """Return whether the stretch has ended, and was no longer than a hold phrase."""
    return part.end_ns is not None and part.end_ns - part.start_ns < ms_to_ns(most_ms)


def is_sudden(gap_ms: float, share: float, usual_ms: float) -> bool:
    """Return whether a gap is short, and shorter than this share of the usual gap.

    If the usual gap is negative, the limit is as much earlier.
    """
    return gap_ms < min(EARLY_MS, usual_ms - (1 - share) * abs(usual_ms))


def may_hold(part: Stretch, then: Stretch, most_ms: float, silent_ms: float) -> bool:
    """Return whether a part this short may be a hold phrase, even if the silence after it is short.

    No audio may come in that silence, except some before the next part, which must be as long.
    """
    if part.end_ns is None:
        return False
    silent_ns = then.start_ns - part.end_ns
    as_long = not is_short(then, ns_to_ms(part.end_ns - part.start_ns))
    near = 2 * then.lead_ns < silent_ns < ms_to_ns(silent_ms)
    return near and as_long and is_short(part, most_ms)


def _goes_on(part: Stretch, then: Stretch) -> bool:
    """Return whether the second stretch continues the first: no pause, and no filler before it."""
    near = part.end_ns is not None and then.start_ns - part.end_ns < ms_to_ns(PAUSE_MS)
    return near and not may_hold(part, then, FILLER_MS, PAUSE_MS)


def credits_of(
    speech: UserSpeech,
    heard: HeardSpeech,
    upto: float,
    *,
    hums: Sequence[int] = (),
    decided: Sequence[int] = (),
    first: bool = False,
    owed: bool = False,
) -> Credits:
    """Sort the agent's speech from a turn's beginning up to `upto` by its part in the turn.

    `hums`: when the person said "mm-hm". `decided`: when the agent considered the turn over; its
    speech after that answers the turn. `first`: there was no turn before. `owed`: the answer to an
    earlier turn was not heard yet, so speech before the person's end is that answer.
    """
    stretches = _stretches(heard, speech.start_ns, upto)
    loudest = max((s.dbfs for s in heard.stretches() if s.dbfs and s.start_ns < upto), default=-inf)
    agents = [s for s in stretches if s.dbfs is None or s.dbfs >= loudest - BACKGROUND_DB]
    stretches, background = agents or stretches, not agents
    old = _old(speech, heard, stretches)
    early_ns = earliest_ns(speech)
    if not owed:
        early_ns = min(early_ns, speech.start_ns + (0 if first else ms_to_ns(EARLY_MS)))
    early: list[Stretch] = []
    backchannels: list[Stretch] = []
    false_starts: list[Stretch] = []
    rest = stretches[len(old) :]
    dropped = False
    while rest:
        one = rest[0]
        flushed_ns = heard.flush_of(one)
        dropped = (
            flushed_ns is not None
            and one.start_ns >= earliest_ns(speech)
            and flushed_ns - one.start_ns < ms_to_ns(FALSE_START_MS)
            and not any_in(hums, one.start_ns - ms_to_ns(FALSE_START_MS), flushed_ns)
        )
        answers = any_in(decided, speech.start_ns, one.start_ns)
        if one.start_ns < early_ns and not answers:
            early.append(one)
        elif (
            (flushed_ns is None or flushed_ns - (one.end_ns or 0) > ms_to_ns(OVER_MS))
            and _is_assent(one, rest[1] if len(rest) > 1 else None, speech)
            and not answers
        ):
            backchannels.append(one)
        elif dropped and len(rest) > 1:
            false_starts.append(one)
        else:
            break
        rest = rest[1:]
    return Credits(
        tuple(old),
        tuple(early),
        tuple(backchannels),
        tuple(false_starts),
        tuple(rest),
        dropped and len(rest) == 1,
        background,
    )


def is_over(one: Stretch, speech: UserSpeech) -> bool:
    """Return whether the stretch ended so long before the person that it is no answer."""
    return (one.end_ns or 0) <= speech.end_ns - ms_to_ns(BACKCHANNEL_ENDS_MS)


def _is_assent(one: Stretch, then: Stretch | None, speech: UserSpeech) -> bool:
    """Return whether this may be an "mm-hm": short, and over before the person's end."""
    if is_over(one, speech):
        return is_short(one, BACKCHANNEL_MS)
    end_ns = one.end_ns or 0
    parted = then is not None and then.start_ns - end_ns >= ms_to_ns(PAUSE_MS)
    over = end_ns <= speech.end_ns + ms_to_ns(LABEL_ERROR_MS)
    return over and parted and is_short(one, FILLER_MS)


def _stretches(heard: HeardSpeech, since_ns: int, upto: float) -> list[Stretch]:
    """Return the stretches in that time; each includes audio that was on its way at a flush."""
    found: list[Stretch] = []
    for one in heard.stretches():
        if one.start_ns >= upto:
            break
        if one.end_ns is not None and one.end_ns <= since_ns:
            continue
        flushed_ns = heard.flush_of(found[-1]) if found else None
        if (
            flushed_ns is not None
            and one.start_ns - flushed_ns < ms_to_ns(LEFTOVER_MS)
            and is_short(one, LEFTOVER_LENGTH_MS)
            and heard.flush_of(one) is None
        ):
            found[-1] = replace(found[-1], end_ns=one.end_ns)
        else:
            found.append(one)
    return found


def _old(speech: UserSpeech, heard: HeardSpeech, stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the audio that was playing when the person began, and its continuation.

    A flush separates it from the speech that follows.
    """
    flushed_ns = heard.flushed_after(speech.start_ns - 1)
    quiet_since = speech.start_ns if speech.over_reply else None
    old: list[Stretch] = []
    for one in stretches:
        was_there = min(one.start_ns, one.received_ns) < speech.start_ns
        goes_on = (
            quiet_since is not None
            and one.start_ns - quiet_since < ms_to_ns(PAUSE_MS)
            and (flushed_ns is None or one.start_ns < flushed_ns)
        )
        if not was_there and not goes_on:
            break
        old.append(one)
        quiet_since = one.start_ns if one.end_ns is None else one.end_ns
    return old


def any_in(instants: Sequence[int], since_ns: int, until_ns: int) -> bool:
    """Return whether one of the sorted instants is in that time."""
    return bisect_right(instants, until_ns) > bisect_left(instants, since_ns)
