"""A run as one JSON document: what `--json` prints."""

from typing import Any

from turngap.core.results import Turn
from turngap.core.summary import turn_taking
from turngap.store.runs import Run


def run_json(run: Run) -> dict[str, Any]:
    """Build the document, of plain JSON types.

    Scripts rely on its keys: keys may be added, none removed. Durations are ms; those named `_ns`
    are the exact ones, and a turn's stages sum to its `gap_ns`.
    """
    record = run.record
    return {
        "run": str(run.path),
        "valid": record.valid,
        "why_invalid": list(record.why_invalid),
        "failure": record.failure,
        "problems": list(run.problems),
        "summary": run.summary.as_json(),
        "turn_taking": turn_taking(run.turns).as_json(),
        "turns": [_turn(turn) for turn in run.turns],
        "planned_turns": record.planned_turns,
        "budget_ms": record.budget_ms,
        "starved_ms": record.starved_ms,
        **record.model_dump(
            mode="json",
            include={
                "schema_version",
                "metrics_version",
                "turngap_version",
                "commit",
                "label",
                "started_utc",
                "finished_utc",
                "machine",
                "agent",
                "settings",
                "stand_ins",
                "held_out",
                "found",
                "clock_offset",
                "calibration",
                "pieces",
            },
        ),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    """Dump a turn without its marks and raw events, which stay in `turns.jsonl`."""
    return turn.model_dump(
        mode="json", exclude={"schema_version", "marks", "agent_turns", "events"}
    )
