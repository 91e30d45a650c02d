"""Streaming recognisers of the open world, by sherpa-onnx, made for a CPU."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Weights
from turngap.core.clock import Clock
from turngap_services.extras import needs

if TYPE_CHECKING:
    from turngap_services.stt.sherpa.service import SherpaSTTService

MODEL = "zipformer-en-2023-06-26"


class SherpaSettings(BackendSettings):
    """Settings of `sherpa`."""

    model: Annotated[str, Field(min_length=1)] = MODEL
    """The name of a published model, which is downloaded once, or a directory with the encoder,
    decoder and joiner of a streaming transducer and its tokens.txt."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads for one reading; on a shared CPU one is fastest."""
    pre_roll_ms: Annotated[float, Field(ge=0)] = 600.0
    """Audio before the VAD's start that belongs to the utterance, in ms."""
    pause_ms: Annotated[float, Field(ge=20)] = 120.0
    """Silence, in ms, that counts as a pause, in which the last words are read without waiting for
    the audio that the model looks ahead to. Longer than any: read them only at the end."""


def weights(settings: SherpaSettings) -> Weights | None:
    """Return the published model of that name; None for a directory or a name that is unknown."""
    from turngap_services.weights import pinned

    given = Path(settings.model).expanduser()
    return None if given.is_dir() else pinned("sherpa", settings.model)


def prepare(settings: SherpaSettings) -> None:
    """Load and warm the model, so that no session pays for it."""
    import turngap_services.stt.sherpa.service  # noqa: F401
    from turngap_services.stt.sherpa.model import recogniser_of

    recogniser_of(settings)


def create(settings: SherpaSettings, clock: Clock) -> "SherpaSTTService":
    """Make the service of one session; sessions with the same settings share the model."""
    from turngap_services.stt.sherpa.model import recogniser_of
    from turngap_services.stt.sherpa.service import SherpaSTTService

    return SherpaSTTService(settings=settings, recogniser=recogniser_of(settings))


SPEC = BackendSpec(
    name="sherpa",
    kind="stt",
    settings_type=SherpaSettings,
    create=create,
    prepare=prepare,
    weights=weights,
    requires=needs("sherpa", "sherpa_onnx"),
    licence="Apache-2.0 AND MIT AND LGPL-2.1-or-later",
    notes="sherpa-onnx, in process: streaming transducers of the open world, made for a CPU.",
)
