"""Whisper by faster-whisper, read while the person speaks."""

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Weights
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap.weights import at_home
from turngap_services.cuda import Compute, Device
from turngap_services.extras import ON_A_CARD, needs
from turngap_services.weights import pinned, pinned_names, unpinned

if TYPE_CHECKING:
    from turngap_services.stt.whisper.service import WhisperSTTService

MODEL = "base.en"
# Other names that faster-whisper has for a size.
_ALSO = {"large": "large-v3", "turbo": "large-v3-turbo"}
# What it loads of a repository.
_FILES = (
    "config.json", "model.bin", "preprocessor_config.json", "tokenizer.json", "vocabulary.*",
)  # fmt: skip
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")
CONVERT = (
    "expected a directory in CTranslate2's format with tokenizer.json: "
    "ct2-transformers-converter --model MODEL --output_dir DIR "
    "--copy_files tokenizer.json preprocessor_config.json"
)


class WhisperSettings(BackendSettings):
    """Settings of `whisper`."""

    model: Annotated[str, Field(min_length=1)] = MODEL
    """A directory in CTranslate2's format, a size (`tiny.en`, `base.en`, `large-v3-turbo`, ...) or
    a repository on the hub; the latter two are downloaded once."""
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
        """Return the language, or None for detection."""
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


def weights_of(settings: WhisperSettings) -> Weights | None:
    """Return what the settings load from the hub; None where they name a directory.

    Raises:
        InputError: there is no such size.
        AgentError: there is no such directory.
    """
    given = at_home(settings.model)
    if given.is_dir():
        return None
    name = _ALSO.get(settings.model, settings.model)
    if (found := pinned("whisper", name)) is not None:
        return found
    if _REPOSITORY.fullmatch(name):
        return unpinned("whisper", name, name, *_FILES)
    if given.is_absolute() or given.parts[0] in (".", "..") or len(given.parts) > 1:
        raise AgentError("model.missing", f"no model directory at {given}", hint=CONVERT)
    raise InputError(
        "model.unknown",
        f"no Whisper model named {name!r}, and no directory of that name",
        hint=f"known: {', '.join(pinned_names('whisper'))}; or a hub repository; or a directory",
    )


SPEC = BackendSpec(
    name="whisper",
    kind="stt",
    settings_type=WhisperSettings,
    create=create,
    prepare=prepare,
    requires=needs("whisper", "faster_whisper"),
    on_a_card=ON_A_CARD,
    weights=weights_of,
    licence="MIT AND Apache-2.0 AND BSD-2-Clause",
    notes="faster-whisper, in process, while the person speaks; weights by hub id or directory.",
)
