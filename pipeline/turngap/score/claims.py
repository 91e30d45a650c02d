"""Read what a platform writes next to a recording: the call, its words, and its own latency.

Checked against public sources: Vapi's `artifact.performanceMetrics` (its changelog), LiveKit's
`audio_mixing` (its protocol) and Retell's `latency` (docs.retellai.com). From general knowledge,
not checked: Vapi's `artifact.messages`, Retell's `transcript_object` and `values`, Twilio's
recording resource (`call_sid`, `start_time`) and the other fields of LiveKit's EgressInfo.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from turngap.core.untrusted import MOST_NAME, MOST_SENTENCE, finite, parse_json, text_of
from turngap.store.files import open_regular

Speaker = Literal["person", "agent"]

# A call's JSON with every word of an hour is smaller.
MOST_BYTES, MOST_SAID = 16 * 2**20, 10_000
# Names next to `call.wav`, besides those that begin with `call`.
_BESIDE = ("call.json", "metadata.json", "manifest.json")
_SPEAKERS: Mapping[str, Speaker] = {
    "user": "person",
    "bot": "agent",
    "assistant": "agent",
    "agent": "agent",
}


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of a transcript, in ms from the recording's start; `end_ms` None if not given."""

    side: Speaker
    start_ms: float
    end_ms: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A platform's own facts of a call.

    Attributes:
        latency_ms: the platform's latency of each turn, or of the call's median turn alone.
        per_turn: whether `latency_ms` is of each turn.
        person: the person's channel, if the platform fixes it.
        rest: what else the JSON holds.
    """

    platform: str
    call_id: str = ""
    started_utc: str = ""
    agent: str = ""
    latency_ms: tuple[float, ...] = ()
    per_turn: bool = False
    person: Literal["left", "right"] | None = None
    said: tuple[Said, ...] = ()
    rest: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_claims(recording: Path) -> Claims | None:
    """Return what lies next to a recording; None if nothing does, or no platform is known by it.

    Raises:
        ValueError: a file with the recording's name is no JSON; the text says so.
    """
    for file in _beside(recording):
        own = file.stem.startswith(recording.stem)
        try:
            call = _read(file)
        except (OSError, ValueError, RecursionError) as e:
            if own:
                raise ValueError(f"{file.name} cannot be read: {e}") from e
            continue
        if (claims := claims_of(call)) is not None:
            return claims
    return None


def _beside(recording: Path) -> Iterator[Path]:
    """Yield the JSON files that may be about a recording."""
    yield recording.with_suffix(".json")
    yield recording.with_name(recording.name + ".json")
    yield from sorted(recording.parent.glob(f"{_plain(recording.stem)}.*.json"))
    folder = recording.parent
    alone = sum(p.suffix.lower() == recording.suffix.lower() for p in folder.iterdir()) == 1
    if alone:
        yield from (folder / name for name in _BESIDE)


def _plain(name: str) -> str:
    """Quote what a glob pattern would read in a name."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _read(file: Path) -> Mapping[str, Any]:
    if not file.exists():
        return {}
    with os.fdopen(open_regular(file), "rb") as opened:
        raw = opened.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ValueError(f"over {MOST_BYTES:,} bytes")
    call = parse_json(raw, MOST_BYTES)
    return cast("Mapping[str, Any]", call) if isinstance(call, dict) else {}


def claims_of(call: Mapping[str, Any]) -> Claims | None:
    """Return a platform's facts of a call from its JSON; None if it is not a known platform's."""
    for wrapped in ("message", "call"):  # webhooks wrap the call
        inner = _object(call.get(wrapped))
        if inner and not _platform(call) and _platform({**inner, **_object(inner.get("call"))}):
            call = {**_object(inner.get("call")), **inner}
    reader = _platform(call)
    return None if reader is None else reader(call)


def _platform(call: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Claims] | None:
    if "transcript_object" in call or str(call.get("agent_id", "")).startswith("agent_"):
        return _retell
    if "assistantId" in call or "artifact" in call:
        return _vapi
    if str(call.get("sid", "")).startswith("RE") and "call_sid" in call:
        return _twilio
    if "egress_id" in call or "egressId" in call:
        return _livekit
    return None


def _vapi(call: Mapping[str, Any]) -> Claims:
    artifact = _object(call.get("artifact"))
    metrics = _object(artifact.get("performanceMetrics"))
    each = [_object(turn).get("turnLatency") for turn in _list(metrics.get("turnLatencies"))]
    turns = _numbers(each)
    average = _numbers([metrics.get("turnLatencyAverage")])
    messages = _list(artifact.get("messages") or call.get("messages"))
    return Claims(
        platform="Vapi",
        call_id=_text(call.get("id")),
        started_utc=_text(call.get("startedAt")),
        agent=_text(call.get("assistantId")),
        latency_ms=turns or average,
        per_turn=bool(turns),
        said=_said(
            (
                _object(m).get("role"),
                _seconds(_object(m).get("secondsFromStart")),
                _number(_object(m).get("duration")),
                _object(m).get("message"),
            )
            for m in messages
        ),
        rest=_rest(call, ("id", "startedAt", "assistantId", "artifact", "messages")),
    )


def _retell(call: Mapping[str, Any]) -> Claims:
    e2e = _object(_object(call.get("latency")).get("e2e"))
    values = _numbers(_list(e2e.get("values")))
    median = _numbers([e2e.get("p50")])
    spoken: list[tuple[Any, float | None, float | None, Any]] = []
    for part in map(_object, _list(call.get("transcript_object"))):
        words = [_object(word) for word in _list(part.get("words"))]
        if not words:
            continue
        start_ms, end_ms = _seconds(words[0].get("start")), _seconds(words[-1].get("end"))
        if start_ms is not None and end_ms is not None:
            spoken.append((part.get("role"), start_ms, end_ms - start_ms, part.get("content")))
    return Claims(
        platform="Retell",
        call_id=_text(call.get("call_id")),
        started_utc=_utc(_number(call.get("start_timestamp")), 1000),
        agent=_text(call.get("agent_name") or call.get("agent_id")),
        latency_ms=values or median,
        per_turn=bool(values),
        said=_said(spoken),
        rest=_rest(call, ("call_id", "start_timestamp", "agent_id", "transcript_object")),
    )


def _twilio(call: Mapping[str, Any]) -> Claims:
    return Claims(
        platform="Twilio",
        call_id=_text(call.get("call_sid")),
        started_utc=_text(call.get("start_time")),
        rest=_rest(call, ("call_sid", "start_time")),
    )


def _livekit(call: Mapping[str, Any]) -> Claims:
    request = _object(call.get("room_composite") or call.get("roomComposite"))
    mixing = str(request.get("audio_mixing") or request.get("audioMixing") or "")
    return Claims(
        platform="LiveKit",
        call_id=_text(call.get("egress_id") or call.get("egressId")),
        started_utc=_utc(_number(call.get("started_at") or call.get("startedAt")), 1e9),
        agent=_text(call.get("room_name") or call.get("roomName")),
        # It puts the agent on the left, and everyone else on the right.
        person="right" if mixing in ("DUAL_CHANNEL_AGENT", "1") else None,
        rest=_rest(call, ("egress_id", "egressId", "started_at", "startedAt")),
    )


def _said(pieces: Iterable[tuple[Any, float | None, float | None, Any]]) -> tuple[Said, ...]:
    """Build a transcript from roles, starts and lengths in ms, and texts."""
    found: list[Said] = []
    for role, start_ms, length_ms, text in pieces:
        side = _SPEAKERS.get(str(role))
        if side is None or start_ms is None or not isinstance(text, str):
            continue
        end_ms = None if length_ms is None else start_ms + length_ms
        found.append(Said(side, start_ms, end_ms, text_of(text, MOST_SENTENCE)))
        if len(found) == MOST_SAID:
            break
    return tuple(found)


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list) else []


def _text(value: Any) -> str:
    return text_of(value, MOST_NAME) if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    with suppress(ValueError, OverflowError):
        return finite(float(value) if isinstance(value, str) else value)
    return None


def _seconds(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else number * 1000


def _numbers(values: Sequence[Any]) -> tuple[float, ...]:
    """Return figures of turns; none if one is missing, because the others' turns are not known."""
    numbers = [_number(value) for value in values[:MOST_SAID]]
    figures = tuple(number for number in numbers if number is not None and number >= 0)
    return figures if len(figures) == len(values) else ()


def _utc(value: float | None, per_second: float) -> str:
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp((value or 0) / per_second, UTC).isoformat() if value else ""
    return ""


def _rest(call: Mapping[str, Any], used: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key not in used}
