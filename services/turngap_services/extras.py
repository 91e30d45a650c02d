"""turngap's extras, as engines need them."""

from typing import Literal

from turngap.backends import AGENT, Need

# What each adds to turngap's base, MB, as installed on Linux x86_64 on 2026-11-22; of the CUDA
# libraries about what their wheel unpacks to.
SIZES_MB = {
    AGENT.extra: AGENT.extra_mb,
    "embedded": 71, "small": 156, "whisper": 105, "piper": 46, "cuda": 800,
    "anthropic": 20, "voice": 21,
}  # fmt: skip


def needs(extra: str, *modules: str) -> tuple[Need, ...]:
    """Return the need of modules that an extra brings."""
    return tuple(_need("module", module, extra) for module in modules)


def _need(kind: Literal["module", "library"], name: str, extra: str) -> Need:
    return Need(kind, name, f"pip install 'turngap[{extra}]'", extra, SIZES_MB[extra])


# Of the engines on CTranslate2, whose wheel brings the rest.
ON_A_CARD = (_need("library", "libcublas.so.12", "cuda"),)
