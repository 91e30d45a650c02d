"""Where CTranslate2 calculates: on the CPU or on a CUDA card, with what, and with which libraries.

Its wheel brings the CUDA runtime, and opens cuBLAS by name when it first multiplies on the card; no
cuDNN (4.8.5 names none). The extra `cuda` puts cuBLAS into site-packages, where the system's loader
does not look. A library that is open already is found by its name: `load_libraries` opens it.
"""

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from loguru import logger

from turngap.core.errors import AgentError
from turngap_services.loading import cuda_trouble

Device = Literal["auto", "cpu", "cuda"]
# What CTranslate2 calculates with.
Compute = Literal[
    "default", "auto", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16",
    "bfloat16", "float32",
]  # fmt: skip

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
    """Choose for `auto` and for no compute type; makes the card's libraries ready.

    Args:
        device: `auto` is the card, if there is one and its libraries are there; else the CPU.
        compute_type: None: int8 on the CPU, the best that the card supports on a card.
        part: the stack's table with these settings, for what the errors tell to change.

    Raises:
        AgentError: `cuda` was asked for and cannot be had; the hint says what is missing.
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
    """Open cuBLAS, so that CTranslate2 finds it by its name: the system's, or else the extra's.

    Raises:
        OSError: it is in neither place, or cannot be opened.
    """
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError as e:
            places = (Path(entry, _IN_SITE_PACKAGES, name) for entry in sys.path)
            if (found := next((path for path in places if path.is_file()), None)) is None:
                raise OSError(f"Library {name} is not found or cannot be loaded") from e
            ctypes.CDLL(str(found), ctypes.RTLD_GLOBAL)
