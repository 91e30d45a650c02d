"""The trend as `--json` prints it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from turngap.history.trend import Move, Trend
from turngap.history.trend_words import uneven_words, without_level_words


def trends_json(found: Sequence[Trend]) -> dict[str, Any]:
    """What `--json` prints. Scripts rely on its keys: more may come, none goes."""
    return {"series": [_document(trend) for trend in found]}


def _document(trend: Trend) -> dict[str, Any]:
    return {
        "agent": trend.agent,
        "played": trend.played,
        "machine": trend.machine,
        "runs": [
            {
                "number": number,
                "path": point.entry.path,
                "label": point.entry.label,
                "commit": point.entry.commit,
                "started_utc": point.entry.started_utc,
                "level_ms": point.ms,
                "turns": point.turns,
                "uneven": point.uneven,
                "p50_ms": point.entry.gap_ms["p50"],
                "n": point.entry.n,
                "hits": point.entry.hits,
                "cut_ins": point.entry.cut_ins,
            }
            for number, point in enumerate(trend.points, start=1)
        ],
        "changes": [_move(move, "_ms") for move in trend.moves],
        "hit_rate_changes": [_move(move, "_hit_rate") for move in trend.hit_moves],
        "set_aside": {"numbers": list(trend.uneven), "why": uneven_words(trend)},
        "left_out": [{"path": entry.path, "why": why} for entry, why in trend.left_out],
        "without_level": {
            "numbers": list(trend.without_level),
            "why": without_level_words(trend),
        },
        "why_none": trend.why_none,
        "why_no_level": trend.why_no_level,
        "why_no_hit_rate": trend.why_no_hits,
    }


def _move(move: Move, unit: str) -> dict[str, Any]:
    change = move.change
    return {
        "number": move.number,
        "path": move.entry.path,
        "commit": move.entry.commit,
        "commits": list(move.commits.came),
        "commit_range": move.commits.range,
        "same_commit": move.commits.same,
        "unknown_commit": move.commits.unknown,
        "dirty_commit": move.commits.dirty,
        "first_number": change.first + 1,
        "last_number": change.last + 1,
        "p_value": change.p_value,
        f"before{unit}": change.before,
        f"after{unit}": change.after,
        f"difference{unit}": change.difference,
        f"low{unit}": change.low,
        f"high{unit}": change.high,
        "why_no_interval": change.why_no_interval,
        "before": asdict(move.before),
        "after": asdict(move.after),
    }
