"""The agent's marks of its turns, gathered from what passes through the pipeline. No I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field

from turngap.core.audio import Pcm, SpeechDetector, SpeechStart
from turngap.core.clock import ms_to_ns, samples_to_ns

Report = Callable[[int, dict[str, int]], None]

# A turn decision that follows the final transcript this closely was waiting for it.
SAME_STEP_MS = 10.0


@dataclass(slots=True)
class _Track:
    """Finds the first audible sample of a stream of chunks, each with its instant."""

    detector: SpeechDetector | None = None
    first_ns: int = 0
    rate: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    done: bool = False

    def feed(self, at_ns: int, pcm: Pcm, rate: int) -> tuple[int, int] | None:
        """The audible sample's index and its chunk's instant, once it is known."""
        if self.done:
            return None
        if self.detector is None:
            self.detector, self.first_ns, self.rate = SpeechDetector(rate), at_ns, rate
        total = (self.chunks[-1][0] if self.chunks else 0) + len(pcm)
        self.chunks.append((total, at_ns))
        for event in self.detector.feed(pcm):
            if isinstance(event, SpeechStart):
                self.done = True
                return event.sample, next(at for n, at in self.chunks if n > event.sample)
        return None


@dataclass(slots=True)
class _AgentTurn:
    number: int
    marks: dict[str, int]
    tts: _Track = field(default_factory=_Track)
    out: _Track = field(default_factory=_Track)


class MarksRecorder:
    """Turns instants into one report per agent turn.

    A turn begins with the request to the LLM and takes with it the endpoint and transcript before.
    It is reported when the agent stops speaking, is interrupted, or makes its next request: after
    the turn, so that reporting does not disturb it.

    Args:
        hold_ms: how long the turn-taking holds the turn's end after the VAD's stop.
        report: called with the turn's number and its marks (ns of the clock that stamped them).
        eager: report what there is when the first audible sample is written, and all of it later.
    """

    def __init__(self, hold_ms: float, report: Report, *, eager: bool = False) -> None:
        self._hold_ns = ms_to_ns(hold_ms)
        self._eager = eager
        self._report = report
        self._pending: dict[str, int] = {}
        self._vad_stop_ns: int | None = None
        self._turn: _AgentTurn | None = None
        self._count = 0

    def vad_stopped(self, at_ns: int) -> None:
        """The VAD says that the user is silent."""
        self._vad_stop_ns = at_ns

    def transcript(self, at_ns: int) -> None:
        """A final transcript left the STT."""
        self._pending["transcript"] = at_ns

    def user_started(self) -> None:
        """The user speaks (on): what was pending for an answer is no longer the end of the turn."""
        self._pending = {}
        self._vad_stop_ns = None

    def turn_decided(self, at_ns: int) -> None:
        """The turn's end was decided.

        Pipecat announces it just before or just after it hands the context to the LLM. Its
        strategies decide only once a transcript is there: where the decision came in the same step
        as the transcript, the endpoint was due before it and the wait was the STT's.
        """
        marks = self._pending
        if self._turn is not None and "endpoint" not in self._turn.marks:
            requested_ns = self._turn.marks["llm_request"]
            if at_ns - requested_ns < ms_to_ns(SAME_STEP_MS):
                marks, at_ns = self._turn.marks, min(at_ns, requested_ns)
        transcript_ns, due_ns = marks.get("transcript"), at_ns
        if transcript_ns is not None and self._vad_stop_ns is not None:
            waited_for_it = 0 <= at_ns - transcript_ns < ms_to_ns(SAME_STEP_MS)
            if waited_for_it and transcript_ns > self._vad_stop_ns:
                due_ns = min(at_ns, self._vad_stop_ns + self._hold_ns)
        marks["endpoint"] = due_ns

    def llm_requested(self, at_ns: int) -> None:
        """The context left for the LLM: a new turn of the agent."""
        self.finish()
        self._count += 1
        self._turn = _AgentTurn(self._count, {**self._pending, "llm_request": at_ns})
        self._pending = {}

    def mark(self, name: str, at_ns: int) -> None:
        """A mark of the running turn; only its first instant counts."""
        if self._turn is not None:
            self._turn.marks.setdefault(name, at_ns)

    def tts_audio(self, at_ns: int, pcm: Pcm, rate: int) -> None:
        """Audio left the TTS.

        `tts_first_audible` is the earliest instant at which the first audible sample could sound if
        the TTS's audio were played as it comes: not before it was made, and not before what lies in
        front of it has been played. So leading silence shows as a stage, however fast it was made.
        """
        if self._turn is None:
            return
        self.mark("tts_first_audio", at_ns)
        if found := self._turn.tts.feed(at_ns, pcm, rate):
            sample, made_ns = found
            played_ns = self._turn.tts.first_ns + samples_to_ns(sample, rate)
            self.mark("tts_first_audible", max(made_ns, played_ns))

    def sent(self, at_ns: int, pcm: Pcm, rate: int) -> None:
        """Audio was written to the line; `sent` is the chunk with the first audible sample."""
        if self._turn is not None and (found := self._turn.out.feed(at_ns, pcm, rate)):
            self.mark("sent", found[1])
            if self._eager:
                self._report(self._turn.number, dict(self._turn.marks))

    def finish(self) -> None:
        """The running turn is over: report it."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._report(turn.number, turn.marks)
