"""What OpenAI's Realtime API asks of a server beyond what all dialects do."""

from typing import Any

from turngap.conformance.evidence import Check, Evidence, json_of
from turngap.core.untrusted import printable

_DELTAS = ("response.output_audio.delta", "response.audio.delta")
_STARTED = "input_audio_buffer.speech_started"


def realtime_checks(evidence: Evidence, dialect: str) -> list[Check]:
    """Return the checks of a server of the Realtime API."""
    said = [message for _, message in json_of(evidence.log.came)]
    return [
        _session_first(said),
        _audio_within_responses(said),
        _no_audio_of_the_interrupted(said),
        _takes_truncation(evidence, said),
    ]


def _session_first(said: list[dict[str, Any]]) -> Check:
    name = "begins with session.created"
    if not said:
        return Check(name, "not seen", "no message")
    first = str(said[0].get("type"))
    # The beta's servers begin with the conversation.
    ok = first in ("session.created", "conversation.created")
    return Check(name, "pass" if ok else "fail", printable(first, 60))


def _audio_within_responses(said: list[dict[str, Any]]) -> Check:
    name = "sends audio only between response.created and response.done"
    open_: set[str] = set()
    deltas = outside = 0
    for message in said:
        match message.get("type"):
            case "response.created":
                open_.add(_response(message))
            case "response.done":
                open_.discard(_response(message))
            case kind if kind in _DELTAS:
                deltas += 1
                outside += str(message.get("response_id")) not in open_
            case _:
                pass
    if not deltas:
        return Check(name, "not seen", "no audio")
    if outside:
        return Check(name, "fail", f"{outside} of {deltas} chunks belong to no open response")
    return Check(name, "pass", f"{deltas} chunks")


def _no_audio_of_the_interrupted(said: list[dict[str, Any]]) -> Check:
    """The caller's ear never hears such audio, because the dialect drops it."""
    name = "sends no audio of a response after speech_started"
    open_, dead = "", set[str]()
    deltas = 0
    for message in said:
        match message.get("type"):
            case "response.created":
                open_ = _response(message)
            case "response.done":
                open_ = ""
            case kind if kind == _STARTED:
                dead |= {open_} if open_ else set()
            case kind if kind in _DELTAS:
                deltas += str(message.get("response_id")) in dead
            case _:
                pass
    if not dead:
        return Check(name, "not seen", "no response was being made when it heard the person")
    if deltas:
        return Check(name, "fail", f"{deltas} chunks of {len(dead)} interrupted responses")
    return Check(name, "pass", f"{len(dead)} interrupted")


def _takes_truncation(evidence: Evidence, said: list[dict[str, Any]]) -> Check:
    name = "takes conversation.item.truncate"
    asked = [
        str(message.get("item_id"))
        for _, message in json_of(evidence.log.went)
        if message.get("type") == "conversation.item.truncate"
    ]
    if not asked:
        return Check(name, "not seen", "nothing had to be truncated")
    done = {
        str(message.get("item_id"))
        for message in said
        if message.get("type") == "conversation.item.truncated"
    }
    missing = [item for item in asked if item not in done]
    if missing:
        return Check(name, "fail", f"{len(missing)} of {len(asked)} were not confirmed")
    return Check(name, "pass", f"{len(asked)} confirmed")


def _response(message: dict[str, Any]) -> str:
    response = message.get("response")
    return str(response.get("id")) if isinstance(response, dict) else ""
