"""The messages that each protocol lets an agent send, by their names."""

from collections import Counter

from turngap.caller.dialects import exotel, plivo, telnyx, twilio
from turngap.caller.dialects.telephony import Names
from turngap.conformance.evidence import Check, Evidence, json_of
from turngap.core.untrusted import printable

# Of what was seen in several messages, so many are quoted.
QUOTED = 5


def _of(names: Names, *others: str) -> frozenset[str]:
    return frozenset({names.media, names.mark, names.clear, *others})


# Where a message in JSON says what it is, and what it may be, from each protocol's documents.
KNOWN: dict[str, tuple[str, frozenset[str]]] = {
    "twilio": ("event", _of(twilio.NAMES)),
    "telnyx": ("event", _of(telnyx.NAMES)),
    "exotel": ("event", _of(exotel.NAMES)),
    "plivo": ("event", _of(plivo.NAMES)),
    "vonage": ("action", frozenset({"clear", "notify"})),
    "openai-realtime": (
        "type",
        frozenset({
            "error",
            "session.created",
            "session.updated",
            "conversation.created",
            "conversation.item.added",
            "conversation.item.created",
            "conversation.item.done",
            "conversation.item.deleted",
            "conversation.item.retrieved",
            "conversation.item.truncated",
            "conversation.item.input_audio_transcription.completed",
            "conversation.item.input_audio_transcription.delta",
            "conversation.item.input_audio_transcription.failed",
            "conversation.item.input_audio_transcription.segment",
            "input_audio_buffer.cleared",
            "input_audio_buffer.committed",
            "input_audio_buffer.dtmf_event_received",
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.timeout_triggered",
            "output_audio_buffer.cleared",
            "output_audio_buffer.started",
            "output_audio_buffer.stopped",
            "rate_limits.updated",
            "response.created",
            "response.done",
            "response.content_part.added",
            "response.content_part.done",
            "response.output_item.added",
            "response.output_item.done",
            *(
                f"response.{form}{kind}.{part}"
                for form in ("", "output_")
                for kind in ("text", "audio", "audio_transcript")
                for part in ("delta", "done")
            ),
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            *(f"response.mcp_call_arguments.{part}" for part in ("delta", "done")),
            *(f"response.mcp_call.{state}" for state in ("in_progress", "completed", "failed")),
            *(f"mcp_list_tools.{state}" for state in ("in_progress", "completed", "failed")),
        }),
    ),
    "gpt-live": (
        "type",
        frozenset({
            "decision.event",
            "decision.item.created",
            "decision.item.deleted",
            "error",
            "info",
            "response.event",
            "session.closed",
            "session.commentary.appended",
            "session.delegation.created",
            "session.input_audio.append",
            "session.input_audio.muted",
            "session.input_audio.unmuted",
            "session.input_transcript.delta",
            "session.instructions.appended",
            "session.output_audio.delta",
            "session.output_audio.fixture.played",
            "session.output_audio.fixture.playing",
            "session.output_transcript.delta",
            "session.started",
            "session.thinking.appended",
            "session.updated",
            "session.usage.updated",
            *(f"transport.{state}" for state in ("answered", "failed", "ringing")),
            *(f"transport.dtmf.{what}" for what in ("received", "send", "sent")),
        }),
    ),
}  # fmt: skip


def sends_known_messages(evidence: Evidence, dialect: str) -> Check:
    """Check that each message is one that the protocol's documents name."""
    name = "sends only messages that its protocol has"
    if dialect not in KNOWN:
        return Check(name, "not seen", f"turngap has no list of {dialect}'s messages")
    key, known = KNOWN[dialect]
    kinds = [str(said.get(key)) for _, said in json_of(evidence.log.came)]
    if not kinds:
        return Check(name, "not seen", "no message in JSON")
    others = Counter(kind for kind in kinds if kind not in known)
    if others:
        named = ", ".join(f"{printable(kind, 40)} ({n})" for kind, n in others.most_common(QUOTED))
        return Check(name, "fail", f"{others.total()} of {len(kinds)}: {named}")
    return Check(name, "pass", ", ".join(f"{k} ({n})" for k, n in Counter(kinds).most_common()))
