"""Fetches what is missing of published weights, and gives the folders in which they lie."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from turngap.backends import WeightFile, Weights
from turngap.core.errors import AgentError
from turngap.weights import problems
from turngap.weights.cache import (
    Record,
    State,
    hub_cache,
    is_commit,
    of_repository,
    sha256_of,
    state_of,
)
from turngap.weights.showing import Item, Plan, Told, showing, tell

if TYPE_CHECKING:
    from turngap.weights.client import Hub, Remote

# How often in a row a download may break off without a further byte.
_ATTEMPTS = 3
_PART = ".turngap-part"
# How long a start waits for another process before it says so.
_SILENT_S = 0.2


def folder_of(weights: Weights) -> Path:
    """Return the folder that holds the weights' files, fetched if necessary; as `bring`."""
    return bring([weights])[0]


def bring(wanted: Iterable[Weights]) -> list[Path]:
    """Return the folder of each, after fetching what is missing.

    Where nothing is missing, no connection is made and the hub's client is not imported.

    Raises:
        AgentError: they cannot be had; the hint says what to do.
    """
    states = [state_of(weights) for weights in wanted]
    if not all(state.complete for state in states):
        lacking = list(dict.fromkeys(s.weights for s in states if not s.complete))
        try:
            _fetch(lacking)
        except AgentError as e:
            raise problems.with_folder(e, lacking) from e.__cause__
        states = [state_of(state.weights) for state in states]
    # Another process may have removed what was there a moment ago: that is an error of its own.
    return [state.folder for state in states if state.folder is not None]


def _fetch(wanted: Sequence[Weights]) -> None:
    from turngap.weights.client import Hub

    hub = Hub()
    if hub.offline:
        raise problems.offline(", ".join(weights.name for weights in wanted))
    known = [weights if weights.files else hub.listed(weights) for weights in wanted]
    with _written(hub_cache()), _alone(known):
        # Another process may have fetched them while this one waited.
        states = [state for state in map(state_of, known) if not state.complete]
        remarks = tuple(_replaces(state, file) for state in states for file in state.damaged)
        plan = _plan(hub, states, remarks)
        need = None if plan.bytes is None else plan.bytes - plan.begun_bytes
        if need is not None and need > plan.free_bytes:
            raise problems.no_room(plan.cache, need, plan.free_bytes)
        with showing(plan) as told:
            told(plan.begun_bytes)
            for state in states:
                for file in (*state.missing, *state.damaged):
                    _Download(hub, state.weights, file, told).run()
        for before, after in zip(wanted, known, strict=True):
            _remember_branch(before, after)


def _plan(hub: "Hub", states: Sequence[State], remarks: tuple[str, ...]) -> Plan:
    items: list[Item] = []
    for state in states:
        files = (*state.missing, *state.damaged)
        sizes = [file.size for file in files if file.size is not None]
        begun = sum(_begun(state.weights, file) for file in files)
        unpinned = sum(file.sha256 is None for file in files)
        items.append(Item(state.weights, sum(sizes) if sizes else None, begun, unpinned))
    cache = hub_cache()
    return Plan(tuple(items), hub.host, cache, shutil.disk_usage(cache).free, remarks)


def _begun(weights: Weights, file: WeightFile) -> int:
    part = _part(weights, file.path)
    return part.stat().st_size if part.is_file() else 0


def _part(weights: Weights, path: str) -> Path:
    name = hashlib.sha256(f"{weights.revision}/{path}".encode()).hexdigest()[:16]
    return of_repository(weights.repository) / "blobs" / f"{name}{_PART}"


def _replaces(state: State, file: WeightFile) -> str:
    # Until then it stays: another program may use it, and the right one may not be had.
    of = f"{file.path} of {state.weights.name}"
    return f"{of} is damaged, or another file: it is replaced when the right one has come"


def _remember_branch(asked: Weights, known: Weights) -> None:
    """Which commit a branch meant, so that it is found offline; other programs look there too."""
    if is_commit(asked.revision):
        return
    folder = of_repository(known.repository)
    ref = folder / "refs" / asked.revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(known.revision)
    record = Record.of(asked)
    for file in known.files:
        at = folder / "snapshots" / known.revision / file.path
        record.add(file.path, at, sha256_of(at), known.revision)


@contextmanager
def _alone(wanted: Iterable[Weights]) -> Iterator[None]:
    """Hold the repositories' locks, so that two processes do not write into the same files."""
    from contextlib import ExitStack

    from huggingface_hub.utils import WeakFileLock

    with ExitStack() as held:
        for repository in sorted({weights.repository for weights in wanted}):
            lock = hub_cache() / ".locks" / of_repository(repository).name / "turngap.lock"
            lock.parent.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(WeakFileLock(lock, timeout=_SILENT_S))
            except TimeoutError:
                tell(f"another process is fetching {repository}; this one waits until it is done")
                held.enter_context(WeakFileLock(lock))
        yield


@contextmanager
def _written(cache: Path) -> Iterator[None]:
    """Turn a disk's errors into ours."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise problems.no_room(cache, None, None) from e
        raise problems.not_writable(cache, e.strerror or str(e)) from e


class _Download:
    """One file: fetched into a part, checked, and only then put where it is looked for."""

    def __init__(self, hub: "Hub", weights: Weights, file: WeightFile, told: Told) -> None:
        self._hub = hub
        self._weights = weights
        self._file = file
        self._told = told
        self._part = _part(weights, file.path)
        self._folder = of_repository(weights.repository)

    def run(self) -> None:
        """Fetch it, going on where an earlier attempt broke off.

        Raises:
            AgentError: it cannot be had, or is another file than is pinned.
        """
        from turngap.weights.client import BrokenOffError

        self._part.parent.mkdir(parents=True, exist_ok=True)
        failed = 0
        while True:
            before = self._got()
            try:
                remote = self._hub.remote(self._weights, self._file)
                self._check_stated(remote)
                self._read(remote)
                break
            except BrokenOffError as e:
                failed = failed + 1 if self._got() <= before else 1
                if failed >= _ATTEMPTS:
                    raise problems.stalled(
                        self._hub.host, self._file.path, failed, self._hub.wait_s, self._got()
                    ) from e
            except OSError as e:
                if e.errno in (errno.ENOSPC, errno.EDQUOT):
                    self._part.unlink(missing_ok=True)  # or the disk would stay full
                raise
        self._place(remote)

    def _got(self) -> int:
        return self._part.stat().st_size if self._part.is_file() else 0

    def _check_stated(self, remote: "Remote") -> None:
        """Before anything is fetched: is it the pinned file, by the hub's own word?"""
        other_size = None not in (self._file.size, remote.size) and self._file.size != remote.size
        kept_by_lfs = len(remote.etag) == 64
        if other_size or (kept_by_lfs and self._file.sha256 not in (None, remote.etag)):
            self._part.unlink(missing_ok=True)
            raise problems.wrong_digest(self._weights, self._file.path, removed=False)

    def _read(self, remote: "Remote") -> None:
        if remote.size is not None and self._got() > remote.size:
            self._part.unlink()
        if (got := self._got()) == remote.size:
            return
        with self._hub.content(self._weights, self._file, remote, got) as (start, pieces):
            if start < got:
                self._told(start - got)
            at = start
            with self._part.open("ab") as part:
                part.truncate(start)
                for piece in pieces:
                    part.write(piece)
                    self._told(len(piece))
                    at += len(piece)
                    if remote.size is not None and at > remote.size:
                        break
        if remote.size is not None and at < remote.size:
            from turngap.weights.client import BrokenOffError

            raise BrokenOffError("the connection was closed")

    def _place(self, remote: "Remote") -> None:
        found = sha256_of(self._part)
        right = self._file.sha256 in (None, found) and _is_as_stated(self._part, found, remote)
        if not right:
            self._part.unlink()
            raise problems.wrong_digest(self._weights, self._file.path, removed=True)
        blob = self._folder / "blobs" / remote.etag
        self._part.replace(blob)
        at = self._folder / "snapshots" / self._weights.revision / self._file.path
        at.parent.mkdir(parents=True, exist_ok=True)
        link = at.with_name(f"{at.name}{_PART}")
        link.unlink(missing_ok=True)
        try:
            link.symlink_to(os.path.relpath(blob, at.parent))
        except OSError:  # a file system without links
            blob.replace(link)
        link.replace(at)
        Record.of(self._weights).add(self._file.path, at, found)


def _is_as_stated(file: Path, sha256: str, remote: "Remote") -> bool:
    """Whether the file is the one that the hub stated, by the digest that its ETag is."""
    if remote.size not in (None, file.stat().st_size):
        return False
    if len(remote.etag) == 64:
        return sha256 == remote.etag
    content = file.read_bytes()  # git's own files are small; large ones are kept by LFS
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == remote.etag
