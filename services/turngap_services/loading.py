"""Needs of engines, pins of published weights, and loading a model into this process."""

import ctypes
import os
import re
import sys
import threading
import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from loguru import logger
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    field_validator,
    model_validator,
)

from turngap.backends import AGENT, Need, WeightFile, Weights
from turngap.backends.weights import at_home
from turngap.core.errors import AgentError, InputError
from turngap.core.untrusted import in_a_line

T = TypeVar("T")

# CTranslate2 and onnxruntime, on a CPU and on a GPU.
_TOO_LITTLE = re.compile(r"out of memory|bad.?alloc|failed to allocate|not allocate", re.IGNORECASE)


def lazily(function: str) -> Callable[..., Any]:
    """Return a function that imports `MODULE:FUNCTION` when it is called, and calls it.

    Engines take long to import, and many machines lack their modules.
    """
    module, _, name = function.partition(":")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call


class Fitted(BaseModel):
    """Parameters of a logistic regression, fitted by `services/training` and shipped as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    features: ClassVar[tuple[str, ...]]
    command: ClassVar[str]
    kind: ClassVar[str]  # of the error that says a file is not what the command writes

    about: str
    """The data that the parameters were fitted on, and the command that fitted them."""
    log_odds: dict[str, float]
    """How much each feature adds to the log odds."""

    @model_validator(mode="after")
    def _has_all_features(self) -> Self:
        if set(self.log_odds) != set(self.features):
            wrong = sorted(set(self.log_odds) ^ set(self.features))
            raise ValueError(f"log_odds needs exactly the features; wrong: {', '.join(wrong)}")
        return self

    def odds(self, features: Mapping[str, float]) -> float:
        """Return the log odds for these features; features left out are 0."""
        return sum(self.log_odds[name] * value for name, value in features.items())

    @classmethod
    def read(cls, text: str, where: str) -> Self:
        """Read the fitted parameters.

        Raises:
            InputError: the file is not as the command writes it.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise InputError(
                cls.kind,
                f"{where} holds no fitted parameters: {in_a_line(error)}",
                hint=f"install turngap again, or write it anew: {cls.command}",
            ) from error

    @classmethod
    def shipped(cls, package: str, name: str) -> Self:
        """Read the fitted file that a package ships."""
        return cls.read(resources.files(package).joinpath(name).read_text("utf-8"), name)


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
        what: the part that needs more memory than there is.
        hint: a remedy that needs less memory.
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
        what: the thing that is loaded or run.
        part: the stack's table with `device` and `compute_type`.
        less_memory: a remedy that needs less memory.
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


# What each adds to turngap's base, MB, as installed on Linux x86_64 on 2026-11-22; of the CUDA
# libraries about what their wheel unpacks to.
SIZES_MB = {
    AGENT.extra: AGENT.extra_mb,
    "embedded": 71, "small": 156, "llama": 100, "whisper": 105, "piper": 46, "cuda": 800,
    "anthropic": 20, "voice": 21,
}  # fmt: skip


def needs(extra: str, *modules: str) -> tuple[Need, ...]:
    """Return the needs for these modules, which an extra brings."""
    return tuple(_need("module", module, extra) for module in modules)


def _need(kind: Literal["module", "library"], name: str, extra: str) -> Need:
    return Need(kind, name, f"pip install 'turngap[{extra}]'", extra, SIZES_MB[extra])


# Of the engines on CTranslate2, whose wheel brings the rest.
ON_A_CARD = (_need("library", "libcublas.so.12", "cuda"),)


Device = Literal["auto", "cpu", "cuda"]
# What CTranslate2 calculates with.
Compute = Literal[
    "default", "auto", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16",
    "bfloat16", "float32",
]  # fmt: skip

# CTranslate2's wheel brings the CUDA runtime, and opens cuBLAS by name when it first multiplies on
# the card; no cuDNN (4.8.5 names none). The extra `cuda` puts cuBLAS into site-packages, where the
# system's loader does not look. A library that is open already is found by its name:
# `load_libraries` opens it.
# In the order in which they need each other.
LIBRARIES = ("libcublasLt.so.12", "libcublas.so.12")
_IN_SITE_PACKAGES = Path("nvidia", "cublas", "lib")

# The first that the card supports. Published weights are float16, which cards since 2017 calculate
# with in full; an older one has int8.
_ON_A_CARD = ("float16", "int8", "float32")


@dataclass(frozen=True, slots=True)
class Place:
    """The device on which a model is calculated, and the number format."""

    device: Literal["cpu", "cuda"]
    compute_type: str


def place(device: Device, compute_type: Compute | None, part: str) -> Place:
    """Choose a device and a number format; make the card's libraries ready.

    Args:
        device: `auto` is the card, if there is one and its libraries are there; else the CPU.
        compute_type: None: int8 on the CPU, the best that the card supports on a card.
        part: the stack's table with these settings, for the errors' hints.

    Raises:
        AgentError: `cuda` was requested but is not available; the hint says what is missing.
    """
    import ctranslate2

    card = device == "cuda" or (device == "auto" and ctranslate2.get_cuda_device_count() > 0)
    if not card:
        return Place("cpu", compute_type or "int8")
    try:
        supported = ctranslate2.get_supported_compute_types("cuda")
        load_libraries()
    except (RuntimeError, ValueError, OSError) as e:
        trouble = cuda_trouble(e, "CTranslate2", part)
        if device == "auto" and trouble is not None:
            logger.warning(f"{part} runs on the CPU: {trouble.message}. {trouble.hint}")
            return Place("cpu", compute_type or "int8")
        raise trouble or AgentError("cuda.failed", str(e), hint=f"--set {part}.device=cpu") from e
    best = next((each for each in _ON_A_CARD if each in supported), "default")
    return Place("cuda", compute_type or best)


@cache
def load_libraries() -> None:
    """Open the system's cuBLAS, or else the extra's, so that CTranslate2 finds it by name.

    Raises:
        OSError: the library is in neither place, or cannot be opened.
    """
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError as e:
            places = (Path(entry, _IN_SITE_PACKAGES, name) for entry in sys.path)
            if (found := next((path for path in places if path.is_file()), None)) is None:
                raise OSError(f"Library {name} is not found or cannot be loaded") from e
            ctypes.CDLL(str(found), ctypes.RTLD_GLOBAL)


SHIPPED = Path(__file__).with_name("weights.toml")
# Names a file of pins that takes the place of `weights.toml`: for a hub that serves other files, as
# a mirror with models of your own. Every list of downloads names it.
PINS_VARIABLE = "TURNGAP_PINS"
# The engine and the setting that name them.
_SETTINGS = {
    "whisper": "whisper,model=",
    "piper": "piper,voice=",
    "llm": "vllm,model=",
    "gguf": "llama,model=",
}


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
    packages: list[str] = Field(default_factory=list[str])
    """Packages of Python's index with the same files, for `tools/published-weights`."""
    files: Annotated[list[_File], Field(min_length=1)]


class _Pins(RootModel[dict[str, dict[str, _Pinned]]]):
    """Tables by kind and name."""


def pinned(kind: str, name: str) -> Weights | None:
    """Return the pinned weights of that kind (`whisper`, `piper`, `llm`, `gguf`) and name.

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
    """Return the pinned names of that kind."""
    return list(_pins(os.environ.get(PINS_VARIABLE, "")).get(kind, {}))


def unpinned(kind: str, name: str, repository: str, *patterns: str) -> Weights:
    """Return unpinned weights: the newest files of a repository that match."""
    fetched_as = _SETTINGS[kind] + name
    return Weights(f"{kind} {name}", repository, "main", patterns=patterns, fetched_as=fetched_as)


@cache
def _pins(given: str) -> dict[str, dict[str, _Pinned]]:
    path = at_home(given) if given else SHIPPED
    try:
        return _Pins.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))).root
    except ValidationError as e:
        why = in_a_line(e)
    except (OSError, ValueError, RecursionError) as e:
        why = f"{type(e).__name__}: {e}"
    raise InputError(
        "weights.pins",
        f"{path} is no file of pins: {why}",
        hint=f"unset {PINS_VARIABLE}, or write it as turngap's own: {SHIPPED}",
    )
