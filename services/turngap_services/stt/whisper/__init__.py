"""Whisper by faster-whisper, read while the person speaks."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.stt.whisper.settings import MODEL, WhisperSettings

if TYPE_CHECKING:
    from turngap_services.stt.whisper.service import WhisperSTTService


def prepare(settings: WhisperSettings) -> None:
    """Load the model and let it read something, so that no session pays for what comes first."""
    import turngap_services.stt.whisper.service  # noqa: F401
    from turngap_services.stt.whisper.model import reader_of

    reader_of(settings)


def create(settings: WhisperSettings, clock: Clock) -> "WhisperSTTService":
    """A service for one session; sessions with the same settings share the model."""
    from turngap_services.stt.whisper.model import reader_of
    from turngap_services.stt.whisper.service import WhisperSTTService

    return WhisperSTTService(settings=settings, reader=reader_of(settings), clock=clock)


def _hub_cache() -> Path:
    """Where the hub's client keeps what it downloads, by the variables that it reads."""
    home = os.environ.get("HF_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))


SPEC = BackendSpec(
    name="whisper",
    kind="stt",
    settings_type=WhisperSettings,
    create=create,
    prepare=prepare,
    requires=(Need("module", "faster_whisper", "pip install 'turngap[whisper]'"),),
    by_default=(
        Need(
            "file",
            str(_hub_cache() / f"models--Systran--faster-whisper-{MODEL}"),
            "it is downloaded at the first start, where there is a network; or --set stt.model=DIR",
        ),
    ),
    licence="MIT AND Apache-2.0 AND BSD-2-Clause",
    notes="faster-whisper, in process, while the person speaks; weights by hub id or directory.",
)
