"""The turn tracker: events of one conversation in, finished turns out. No I/O, no own clock."""

from bisect import insort
from collections.abc import Mapping, Sequence
from math import inf

from turngap.core.budget import TurnEnd, outcome_of
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.events import (
    AgentFault,
    AgentMarks,
    AgentSilence,
    AgentSilent,
    AgentSound,
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
from turngap.core.replies import (
    HeardSpeech,
    Stretch,
    error_of,
    heard_turn,
    lead_of,
    marks_of,
    reached_ns,
    yield_of,
)
from turngap.core.stages import Slack, stages_of, why_impossible
from turngap.core.tracked import TrackedTurn

# While an interrupted reply dies away, speech that follows the last of it by less than this is
# still it: agents pause up to about 400 ms between their sentences.
STALE_GAP_MS = 500.0


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
        self._heard = HeardSpeech()
        # These lists are in the order of their instants.
        self._sounds: list[AgentSound] = []
        self._transcripts: list[UserTranscript] = []
        self._texts: list[AgentText] = []
        self._agent_turns: dict[int, AgentMarks] = {}
        self._faults: list[AgentFault | AgentSilent] = []
        self._endpoints_told: list[int] = []
        self._broken: list[TurnBroken] = []
        # What follows from speech, silences, flushes and turns, until one of these changes: an
        # agent may send a hundred thousand other messages, and each is followed by questions.
        self._replies_known: dict[int, Stretch | None] = {}

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
            case AgentSpeech() | AgentSilence() | PlayoutFlushed():
                self._heard.add(event)
                self._replies_known.clear()
            case AgentSound():
                insort(self._sounds, event, key=lambda e: e.at_ns)
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
        """Return when the reply to an open turn began; None if none has, or if it is closed."""
        if turn not in self._announced or turn in self._finished:
            return None
        if turn not in self._replies_known:
            self._replies_known[turn] = self._reply(self._announced[turn])
        reply = self._replies_known[turn]
        return reply.start_ns if reply else None

    def has_heard_marks(self, turn: int) -> bool:
        """Return whether the agent has reported a reply that it sent within this open turn."""
        if turn not in self._announced or turn in self._finished:
            return False
        return any("sent" in a.marks for a in self._agent_turns_in(self._announced[turn]))

    @property
    def agent_speaking(self) -> bool:
        heard = self._heard.stretches()
        return bool(heard) and heard[-1].end_ns is None

    def _merge(self, event: AgentMarks) -> None:
        """Merge the event into its agent turn; an agent may report one turn in several pieces."""
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

    def _next_start(self, speech: UserSpeech) -> float:
        """Return when the next announced turn begins; inf if there is none."""
        starts = (other.start_ns for other in self._announced.values())
        return min((ns for ns in starts if ns > speech.start_ns), default=inf)

    def _stale(self, speech: UserSpeech) -> list[Stretch]:
        """Return the audio in this turn that belongs to the reply before it.

        Audio that was there when the user began cannot answer the user. Audio that follows it
        within the length of a pause in a sentence counts as the end of the same reply, unless the
        line was flushed since.
        """
        upto = self._next_start(speech)
        flushed_ns = self._heard.flushed_after(speech.start_ns - 1)
        quiet_since = speech.start_ns if speech.over_reply else None
        stale: list[Stretch] = []
        for segment in self._heard.stretches():
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

    def _reply(self, speech: UserSpeech, ended_ns: float = inf) -> Stretch | None:
        """Return the first speech that can answer this turn and began before it was over."""
        stale, upto = self._stale(speech), self._next_start(speech)
        for segment in self._heard.stretches():
            if segment.start_ns >= speech.start_ns and segment not in stale:
                return segment if segment.start_ns < upto and segment.start_ns <= ended_ns else None
        return None

    def _finish(self, speech: UserSpeech, end: TurnEnded) -> TrackedTurn:
        reply = self._reply(speech, end.at_ns)
        gap_ns = reply.start_ns - speech.end_ns if reply else None
        stale = self._stale(speech)
        agent_turns = self._agent_turns_in(speech)
        heard = heard_turn(agent_turns, reply, self.slack)
        marks = marks_of(speech, heard, reply)
        why_no_marks = self._why_no_marks(speech, heard, marks) if reply else None
        if why_no_marks is not None:
            marks = marks_of(speech, None, reply)
        error = error_of(speech, agent_turns, heard, replied=reply is not None)
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
            yield_ns=yield_of(speech, stale),
            lead_ns=lead_of(reply, gap_ns),
            endpoints_ns=self._endpoints(speech, replied=reply is not None),
            ended_ns=end.at_ns,
            first_sound_ns=self._first_sound(speech, end, reply),
            onset_spread_ns=reply.spread_ns if reply else None,
        )

    def _sounds_in(self, speech: UserSpeech, end: TurnEnded, since_ns: int) -> list[AgentSound]:
        upto = min(self._next_start(speech), end.at_ns)
        return [s for s in self._sounds if since_ns <= s.at_ns < upto]

    def _first_sound(self, speech: UserSpeech, end: TurnEnded, reply: Stretch | None) -> int | None:
        cut_in = reply is not None and reply.start_ns < speech.end_ns
        sounds = self._sounds_in(speech, end, speech.start_ns if cut_in else speech.end_ns)
        starts = [s.at_ns for s in sounds] + ([reply.start_ns] if reply else [])
        return min(starts, default=None)

    def _why_no_marks(
        self, speech: UserSpeech, heard: AgentMarks | None, marks: Mapping[str, int]
    ) -> str | None:
        """Return why no mark of the agent explains the reply; None if some do or it sent none."""
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
        if told is None and (sounds := self._sounds_in(speech, end, speech.end_ns)):
            loudest = max(sounds, key=lambda s: s.dbfs)
            at_ms = ns_to_ms(loudest.at_ns - speech.end_ns)
            bed = ", which went on" if loudest.bed else ""
            told = f"sound that is no speech came at {at_ms:.0f} ms ({loudest.dbfs:.0f} dBFS{bed})"
        return why if told is None else f"{why}: {told}"

    def _agent_turns_in(self, speech: UserSpeech) -> tuple[AgentMarks, ...]:
        """Agent turns whose audio was first sent, or which got no further, in this turn."""
        upto = self._next_start(speech)
        reached = [(reached_ns(a), a) for a in self._agent_turns.values()]
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
        """Return why the agent failed in this turn, according to messages that are not marks.

        If the agent replied and sends marks, the marks decide, because they show which attempt
        failed. If it sends none, a fault that it reported while the person still spoke belongs to
        an attempt that nobody missed.
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

    def _reply_text(self, speech: UserSpeech, stale: Sequence[Stretch]) -> str:
        """Return the text that the agent says it spoke in this turn.

        Until the agent drops an interrupted reply, its text belongs to that reply. The pieces of
        one reply join as they are; a flush between two pieces begins another reply.
        """
        upto = self._next_start(speech)
        flushed_ns = self._heard.flushed_after(speech.start_ns - 1)
        since = speech.start_ns
        if stale and flushed_ns is not None and flushed_ns < upto:
            since = flushed_ns
        replies: dict[int, list[str]] = {}
        for piece in self._texts:
            if since <= piece.at_ns < upto:
                flushes = self._heard.flushes_until(piece.at_ns)
                replies.setdefault(flushes, []).append(piece.text)
        texts = ("".join(pieces).strip() for pieces in replies.values())
        return " ".join(text for text in texts if text)


_WHY_NO_GAP: dict[TurnEnd, str] = {
    "reply_done": "the reply held no audible speech",
    "timeout": "no audible reply before the caller stopped waiting",
    "interrupted": "the next turn began before any reply",
    "line_lost": "the line was lost before any reply",
}
