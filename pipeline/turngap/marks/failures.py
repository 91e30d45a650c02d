"""What an engine's error frame says, in words for the caller."""

from pipecat.frames.frames import ErrorFrame
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregator
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.utils.errors import ErrorCategory

from turngap.backends import Kind

# The longest error text that is kept: a server may answer with a page.
_MOST = 300

_REMEDIES: dict[ErrorCategory, str] = {
    ErrorCategory.AUTHENTICATION: "put the right key in its environment variable "
    "(turngap backends names it)",
    ErrorCategory.AUTHORIZATION: "its key may not use this model: choose another, or another key",
    ErrorCategory.INVALID_REQUEST: "correct the model's name and the settings",
    ErrorCategory.RATE_LIMIT: "too many requests in a short time: wait, or ask for a higher limit",
    ErrorCategory.QUOTA: "its account has nothing left to spend",
    ErrorCategory.CONNECTIVITY: "see that its server runs, and what the server's log says",
    ErrorCategory.SERVER: "the server's log says why",
}


def failure_of(frame: ErrorFrame, engine: FrameProcessor) -> str | None:
    """Return the error that `engine` pushed, or None if the engine itself is well.

    A tool that fails is the application's problem: the model is told, and answers.
    """
    category = frame.category or ErrorCategory.UNKNOWN
    if category is ErrorCategory.APPLICATION:
        return None
    said = " ".join(f"{frame.error}{_cause(frame)}".split())
    said = said if len(said) <= _MOST else said[:_MOST] + "…"
    remedy = _REMEDIES.get(category)
    name = f"{kind_of(engine)}: {engine.name.partition('#')[0]}"
    return f"{name}: {said} ({remedy})" if remedy else f"{name}: {said}"


def kind_of(engine: FrameProcessor) -> Kind | None:
    """Return what an engine is of; None for any other processor."""
    kinds: tuple[tuple[Kind, tuple[type[FrameProcessor], ...]], ...] = (
        ("llm", (LLMService,)),
        ("tts", (TTSService,)),
        ("stt", (STTService,)),
        # The aggregator has the turn-taking's strategies.
        ("turn", (LLMUserAggregator, VADProcessor)),
    )
    return next((kind for kind, types in kinds if isinstance(engine, types)), None)


def _cause(frame: ErrorFrame) -> str:
    """Return the underlying reason, as a client's own words are often just "Connection error."."""
    cause = frame.exception.__cause__ if frame.exception else None
    said = str(cause) if cause else ""
    return f" {said}" if said and said not in frame.error else ""
