"""What one conversation showed, before it is judged."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from turngap.caller.conversation import PlayedTurn
from turngap.caller.ear import JITTER_MS, Heard
from turngap.caller.intake import MOST_MESSAGE_BYTES
from turngap.caller.said import AudioBytes, AudioChunk, Flush, Incoming
from turngap.conformance.tap import Came, Log, Went
from turngap.core.clock import ms_to_ns, samples_to_ns
from turngap.core.errors import AgentError
from turngap.core.events import AgentSilence, AgentSpeech, UserSpeech
from turngap.core.untrusted import parse_json

Word = TypeVar("Word")
Status = Literal["pass", "fail", "seen", "not seen"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a server should do, whether it did, and what was seen of it.

    What did not occur is `not seen`, with the reason; it is never a pass. What may be either way is
    `seen`.
    """

    name: str
    status: Status
    seen: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A conversation as it was: what passed on the line, the turns, and what was played.

    Attributes:
        failure: what ended it early, if anything did.
    """

    log: Log
    turns: Sequence[PlayedTurn]
    heard: Sequence[Heard]
    failure: AgentError | None = None

    def words(self) -> list[tuple[int, Incoming]]:
        """Return what the agent said, in order, with the instants of arrival.

        Audio is `AudioBytes` however the dialect hands it on.
        """
        return [(came.at_ns, _as_bytes(word)) for came in self.log.came for word in came.said]

    def said(self, kind: type[Word]) -> list[tuple[int, Word]]:
        """Return what the agent said of one kind."""
        return [(at, word) for at, word in self.words() if isinstance(word, kind)]

    def chunks(self) -> list[tuple[int, AudioBytes]]:
        """Return the agent's audio as it arrived."""
        return self.said(AudioBytes)

    def barge_in(self) -> PlayedTurn | None:
        """Return the turn that the person spoke into a reply; None if none was audible then."""
        over = (t for t in self.turns if _speech_of(t).over_reply)
        return next((t for t in over if self._speaking_at(t.turn.user_start_ns)), None)

    def _speaking_at(self, ns: int) -> bool:
        events = [event for turn in self.turns for event in turn.events]
        onsets = [e.onset_ns for e in events if isinstance(e, AgentSpeech) and e.onset_ns <= ns]
        silences = [e.at_ns for e in events if isinstance(e, AgentSilence)]
        return bool(onsets) and not any(max(onsets) <= at < ns for at in silences)

    def flush_ns(self, turn: PlayedTurn) -> int | None:
        """Return when the agent first had its audio dropped in this turn."""
        flushes = [at for at, _ in self.said(Flush) if at >= turn.turn.user_start_ns]
        return next((at for at in flushes if at <= turn.turn.ended_ns), None)

    def runs(self) -> Iterator[Heard]:
        """Return the stretches of audio that were played without a hole of more than jitter."""
        run: list[Heard] = []
        for piece in sorted(self.heard, key=lambda h: h.start_ns):
            broken = run and (
                piece.start_ns - run[-1].end_ns > ms_to_ns(JITTER_MS) or piece.rate != run[-1].rate
            )
            if broken:
                yield _joined(run)
                run = []
            run.append(piece)
        if run:
            yield _joined(run)


def _as_bytes(word: Incoming) -> Incoming:
    return AudioBytes(word.pcm.tobytes(), word.rate) if isinstance(word, AudioChunk) else word


def _joined(run: Sequence[Heard]) -> Heard:
    return Heard(run[0].start_ns, np.concatenate([h.pcm for h in run]), run[0].rate)


def _speech_of(turn: PlayedTurn) -> UserSpeech:
    number = turn.turn.turn
    return next(e for e in turn.events if isinstance(e, UserSpeech) and e.turn == number)


def ns_of(chunk: AudioBytes) -> int:
    """How long a chunk of audio lasts, by its bytes."""
    return samples_to_ns(len(chunk.data) // 2, chunk.rate)


def troubles(log: Log) -> list[Came]:
    """The messages that could not be read."""
    return [came for came in log.came if came.trouble]


def json_of(passed: Sequence[Came] | Sequence[Went]) -> list[tuple[int, dict[str, Any]]]:
    """The messages that are JSON objects, with their instants."""
    found: list[tuple[int, dict[str, Any]]] = []
    for each in passed:
        if isinstance(each.message, str):
            with suppress(ValueError):
                said = parse_json(each.message, MOST_MESSAGE_BYTES)
                if isinstance(said, dict):
                    found.append((each.at_ns, said))
    return found
