"""The pins of the published weights that turngap's engines load, and the folder that holds them."""

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from turngap.backends import WeightFile, Weights
from turngap.core.errors import InputError
from turngap.weights.fetch import folder_of

__all__ = ["folder_of", "pinned", "pinned_names", "unpinned"]

SHIPPED = Path(__file__).with_suffix(".toml")
# Names a file of pins that takes the place of `weights.toml`: for a hub that serves other files, as
# a mirror with models of your own. Every list of downloads names it.
PINS_VARIABLE = "TURNGAP_PINS"


def pinned(kind: str, name: str) -> Weights | None:
    """Return the pinned weights of that kind (`whisper`, `piper`, `sherpa`, `llm`) and name.

    Raises:
        InputError: the file that TURNGAP_PINS names cannot be read.
    """
    given = os.environ.get(PINS_VARIABLE, "")
    table = _pins(given).get(kind, {}).get(name)
    if table is None:
        return None
    files = tuple(WeightFile(**file) for file in table["files"])
    shown = name if kind == "llm" else f"{kind} {name}"
    return Weights(
        shown, table["repository"], table["revision"], files, table["licence"], pins=given
    )


def pinned_names(kind: str) -> list[str]:
    """Return the names of that kind."""
    return list(_pins(os.environ.get(PINS_VARIABLE, "")).get(kind, {}))


def unpinned(name: str, repository: str, *patterns: str) -> Weights:
    """Return weights of which nothing is pinned: the newest of a repository's files that match."""
    return Weights(name, repository, "main", patterns=patterns)


@cache
def _pins(given: str) -> dict[str, dict[str, Any]]:
    path = Path(given).expanduser() if given else SHIPPED
    try:
        tables: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))
        for named in tables.values():
            for table in named.values():
                [WeightFile(**file) for file in table["files"]]
                Weights("", table["repository"], table["revision"], (), table["licence"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise InputError(
            "weights.pins",
            f"{path} is no file of pins: {type(e).__name__}: {e}",
            hint=f"unset {PINS_VARIABLE}, or write it as turngap's own: {SHIPPED}",
        ) from e
    return tables
