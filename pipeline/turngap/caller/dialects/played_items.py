"""Count how much was heard of each item of a reply, for protocols that ask for it."""

from collections import deque
from dataclasses import dataclass

# Items that wait to be played. A reply has one to three.
MOST_WAITING = 1_000


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of content of one item, which is one stretch of audio from its first sample on.

    `reply`: the reply that the item belongs to.
    """

    reply: str
    item: str
    content: int = 0


@dataclass(slots=True)
class _Run:
    """The place of a part's audio in the whole conversation's, in samples."""

    part: Part
    start: int
    end: int


class PlayedItems:
    """The places of parts in the audio that was handed on to be played.

    Samples are counted as `Session.audio_played` counts them: from the conversation's beginning,
    dropped ones included.
    """

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        self._end = self._played = 0

    def add(self, part: Part, samples: int) -> None:
        """Append audio of a part.

        Raises:
            ValueError: too many items wait to be played.
        """
        if samples == 0:
            return
        if not self._runs or self._runs[-1].part != part:
            if len(self._runs) == MOST_WAITING:
                raise ValueError(f"audio of more than {MOST_WAITING:,} items that wait")
            self._runs.append(_Run(part, self._end, self._end))
        self._end += samples
        self._runs[-1].end = self._end

    def played(self, samples: int) -> None:
        """Note how far the audio has been played."""
        self._played = samples
        # The newest may continue, and then counts from its first sample.
        while len(self._runs) > 1 and self._runs[0].end <= samples:
            self._runs.popleft()

    def waiting(self) -> list[Part]:
        """Return the parts that have not been played to their end."""
        return [run.part for run in self._runs if run.end > self._played]

    def dropped(self, samples: int) -> list[tuple[Part, int]]:
        """Note that the last `samples` will never sound; return how many of each part did."""
        cut = self._end - samples
        lost = [run for run in self._runs if run.end > cut]
        self._runs = deque(run for run in self._runs if run.end <= cut)
        return [(run.part, max(0, cut - run.start)) for run in lost]
