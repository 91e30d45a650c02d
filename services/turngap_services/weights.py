"""The pins of the published weights that turngap's engines load, and the folder that holds them."""

import os
import tomllib
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, field_validator

from turngap.backends import WeightFile, Weights
from turngap.backends.weights import at_home, folder_of
from turngap.core.errors import InputError
from turngap.core.untrusted import problems, reason

__all__ = ["folder_of", "pinned", "pinned_names", "unpinned"]

SHIPPED = Path(__file__).with_suffix(".toml")
# Names a file of pins that takes the place of `weights.toml`: for a hub that serves other files, as
# a mirror with models of your own. Every list of downloads names it.
PINS_VARIABLE = "TURNGAP_PINS"
# The engine and the setting that name them.
_SETTINGS = {"whisper": "whisper,model=", "piper": "piper,voice=", "llm": "vllm,model="}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _File(_Table):
    path: str
    size: Annotated[int, Field(gt=0)] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    @field_validator("path")
    @classmethod
    def _stays_in_the_repository(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise ValueError("expected a path in the repository, without `..`")
        return path


class _Pinned(_Table):
    repository: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)?$")]
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    licence: str
    files: Annotated[list[_File], Field(min_length=1)]


class _Pins(RootModel[dict[str, dict[str, _Pinned]]]):
    """Tables by kind and name."""


def pinned(kind: str, name: str) -> Weights | None:
    """Return the pinned weights of that kind (`whisper`, `piper`, `llm`) and name.

    Raises:
        InputError: the file that TURNGAP_PINS names cannot be read.
    """
    given = os.environ.get(PINS_VARIABLE, "")
    table = _pins(given).get(kind, {}).get(name)
    if table is None:
        return None
    files = tuple(WeightFile(file.path, file.size, file.sha256) for file in table.files)
    return Weights(
        name if kind == "llm" else f"{kind} {name}",
        table.repository,
        table.revision,
        files,
        table.licence,
        pins=given,
        fetched_as=_SETTINGS[kind] + name,
    )


def pinned_names(kind: str) -> list[str]:
    """Return the names of that kind."""
    return list(_pins(os.environ.get(PINS_VARIABLE, "")).get(kind, {}))


def unpinned(kind: str, name: str, repository: str, *patterns: str) -> Weights:
    """Return weights of which nothing is pinned: the newest of a repository's files that match."""
    fetched_as = _SETTINGS[kind] + name
    return Weights(f"{kind} {name}", repository, "main", patterns=patterns, fetched_as=fetched_as)


@cache
def _pins(given: str) -> dict[str, dict[str, _Pinned]]:
    path = at_home(given) if given else SHIPPED
    try:
        return _Pins.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).root
    except ValidationError as e:
        why = "; ".join(f"{'.'.join(map(str, p['loc']))}: {reason(p)}" for p in problems(e))
    except (OSError, ValueError, RecursionError) as e:
        why = f"{type(e).__name__}: {e}"
    raise InputError(
        "weights.pins",
        f"{path} is no file of pins: {why}",
        hint=f"unset {PINS_VARIABLE}, or write it as turngap's own: {SHIPPED}",
    )
