"""Settings of the piper synthesiser."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from turngap.backends import BackendSettings

# Where pipecat's own service keeps the voices that it downloads: one copy does for both.
VOICES = Path("~/.cache/pipecat/piper")
VOICE = "en_US-lessac-medium"


class PiperSettings(BackendSettings):
    """Settings of `piper`.

    Attributes:
        voice: the name of a voice in `voices`, or the path of one: an `.onnx` file with its
            `.onnx.json` beside it.
        voices: where voices are looked for by name.
        speaker: name or number, of a voice that has several; left out: its first.
        length_scale: how long each sound lasts; above 1 is slower. Left out: the voice's own, as
            with the two below.
        noise_scale: how much the sound varies.
        noise_w_scale: how much its timing varies.
        clauses: speak clause by clause; off: sentence by sentence, as piper does.
        threads: of one synthesis. The same machine has a language model and a recogniser to run.
    """

    voice: Annotated[str, Field(min_length=1)] = VOICE
    voices: Path = VOICES
    speaker: Annotated[int, Field(ge=0)] | str | None = None
    length_scale: Annotated[float, Field(gt=0, le=10)] | None = None
    noise_scale: Annotated[float, Field(ge=0)] | None = None
    noise_w_scale: Annotated[float, Field(ge=0)] | None = None
    clauses: bool = True
    threads: Annotated[int, Field(ge=1)] = 1
