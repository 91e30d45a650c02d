"""Whose a repository's file is: it can run commands, so not everybody's is taken."""

import os
from pathlib import Path

from turngap.core.errors import InputError
from turngap.core.untrusted import harmless

_ROOT = 0


def require_own(file: Path, variable: str) -> None:
    """Refuse a file that another user could have left on the way up, as in a shared `/tmp`.

    Raises:
        InputError: it belongs to a stranger; the hint says how to take it all the same.
    """
    if found := strangers(file):
        shown, whose = harmless(str(file)), ", ".join(map(str, sorted(found)))
        raise InputError(
            "config.owner",
            f"{shown} belongs to another user (uid {whose}), and could run commands with your "
            "rights",
            hint=f"read it; then {variable}={shown} takes it, and {variable}=none reads no file",
        )


def strangers(file: Path) -> set[int]:
    """Return who else has a file, or what it links to.

    Not strangers are the user, root, and who has the working directory: to enter somebody's folder
    is to choose it. In a container root often works in a checkout of another user, and a file that
    a third one left above it is a stranger's for root, too.
    """
    return owners(file) - {os.geteuid(), _ROOT} - owners(Path())


def owners(path: Path) -> set[int]:
    """Return the owner of a path and, if it is a link, of what it leads to."""
    return {path.lstat().st_uid, path.stat().st_uid}
