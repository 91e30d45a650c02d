"""Stored documents: one reader and one writer for runs, checks, baselines and all others."""

import codecs
import errno
import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil
from pydantic import ValidationError
from pydantic_core import from_json

from turngap.core.errors import InputError
from turngap.core.run_record import MachineRecord
from turngap.core.secrets import texts_without_secrets
from turngap.core.stored import Document
from turngap.core.untrusted import check_values, harmless
from turngap.store.files import open_regular, read_bytes, unreadable

DEFAULT_ROOT = Path("runs")

# A baseline or comparison has a few hundred bytes a turn, and a line of a run 7 kB. In memory JSON
# takes up to twenty times as much while it is read.
MAX_DOCUMENT_BYTES = 32 * 2**20
# `turns.jsonl`: 18,000 turns. Read back they take one to seven times that in memory.
MAX_TURN_BYTES = 4 * 2**20
MAX_RUN_BYTES = 128 * 2**20
MAX_LOAD_BYTES = 2**30  # of a load test, whose turns are never held all at once
# A turn without its events stays below this, whatever an agent sends (`turngap.caller.intake`).
MAX_EVENTS_BYTES = 2**20

# Why nothing can be written, and what helps.
_HINTS = {
    errno.ENOSPC: "is the disk full? ",
    errno.EDQUOT: "is your quota used up? ",
    errno.EROFS: "it is on a disk that cannot be written to: name another folder. ",
    errno.EACCES: "you may not write there: name another folder, or change its permissions. ",
    errno.EPERM: "you may not write there: name another folder, or change its permissions. ",
}

Record = TypeVar("Record", bound=Document)


def read_document(
    file: Path, record_type: type[Record], *, hint: str = "", links: bool = False
) -> Record:
    """Read a stored document; `hint` says how to get one that can be read.

    `links` allows the file to be a link: not for folders that another user may have made.

    Raises:
        InputError: it cannot be read, is damaged (with the field), or has another schema version.
    """
    below = None if links else file.parent
    raw = read_bytes(file, "document", most=MAX_DOCUMENT_BYTES, hint=hint, below=below)
    return parse_document(raw, record_type, harmless(str(file)), hint=hint)


def parse_document(raw: bytes, record_type: type[Record], where: str, *, hint: str = "") -> Record:
    """Read a document from its bytes; `where` is the place that an error names.

    Raises:
        InputError: as `read_document`.
    """
    try:
        document = from_json(raw.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
        check_values(document)
    except ValueError as e:
        raise _damaged(where, f"not JSON (cut short?), found {_excerpt(raw)}: {e}", hint) from e
    if not isinstance(document, dict):
        raise _damaged(where, f"expected one JSON object, found {_excerpt(raw)}", hint)
    found, read = document.get("schema_version"), record_type.current_version()
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise _damaged(where, f"schema_version is {found!r}, expected {read}", hint)
    if found != read:
        how = "pip install --upgrade turngap" if found > read else hint
        raise InputError(
            "document.version",
            f"{where}: found schema version {found}, this turngap reads {read}",
            hint=how,
        )
    try:
        return record_type.model_validate(document)
    except ValidationError as e:
        problem = e.errors()[0]
        at = ".".join(map(str, problem["loc"])) or record_type.__name__
        raise _damaged(where, f"{at}: {problem['msg']}", hint) from e


def read_lines(file: Path, most: int = MAX_RUN_BYTES) -> Iterator[bytes]:
    """Yield the lines of `turns.jsonl` with their ends; the last one may have none (`cut_off`).

    Raises:
        InputError: it cannot be read, is larger than `most`, or a line exceeds `MAX_TURN_BYTES`.
    """
    size = 0
    try:
        with os.fdopen(open_regular(file, below=file.parent), "rb") as opened:
            while line := opened.readline(MAX_TURN_BYTES + 1):
                size += len(line)
                for what, n, bound in (("it", size, most), ("a line", len(line), MAX_TURN_BYTES)):
                    if n > bound:
                        why = f"{what} is larger than {bound / 2**20:g} MiB"
                        raise unreadable(file, "document", why)
                yield line
    except OSError as e:
        raise unreadable(file, "document", e.strerror or str(e)) from e


def read_turns(
    file: Path,
    record_type: type[Record],
    problems: list[str] | None = None,
    *,
    most: int = MAX_RUN_BYTES,
) -> Iterator[Record]:
    """Yield each turn of a file that may be missing; leave out a last line that is incomplete.

    Raises:
        InputError: as `read_lines` and `parse_document`.
    """
    problems = [] if problems is None else problems
    if not exists(file):
        problems.append(f"{file.name} is missing")
        return
    for number, line in enumerate(read_lines(file, most), start=1):
        if cut_off(line):
            problems.append(f"{file.name}:{number}: the last line was cut off and is left out")
        else:
            where = f"{harmless(str(file))}:{number}"
            yield parse_document(line.removesuffix(b"\n"), record_type, where)


def cut_off(line: bytes) -> bool:
    """Return whether this last line of a file was only partly written."""
    if line.endswith(b"\n"):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _damaged(where: str, what: str, hint: str) -> InputError:
    return InputError("document.damaged", f"{where}: {what}", hint=hint)


def _excerpt(raw: bytes) -> str:
    return repr(raw[:40].decode(errors="replace") + ("…" if len(raw) > 40 else ""))


def write_document(file: Path, record: Document) -> None:
    """Write a document; after a crash the file holds the old one or the new one, never a part.

    Raises:
        InputError: it cannot be written, for example because the disk is full.
    """
    with writing(file):
        write_atomically(file, encode(record, indent=2))


@contextmanager
def writing(
    path: Path,
    kind: str = "document.unwritable",
    hint: str = "what was stored before is kept",
) -> Iterator[None]:
    """Raise errors of the file system (a full disk, no permission) as an `InputError`."""
    try:
        yield
    except (OSError, ValueError) as e:  # a NUL in its name
        why = getattr(e, "strerror", None) or e
        hint = f"{_HINTS.get(getattr(e, 'errno', None) or 0, '')}{hint}".strip()
        raise InputError(kind, f"cannot write {path}: {why}", hint=hint) from e


def encode(record: Document, *, indent: int | None = None) -> bytes:
    """Encode a document as JSON in UTF-8, with a newline at its end.

    An agent's text may hold half of a surrogate pair, for which UTF-8 has no bytes (and which
    pydantic refuses). The half becomes a question mark, and the turn is kept. No text keeps a
    secret. turngap's own names and words stay, because the document could not be read otherwise.
    """
    document = texts_without_secrets(record.model_dump(mode="json"), type(record).own_words())
    text = json.dumps(document, ensure_ascii=False, indent=indent)
    return text.encode("utf-8", errors="replace") + b"\n"


def find_folder(name_or_path: str, file_name: str, root: Path | None = None) -> Path | None:
    """Find the folder that holds `file_name`.

    The folder is given as its own path, as the path of that file, or as its name in `root`
    (`./runs`).
    """
    for candidate in (Path(name_or_path), (root or DEFAULT_ROOT) / name_or_path):
        if candidate.name == file_name and is_file(candidate):
            return candidate.parent
        if is_file(candidate / file_name):
            return candidate
    return None


def write_atomically(file: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace `file` as a whole: after a crash it holds the old or the new, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        try:
            write_all(descriptor, content)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        Path(temporary).replace(file)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    # The rename itself is on the disk only once the folder is.
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# Unlike `Path`'s, these do not raise for a name that nothing can have.
exists, is_file, is_dir = os.path.exists, os.path.isfile, os.path.isdir


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`; os.write may write only a part (a full disk, a signal)."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def this_machine() -> MachineRecord:
    """Describe this machine, without its host name.

    The fingerprint consists of facts that do not change from day to day.
    """
    cpu = _cpu_model()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = psutil.virtual_memory().total / 2**30
    # Neither kernel nor Python version: an update is not another machine. Whole GiB, since what the
    # kernel keeps for itself differs from boot to boot.
    stable = (platform.system(), platform.machine(), cpu, cores, round(memory_gib))
    return MachineRecord(
        system=platform.platform(),
        python=platform.python_version(),
        cpu=cpu,
        cores=cores or 1,
        memory_gib=round(memory_gib, 1),
        fingerprint=hashlib.sha256(repr(stable).encode()).hexdigest()[:12],
    )


def _cpu_model() -> str:
    """Find the CPU's name, or the architecture if cpuinfo has no name (most ARM machines)."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def git_commit(folder: Path | None = None) -> str | None:
    """Find the commit of the checkout around `folder` (default: the working directory).

    It ends in `-dirty` if tracked files differ; None outside a checkout or without git.
    """
    # No tag may replace the hash: tags move.
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
