"""espeak-ng as a synthesiser that streams while it synthesises."""

from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.tts.espeak.settings import EspeakSettings

if TYPE_CHECKING:
    from turngap_services.tts.espeak.service import EspeakTTSService


def prepare(settings: EspeakSettings) -> None:
    """Start the engine and load the voice."""
    import turngap_services.tts.espeak.service  # noqa: F401
    from turngap_services.tts.espeak.engine import Voice, engine

    engine().check(Voice(settings.voice, settings.speed_wpm, settings.pitch))


def create(settings: EspeakSettings, clock: Clock) -> "EspeakTTSService":
    """A voice for one session."""
    from turngap_services.tts.espeak.engine import engine
    from turngap_services.tts.espeak.service import EspeakTTSService

    return EspeakTTSService(settings=settings, clock=clock, engine=engine())


SPEC = BackendSpec(
    name="espeak",
    kind="tts",
    settings_type=EspeakSettings,
    create=create,
    prepare=prepare,
    requires=(Need("module", "espeakng_loader", "pip install 'turngap[embedded]'"),),
    licence="GPL-3.0-or-later",
    notes="22,050 Hz, streams 60 ms chunks, about 500 times real time. CPU, in process.",
)
