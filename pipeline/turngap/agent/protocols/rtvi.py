"""What clients may ask for by RTVI, in whatever frame it comes. No I/O."""

from typing import Any

from turngap.agent.protocols.base import Taken
from turngap.core.messages import ANSWER, CANCEL, LLM, SAY
from turngap.core.untrusted import printable

# What RTVI clients may send. pipecat's processor takes more: files that the server would fetch from
# a URL, audio past every check, results of functions that nobody called. These are not passed on.
RTVI_TYPES = frozenset({"client-ready", "client-message", "send-text", "disconnect-bot"})

# What tells that somebody speaks. The agent's voice itself is audio.
SPEECH_TYPES = frozenset({"user-started-speaking", "user-transcription", "bot-llm-text"})


def is_rtvi(payload: object) -> bool:
    """Return whether a message's JSON is RTVI's."""
    return isinstance(payload, dict) and payload.get("label") == "rtvi-ai"


def taken(payload: dict[str, Any]) -> Taken | None:
    """Return what an RTVI message comes to; None if the agent does not take its type."""
    kind, data = payload.get("type"), payload.get("data")
    if not isinstance(kind, str) or kind not in RTVI_TYPES:
        return None
    if kind == "send-text":
        content = data.get("content") if isinstance(data, dict) else None
        return Taken(passes=True, asks=content if isinstance(content, str) else "")
    if kind == "client-message" and isinstance(data, dict):
        named = str(data.get("t"))
        asks = "" if named in (SAY, ANSWER, LLM, CANCEL) else None
        return Taken(passes=True, asks=asks, asked=(named, data.get("d")))
    return Taken(passes=True)


def not_taken(payload: dict[str, Any]) -> dict[str, Any]:
    """Make the answer to an RTVI message that the agent does not take."""
    error = f"not taken: {printable(str(payload.get('type')))[:50]}; taken: {sorted(RTVI_TYPES)}"
    answer = {"label": "rtvi-ai", "type": "error-response", "data": {"error": error}}
    return {**answer, "id": str(payload.get("id"))[:100]}
