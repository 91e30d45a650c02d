"""piper: neural voices in this process, the first clause first."""

from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.tts.piper.settings import VOICE, VOICES, PiperSettings

if TYPE_CHECKING:
    from turngap_services.tts.piper.service import PiperTTSService


def prepare(settings: PiperSettings) -> None:
    """Load the voice and let it speak unheard, so that no session pays for what comes first."""
    import turngap_services.tts.piper.service  # noqa: F401
    from turngap_services.tts.piper.voice import voice_of

    voice_of(settings).warm_up(settings)


def create(settings: PiperSettings, clock: Clock) -> "PiperTTSService":
    """A service for one session; sessions with the same voice share it."""
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
