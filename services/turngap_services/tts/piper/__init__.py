"""piper: neural voices in this process, the first clause first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Need
from turngap.core.clock import Clock

if TYPE_CHECKING:
    from turngap_services.tts.piper.service import PiperTTSService

# Where pipecat's own service keeps the voices that it downloads: one copy does for both.
VOICES = Path("~/.cache/pipecat/piper")
VOICE = "en_US-lessac-medium"


class PiperSettings(BackendSettings):
    """Settings of `piper`."""

    voice: Annotated[str, Field(min_length=1)] = VOICE
    """Name of a voice in `voices`, or path of an `.onnx` file with its `.onnx.json` beside it."""
    voices: Path = VOICES
    """Directory in which voices are looked up by name."""
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


def prepare(settings: PiperSettings) -> None:
    """Load and warm the voice, so that no session pays for the first synthesis' extra work."""
    import turngap_services.tts.piper.service  # noqa: F401
    from turngap_services.tts.piper.voice import voice_of

    voice_of(settings).warm_up(settings)


def create(settings: PiperSettings, clock: Clock) -> "PiperTTSService":
    """Make the service of one session; sessions with the same voice share it."""
    from turngap_services.tts.piper.service import PiperTTSService
    from turngap_services.tts.piper.voice import voice_of

    return PiperTTSService(settings=settings, clock=clock, voice=voice_of(settings))


SPEC = BackendSpec(
    name="piper",
    kind="tts",
    settings_type=PiperSettings,
    create=create,
    prepare=prepare,
    requires=(Need("module", "piper", "pip install 'turngap[piper]'"),),
    by_default=(
        Need(
            "file",
            str(VOICES / f"{VOICE}.onnx"),
            f"python -m piper.download_voices --data-dir {VOICES} {VOICE}, or --set "
            "tts.voice=FILE.onnx",
        ),
    ),
    licence="GPL-3.0-or-later AND MIT",
    notes="Neural voices by ONNX on the CPU, in process; a voice is a download of its own.",
)
