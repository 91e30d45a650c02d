"""The agent's halves of the dialects, for scripted agents; each module is imported when needed."""

from pkgutil import resolve_name
from typing import Any

from turngap.core.errors import InputError, known_names
from turngap.testing.dialects.half import AgentHalf

# The class of each dialect's half, by the dialect's name.
_HERE = "turngap.testing.dialects"
HALVES = {
    "deepgram-agent": f"{_HERE}.deepgram_agent:DeepgramAgentHalf",
    "elevenlabs": f"{_HERE}.elevenlabs:ElevenLabsHalf",
    "exotel": f"{_HERE}.telephony:ExotelHalf",
    "gemini-live": f"{_HERE}.gemini_live:GeminiLiveHalf",
    "gpt-live": f"{_HERE}.gpt_live:GptLiveHalf",
    "openai-realtime": f"{_HERE}.openai_realtime:OpenAIRealtimeHalf",
    "pipecat": f"{_HERE}.pipecat:PipecatHalf",
    "pipecat-eval": f"{_HERE}.pipecat_eval:PipecatEvalHalf",
    "plivo": f"{_HERE}.telephony:PlivoHalf",
    "telnyx": f"{_HERE}.telephony:TelnyxHalf",
    "twilio": f"{_HERE}.telephony:PhoneHalf",
    "vonage": f"{_HERE}.telephony:VonageHalf",
}


def make_half(dialect: str, **options: Any) -> AgentHalf:
    """Make the agent's half of a dialect, for one connection.

    `options` are those of its class, such as the `rate` of pipecat's.

    Raises:
        InputError: no scripted agent speaks this dialect.
    """
    require_half(dialect)
    return resolve_name(HALVES[dialect])(**options)


def require_half(dialect: str) -> None:
    """Check that a scripted agent speaks a dialect.

    Raises:
        InputError: none does.
    """
    if dialect not in HALVES:
        raise InputError(
            "dialect.half",
            f"no scripted agent speaks the dialect {dialect!r}",
            hint=known_names(dialect, HALVES),
        )
