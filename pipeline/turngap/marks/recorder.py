"""The marks of the agent's turns, gathered from instants. No I/O and no pipecat."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from turngap.backends import Decision, Kind
from turngap.core.audio import Pcm
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.counts import add_counts
from turngap.core.events import ToolCall
from turngap.marks.turn import AgentTurn, costs

# A turn decision that follows the final transcript this closely was waiting for it.
SAME_STEP_MS = 10.0

# The VAD takes a cough or a door for speech, but with its hangover hardly for this long.
SPEECH_MS = 700.0
# An error this long before the person is heard to speak is of another turn. A recogniser that was
# stuck hands on what it had held up at once, the beginning of the speech included.
STALE_ERROR_MS = 1000.0


Report = Callable[[AgentTurn], None]


class MarksRecorder:
    """A recorder that makes one report per agent turn from instants.

    A turn begins with the request to the LLM and includes the endpoint and transcript before it. It
    is reported when the agent stops speaking, is interrupted, or makes its next request: after the
    turn, so that reporting does not disturb it. A failed turn is also reported at once, as it may
    end in none of these ways.

    An answer that begins before the user's turn is over (`guessed`) becomes a turn when the turn's
    end is decided, with the marks that it has by then, or is forgotten (`withdrawn`).

    Args:
        hold_ms: how long turn-taking holds the turn's end after the VAD's stop.
        report: called with the turn.
        eager: report a turn when its first audible sample is written, too, and not only at its end.
    """

    def __init__(self, hold_ms: float, report: Report, *, eager: bool = False) -> None:
        self._hold_ns = ms_to_ns(hold_ms)
        self._eager = eager
        self._report = report
        self._next = AgentTurn(0, {})  # what is known of the next turn before it is asked for
        self._vad_stop_ns: int | None = None
        self._silence_ns = 0  # before the VAD's stop
        self._turn: AgentTurn | None = None
        self._latest: AgentTurn | None = None  # the running turn, or the one before it
        self._calling: dict[str, tuple[AgentTurn, int]] = {}
        self._guess: AgentTurn | None = None
        self._count = 0
        self._unheard: dict[str, int] = {}  # errors before the LLM in this turn, with instants
        self._speech_since_ns: int | None = None
        self._speech_ns = 0  # since the last turn was decided
        self._partial = False  # whether the recogniser has said anything of it
        self._deaf = False  # a recogniser is late with a turn whose speech is over
        self._unread: str | None = None  # of a turn that was decided without a final word

    @property
    def _making(self) -> AgentTurn | None:
        return self._guess or self._turn

    def vad_stopped(self, at_ns: int, silence_ms: float = 0.0) -> None:
        """Note that the user is silent, and has been for `silence_ms`."""
        self._vad_stop_ns = at_ns
        self._silence_ns = ms_to_ns(silence_ms)
        if self._speech_since_ns is not None:
            self._speech_ns += at_ns - self._speech_since_ns
            self._speech_since_ns = None

    def transcript(self, at_ns: int) -> None:
        self._next.marks["transcript"] = at_ns

    def partial(self) -> None:
        """Note an interim transcript."""
        self._partial = True

    def user_started(self, at_ns: int) -> None:
        """Note that the user speaks or speaks on: the turn was not over yet."""
        self._forget_end()
        self._speech_since_ns = at_ns
        recent_ns = at_ns - ms_to_ns(STALE_ERROR_MS)
        self._unheard = {e: ns for e, ns in self._unheard.items() if ns >= recent_ns}

    def typed(self) -> None:
        """Note that the person types: no earlier sound belongs to the turn that answers it."""
        self._forget_end()

    def _forget_end(self) -> None:
        self._next.marks = {}
        self._vad_stop_ns = self._next.silent_ns = None

    def turn_decided(self, at_ns: int, decision: Decision | None = None) -> None:
        """Note that the turn's end was decided, which also confirms a guess.

        Pipecat announces the decision just before or just after it hands the context to the LLM.
        Its strategies decide only once a transcript is there: if the decision came in the same step
        as the transcript, the endpoint was due before it and the wait was the STT's.
        """
        self._miss_words()
        turn, self._guess = self._guess, None
        if turn is not None:  # it may be heard from now on
            turn.release(at_ns)
            turn.marks = {**self._next.marks, **turn.marks}
            self._begin(turn)
        if turn is None and (turn := self._just_requested(at_ns)) is not None:
            at_ns = min(at_ns, turn.marks["llm_request"])
        decided = turn or self._next
        decided.silent_ns = self._silent_since(decision)
        if decision is None:
            due_ns = self._due_ns(at_ns, decided.marks.get("transcript"))
            decided.marks["endpoint"] = due_ns
        else:
            decided.marks["endpoint"] = decision.at_ns
            decided.counts["hold_ms"] = decision.hold_ms
            decided.why = decision.why

    def _silent_since(self, decision: Decision | None) -> int | None:
        if decision is not None:
            return decision.at_ns - ms_to_ns(decision.hold_ms)
        return None if self._vad_stop_ns is None else self._vad_stop_ns - self._silence_ns

    def _miss_words(self) -> None:
        """Note that a recogniser has given no final transcript of speech that was certain."""
        speech_ms, self._speech_ns = ns_to_ms(self._speech_ns), 0
        partial, self._partial = self._partial, False
        if "transcript" in self._next.marks or self._making is not None:
            return
        if self._unheard:
            return
        none = f"no transcript of {speech_ms / 1000:.1f} s of speech"
        if partial:
            self._unread = "stt: interim transcripts, but no final one"
        elif speech_ms >= SPEECH_MS and self._deaf:
            self._unread = f"stt: {none}"
        elif speech_ms >= SPEECH_MS:
            self.silent("stt", none)  # there were no words in it, as far as anybody knows
        if self._unread:
            self._report(AgentTurn(0, {}, error=self._unread))

    def _just_requested(self, decided_ns: int) -> AgentTurn | None:
        """Return the running turn, if its decision is announced in the step that requested it."""
        turn = self._turn
        if turn is None or "endpoint" in turn.marks:
            return None
        late_ns = decided_ns - turn.marks["llm_request"]
        return turn if late_ns < ms_to_ns(SAME_STEP_MS) else None

    def _due_ns(self, decided_ns: int, transcript_ns: int | None) -> int:
        """Return when the turn's end was due without the wait for its transcript."""
        if transcript_ns is None or self._vad_stop_ns is None:
            return decided_ns
        waited_for_it = 0 <= decided_ns - transcript_ns < ms_to_ns(SAME_STEP_MS)
        if not waited_for_it or transcript_ns <= self._vad_stop_ns:
            return decided_ns
        return min(decided_ns, self._vad_stop_ns + self._hold_ns)

    def llm_requested(self, at_ns: int) -> None:
        marks = {**self._next.marks, "llm_request": at_ns}
        self._begin(AgentTurn(0, marks, why=self._next.why))

    def guessed(self, at_ns: int) -> None:
        """Begin a guess: a context left for the LLM before the user's turn was over."""
        self._guess = AgentTurn(0, {"llm_request": at_ns})

    def withdrawn(self) -> None:
        """Forget the guess. Nothing of it will be heard, but the turn pays for it."""
        guess, self._guess = self._guess, None
        if guess is not None:
            add_counts(self._next.counts, costs(guess.counts))

    def failed(self, error: str) -> None:
        """Note that the answer failed, or stopped in the middle."""
        if (turn := self._making) is None:
            return
        turn.error = turn.error or error
        if turn is self._turn:
            self._report(turn)

    def late(self, kind: Kind, why: str) -> None:
        """Note that an engine is late with the answer; with an empty `why`, that it continues.

        A recogniser's lateness is reported at once, as there is no request yet, and never taken
        back: a later reply shows in its turn that it came.
        """
        if kind == "stt":
            if why:
                self._report(AgentTurn(0, {}, error=f"stt: {why}"))
            self._deaf = bool(why) and self._speech_since_ns is None
            return
        turn = self._making
        if turn is None or turn.late.get(kind, "") == why:
            return
        turn.late[kind] = f"{kind}: {why}" if why else ""
        if turn is self._turn:
            self._report(turn)

    def silent(self, kind: Kind, why: str) -> None:
        """Note why there is nothing to hear, though no engine has failed; reported at once."""
        self._report(AgentTurn(0, {}, no_reply=f"{kind}: {why}"))

    def unheard(self, error: str, at_ns: int) -> None:
        """Note an error of an engine before the LLM, which may keep the LLM from being asked.

        It is reported at once, and counts for the next request if there is one.
        """
        if self._deaf and error.startswith("stt: "):
            self._deaf = False  # reported when it was late; the person may be a turn further now
            return
        if error not in self._unheard:
            self._unheard[error] = at_ns
            self._report(AgentTurn(0, {}, error=error))

    def said(self, at_ns: int) -> None:
        """Note a piece of the answer from the LLM: a token, with most LLMs."""
        self.mark("llm_first_token", at_ns)
        if (turn := self._making) is not None and "llm_request" in turn.marks:
            turn.said(at_ns)

    def thought(self, at_ns: int) -> None:
        """Note a piece of the LLM's thoughts, which are no part of the answer."""
        if (turn := self._making) is not None:
            turn.thought(at_ns)

    def used(
        self, prompt_tokens: int, completion_tokens: int, cached: Mapping[str, float] | None = None
    ) -> None:
        """Count the tokens of a request, whatever its outcome.

        `cached` has the numbers of prompt tokens that were read from a cache or written to one.
        """
        self.count("llm_prompt_tokens", prompt_tokens)
        self.count("llm_completion_tokens", completion_tokens)
        for name, tokens in (cached or {}).items():
            self.count(name, tokens)
        if (turn := self._making) is not None:
            turn.used(completion_tokens)

    def tool_called(
        self, call_id: str, name: str, arguments: Mapping[str, Any], at_ns: int
    ) -> None:
        """Note that a tool begins to run. Guesses call none, so it belongs to the latest turn.

        It is a mark only if the agent's first word waits for it.
        """
        if (turn := self._latest) is None:
            return
        turn.calls[call_id] = ToolCall(name, dict(arguments))
        self._calling[call_id] = turn, at_ns
        if "llm_first_token" not in turn.marks:
            turn.marks.setdefault("tool_call", at_ns)
        self._tell_late(turn)

    def tool_returned(
        self, call_id: str, at_ns: int, *, result: str | None = None, error: str | None = None
    ) -> None:
        turn, called_ns = self._calling.pop(call_id, (None, 0))
        if turn is None:
            return
        ms = ns_to_ms(at_ns - called_ns)
        turn.calls[call_id] = replace(turn.calls[call_id], ms=ms, result=result, error=error)
        if "tool_call" in turn.marks and "llm_first_token" not in turn.marks:
            turn.marks["tool_result"] = at_ns  # of several, the last one
        self._tell_late(turn)

    def tool_cancelled(self, call_id: str) -> None:
        turn, _ = self._calling.pop(call_id, (None, 0))
        if turn is not None:
            turn.calls[call_id] = replace(turn.calls[call_id], error="cancelled")
            self._tell_late(turn)

    def _tell_late(self, turn: AgentTurn) -> None:
        """Report a finished turn once more: a call may outlive the words before it."""
        if turn is not self._turn:
            self._report(turn)

    def count(self, name: str, n: float) -> None:
        """Add to a figure of the turn that is being answered, or of the next one."""
        (self._making or self._next).count(name, n)

    def heard(self, counts: Mapping[str, float]) -> None:
        """Add to figures of the next turn, which answers all that was heard."""
        add_counts(self._next.counts, counts)

    def _begin(self, turn: AgentTurn) -> None:
        self.finish()
        self._count += 1
        turn.number = self._count
        before, self._next = self._next, AgentTurn(0, {})
        add_counts(turn.counts, before.counts)
        # A late transcript is answered like any other.
        unread = None if "transcript" in turn.marks else self._unread
        turn.error = turn.error or next(iter(self._unheard), unread)
        turn.silent_ns = before.silent_ns
        self._unheard, self._unread = {}, None
        self._turn = self._latest = turn
        if turn.failure:
            self._report(turn)

    def mark(self, name: str, at_ns: int) -> None:
        """Set a mark of the answer that is being made; only its first instant counts."""
        turn = self._making
        if turn is None or (name.startswith("tts_") and self._is_of_another(turn)):
            return
        turn.marks.setdefault(name, at_ns)

    def _is_of_another(self, turn: AgentTurn) -> bool:
        """Return whether the TTS still speaks an earlier guess: this one has no words yet."""
        return turn is self._guess and "llm_first_token" not in turn.marks

    def tts_audio(self, at_ns: int, pcm: Pcm, rate: int) -> None:
        """Note audio from the TTS.

        `tts_first_audible` is the earliest instant at which the first audible sample could sound if
        the TTS's audio were played as it comes: not before it was made, and not before the audio in
        front of it has been played. So leading silence shows as a stage, however fast it was made.
        The answer to a guess is played once the turn is over.
        """
        turn = self._making
        if turn is None or self._is_of_another(turn):
            return
        self.mark("tts_first_audio", at_ns)
        turn.spoke(at_ns, pcm, rate)

    def sent(self, at_ns: int, pcm: Pcm, rate: int) -> None:
        """Note audio written to the line; `sent` marks the chunk with the first audible sample."""
        if self._turn is not None and (found := self._turn.out.feed(at_ns, pcm, rate)):
            self._turn.marks.setdefault("sent", found[1])
            if self._eager:
                self._report(self._turn)

    def finish(self, *, interrupted: bool = False) -> None:
        """Note that the running turn, if there is one, will not be heard further."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.interrupted = interrupted and "sent" in turn.marks
            self._report(turn)
