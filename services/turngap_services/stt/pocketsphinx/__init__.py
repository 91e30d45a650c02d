"""pocketsphinx as a closed-domain recogniser made from the scenario library."""

from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.stt.pocketsphinx.settings import PocketsphinxSettings

if TYPE_CHECKING:
    from turngap_services.stt.pocketsphinx.model import Model
    from turngap_services.stt.pocketsphinx.service import PocketsphinxSTTService


def _model(settings: PocketsphinxSettings) -> "Model":
    from turngap_services.stt.pocketsphinx.model import library_model

    given = tuple(sorted(settings.pronunciations.items()))
    return library_model(settings.library, given, settings.listens_to)


def prepare(settings: PocketsphinxSettings) -> None:
    """Make the model, import what a session needs, name the words that had to be guessed."""
    from loguru import logger

    import turngap_services.stt.pocketsphinx.service  # noqa: F401

    for word, scenario in _model(settings).guessed.items():
        logger.warning(
            f"stt pocketsphinx: {word!r} (scenario {scenario!r}) is not in the dictionary and is "
            f"listened for by its spelling; give its phones in [stt.pronunciations]"
        )


def create(settings: PocketsphinxSettings, clock: Clock) -> "PocketsphinxSTTService":
    """A recogniser for one session."""
    from turngap_services.stt.pocketsphinx.hearing import Hearing
    from turngap_services.stt.pocketsphinx.service import PocketsphinxSTTService

    return PocketsphinxSTTService(
        hearing=Hearing(_model(settings), settings),
        partial_every_ms=settings.partial_every_ms,
        while_speaking=settings.while_speaking,
    )


SPEC = BackendSpec(
    name="pocketsphinx",
    kind="stt",
    settings_type=PocketsphinxSettings,
    create=create,
    prepare=prepare,
    requires=(Need("module", "pocketsphinx", "pip install 'turngap[embedded]'"),),
    licence="BSD-2-Clause",
    closed_domain=True,
    notes="Closed domain: hears only the words of the scenario library. CPU, in process.",
)
