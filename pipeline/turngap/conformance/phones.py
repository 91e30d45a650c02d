"""What a phone company's stream asks of an agent beyond what all dialects do."""

from collections.abc import Mapping
from typing import Any

from turngap.caller.dialects import exotel, plivo, telnyx, twilio
from turngap.caller.dialects.telephony import Names
from turngap.conformance.evidence import Check, Evidence, json_of
from turngap.core.untrusted import printable

NAMES: dict[str, Names] = {
    "twilio": twilio.NAMES,
    "telnyx": telnyx.NAMES,
    "exotel": exotel.NAMES,
    "plivo": plivo.NAMES,
}


_PLAYED = "playedStream"  # how Plivo sends a mark back


def phone_checks(evidence: Evidence, dialect: str) -> list[Check]:
    """Return the checks of a stream in JSON."""
    names = NAMES[dialect]
    said = [message for _, message in json_of(evidence.log.came)]
    sent = [message for _, message in json_of(evidence.log.went)]
    checks = [_marks_follow_audio(said, sent, names)]
    return [*checks, _names_the_stream(said, names)] if dialect == "twilio" else checks


def _marks_follow_audio(
    said: list[dict[str, Any]], sent: list[dict[str, Any]], names: Names
) -> Check:
    """The company sends a mark back once the audio before it was played: there has to be some."""
    name = "puts its marks after audio, each with a name of its own"
    marked: list[str] = []
    bare = 0
    audio = False
    for message in said:
        match message.get("event"):
            case names.media:
                audio = True
            case names.mark:
                bare += not audio
                audio = False
                marked.append(_name(message))
            case _:
                pass
    if not marked:
        return Check(name, "not seen", "it sent no mark")
    again = sorted({mark for mark in marked if marked.count(mark) > 1})
    if bare or again:
        twice = f"; more than once: {printable(', '.join(again), 60)}" if again else ""
        return Check(name, "fail", f"{bare} of {len(marked)} marks without audio before{twice}")
    back = [_name(message) for message in sent if message.get("event") in (names.mark, _PLAYED)]
    order = "in their order" if back == [m for m in marked if m in back] else "in another order"
    return Check(name, "pass", f"{len(marked)} marks, of which {len(back)} went back, {order}")


def _names_the_stream(said: list[dict[str, Any]], names: Names) -> Check:
    """Twilio takes no message that does not name the stream."""
    name = f"names the stream ({names.stream}) in each message"
    without = [str(m.get("event")) for m in said if names.stream not in m]
    if not said:
        return Check(name, "not seen", "no message")
    if without:
        kinds = printable(", ".join(dict.fromkeys(without)), 60)
        return Check(name, "fail", f"{len(without)} of {len(said)} do not: {kinds}")
    return Check(name, "pass", f"{len(said)} messages")


def _name(message: Mapping[str, Any]) -> str:
    mark = message.get("mark")
    return str((mark if isinstance(mark, dict) else message).get("name"))
