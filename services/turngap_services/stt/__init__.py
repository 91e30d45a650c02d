"""Recognisers in this process: pocketsphinx, for the library's sentences alone, and Whisper."""

import re
from typing import Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Weights
from turngap.backends.weights import at_home
from turngap.core.errors import AgentError, InputError
from turngap_services.loading import (
    ON_A_CARD,
    Compute,
    Device,
    lazily,
    needs,
    pinned,
    pinned_names,
    unpinned,
)

# Mean cepstra of what the decoder hears, with 500 ms of pre-roll, halfway between 25 recorded
# people (46.8,5.4,-0.6,10.4,-7.3,3.6 and so on) and the library's synthetic voices
# (47.8,1.8,1.1,10.1,-5.5,1.8).
CMNINIT = "47.3,3.6,0.2,10.3,-6.4,2.7,-5.2,-7.1,-1.8,-2.7,2.2,-1.0,-0.2"

# The side of the conversation that a closed-domain recogniser knows.
Side = Literal["person", "agent"]


class PocketsphinxSettings(BackendSettings):
    """Settings of `pocketsphinx`."""

    listens_to: Side = "person"
    """`person`: knows what people say in the library. `agent`: knows what an agent may say there,
    right and wrong."""
    language_weight: Annotated[float, Field(gt=0)] = 11.0
    """Weight of the library's sentences against the sound."""
    cmninit: Annotated[str, Field(pattern=r"^-?\d+(\.\d+)?(,-?\d+(\.\d+)?)*$")] = CMNINIT
    """Cepstral means that every session starts with, separated by commas."""
    pre_roll_ms: Annotated[float, Field(ge=0)] = 600.0
    """Audio before the VAD's start that belongs to the utterance, in ms."""
    while_speaking: bool = True
    """Decode as the audio arrives; if off, decode the whole utterance at its end, as pipecat's
    segmented services do, without interim transcripts."""
    partial_every_ms: Annotated[float, Field(gt=0)] | None = None
    """Audio between two interim transcripts, in ms; by default there are none."""
    pronunciations: dict[str, str] = Field(default_factory=dict[str, str])
    """Pronunciations of words in ARPAbet without stress: `{siobhan = "SH IH V AO N"}`."""


POCKETSPHINX = BackendSpec(
    name="pocketsphinx",
    kind="stt",
    settings_type=PocketsphinxSettings,
    create=lazily("turngap_services.stt.pocketsphinx:create"),
    prepare=lazily("turngap_services.stt.pocketsphinx:prepare"),
    requires=needs("embedded", "pocketsphinx"),
    licence="BSD-2-Clause",
    closed_domain=True,
    notes="Closed domain: hears only the words of the scenario library. CPU, in process.",
)


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


def weights_of(settings: WhisperSettings) -> Weights | None:
    """Return the weights that the settings load from the hub; None if they name a directory.

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


WHISPER = BackendSpec(
    name="whisper",
    kind="stt",
    settings_type=WhisperSettings,
    create=lazily("turngap_services.stt.whisper:create"),
    prepare=lazily("turngap_services.stt.whisper:prepare"),
    requires=needs("whisper", "faster_whisper"),
    on_a_card=ON_A_CARD,
    weights=weights_of,
    licence="MIT AND Apache-2.0 AND BSD-2-Clause",
    notes="faster-whisper, in process, while the person speaks; weights by hub id or directory.",
)
