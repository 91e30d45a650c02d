"""Whisper by faster-whisper, read while the person speaks."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.cuda import Compute, Device

if TYPE_CHECKING:
    from turngap_services.stt.whisper.service import WhisperSTTService

MODEL = "base.en"


class WhisperSettings(BackendSettings):
    """Settings of `whisper`."""

    model: Annotated[str, Field(min_length=1)] = MODEL
    """A directory in CTranslate2's format, a size (`tiny.en`, `base.en`, `large-v3-turbo`, ...) or
    a repository on the hub; the latter two are downloaded once."""
    offline: bool = False
    """Use only a model that was downloaded before."""
    cache: Path | None = None
    """Directory of downloaded models; by default that of the hub's client."""
    language: Annotated[str, Field(pattern=r"^([a-z]{2,3}|auto)$")] = "en"
    """Code of the language; `auto` lets the model find out in every reading."""
    device: Device = "auto"
    """Where the model runs: `cpu`, `cuda`, or `auto` for the card where there is one."""
    compute_type: Compute | None = None
    """CTranslate2's type of calculation; by default int8 on a CPU, on a card the best it has."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads for one reading; on a shared CPU one is fastest."""
    workers: Annotated[int, Field(ge=1)] = 1
    """Readings made at the same time, of different sessions; further ones wait."""
    beam_size: Annotated[int, Field(ge=1, le=10)] = 1
    """Hypotheses followed at the same time."""
    window: Literal["auto", "full", "fit"] = "auto"
    """`full`: the encoder reads 30 s, padded with silence, as Whisper was trained. `fit`: it reads
    the audio and a little more, a tenth of the cost, and what then repeats itself is read again in
    full. `auto`: `fit` on a CPU."""
    initial_prompt: str | None = None
    """Example text that sets style and spelling."""
    hotwords: str | None = None
    """Words to expect."""
    no_speech: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Probability from which a reading counts as no speech."""
    pre_roll_ms: Annotated[float, Field(ge=0)] = 600.0
    """Audio before the VAD's start that belongs to the utterance, in ms."""
    while_speaking: bool = True
    """Read while the person speaks; if off, only when the utterance is over."""
    pause_ms: Annotated[float, Field(ge=20)] = 60.0
    """Silence, in ms, that counts as a pause, in which everything said so far is read."""
    # What is read in mid-sentence is old by the next pause: `adaptive` may begin an answer to it
    # that it has to withdraw.
    partial_every_ms: Annotated[float, Field(ge=20)] | None = None
    """Audio between two readings outside pauses, in ms, more where readings take long; by default
    only pauses are read."""

    @property
    def spoken(self) -> str | None:
        """The language, or None for detection."""
        return None if self.language == "auto" else self.language


def prepare(settings: WhisperSettings) -> None:
    """Load and warm the model, so that no session pays for the first reading's extra work."""
    import turngap_services.stt.whisper.service  # noqa: F401
    from turngap_services.stt.whisper.model import reader_of

    reader_of(settings)


def create(settings: WhisperSettings, clock: Clock) -> "WhisperSTTService":
    """Make the service of one session; sessions with the same settings share the model."""
    from turngap_services.stt.whisper.model import reader_of
    from turngap_services.stt.whisper.service import WhisperSTTService

    return WhisperSTTService(settings=settings, reader=reader_of(settings), clock=clock)


def _hub_cache() -> Path:
    """Where the hub's client keeps its downloads, by the variables that it reads."""
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
