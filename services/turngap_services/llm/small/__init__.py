"""The fast path: a small language model in this process, streaming token by token."""

from typing import TYPE_CHECKING

from turngap.backends import BackendSpec, Need
from turngap.core.clock import Clock
from turngap_services.llm.small.settings import SmallSettings

if TYPE_CHECKING:
    from turngap_services.llm.small.service import SmallLLMService

_EXTRA = "pip install 'turngap[small]'"


def prepare(settings: SmallSettings) -> None:
    """Load the model and let it say a word, so that no session pays for what comes first."""
    import turngap_services.llm.small.service  # noqa: F401
    from turngap_services.llm.small.model import model_of

    model_of(settings).warm_up()


def create(settings: SmallSettings, clock: Clock) -> "SmallLLMService":
    """A service for one session; sessions with the same settings share the model."""
    from turngap_services.llm.small.model import model_of
    from turngap_services.llm.small.service import SmallLLMService

    return SmallLLMService(settings=settings, model=model_of(settings))


SPEC = BackendSpec(
    name="small",
    kind="llm",
    settings_type=SmallSettings,
    create=create,
    prepare=prepare,
    requires=(Need("module", "ctranslate2", _EXTRA), Need("module", "tokenizers", _EXTRA)),
    licence="MIT AND Apache-2.0 AND BSD-2-Clause",
    notes="CTranslate2 on the CPU, in process; ships with a student model of turngap's own.",
    judges=False,
)
