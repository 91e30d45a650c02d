"""Settings of the espeak-ng synthesiser."""

from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings


class EspeakSettings(BackendSettings):
    """Settings of `espeak`.

    Attributes:
        voice: an espeak-ng voice, with a variant after `+`.
        speed_wpm: words a minute.
        pitch: 0 to 100.
        lead_in_ms: digital silence put before the first audio of each reply. It imitates an engine
            that begins with silence, and is how the instrument is tested.
        realtime_factor: seconds spent on a second of audio, paced by the clock, to imitate a slower
            engine; None for as fast as it goes (about 0.002).
    """

    voice: str = "en-us+edward"
    speed_wpm: Annotated[int, Field(ge=80, le=450)] = 175
    pitch: Annotated[int, Field(ge=0, le=100)] = 50
    lead_in_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    realtime_factor: Annotated[float, Field(gt=0)] | None = None
