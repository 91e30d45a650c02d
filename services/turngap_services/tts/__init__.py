"""Voices in this process: espeak-ng, and piper's neural ones."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Weights
from turngap.backends.weights import at_home
from turngap.core.errors import InputError
from turngap_services.loading import lazily, needs, pinned, unpinned


class EspeakSettings(BackendSettings):
    """Settings of `espeak`."""

    voice: str = "en-us+edward"
    """An espeak-ng voice, with a variant after `+`."""
    speed_wpm: Annotated[int, Field(ge=80, le=450)] = 175
    """Speed, in words a minute."""
    pitch: Annotated[int, Field(ge=0, le=100)] = 50
    """Pitch, 0 to 100."""
    lead_in_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    """Digital silence before the first audio of each reply, in ms: imitates an engine that begins
    with silence, to test the instrument."""
    realtime_factor: Annotated[float, Field(gt=0)] | None = None
    """Seconds to spend on a second of audio: imitates a slower engine; by default as fast as it
    goes (about 0.002)."""


ESPEAK = BackendSpec(
    name="espeak",
    kind="tts",
    settings_type=EspeakSettings,
    create=lazily("turngap_services.tts.espeak:create"),
    prepare=lazily("turngap_services.tts.espeak:prepare"),
    speak=lazily("turngap_services.tts.espeak:speak"),
    speaks_with=needs("voice", "espeakng_loader"),
    requires=needs("embedded", "espeakng_loader"),
    licence="GPL-3.0-or-later",
    notes="22,050 Hz, streams 60 ms chunks, about 500 times real time. CPU, in process.",
)


# Where pipecat's own service keeps the voices that it downloads: one copy does for both.
VOICES = Path("~/.cache/pipecat/piper")
VOICE = "en_US-ljspeech-medium"
# Language, region, speaker and quality, of which the hub's folders are made.
_NAME = re.compile(r"([a-z]{2,3})_([A-Z]{2,3})-(\w+)-(x_low|low|medium|high)")


class PiperSettings(BackendSettings):
    """Settings of `piper`."""

    voice: Annotated[str, Field(min_length=1)] = VOICE
    """Name of a voice (downloaded once), or path of an `.onnx` file next to its `.onnx.json`."""
    voices: Path = VOICES
    """Directory in which voices are looked up by name before the hub is asked for them."""
    speaker: Annotated[int, Field(ge=0)] | str | None = None
    """Name or number of the speaker, for a voice with several; by default its first."""
    length_scale: Annotated[float, Field(gt=0, le=10)] | None = None
    """Factor on the length of each sound, above 1 is slower; by default the voice's own."""
    noise_scale: Annotated[float, Field(ge=0)] | None = None
    """How much the sound varies; by default the voice's own."""
    noise_w_scale: Annotated[float, Field(ge=0)] | None = None
    """How much the timing varies; by default the voice's own."""
    clauses: bool = True
    """Speak clause by clause; if off, sentence by sentence, as piper does."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads for one synthesis; the machine has a language model and a recogniser to run too."""


def voice_file(settings: PiperSettings) -> Path | None:
    """Return the `.onnx` file that the settings give, or that is in `voices`; None for neither.

    A file given by its path may not exist.
    """
    named = at_home(settings.voice)
    if named.suffix == ".onnx" or len(named.parts) > 1:
        return named
    file = at_home(settings.voices) / f"{named}.onnx"
    return file if file.is_file() else None


def weights_of(settings: PiperSettings) -> Weights | None:
    """Return the weights that the settings load from the hub; None if the voice is a local file.

    Raises:
        InputError: the setting is no name of a voice.
    """
    return hub_voice(settings) if voice_file(settings) is None else None


def hub_voice(settings: PiperSettings) -> Weights:
    """Return the voice that the hub has under that name.

    Raises:
        InputError: the setting is no name of a voice.
    """
    if (found := pinned("piper", settings.voice)) is not None:
        return found
    if (parts := _NAME.fullmatch(settings.voice)) is None:
        raise InputError(
            "voice.unknown",
            f"no piper voice {settings.voice!r}: it is neither in {settings.voices} nor a name "
            "like en_US-ljspeech-medium",
            hint="expected a voice's name, or the path of an .onnx file with its .onnx.json",
        )
    language, region, speaker, quality = parts.groups()
    folder = f"{language}/{language}_{region}/{speaker}/{quality}/{settings.voice}"
    files = f"{folder}.onnx", f"{folder}.onnx.json"
    return unpinned("piper", settings.voice, "rhasspy/piper-voices", *files)


PIPER = BackendSpec(
    name="piper",
    kind="tts",
    settings_type=PiperSettings,
    create=lazily("turngap_services.tts.piper:create"),
    prepare=lazily("turngap_services.tts.piper:prepare"),
    speak=lazily("turngap_services.tts.piper:speak"),
    speaks_with=needs("piper", "piper"),
    requires=needs("piper", "piper"),
    weights=weights_of,
    licence="GPL-3.0-or-later AND MIT",
    notes="Neural voices by ONNX on the CPU, in process; a voice is a download of its own.",
)
