"""The turn tracker: events of one conversation in, finished turns out. No I/O, no own clock."""

from bisect import insort
from collections.abc import Mapping, Sequence
from math import inf

from turngap.core.audio import AUDIBLE_DBFS, UNPLACED_MS
from turngap.core.budget import TurnEnd, outcome_of
from turngap.core.clock import NS_PER_MS, ms_to_ns, ns_to_ms
from turngap.core.credits import (
    EARLY_MS,
    SENTENCE_MS,
    SENTENCES_APART_MS,
    Credits,
    HeardSpeech,
    Stretch,
    any_in,
    credits_of,
    earliest_ns,
    error_of,
    heard_turn,
    is_over,
    is_short,
    is_sudden,
    lead_of,
    marks_of,
    may_hold,
    reached_ns,
    yield_of,
)
from turngap.core.events import (
    AgentBed,
    AgentSilence,
    AgentSound,
    AgentSpeech,
    Event,
    Fault,
    Flush,
    Marks,
    NoReply,
    ReplyText,
    TrackedTurn,
    Transcript,
    TurnBroken,
    TurnEnded,
    TurnOver,
    UserBackchannel,
    UserSpeech,
)
from turngap.core.stages import Slack, stages_of, why_impossible

# An answer is sudden that comes within so much of the gap before it.
SUDDEN = 0.8
# An interrupted agent is silent by then.
YIELDS_MS = 1500.0
HOLD_GUESS = "the start was taken for a hold phrase, by its length and the silence after it"
NO_HOLD_GUESS = "the start may be a hold phrase, but the silence after it is short"
ASSENT_GUESS = "a sound that ended with the person was taken for assent, by its length, no cut-in"


class TurnTracker:
    """Tracker that assigns the events on the line to the user's turns.

    `UserSpeech` announces a turn and `TurnEnded` closes it; events between two announced onsets
    belong to the earlier one. Events are kept with their instants and read when a turn is asked
    for, so the order of all but `TurnEnded` is free: marks may come late or for unknown turns,
    silence without speech, flushes with nothing to flush. Events after a turn's end belong to
    neither this turn nor any other.

    `turngap.core.credits` decides which of the agent's speech is the reply. A turn may end without
    an answer, or maybe with a hold phrase only. Such a turn keeps its claim on the speech in the
    next turn.

    Attributes:
        slack: the possible error of the agent's marks.
        tells_flushes: the protocol has a message that drops audio not played yet.
    """

    def __init__(self, slack: Slack = Slack(), *, tells_flushes: bool = True) -> None:  # noqa: B008, it is frozen
        self.slack = slack
        self.tells_flushes = tells_flushes
        self._announced: dict[int, UserSpeech] = {}
        self._finished: set[int] = set()
        self._heard = HeardSpeech()
        # These lists are in the order of their instants.
        self._sounds: list[AgentSound] = []
        self._beds: list[AgentBed] = []
        self._transcripts: list[Transcript] = []
        self._texts: list[ReplyText] = []
        self._agent_turns: dict[int, Marks] = {}
        self._faults: list[Fault | NoReply] = []
        self._endpoints_told: list[int] = []
        self._broken: list[TurnBroken] = []
        self._hums: list[int] = []
        # Whose answer is yet to come: surely (0), or maybe, as that many parts of one were heard;
        # and that turn.
        self._unheard: tuple[UserSpeech, TurnEnded, int, TrackedTurn] | None = None
        self._dues: list[int] = []
        # What follows from speech, silences, flushes and turns, until one of these changes: an
        # agent may send a hundred thousand other messages, and each is followed by questions.
        self._known: dict[int, Credits] = {}

    def feed(self, event: Event) -> tuple[TrackedTurn, ...]:
        """Take one event; return the turns that it finished (none or one).

        A `UserSpeech` for an open turn replaces the earlier one. A `UserSpeech` for a finished
        turn, and a `TurnEnded` for a turn that is not open, are ignored.
        """
        if isinstance(event, TurnEnded):
            return self._end(event)
        self._keep(event)
        return ()

    def _end(self, event: TurnEnded) -> tuple[TrackedTurn, ...]:
        if event.turn not in self._announced or event.turn in self._finished:
            return ()
        self._finished.add(event.turn)
        speech = self._announced[event.turn]
        credits = self._credits(speech, event.at_ns)
        turn = self._finish(speech, event, credits)
        silent = any(speech.start_ns <= f.at_ns <= event.at_ns for f in self._faults)
        heard = turn.parts_ns or turn.ambiguous
        if event.reason == "timeout":
            if turn.error is None and not silent and (self._owed() or not heard):
                self._unheard = (speech, event, 0, turn)
        elif turn.onset_ns is not None:
            parts = 0 if event.more == "due" else len(credits.parts(speech)) or 1
            goes_on = event.more or (turn.ambiguous and turn.outcome == "cut_in")
            self._unheard = (speech, event, parts, turn) if goes_on else None
        self._known.clear()
        return (turn,)

    def announce(self, at_ns: int) -> None:
        """Note that the agent has announced more of its reply."""
        self._dues.append(at_ns)

    def _keep(self, event: Event) -> None:
        match event:
            case UserSpeech():
                if event.turn not in self._finished:
                    self._announced[event.turn] = event
                    self._known.clear()
            case AgentSpeech() | AgentSilence() | Flush():
                self._heard.add(event)
                self._known.clear()
            case AgentSound():
                insort(self._sounds, event, key=lambda e: e.at_ns)
            case UserBackchannel(at_ns):
                insort(self._hums, at_ns)
                self._known.clear()
            case AgentBed():
                insort(self._beds, event, key=lambda e: e.at_ns)
            case Marks():
                self._merge(event)
            case Fault() | NoReply():
                insort(self._faults, event, key=lambda e: e.at_ns)
            case TurnOver(at_ns=at_ns):
                insort(self._endpoints_told, at_ns)
                self._known.clear()
            case Transcript():
                insort(self._transcripts, event, key=lambda e: e.at_ns)
            case ReplyText():
                insort(self._texts, event, key=lambda e: e.at_ns)
            case TurnBroken():
                insort(self._broken, event, key=lambda e: e.at_ns)
            case TurnEnded():  # keeps nothing: it asks
                pass

    def onset_of(self, turn: int) -> int | None:
        """Return when the reply to an open turn began; None if it has not or the turn is closed."""
        reply = self._open(turn).reply
        return reply[0].start_ns if reply else None

    def is_owed(self, turn: int) -> bool:
        """Return whether an open turn still lacks speech that could be its whole answer."""
        speech, credits = self._announced.get(turn), self._open(turn)
        return speech is not None and (credits.dropped or not credits.parts(speech))

    def may_go_on(self, turn: int) -> bool:
        """Return whether an open turn's reply so far may be no more than a hold phrase."""
        speech = self._announced.get(turn)
        answer = None if speech is None else self._open(turn).answer(speech)
        return answer is not None and is_short(answer)

    def _open(self, turn: int) -> Credits:
        if turn not in self._announced or turn in self._finished:
            return Credits()
        if turn not in self._known:
            self._known[turn] = self._credits(self._announced[turn])
        return self._known[turn]

    def has_heard_marks(self, turn: int) -> bool:
        """Return whether the agent's marks report a reply that it sent in this turn, still open."""
        if turn not in self._announced or turn in self._finished:
            return False
        return any("sent" in a.marks for a in self._agent_turns_in(self._announced[turn]))

    @property
    def first_onset_ns(self) -> int | None:
        """Return when the agent first spoke; None if it has not."""
        heard = self._heard.stretches()
        return heard[0].start_ns if heard else None

    @property
    def agent_speaking(self) -> bool:
        heard = self._heard.stretches()
        return bool(heard) and heard[-1].end_ns is None

    def _merge(self, event: Marks) -> None:
        """Merge the event into its agent turn; an agent may report one turn in several pieces."""
        if not event.agent_turn and not event.raw:  # of no turn of its own: each stands for itself
            self._agent_turns[-1 - len(self._agent_turns)] = event
            return
        if known := self._agent_turns.get(event.agent_turn):
            event = known.then(event)
        self._agent_turns[event.agent_turn] = event

    def _next_start(self, speech: UserSpeech) -> float:
        """Return when the next announced turn begins; inf if there is none."""
        starts = (other.start_ns for other in self._announced.values())
        return min((ns for ns in starts if ns > speech.start_ns), default=inf)

    def _credits(self, speech: UserSpeech, ended_ns: float = inf) -> Credits:
        return credits_of(
            speech,
            self._heard,
            min(self._next_start(speech), ended_ns + 1),
            hums=self._hums,
            decided=self._all_decided(),
            first=speech.start_ns <= min(s.start_ns for s in self._announced.values()),
            owed=self._owed(0) is not None,
        )

    def _finish(self, speech: UserSpeech, end: TurnEnded, credits: Credits) -> TrackedTurn:
        # Where the wait ran out, what came after it is late.
        late = end.reason == "timeout"
        reply = None if late or not credits.reply else credits.reply[0]
        answer = credits.answer(speech)
        hidden = None
        if reply and (reply.spread_ns or 0) >= ms_to_ns(UNPLACED_MS):  # no one can tell where
            hidden, answer = reply, None if answer is reply else answer
            reply = None
        spreads = [one.spread_ns for one in (reply, answer) if one and one.spread_ns is not None]
        answer_ns = answer.start_ns - speech.end_ns if answer else None
        gap_ns = reply.start_ns - speech.end_ns if reply else None
        agent_turns = self._agent_turns_in(speech)
        heard = heard_turn(agent_turns, reply, self.slack)
        marks = marks_of(speech, heard, reply)
        why_no_marks = self._why_no_marks(speech, heard, marks) if reply else None
        if why_no_marks is not None:
            marks = marks_of(speech, None, reply)
        error = error_of(speech, agent_turns, heard, replied=reply is not None)
        error = error or self._told_error(speech, end, agent_turns, replied=reply is not None)
        error = error or self._why_broken(speech, end)
        outcome = outcome_of(
            None if gap_ns is None else ns_to_ms(gap_ns),
            speech.budget_ms,
            end.reason,
            failed=error is not None,
        )
        next_ns = int(min(self._next_start(speech), end.at_ns))
        ambiguous, owed = self._ambiguous(speech, credits, heard), self._owed()
        return TrackedTurn(
            turn=speech.turn,
            outcome=outcome,
            ended=end.reason,
            user_start_ns=speech.start_ns,
            user_end_ns=speech.end_ns,
            onset_ns=reply.start_ns if reply else None,
            gap_ns=gap_ns,
            why_no_gap=None if reply else self._why_no_gap(speech, end, error, answer_ns, hidden),
            why_no_marks=why_no_marks,
            error=error,
            stages=stages_of(marks) if reply else (),
            marks=marks,
            agent_turns=agent_turns,
            transcript=self._transcript(speech),
            reply=self._reply_text(speech, credits.old),
            first_answer_ns=answer_ns,
            parts_ns=tuple((one.start_ns, one.end_ns) for one in credits.reply),
            false_starts=len(credits.false_starts),
            backchannels_heard=len(credits.backchannels),
            ambiguous=ambiguous,
            claimed_by=(owed.turn if owed else speech.turn - 1)
            if ambiguous and (owed or credits.early)
            else None,
            guesses=self._guesses(speech, credits),
            yield_ns=yield_of(speech, credits.old, self._heard, tells_flushes=self.tells_flushes),
            lead_ns=lead_of(reply, gap_ns),
            endpoints_ns=self._endpoints(speech, replied=reply is not None),
            ended_ns=end.at_ns,
            first_sound_ns=self._first_sound(speech, end, reply),
            onset_spread_ns=max(spreads, default=None) if reply else None,
            playout_ns=reply.playout_ns if reply else None,
            bed_dbfs=self._bed(end.at_ns),
            waited_ns=next_ns - speech.end_ns if outcome == "abandoned" else None,
        )

    def _ambiguous(
        self, speech: UserSpeech, credits: Credits, heard: Marks | None
    ) -> tuple[str, ...]:
        """Say why the reply in this turn may belong to another turn."""
        owed = self._owed(0)
        if credits.background and credits.reply:
            return ("all speech in it is far softer than the agent's usual voice",)
        if credits.early:
            began_ms = ns_to_ms(credits.early[0].start_ns - speech.start_ns)
            whose = "the turn before" if owed is None else f"turn {owed.turn}"
            return (
                f"speech from {began_ms:.0f} ms after the person's first word on was taken for the "
                f"answer to {whose}",
            )
        old = credits.old
        if old and not speech.over_reply and self._heard.flush_of(old[-1]) is None:
            ago_ms = ns_to_ms(speech.start_ns - old[0].start_ns)
            return (
                f"speech from {ago_ms:.0f} ms before the person's first word on was taken for the "
                "answer to the turn before",
            )
        own = heard is not None and heard.marks.get("endpoint", 0) >= speech.start_ns
        if own:
            return ()
        late_ms = ((old[-1].end_ns or inf) - speech.end_ns) / NS_PER_MS if old else 0.0
        whole = credits.reply and old and old[-1].start_ns < earliest_ns(speech)
        if late_ms >= EARLY_MS and not whole:
            until = "on" if late_ms == inf else f"until {late_ms:.0f} ms after the person's end"
            return (
                f"the agent spoke from before the person's first word {until}, and that may hold "
                "its answer",
            )
        if not credits.reply:
            return ()
        if owed is not None:
            return (f"an answer to turn {owed.turn} was not heard, and this may be it",)
        # What is usual after a whole answer says nothing; a cut-in, a second answer, or one that is
        # sudden does.
        answer = credits.answer(speech)
        usual = answer is not None and self._is_usual(speech, credits, answer)
        owed = None if usual else self._owed(1 if answer else None)
        may = "may have heard a hold phrase, and this may be its answer"
        return () if owed is None else (f"turn {owed.turn} {may}",)

    def _is_usual(self, speech: UserSpeech, credits: Credits, answer: Stretch) -> bool:
        """Return whether the answer, or its hold phrase, begins the reply and is not sudden.

        A hold phrase that is longer or much later than the speech in the turn before may be the
        answer to that earlier turn.
        """
        if self._unheard is None:
            return True
        first, before = credits.parts(speech)[0], self._unheard[3]
        gap_ms, before_ms = ns_to_ms(first.start_ns - speech.end_ns), ns_to_ms(before.gap_ns or 0)
        heard_ns = sum((end or before.ended_ns) - start for start, end in before.parts_ns)
        own = first.start_ns == answer.start_ns or (
            is_short(first, ns_to_ms(heard_ns)) and gap_ms < before_ms + EARLY_MS
        )
        comes_first = first.start_ns == credits.reply[0].start_ns
        return own and comes_first and not is_sudden(gap_ms, SUDDEN, before_ms)

    def _guesses(self, speech: UserSpeech, credits: Credits) -> tuple[str, ...]:
        """List the decisions that only the shape of the sound supports."""
        found: list[str] = []
        parts, answer, old = credits.parts(speech), credits.answer(speech), credits.old
        if answer and answer.start_ns != parts[0].start_ns:
            begun_ns = parts[0].start_ns
            if not any(begun_ns < at <= answer.start_ns for at in self._dues):
                found.append(HOLD_GUESS)
        elif len(parts) > 1 and may_hold(parts[0], parts[1], SENTENCE_MS, SENTENCES_APART_MS):
            found.append(NO_HOLD_GUESS)
        near = [one for one in credits.backchannels if not is_over(one, speech)]
        if near and not any_in(self._all_decided(), near[0].start_ns, credits.reply[0].start_ns):
            found.append(ASSENT_GUESS)
        ended_ns = old[-1].end_ns if old and speech.over_reply else None
        if ended_ns is not None and self.tells_flushes and self._heard.flush_of(old[-1]) is None:
            stopped_ms = ns_to_ms(ended_ns - speech.start_ns)
            if stopped_ms < YIELDS_MS:
                found.append(
                    f"the agent fell silent {stopped_ms:.0f} ms after the person had begun and did "
                    "not say that it was interrupted: no yield, because it may have finished"
                )
        return tuple(found)

    def _owed(self, most_parts: int | None = None) -> UserSpeech | None:
        """Return the turn whose answer is owed; None if there is none, or if reports skip it."""
        if self._unheard is None:
            return None
        speech, end, parts, _ = self._unheard
        if most_parts is not None and parts > most_parts:
            return None
        told = sorted([*self._decided(), *(t.at_ns for t in self._transcripts)])
        return speech if not told or any_in(told, speech.start_ns, end.at_ns) else None

    def _sounds_in(self, speech: UserSpeech, end: TurnEnded, since_ns: int) -> list[AgentSound]:
        upto = min(self._next_start(speech), end.at_ns)
        return [s for s in self._sounds if since_ns <= s.at_ns < upto]

    def _bed(self, at_ns: float) -> float | None:
        """Return the level of the background sound at that time, if it was audible."""
        before = [bed for bed in self._beds if bed.at_ns <= at_ns]
        return before[-1].dbfs if before else None

    def _first_sound(self, speech: UserSpeech, end: TurnEnded, reply: Stretch | None) -> int | None:
        cut_in = reply is not None and reply.start_ns < speech.end_ns
        sounds = self._sounds_in(speech, end, speech.start_ns if cut_in else speech.end_ns)
        starts = [s.at_ns for s in sounds if s.dbfs >= AUDIBLE_DBFS] + (
            [reply.start_ns] if reply else []
        )
        return min(starts, default=None)

    def _why_no_marks(
        self, speech: UserSpeech, heard: Marks | None, marks: Mapping[str, int]
    ) -> str | None:
        """Return why no mark of the agent explains the reply; None if one does or none was sent."""
        if heard is None:
            told = any(a.marks for a in self._agent_turns.values())
            return "none of the agent's marks is of a reply in this turn" if told else None
        return why_impossible(marks, speech.start_ns, self.slack.at(marks["agent_onset"]))

    def _why_broken(self, speech: UserSpeech, end: TurnEnded) -> str | None:
        upto = min(self._next_start(speech), end.at_ns)
        within = (b.why for b in self._broken if speech.start_ns <= b.at_ns <= upto)
        return next(within, None)

    def _why_no_gap(
        self,
        speech: UserSpeech,
        end: TurnEnded,
        error: str | None,
        answer_ns: int | None,
        hidden: Stretch | None,
    ) -> str:
        if error is not None:
            return f"the agent failed: {error}"
        if hidden is not None:
            at_ms, bed_dbfs = ns_to_ms(hidden.start_ns - speech.end_ns), self._bed(hidden.start_ns)
            under = "" if bed_dbfs is None else f" under the bed ({bed_dbfs:.0f} dBFS)"
            return f"the first word, near {at_ms:,.0f} ms, cannot be placed{under}"
        upto = min(self._next_start(speech), end.at_ns)
        silent = (f for f in self._faults if isinstance(f, NoReply))
        told = next((s.why for s in silent if speech.start_ns <= s.at_ns <= upto), None)
        why = _WHY_NO_GAP[end.reason]
        if answer_ns is not None:
            why += f"; the answer came {ns_to_ms(answer_ns):,.0f} ms after the person's end"
        elif told is None and (bed_dbfs := self._bed(upto)) is not None:
            told = f"the agent is never silent ({bed_dbfs:.0f} dBFS), and no speech rose above that"
        elif told is None and (sounds := self._sounds_in(speech, end, speech.end_ns)):
            loudest = max(sounds, key=lambda s: s.dbfs)
            at_ms = ns_to_ms(loudest.at_ns - speech.end_ns)
            what = "that is no speech" if loudest.dbfs >= AUDIBLE_DBFS else "too soft to count"
            told = f"sound {what} came at {at_ms:.0f} ms ({loudest.dbfs:.0f} dBFS)"
            if loudest.dbfs >= AUDIBLE_DBFS:
                told += "; --dialect NAME,first_word=sound counts any sound"
        return why if told is None else f"{why}: {told}"

    def _agent_turns_in(self, speech: UserSpeech) -> tuple[Marks, ...]:
        """Return the agent turns whose audio was first sent in this turn, or that stopped in it."""
        upto = self._next_start(speech)
        reached = [(reached_ns(a), a) for a in self._agent_turns.values()]
        within = [(at, a) for at, a in reached if at is not None and speech.start_ns <= at < upto]
        return tuple(a for _, a in sorted(within, key=lambda pair: pair[0]))

    def _told_error(
        self,
        speech: UserSpeech,
        end: TurnEnded,
        agent_turns: Sequence[Marks],
        *,
        replied: bool,
    ) -> str | None:
        """Return why the agent failed in this turn, according to messages that are not marks.

        If the agent replied and sends marks, the marks decide, because they show which attempt
        failed. If it sends none, a fault that it reported while the person still spoke belongs to
        an attempt that no one missed.
        """
        if replied and agent_turns:
            return None
        since = speech.end_ns if replied else speech.start_ns
        until = min(self._next_start(speech), end.at_ns)
        faults = (f for f in self._faults if isinstance(f, Fault))
        within = (f.error for f in faults if since <= f.at_ns <= until)
        return next(within, None)

    def _endpoints(self, speech: UserSpeech, *, replied: bool) -> tuple[int, ...] | None:
        """Return when the agent decided that this turn was over, by its marks or its protocol.

        An agent that replied must have decided, so without a decision the times are unknown.
        """
        upto, decided = self._next_start(speech), self._decided()
        within = tuple(at for at in decided if speech.start_ns <= at < upto)
        return within if within or (decided and not replied) else None

    def _decided(self) -> list[int]:
        """Return when the agent considered turns over, by its marks or its protocol."""
        ends = (a.marks["endpoint"] for a in self._agent_turns.values() if "endpoint" in a.marks)
        return sorted(ends) or self._endpoints_told

    def _all_decided(self) -> list[int]:
        return sorted([*self._decided(), *self._endpoints_told])

    def _transcript(self, speech: UserSpeech) -> str:
        upto = self._next_start(speech)
        within = (t.text.strip() for t in self._transcripts if speech.start_ns <= t.at_ns < upto)
        return " ".join(text for text in within if text)

    def _reply_text(self, speech: UserSpeech, old: Sequence[Stretch]) -> str:
        """Return the text that the agent says it spoke in this turn.

        Until the agent drops an interrupted reply, its text belongs to that reply. The pieces of
        one reply join as they are; a flush between two pieces begins another reply.
        """
        upto = self._next_start(speech)
        flushed_ns = self._heard.flushed_after(speech.start_ns - 1)
        since = speech.start_ns
        if old and flushed_ns is not None and flushed_ns < upto:
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
    "hung_up": "the agent ended the call before any reply",
}
