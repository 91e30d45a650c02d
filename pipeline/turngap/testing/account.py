"""A scripted agent's own account of a conversation, sent apart from the line."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from turngap.testing.dialects.half import FromCaller


@dataclass(frozen=True, slots=True)
class Truth:
    """The gap that the agent injected after the person's utterance number `turn`.

    `gap_ns` ends when the first loud sample was handed to the line, coded.
    """

    turn: int
    gap_ns: int
    intended_gap_ns: int


class Account:
    """An account of what an agent did and was told.

    With a `file`, each truth is also a JSON line of it. A reply's truth is written once the whole
    reply has been sent, and before the agent says that it is done: no gap is being measured then.

    Attributes:
        truths: one for each reply that was given to its end.
        told: what the caller said besides audio, with the instants at which it arrived.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self.truths: list[Truth] = []
        self.told: list[tuple[int, FromCaller]] = []

    def add(self, truth: Truth) -> None:
        self.truths.append(truth)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(truth)) + "\n")


def read_truths(file: Path) -> dict[int, Truth]:
    """Return what an agent wrote, by the number of the utterance."""
    if not file.exists():
        return {}
    told = (Truth(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines())
    return {truth.turn: truth for truth in told}
