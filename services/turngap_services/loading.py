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


# What CTranslate2 and the CUDA runtime say, and what to do about it. The first that fits counts.
_ON_CUDA = (
    (
        "cuda.library",
        r"lib(cublas|cudnn|cudart|nvrtc)\S*",
        "{what} does not find CUDA's libraries",
        "pip install 'turngap[cuda]'",
    ),
    (
        "cuda.memory",
        r"(?s)CU(DA|BLAS).*out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "the card has too little free memory for {what}",
        "`nvidia-smi` shows what shares the card: a vLLM server takes 90 % of it, unless it was "
        "started with a lower --gpu-memory-utilization",
    ),
    (
        "cuda.failed",
        r"CUDA|cuBLAS|CUBLAS|cuDNN|libcuda\.so|no kernel image|unsupported display driver",
        "{what} cannot run on the card",
        "`nvidia-smi` shows the card and its driver: CUDA 12 needs 525 or newer. "
        "CUDA_VISIBLE_DEVICES may hide a card, and a container must be started with --gpus all",
    ),
)
_COMPUTE_TYPE = re.compile(r"Requested (\S+) compute type")


def engine_trouble(error: Exception, what: str, part: str, less_memory: str) -> AgentError | None:
    """Turn a CTranslate2 error that is not about the model's files into ours; None for others.

    Args:
        error: the library's error.
        what: is loaded or run.
        part: the stack's table with `device` and `compute_type`.
        less_memory: names what needs less memory.
    """
    if found := _COMPUTE_TYPE.search(str(error)):
        return AgentError(
            "model.compute_type",
            f"{what} cannot be calculated with {found[1]} on this device",
            hint=f"leave {part}.compute_type out, and turngap chooses what the device supports",
        )
    trouble = cuda_trouble(error, what, part)
    if trouble is not None and trouble.kind == "cuda.memory":
        return AgentError(trouble.kind, trouble.message, hint=f"{trouble.hint}; {less_memory}")
    return trouble or too_little_memory(error, what, less_memory)


def cuda_trouble(error: Exception, what: str, part: str) -> AgentError | None:
    """Turn an error of CUDA, its libraries or the card into ours; None for others."""
    for kind, pattern, said, hint in _ON_CUDA:
        if re.search(pattern, str(error)):
            return AgentError(
                kind,
                f"{said.format(what=what)}: {first_line(error)}",
                hint=f"{hint}; or run it on the CPU: --set {part}.device=cpu",
            )
    return None


def require_files(directory: Path, names: Iterable[str], hint: str) -> None:
    """Raise AgentError unless the model's directory holds these files."""
    if missing := [name for name in names if not (directory / name).is_file()]:
        raise AgentError(
            "model.missing", f"{directory} has no {' and no '.join(missing)}", hint=hint
        )
