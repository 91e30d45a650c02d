"""The turn tracker: events of one conversation in, finished turns out. No I/O, no own clock."""

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from turngap.core.budget import Outcome, TurnEnd, outcome_of
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.events import (
    AgentFault,
    AgentMarks,
    AgentSilence,
    AgentSilent,
    AgentSpeech,
    AgentText,
    EndpointTold,
    Event,
    PlayoutFlushed,
    TurnBroken,
    TurnEnded,
    UserSpeech,
    UserTranscript,
)
from turngap.core.stages import (
    AGENT_MARKS,
    Slack,
    Stage,
    stages_of,
    why_impossible,
)

# While an interrupted reply dies away, speech that follows the last of it by less than this is
# still it: agents pause up to about 400 ms between their sentences.
STALE_GAP_MS = 500.0


@dataclass(frozen=True, slots=True)
class TrackedTurn:
    """One finished turn. Instants are ns of the caller's clock, None where they never came.

    Attributes:
        marks: the marks the stages were cut from, caller's and agent's, on the caller's clock.
        agent_turns: everything the agent reported in this turn, also for replies never heard.
        why_no_gap: the reason when `gap_ns` is None.
        why_no_marks: why the reply's stages hold none of the agent's marks, where it tells of any.
        error: what the agent said that kept it from making the reply, or the whole of it; or what
            kept the caller from measuring the turn.
        yield_ns: barge-in only: from the user's onset to the agent's silence at the caller's ear;
            None also where it was still speaking when the turn ended.
        endpoints_ns: when the agent decided that this turn was over, too early or not, in order;
            None where it does not say.
        lead_ns: the part of the gap in which the agent played inaudible audio up to its onset.
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
    yield_ns: int | None
    lead_ns: int | None
    endpoints_ns: tuple[int, ...] | None
    ended_ns: int


@dataclass(frozen=True, slots=True)
class _Heard:
    """A stretch of the agent's speech as the caller heard it; `end_ns` is None while it lasts."""

    start_ns: int
    end_ns: int | None
    received_ns: int
    lead_ns: int


class TurnTracker:
    """Assigns what happened on the line to the user's turns.

    Turns are announced by `UserSpeech` and closed by `TurnEnded`; what lies between two announced
    onsets belongs to the earlier one. Events are kept as facts with their instants and are read
    when a turn is asked for, so the order of all but `TurnEnded` is free: marks may come late, for
    turns unknown, silence without speech, flushes with nothing to flush. What comes after its
    turn's end is left out of it, and of every other turn.

    Attributes:
        slack: by how much the agent's marks may lie beside the truth.
    """

    def __init__(self, slack: Slack = Slack()) -> None:  # noqa: B008, it is frozen
        self.slack = slack
        self._announced: dict[int, UserSpeech] = {}
        self._finished: set[int] = set()
        self._agent: list[AgentSpeech] = []  # these lists are in the order of their instants
        self._silences: list[int] = []
        self._flushes: list[int] = []
        self._transcripts: list[UserTranscript] = []
        self._texts: list[AgentText] = []
        self._agent_turns: dict[int, AgentMarks] = {}
        self._faults: list[AgentFault | AgentSilent] = []
        self._endpoints_told: list[int] = []
        self._broken: list[TurnBroken] = []
        # What follows from speech, silences, flushes and turns, until one of these changes: an
        # agent may send a hundred thousand other messages, and each is followed by questions.
        self._heard_known: list[_Heard] | None = None
        self._replies_known: dict[int, _Heard | None] = {}

    def feed(self, event: Event) -> tuple[TrackedTurn, ...]:
        """Take one event; return the turns that it finished (none or one).

        A `UserSpeech` for an open turn replaces what was announced; one for a finished turn, and a
        `TurnEnded` for a turn that is not open, are ignored.
        """
        if isinstance(event, TurnEnded):
            return self._end(event)
        self._keep(event)
        return ()

    def _end(self, event: TurnEnded) -> tuple[TrackedTurn, ...]:
        if event.turn not in self._announced or event.turn in self._finished:
            return ()
        self._finished.add(event.turn)
        return (self._finish(self._announced[event.turn], event),)

    def _keep(self, event: Event) -> None:
        match event:
            case UserSpeech():
                if event.turn not in self._finished:
                    self._announced[event.turn] = event
                    self._replies_known.clear()
            case AgentSpeech():
                insort(self._agent, event, key=lambda e: e.onset_ns)
                self._forget_heard()
            case AgentSilence(at_ns):
                insort(self._silences, at_ns)
                self._forget_heard()
            case PlayoutFlushed(at_ns):
                insort(self._flushes, at_ns)
                self._forget_heard()
            case AgentMarks():
                self._merge(event)
            case AgentFault() | AgentSilent():
                insort(self._faults, event, key=lambda e: e.at_ns)
            case EndpointTold(at_ns):
                insort(self._endpoints_told, at_ns)
            case UserTranscript():
                insort(self._transcripts, event, key=lambda e: e.at_ns)
            case AgentText():
                insort(self._texts, event, key=lambda e: e.at_ns)
            case TurnBroken():
                insort(self._broken, event, key=lambda e: e.at_ns)
            case TurnEnded():  # keeps nothing: it asks
                pass

    def onset_of(self, turn: int) -> int | None:
        """When the reply to an open turn began, or None: not yet, or the turn is not open."""
        if turn not in self._announced or turn in self._finished:
            return None
        if turn not in self._replies_known:
            self._replies_known[turn] = self._reply(self._announced[turn])
        reply = self._replies_known[turn]
        return reply.start_ns if reply else None

    def has_heard_marks(self, turn: int) -> bool:
        """Whether the agent has reported a reply that it sent within this open turn."""
        if turn not in self._announced or turn in self._finished:
            return False
        return any("sent" in a.marks for a in self._agent_turns_in(self._announced[turn]))

    @property
    def agent_speaking(self) -> bool:
        heard = self._heard()
        return bool(heard) and heard[-1].end_ns is None

    def _merge(self, event: AgentMarks) -> None:
        """An agent may report the marks of one turn in several pieces."""
        if not event.agent_turn and not event.raw:  # of no turn of its own: each stands for itself
            self._agent_turns[-1 - len(self._agent_turns)] = event
            return
        if known := self._agent_turns.get(event.agent_turn):
            marks, raw = {**known.marks, **event.marks}, {**known.raw, **event.raw}
            counts = {**known.counts, **event.counts}
            why = event.why or known.why
            error = known.error if event.error is None else event.error
            calls = known.calls if event.calls is None else event.calls
            about = (counts, why, error, calls, known.told_ns)
            event = AgentMarks(event.agent_turn, marks, raw, *about)
        self._agent_turns[event.agent_turn] = event

    def _forget_heard(self) -> None:
        self._heard_known = None
        self._replies_known.clear()

    def _heard(self) -> list[_Heard]:
        """The agent's speech in order, without what was flushed before it could be played."""
        if self._heard_known is None:
            self._heard_known = self._find_heard()
        return self._heard_known

    def _find_heard(self) -> list[_Heard]:
        heard: list[_Heard] = []
        for speech in self._agent:
            flushed_ns = _first_after(self._flushes, speech.received_ns)
            if flushed_ns is not None and flushed_ns <= speech.onset_ns:
                continue
            silent_ns = _first_after(self._silences, speech.onset_ns - 1)
            ends = [ns for ns in (silent_ns, flushed_ns) if ns is not None]
            heard.append(
                _Heard(speech.onset_ns, min(ends, default=None), speech.received_ns, speech.lead_ns)
            )
        return heard

    def _next_start(self, speech: UserSpeech) -> float:
        """When the next announced turn begins; inf when there is none."""
        starts = (other.start_ns for other in self._announced.values())
        return min((ns for ns in starts if ns > speech.start_ns), default=inf)

    def _stale(self, speech: UserSpeech) -> list[_Heard]:
        """What is heard in this turn of a reply to the one before it.

        Audio that was there when the user began cannot answer the user. What follows on it within
        a sentence's pause counts as the same reply dying away, unless the line was flushed since.
        """
        upto = self._next_start(speech)
        flushed_ns = _first_after(self._flushes, speech.start_ns - 1)
        quiet_since = speech.start_ns if speech.over_reply else None
        stale: list[_Heard] = []
        for segment in self._heard():
            if segment.end_ns is not None and segment.end_ns <= speech.start_ns:
                continue
            if segment.start_ns >= upto:
                break
            was_there = min(segment.start_ns, segment.received_ns) < speech.start_ns
            goes_on = (
                quiet_since is not None
                and segment.start_ns - quiet_since < ms_to_ns(STALE_GAP_MS)
                and (flushed_ns is None or segment.start_ns < flushed_ns)
            )
            if not was_there and not goes_on:
                break
            stale.append(segment)
            quiet_since = segment.start_ns if segment.end_ns is None else segment.end_ns
        return stale

    def _reply(self, speech: UserSpeech, ended_ns: float = inf) -> _Heard | None:
        """The first speech that can answer this turn, if it began before the turn was over."""
        stale, upto = self._stale(speech), self._next_start(speech)
        for segment in self._heard():
            if segment.start_ns >= speech.start_ns and segment not in stale:
                return segment if segment.start_ns < upto and segment.start_ns <= ended_ns else None
        return None

    def _finish(self, speech: UserSpeech, end: TurnEnded) -> TrackedTurn:
        reply = self._reply(speech, end.at_ns)
        gap_ns = reply.start_ns - speech.end_ns if reply else None
        stale = self._stale(speech)
        agent_turns = self._agent_turns_in(speech)
        heard = _heard_turn(agent_turns, reply, self.slack)
        marks = _marks(speech, heard, reply)
        why_no_marks = self._why_no_marks(speech, heard, marks) if reply else None
        if why_no_marks is not None:
            marks = _marks(speech, None, reply)
        error = _error(speech, agent_turns, heard, replied=reply is not None)
        error = error or self._told_error(speech, end, agent_turns, replied=reply is not None)
        error = error or self._why_broken(speech, end)
        return TrackedTurn(
            turn=speech.turn,
            outcome=outcome_of(
                None if gap_ns is None else ns_to_ms(gap_ns),
                speech.budget_ms,
                end.reason,
                failed=error is not None,
            ),
            ended=end.reason,
            user_start_ns=speech.start_ns,
            user_end_ns=speech.end_ns,
            onset_ns=reply.start_ns if reply else None,
            gap_ns=gap_ns,
            why_no_gap=None if reply else self._why_no_gap(speech, end, error),
            why_no_marks=why_no_marks,
            error=error,
            stages=stages_of(marks) if reply else (),
            marks=marks,
            agent_turns=agent_turns,
            transcript=self._transcript(speech),
            reply=self._reply_text(speech, stale),
            yield_ns=_yield(speech, stale),
            lead_ns=_lead(reply, gap_ns),
            endpoints_ns=self._endpoints(speech, replied=reply is not None),
            ended_ns=end.at_ns,
        )

    def _why_no_marks(
        self, speech: UserSpeech, heard: AgentMarks | None, marks: Mapping[str, int]
    ) -> str | None:
        """Why none of the agent's marks explains the reply; None if some do, or it tells none."""
        if heard is None:
            told = any(a.marks for a in self._agent_turns.values())
            return "none of the agent's marks tells of a reply in this turn" if told else None
        return why_impossible(marks, speech.start_ns, self.slack.at(marks["agent_onset"]))

    def _why_broken(self, speech: UserSpeech, end: TurnEnded) -> str | None:
        upto = min(self._next_start(speech), end.at_ns)
        within = (b.why for b in self._broken if speech.start_ns <= b.at_ns <= upto)
        return next(within, None)

    def _why_no_gap(self, speech: UserSpeech, end: TurnEnded, error: str | None) -> str:
        if error is not None:
            return f"the agent failed: {error}"
        upto = min(self._next_start(speech), end.at_ns)
        silent = (f for f in self._faults if isinstance(f, AgentSilent))
        told = next((s.why for s in silent if speech.start_ns <= s.at_ns <= upto), None)
        why = _WHY_NO_GAP[end.reason]
        return why if told is None else f"{why}: {told}"

    def _agent_turns_in(self, speech: UserSpeech) -> tuple[AgentMarks, ...]:
        """Agent turns whose audio was first sent, or which got no further, in this turn."""
        upto = self._next_start(speech)
        reached = [(_reached_ns(a), a) for a in self._agent_turns.values()]
        within = [(at, a) for at, a in reached if at is not None and speech.start_ns <= at < upto]
        return tuple(a for _, a in sorted(within, key=lambda pair: pair[0]))

    def _told_error(
        self,
        speech: UserSpeech,
        end: TurnEnded,
        agent_turns: Sequence[AgentMarks],
        *,
        replied: bool,
    ) -> str | None:
        """Why the agent failed in this turn, by messages that are no marks.

        If it replied, its marks decide where it sends any, as they say which attempt failed. Where
        it sends none, what it reported while the person still spoke was of an attempt that nobody
        missed.
        """
        if replied and agent_turns:
            return None
        since = speech.end_ns if replied else speech.start_ns
        until = min(self._next_start(speech), end.at_ns)
        faults = (f for f in self._faults if isinstance(f, AgentFault))
        within = (f.error for f in faults if since <= f.at_ns <= until)
        return next(within, None)

    def _endpoints(self, speech: UserSpeech, *, replied: bool) -> tuple[int, ...] | None:
        """Return the agent's decisions that this turn was over: by its marks, or as it told them.

        An agent that replied has decided, so that without a decision nothing is known.
        """
        upto = self._next_start(speech)
        marked = sorted(
            a.marks["endpoint"] for a in self._agent_turns.values() if "endpoint" in a.marks
        )
        decided = marked or self._endpoints_told
        within = tuple(at for at in decided if speech.start_ns <= at < upto)
        return within if within or (decided and not replied) else None

    def _transcript(self, speech: UserSpeech) -> str:
        upto = self._next_start(speech)
        within = (t.text.strip() for t in self._transcripts if speech.start_ns <= t.at_ns < upto)
        return " ".join(text for text in within if text)

    def _reply_text(self, speech: UserSpeech, stale: Sequence[_Heard]) -> str:
        """What the agent says it spoke; until it drops an interrupted reply, its text is that's.

        The pieces of one reply join as they are; a flush between two begins another reply.
        """
        upto = self._next_start(speech)
        flushed_ns = _first_after(self._flushes, speech.start_ns - 1)
        since = speech.start_ns
        if stale and flushed_ns is not None and flushed_ns < upto:
            since = flushed_ns
        replies: dict[int, list[str]] = {}
        for piece in self._texts:
            if since <= piece.at_ns < upto:
                flushes = bisect_right(self._flushes, piece.at_ns)
                replies.setdefault(flushes, []).append(piece.text)
        texts = ("".join(pieces).strip() for pieces in replies.values())
        return " ".join(text for text in texts if text)


def _first_after(instants: Sequence[int], ns: int) -> int | None:
    """The first of the sorted `instants` that lies after `ns`."""
    i = bisect_right(instants, ns)
    return instants[i] if i < len(instants) else None


def _reached_ns(told: AgentMarks) -> int | None:
    """When an agent turn's audio was first sent, or how far it got; None if nothing says."""
    return told.marks.get("sent", max(told.marks.values(), default=told.told_ns))


def _heard_turn(
    agent_turns: Sequence[AgentMarks], reply: _Heard | None, slack: Slack
) -> AgentMarks | None:
    """The agent's own turn that was heard as the reply.

    Several can fall into one user turn (a false endpoint): it is the last one that was sent before
    the reply arrived.
    """
    if reply is None:
        return None
    latest_ns = reply.received_ns + slack.at(reply.received_ns)
    sent = [a for a in agent_turns if a.marks.get("sent", inf) <= latest_ns]
    return max(sent, key=lambda a: a.marks["sent"], default=None)


def _error(
    speech: UserSpeech,
    agent_turns: Sequence[AgentMarks],
    heard: AgentMarks | None,
    *,
    replied: bool,
) -> str | None:
    """Why the agent made no reply, or half of one; an attempt that nobody missed is no error.

    Marks without `sent` do not say which attempt was heard: the last one was, unless all that is
    known of it is a report which came while the person still spoke.
    """
    if heard is not None:
        return heard.error or None
    if not replied:
        return next((a.error for a in agent_turns[::-1] if a.error), None)
    late = [a for a in agent_turns if a.marks or (a.told_ns or 0) >= speech.end_ns]
    return (late[-1].error or None) if late else None


def _marks(speech: UserSpeech, heard: AgentMarks | None, reply: _Heard | None) -> dict[str, int]:
    marks = {"user_end": speech.end_ns}
    if reply is None:
        return marks
    if heard is not None:
        # The caller's own marks are not the agent's to say.
        marks.update((name, at) for name, at in heard.marks.items() if name in AGENT_MARKS)
    marks["received"] = reply.received_ns
    marks["agent_onset"] = reply.start_ns
    return marks


def _lead(reply: _Heard | None, gap_ns: int | None) -> int | None:
    if reply is None or gap_ns is None or gap_ns < 0:
        return None
    return min(reply.lead_ns, gap_ns)


def _yield(speech: UserSpeech, stale: Sequence[_Heard]) -> int | None:
    if not stale or stale[-1].end_ns is None:
        return None
    return stale[-1].end_ns - speech.start_ns


def unfinished(speech: UserSpeech, end: TurnEnded, why: str) -> TrackedTurn:
    """The turn as far as the caller itself knows it, where nothing else can be made of it."""
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
        yield_ns=None,
        lead_ns=None,
        endpoints_ns=None,
        ended_ns=end.at_ns,
    )


_WHY_NO_GAP: dict[TurnEnd, str] = {
    "reply_done": "the reply held no audible speech",
    "timeout": "no audible reply before the caller stopped waiting",
    "interrupted": "the next turn began before any reply",
    "line_lost": "the line was lost before any reply",
}
