"""Read the outcomes of a run's turns, without all else that is stored of them.

`turngap.store.runs` reads and checks a run whole, at a millisecond a turn. A list of a thousand
runs needs of each turn what is here, which takes a twentieth of that.
"""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngap.core.budget import REPLIED, SILENT, Outcome
from turngap.core.results import Turn, TurnKey
from turngap.core.untrusted import harmless
from turngap.store.documents import cut_off, exists, parse_document, read_lines
from turngap.store.folders import RUN_HINT, TURNS_FILE


class TurnOutcome(BaseModel):
    """The outcome of a turn; the fields are those of a `Turn`."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    schema_version: int = Field(ge=Turn.current_version(), le=Turn.current_version())
    scenario: str
    turn: int
    phase_ms: float = 0.0
    repeat: int
    outcome: Outcome
    gap_ms: float | None
    left_out: str | None = None

    @property
    def key(self) -> TurnKey:
        """Return the key that finds the turn's twin in another run, as `Turn.key`."""
        return (self.scenario, self.turn, self.phase_ms, self.repeat)

    @property
    def replied(self) -> bool:
        """Return whether the agent replied after the person's end, within the budget or late."""
        return self.outcome in REPLIED

    @property
    def silent(self) -> bool:
        """Return whether a reply was due and none came."""
        return self.outcome in SILENT


def read_outcomes(folder: Path) -> Iterator[TurnOutcome]:
    """Yield what became of each turn of a run; a last line that was cut off is left out.

    Raises:
        InputError: `turns.jsonl` cannot be read, is damaged (with the line), or is of another
            version. Damage in what is not read here goes unnoticed.
    """
    file = folder / TURNS_FILE
    if not exists(file):
        return
    for number, line in enumerate(read_lines(file), start=1):
        try:
            yield TurnOutcome.model_validate_json(line)
        except ValidationError:
            if cut_off(line):
                return
            parse_document(line, Turn, f"{harmless(str(file))}:{number}", hint=RUN_HINT)
            raise
