"""pocketsphinx as a closed-domain recogniser made from the scenario library."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec
from turngap.core.clock import Clock
from turngap_services.extras import needs

if TYPE_CHECKING:
    from turngap_services.stt.pocketsphinx.model import Model
    from turngap_services.stt.pocketsphinx.service import PocketsphinxSTTService

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


def _model(settings: PocketsphinxSettings) -> "Model":
    from turngap_services.stt.pocketsphinx.model import library_model

    given = tuple(sorted(settings.pronunciations.items()))
    return library_model(settings.library, given, settings.listens_to)


def prepare(settings: PocketsphinxSettings) -> None:
    """Make the model, import what a session needs, and warn of pronunciations that are guesses."""
    from loguru import logger

    import turngap_services.stt.pocketsphinx.service  # noqa: F401
    from turngap_services.stt.pocketsphinx.known import shipped

    shipped()
    for word, scenario in _model(settings).guessed.items():
        logger.warning(
            f"stt pocketsphinx: {word!r} (scenario {scenario!r}) is not in the dictionary, so its "
            f"pronunciation is guessed from its spelling; give its phones in [stt.pronunciations]"
        )


def create(settings: PocketsphinxSettings, clock: Clock) -> "PocketsphinxSTTService":
    """Make the service of one session."""
    from turngap_services.stt.pocketsphinx.service import PocketsphinxSTTService

    return PocketsphinxSTTService(settings=settings, model=_model(settings))


SPEC = BackendSpec(
    name="pocketsphinx",
    kind="stt",
    settings_type=PocketsphinxSettings,
    create=create,
    prepare=prepare,
    requires=needs("embedded", "pocketsphinx"),
    licence="BSD-2-Clause",
    closed_domain=True,
    notes="Closed domain: hears only the words of the scenario library. CPU, in process.",
)
