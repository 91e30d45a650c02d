"""espeak-ng as a synthesiser that streams while it synthesises."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec
from turngap.core.clock import Clock
from turngap_services.extras import needs

if TYPE_CHECKING:
    from turngap.core.audio import Pcm
    from turngap_services.tts.espeak.service import EspeakTTSService


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


def prepare(settings: EspeakSettings) -> None:
    """Start the engine and load the voice."""
    import turngap_services.tts.espeak.service  # noqa: F401
    from turngap_services.tts.espeak.engine import EspeakVoice, engine

    engine().check(EspeakVoice(settings.voice, settings.speed_wpm, settings.pitch))


def create(settings: EspeakSettings, clock: Clock) -> "EspeakTTSService":
    """Make the service of one session."""
    from turngap_services.tts.espeak.engine import engine
    from turngap_services.tts.espeak.service import EspeakTTSService

    return EspeakTTSService(settings=settings, clock=clock, engine=engine())


def speak(settings: EspeakSettings, text: str) -> "tuple[Pcm, int]":
    """Speak a text at once."""
    from turngap_services.tts.espeak.engine import EspeakVoice, engine

    voice = EspeakVoice(settings.voice, settings.speed_wpm, settings.pitch)
    return engine().spoken(text, voice), engine().rate


SPEC = BackendSpec(
    name="espeak",
    kind="tts",
    settings_type=EspeakSettings,
    create=create,
    prepare=prepare,
    speak=speak,
    speaks_with=needs("voice", "espeakng_loader"),
    requires=needs("embedded", "espeakng_loader"),
    licence="GPL-3.0-or-later",
    notes="22,050 Hz, streams 60 ms chunks, about 500 times real time. CPU, in process.",
)
