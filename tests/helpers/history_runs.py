"""Stored runs of made-up turns, for tests of the history."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_records import every_outcome, make_record

from turngap.core.results import Turn
from turngap.store.writer import RunWriter


def stored(root: Path, turns: Sequence[Turn] | None = None, **changes: Any) -> Path:
    """Store a run; without `finished_utc` it was killed."""
    turns = every_outcome() if turns is None else turns
    record = make_record(**{"planned_turns": len(turns), **changes})
    with RunWriter.create(root, "embedded", record) as writer:
        for turn in turns:
            writer.append_turn(turn)
        if record.finished_utc is not None:
            writer.finish(record)
    return writer.path
