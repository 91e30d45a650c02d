"""The pieces of a run that was interrupted and continued, and what speaks for all of them."""

from typing import Any

from turngap.core.run_record import (
    CalibrationRecord,
    OffsetRecord,
    PieceRecord,
    RunRecord,
    worse_offset,
)
from turngap.store.runs import Run

# What a piece has as the run itself does.
_OF_A_PIECE = (
    *("started_utc", "finished_utc", "turngap_version", "commit", "machine"),
    *("clock_offset", "calibration", "failure"),
)


def next_piece(run: Run, opening: RunRecord) -> RunRecord:
    """Build the record of a stored run that continues now, as `opening` would begin a new one.

    A piece that was killed does not know its turns: it has those that no earlier one has.
    """
    if not run.turns:
        kept = {"settings": run.record.settings, "label": run.record.label}
        return opening.model_copy(update=kept)
    known = run.record.pieces or (_piece(run.record, 0),)
    others = sum(piece.turns for piece in known[:-1])
    last = known[-1].model_copy(update={"turns": len(run.turns) - others})
    pieces = [piece for piece in (*known[:-1], last) if piece.turns]
    update = {
        "finished_utc": None,
        "failure": None,
        "pieces": (*pieces, _piece(opening, 0)),
    }
    return run.record.model_copy(update=update)


def noted(record: RunRecord, known: dict[str, Any]) -> RunRecord:
    """Add what is known of the present piece to the record of a run that is being played."""
    if not record.pieces:
        return record.model_copy(update=known)
    *earlier, last = record.pieces
    return record.model_copy(update={"pieces": (*earlier, last.model_copy(update=known))})


def with_last_piece(opening: RunRecord, ended: dict[str, Any], turns: int) -> RunRecord:
    """Add what is known at the end of a run with this many turns to its record.

    A run of one piece lists no pieces.
    """
    if not opening.pieces:
        return opening.model_copy(update=ended)
    *earlier, last = opening.pieces
    last = last.model_copy(update={**ended, "turns": turns - sum(piece.turns for piece in earlier)})
    pieces = (*earlier, last) if last.turns else tuple(earlier)
    offset: OffsetRecord | None = None
    for piece in pieces:
        if piece.clock_offset is not None:
            offset = worse_offset(offset, piece.clock_offset)
    worst = {
        "pieces": pieces if len(pieces) > 1 else (),
        "clock_offset": offset,
        "calibration": _worst_calibration(pieces),
    }
    return opening.model_copy(update={**ended, **worst})


def _worst_calibration(pieces: tuple[PieceRecord, ...]) -> CalibrationRecord | None:
    known = [piece.calibration for piece in pieces if piece.calibration is not None]
    return max(known, key=lambda c: c.error_ms.max or 0.0, default=None)


def _piece(record: RunRecord, turns: int) -> PieceRecord:
    return PieceRecord(turns=turns, **{name: getattr(record, name) for name in _OF_A_PIECE})
