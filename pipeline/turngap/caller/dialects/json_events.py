"""Reads JSON events, mostly objects with a `type`, as OpenAI's protocols and others send them."""

from collections.abc import Mapping
from typing import Any, cast

from turngap.caller.intake import MOST_MESSAGE_BYTES
from turngap.caller.said import Message, NotSpokenError
from turngap.core.untrusted import MOST_JSON, parse_json, printable, shown, text_of

# A message beyond `MOST_JSON` is a whole reply's audio, which is one long text among few values.
# Only many values cost much memory.
MOST_VALUES_OF_LONG = 1_000
# OpenAI's have about 30 characters.
MOST_ID = 200


def object_of(message: Message) -> Mapping[str, Any]:
    """Read a JSON object; some servers send it as bytes.

    Raises:
        NotSpokenError: it is not one.
    """
    comma = "," if isinstance(message, str) else b","
    many = len(message) > MOST_JSON and message.count(comma) > MOST_VALUES_OF_LONG  # pyright: ignore[reportArgumentType]
    try:
        found = parse_json(message, MOST_JSON if many else MOST_MESSAGE_BYTES)
    except ValueError as e:
        raise NotSpokenError(f"a message that is not JSON: {printable(str(e), 80)}") from e
    if not isinstance(found, Mapping):
        raise NotSpokenError(f"JSON that is no event: {shown(found)}")
    return cast("Mapping[str, Any]", found)


def event_of(message: Message) -> Mapping[str, Any]:
    """Read an event, which is an object with a type.

    Raises:
        NotSpokenError: it is not one.
    """
    found = object_of(message)
    if not isinstance(found.get("type"), str):
        raise NotSpokenError("a JSON object without a type")
    return found


def inside(event: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return the object that lies at a path in an event; empty if there is none."""
    for name in path:
        found = event.get(name)
        if not isinstance(found, Mapping):
            return {}
        event = cast("Mapping[str, Any]", found)
    return event


def name_in(event: Mapping[str, Any], key: str) -> str:
    """Return an id or a name in an event; empty if there is none."""
    value = event.get(key)
    return text_of(value, MOST_ID) if isinstance(value, str | int) else ""
