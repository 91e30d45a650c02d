"""What loading a model into this process has in common, whichever library runs it."""

import re
import threading
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from turngap.core.errors import AgentError

T = TypeVar("T")

# CTranslate2 and onnxruntime, on a CPU and on a GPU.
_TOO_LITTLE = re.compile(r"out of memory|bad.?alloc|failed to allocate|not allocate", re.IGNORECASE)


class Loaded(Generic[T]):
    """Values that are loaded once a process, by key, whichever thread asks first."""

    def __init__(self) -> None:
        self._values: dict[Hashable, T] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], T]) -> T:
        """Return the value of `key`, loaded if this is the first call with it."""
        with self._lock:
            if key not in self._values:
                self._values[key] = load()
            return self._values[key]


def too_little_memory(error: Exception, what: str, hint: str) -> AgentError | None:
    """Turn a library's out-of-memory error, of whatever class, into ours; None for other errors.

    Args:
        error: the library's error.
        what: needs more memory than there is.
        hint: names what needs less.
    """
    if not isinstance(error, MemoryError) and not _TOO_LITTLE.search(str(error)):
        return None
    return AgentError(
        "model.memory", f"there is too little memory on this machine for {what}", hint=hint
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def require_files(directory: Path, names: Iterable[str], hint: str) -> None:
    """Raise AgentError unless the model's directory holds these files."""
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise AgentError(
            "model.missing", f"{directory} has no {' and no '.join(missing)}", hint=hint
        )
