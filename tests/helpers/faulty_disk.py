"""A disk that fails at a chosen operation: full, broken, or with the process killed there."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

Fault = Literal["full", "io_error", "killed"]

# Whatever changes a file or a folder, and what puts it on the disk.
_BY_PATH = ("open", "mkdir", "replace", "rename", "unlink", "rmdir")
_BY_DESCRIPTOR = ("write", "fsync", "ftruncate", "fchmod", "close")
# What a full disk refuses: whatever needs a block more.
NEEDS_ROOM = ("open", "mkdir", "write")
ALL = (*_BY_PATH, *_BY_DESCRIPTOR)


class Killed(BaseException):
    """The process is gone: nothing that it does from here on reaches the disk."""


class FaultyDisk:
    """Counts the operations below `folder`, and lets number `at` (from 0) fail.

    A `full` disk stays full, an `io_error` happens once, and what is `killed` does nothing more. Of
    a write that fails, half gets to the disk.

    Attributes:
        done: the operations so far, by name.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, folder: Path, fault: Fault = "full", at: int | None = None
    ) -> None:
        self.done: list[str] = []
        self._folder = str(folder)
        self._fault: Fault = fault
        self._at = at
        self._struck = False
        self._descriptors: set[int] = set()
        for name in ALL:
            patch.setattr(os, name, partial(self._call, name, getattr(os, name)))

    def let_go(self) -> None:
        """Close what a process that was killed has left open, as the system does."""
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _call(self, name: str, real: Callable[..., Any], of: Any, *args: Any, **more: Any) -> Any:
        if name in _BY_DESCRIPTOR:
            ours = of in self._descriptors
        else:
            ours = os.fspath(of).startswith(self._folder)
        if not ours:
            return real(of, *args, **more)
        if self._fails(name):
            if name == "write" and not (self._struck and self._fault == "killed"):
                real(of, bytes(args[0])[: len(args[0]) // 2])
            self._struck = True
            raise self._failure()
        self.done.append(name)
        result = real(of, *args, **more)
        if name == "open":
            self._descriptors.add(result)
        elif name == "close":
            self._descriptors.discard(of)
        return result

    def _fails(self, name: str) -> bool:
        if self._struck:
            return self._fault == "killed" or (self._fault == "full" and name in NEEDS_ROOM)
        return len(self.done) == self._at

    def _failure(self) -> BaseException:
        if self._fault == "killed":
            return Killed()
        code = errno.ENOSPC if self._fault == "full" else errno.EIO
        return OSError(code, os.strerror(code))
