"""Read files that people give: only regular files, of a bounded size, depth and number of values.

Any content of a file or a flag becomes a value or an `InputError`, in bounded time and memory.
`turngap.store.yaml` reads YAML and `turngap.store.sound` audio, with the same limits.
"""

import codecs
import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from turngap.core.errors import InputError
from turngap.core.untrusted import MAX_TOML_BYTES, harmless, parse_toml

# A scenario of a thousand turns has 300 kB. The slowest 1 MiB takes ruamel.yaml
# some four seconds.
MAX_TEXT_BYTES = 2**20


def open_regular(file: Path, flags: int = os.O_RDONLY, *, below: Path | None = None) -> int:
    """Open a file; returns its descriptor. No link is followed `below` a folder of stored files.

    Raises:
        InputError: there is a link below that folder, or the file is not in the folder.
        OSError: the file does not exist, may not be opened, or is a folder, a pipe, a socket or a
            device, which could block for ever or never end.
    """
    flags |= os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = _open_below(below, file, flags) if below else os.open(file, flags)
    except ValueError as e:  # a NUL in its name
        raise OSError(None, "no file can have this name") from e
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(None, f"it is a {'named pipe' if stat.S_ISFIFO(mode) else 'device'}, not a file")


def _open_below(folder: Path, file: Path, flags: int) -> int:
    if ".." in (inside := file.relative_to(folder)).parts:
        raise OSError(None, "its path contains `..`, which may lead out of the folder")
    at = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for part in inside.parts[:-1]:
            above, at = at, os.open(part, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(above)
        return os.open(inside.name, flags | os.O_NOFOLLOW, 0o644, dir_fd=at)
    except OSError:
        refuse_links(file, folder)
        raise
    finally:
        os.close(at)


def refuse_links(file: Path, below: Path) -> None:
    """Refuse a file of a stored folder that is a link, or is behind one.

    Raises:
        InputError: the file is a link, or is behind one.
    """
    for path in (file, *file.parents):
        if path == below:
            return
        if path.is_symlink():
            raise InputError(
                "document.link",
                f"{harmless(str(path))} is a link, which may lead to a file of yours elsewhere: no "
                "link in a stored folder is followed",
                hint="remove the link, or replace it by its target",
            )


def read_bytes(
    file: Path,
    what: str,
    *,
    most: int = MAX_TEXT_BYTES,
    hint: str = "",
    below: Path | None = None,
) -> bytes:
    """Read a file of at most `most` bytes; an error is of the kind `{what}.unreadable`.

    Raises:
        InputError: it cannot be read, is not a regular file, or is larger; or as `open_regular`.
    """
    try:
        with os.fdopen(open_regular(file, below=below), "rb") as opened:
            # A file of the kernel's has the size 0, whatever it holds.
            raw = opened.read((min(os.fstat(opened.fileno()).st_size, most) or most) + 1)
    except OSError as e:
        raise unreadable(file, what, e.strerror or str(e), hint) from e
    if len(raw) > most:
        raise unreadable(file, what, f"it is larger than {most / 2**20:g} MiB", hint)
    return raw


def sha256_of(file: Path, *, below: Path | None = None) -> str:
    """Return the SHA-256 of a regular file, in hex; raises as `open_regular` does."""
    with os.fdopen(open_regular(file, below=below), "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_text(file: Path, what: str, *, most: int = MAX_TEXT_BYTES, hint: str = "") -> str:
    """Read a text file, in UTF-8, with its line ends as they are; raises as `read_bytes` does."""
    raw = read_bytes(file, what, most=most, hint=hint)
    try:
        return decoded(raw)
    except ValueError as e:
        raise InputError(f"{what}.unreadable", f"{harmless(str(file))}: {e}", hint=hint) from e


def decoded(raw: bytes) -> str:
    """Decode UTF-8, without its byte-order mark.

    Raises:
        ValueError: the bytes are not UTF-8; the message says what to do.
    """
    # As Windows calls UTF-16 "Unicode"; without its mark, every second byte of English is 0.
    halves = (raw[:8:2], raw[1:8:2]) if len(raw) >= 8 else ()
    if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or not all(map(any, halves)):
        raise ValueError("it is UTF-16: save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        if b"\0" in raw:
            raise ValueError("not a text file") from e
        line = raw.count(b"\n", 0, e.start) + 1
        raise ValueError(f"line {line} is not UTF-8: save it as UTF-8") from e


def unreadable(file: Path, what: str, why: str, hint: str = "") -> InputError:
    """Build the error for a file that cannot be read, with the reason."""
    message = f"{harmless(str(file))}: cannot be read: {why}"
    return InputError(f"{what}.unreadable", message, hint=hint)


def read_toml(file: Path, what: str) -> dict[str, Any]:
    """Read a TOML file; raises as `read_bytes` does, or of the kind `{what}.not_toml`."""
    raw = read_bytes(file, what, most=MAX_TOML_BYTES)
    try:
        return parse_toml(decoded(raw))
    except ValueError as e:
        raise InputError(f"{what}.not_toml", f"{harmless(str(file))}: not TOML: {e}") from e
