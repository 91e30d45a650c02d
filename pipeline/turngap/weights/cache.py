"""What of published weights lies in the cache of the hub's client, and whether it is intact."""

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from turngap.backends import WeightFile, Weights

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PIECE_BYTES = 2**20


def hub_cache() -> Path:
    """The folder in which the hub's client keeps its downloads, by the variables that it reads."""
    environment = os.environ
    cache = Path(environment.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(environment.get("HF_HOME") or cache / "huggingface")
    given = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(given or home / "hub")).expanduser()


def of_repository(repository: str) -> Path:
    """The folder of a repository in that cache, as the client names it."""
    return hub_cache() / f"models--{repository.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class State:
    """What there is of some weights.

    Attributes:
        weights: with the commit and the files, where they are known.
        folder: where the files lie or will lie; None while the commit is not known.
        missing: files that are not there.
        damaged: files that are there but are not what they should be.
    """

    weights: Weights
    folder: Path | None
    missing: tuple[WeightFile, ...] = ()
    damaged: tuple[WeightFile, ...] = ()

    @property
    def complete(self) -> bool:
        return self.folder is not None and not self.missing and not self.damaged


def state_of(weights: Weights) -> State:
    """Look at the disk. A file's digest is calculated once, and remembered with its size and time.

    So a file that was copied here without its time is read once more.
    """
    record = Record.of(weights)
    known = record.completed(weights)
    if known is None:
        return State(weights, None)
    folder = of_repository(known.repository) / "snapshots" / known.revision
    missing: list[WeightFile] = []
    damaged: list[WeightFile] = []
    for file in known.files:
        if not (folder / file.path).is_file():
            missing.append(file)
        elif not record.vouches_for(file, folder / file.path):
            damaged.append(file)
    return State(known, folder, tuple(missing), tuple(damaged))


class Record:
    """Remembers, beside the files in the cache, what was checked: sizes, times and digests."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self._path = path
        self._commit = values.get("commit")
        self._files: dict[str, Any] = values.get("files", {})

    @classmethod
    def of(cls, weights: Weights) -> "Record":
        # Of a repository's branch, others may have asked for other files, when it was elsewhere.
        asked = hashlib.sha256(" ".join(weights.patterns).encode()).hexdigest()[:8]
        name = f"{weights.revision.replace('/', '--')}{f'-{asked}' if weights.patterns else ''}"
        path = of_repository(weights.repository) / "turngap" / f"{name}.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            [dict(entry) for entry in values["files"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            values = {}
        return cls(path, values)

    def completed(self, weights: Weights) -> Weights | None:
        """The weights with commit and files as remembered; None where neither tells them."""
        commit = weights.revision if is_commit(weights.revision) else self._commit
        files = weights.files or tuple(WeightFile(path) for path in self._files)
        return replace(weights, revision=commit, files=files) if commit and files else None

    def vouches_for(self, file: WeightFile, at: Path) -> bool:
        """Whether the file is intact; reads it where that is not remembered."""
        status = at.stat()
        if file.size not in (None, status.st_size):
            return False
        told = self._files.get(file.path, {})
        if (told.get("size"), told.get("mtime_ns")) != (status.st_size, status.st_mtime_ns):
            # Of a file that nobody pinned, the digest that was first found here is the right one.
            pinned = file.sha256 or told.get("sha256")
            found = sha256_of(at)
            if pinned not in (None, found):
                return False
            self.add(file.path, at, found)
            return True
        return file.sha256 in (None, told.get("sha256"))

    def add(self, path: str, at: Path, sha256: str, commit: str | None = None) -> None:
        """Remember a checked file. A cache that cannot be written to is checked at every start."""
        status = at.stat()
        self._commit = commit or self._commit
        entry = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": sha256}
        self._files[path] = entry
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            new.write_text(json.dumps({"commit": self._commit, "files": self._files}, indent=1))
            new.replace(self._path)


def is_commit(revision: str) -> bool:
    """Whether it names a commit, and not a branch."""
    return _COMMIT.fullmatch(revision) is not None


def is_inside(path: str) -> bool:
    """Whether a file's path stays in its repository's folder."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and "\0" not in path


def sha256_of(file: Path) -> str:
    """Digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while piece := content.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
