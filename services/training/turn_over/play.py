"""Playing a take to the decisions of `adaptive` in simulated time."""

from collections.abc import Callable
from dataclasses import dataclass

from training.turn_over.hearing import PACKET, Hearing, asked_at
from training.turn_over.takes import RATE, Take
from turngap.core.clock import ms_to_ns
from turngap_services.turn import AdaptiveSettings
from turngap_services.turn import attention as mind
from turngap_services.turn.over import Over
from turngap_services.turn.voice import Voice

# The engines of `embedded`: from a question to its first sound, and from the release of a sound to
# the caller's ear.
ANSWER_MS = 160.0
RELEASE_MS = 15.0
# Smart turn in a thread.
CLASSIFY_MS = 60.0
SILENT_MS = 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a take.

    Attributes:
        gap_ms: from the end of its speech to the answer; negative for a cut-in.
        false_ms: endpoints before its end.
        why: the reason for the last endpoint.
    """

    take: Take
    gap_ms: float
    false_ms: tuple[float, ...]
    why: str
    hold_ms: float

    @property
    def cut_in(self) -> bool:
        return self.gap_ms < 0


class _Replayed:
    """A replay of Silero's earlier judgements."""

    def __init__(self, speech: list[float]) -> None:
        self._speech = iter(speech)

    def __call__(self, window: object) -> float:
        return next(self._speech)


def play(take: Take, hearing: Hearing, settings: AdaptiveSettings, over: Over) -> Outcome:
    """Play one take until an answer to the whole of it, or to a part, is heard."""
    return _Scene(take, hearing, settings, over).play()


class _Scene:
    def __init__(
        self, take: Take, hearing: Hearing, settings: AdaptiveSettings, over: Over
    ) -> None:
        self.take, self.hearing = take, hearing
        self.heard = hearing.hear(take)
        replayed = _Replayed(self.heard.speech)
        self.voice = Voice(RATE, (replayed, replayed), settings.confidence)
        self.mind = mind.Attention(settings, over)
        self.now_ns = 0
        self.text = ""
        self.concluded = 0
        self.asked_ns: int | None = None  # when the answer that is kept was asked for
        self.due: list[tuple[int, Callable[[], None]]] = []
        self.falsely: list[float] = []
        self.sounds_ns: int | None = None
        self.why, self.hold_ms = "", 0.0

    def play(self) -> Outcome:
        pcm = self.take.pcm
        for packet, at in enumerate(range(0, len(pcm) - PACKET + 1, PACKET)):
            until_ns = ms_to_ns((at + PACKET) * 1000 / RATE)
            if self._pass_time(until_ns):
                break
            self.now_ns = until_ns
            self.voice.feed(pcm[at : at + PACKET])
            self.mind.hear(until_ns, self._what_is_heard())
            self._carry_out()
            if packet in self.heard.read:
                self.text = self.heard.read[packet]
                self.mind.read(until_ns, self._rest())
                self._carry_out()
        gap_ms = float("inf")
        if self.sounds_ns is not None:
            gap_ms = self.sounds_ns / 1e6 - self.take.end_ms
        return Outcome(self.take, gap_ms, tuple(self.falsely), self.why, self.hold_ms)

    def _rest(self) -> str:
        return " ".join(self.text.split()[self.concluded :])

    def _pass_time(self, until_ns: int) -> bool:
        """Let time pass; return whether an answer was heard meanwhile."""
        while True:
            at_ns = [d for d in (self.mind.deadline_ns, self.sounds_ns) if d is not None]
            at_ns += [d for d, _ in self.due]
            if not at_ns or min(at_ns) > until_ns:
                return False
            self.now_ns = max(self.now_ns, min(at_ns))
            if self.sounds_ns is not None and self.sounds_ns <= self.now_ns:
                return True
            for one in [one for one in self.due if one[0] <= self.now_ns]:
                self.due.remove(one)
                one[1]()
            self.mind.tick(self.now_ns)
            self._carry_out()

    def _what_is_heard(self) -> mind.Heard:
        voice = self.voice

        def ns(sample: int | None) -> int | None:
            return None if sample is None else ms_to_ns(sample * 1000 / RATE)

        return mind.Heard(
            until_ns=ns(voice.heard) or 0,
            onset_ns=ns(voice.onset),
            audible_ns=ns(voice.last_audible),
            audible_at=voice.last_audible,
            stirring_ns=ns(voice.stirring),
            voiced_ms=voice.voiced_ms,
            melody=voice.melody() if self._is_silent() else None,
        )

    def _is_silent(self) -> bool:
        last = self.voice.last_audible
        return last is not None and (self.voice.heard - last) * 1000 >= SILENT_MS * RATE

    def _carry_out(self) -> None:
        while self.mind.actions:
            match self.mind.actions.pop(0):
                case mind.Settle():
                    self.voice.settle()
                case mind.Conclude():
                    rest, self.concluded = self._rest(), len(self.text.split())
                    self.mind.conclude(self.now_ns, rest, finalized=True)
                case mind.Speculate():
                    self.asked_ns = self.now_ns
                case mind.Withdraw():
                    self.asked_ns = None
                case mind.Withhold() | mind.Begin(interrupt=True):
                    self.sounds_ns = self.asked_ns = None
                case mind.Ask(at):
                    self._later(CLASSIFY_MS, lambda at=at: self._answer(at))
                case mind.End() as end:
                    self._end(end)
                case _:
                    pass

    def _answer(self, at: int) -> None:
        p = self.hearing.complete(self.take, self.heard, asked_at(at))
        self.mind.answer(self.now_ns, at, p)

    def _later(self, ms: float, act: Callable[[], None]) -> None:
        self.due.append((self.now_ns + ms_to_ns(ms), act))

    def _end(self, end: mind.End) -> None:
        self.why, self.hold_ms = end.why, end.hold_ms
        if end.decided_ns / 1e6 < self.take.end_ms:
            self.falsely.append(end.decided_ns / 1e6)
        if end.text:
            asked_ns = self.asked_ns if end.confirmed and self.asked_ns else self.now_ns
            ready_ns = max(asked_ns + ms_to_ns(ANSWER_MS), self.now_ns)
            self.sounds_ns = ready_ns + ms_to_ns(RELEASE_MS)
        self.asked_ns = None
