"""What kept an engine from making a reply, in one line that says what to do next."""

from pipecat.frames.frames import ErrorFrame
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.utils.errors import ErrorCategory

# A server may answer with a page.
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
    """The error that `engine` pushed; None where the engine itself is well.

    A tool that fails is the application's affair: the model is told, and answers.
    """
    category = frame.category or ErrorCategory.UNKNOWN
    if category is ErrorCategory.APPLICATION:
        return None
    said = " ".join(f"{frame.error}{_cause(frame)}".split())
    said = said if len(said) <= _MOST else said[:_MOST] + "…"
    remedy = _REMEDIES.get(category)
    name = engine.name.partition("#")[0]
    return f"{name}: {said} ({remedy})" if remedy else f"{name}: {said}"


def _cause(frame: ErrorFrame) -> str:
    """The reason beneath: a client's own words are often just "Connection error."."""
    cause = frame.exception.__cause__ if frame.exception else None
    said = str(cause) if cause else ""
    return f" {said}" if said and said not in frame.error else ""
