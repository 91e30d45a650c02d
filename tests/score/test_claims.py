"""What platforms write next to a recording."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from turngap.score.claims import Said, read_claims

VAPI = {
    "id": "c-1",
    "assistantId": "desk",
    "startedAt": "2026-11-20T10:00:00.000Z",
    "endedReason": "customer-ended-call",
    "artifact": {
        "messages": [
            {"role": "system", "message": "Be brief.", "secondsFromStart": 0},
            {"role": "bot", "message": "Hello.", "secondsFromStart": 0.5, "duration": 700},
            {"role": "user", "message": "When do you open?", "secondsFromStart": 2.25},
        ],
        "performanceMetrics": {
            "turnLatencies": [{"turnLatency": 840, "modelLatency": 300}, {"turnLatency": 910}],
            "turnLatencyAverage": 875,
        },
    },
}
RETELL = {
    "call_id": "c-2",
    "agent_id": "agent_9",
    "start_timestamp": 1_763_632_800_000,
    "transcript_object": [
        {"role": "agent", "content": "Hi.", "words": [{"word": "Hi.", "start": 0.7, "end": 1.3}]},
        {"role": "user", "content": "", "words": []},
    ],
    "latency": {"e2e": {"p50": 800, "p90": 1200, "values": [700, 900]}},
}
TWILIO = {
    "sid": "RE0123",
    "call_sid": "CA0123",
    "start_time": "Thu, 20 Nov 2026 10:00:00 +0000",
    "channels": 2,
}
LIVEKIT = {
    "egress_id": "EG_1",
    "room_name": "front-desk",
    "started_at": 1_763_632_800_000_000_000,
    "room_composite": {"audio_mixing": "DUAL_CHANNEL_AGENT"},
    "status": "EGRESS_COMPLETE",
}


def beside(folder: Path, call: Any, name: str = "call-7.json") -> Path:
    (folder / name).write_text(call if isinstance(call, str) else json.dumps(call))
    recording = folder / "call-7.wav"
    recording.touch()
    return recording


def test_vapi_claims_a_latency_for_each_turn(tmp_path: Path) -> None:
    claims = read_claims(beside(tmp_path, VAPI))

    assert claims is not None
    assert (claims.platform, claims.call_id, claims.agent) == ("Vapi", "c-1", "desk")
    assert (claims.latency_ms, claims.per_turn) == ((840, 910), True)
    assert claims.said == (
        Said("agent", 500, 1200, "Hello."),
        Said("person", 2250, None, "When do you open?"),
    )
    assert claims.rest == {"endedReason": "customer-ended-call"}


def test_a_webhook_wraps_the_call(tmp_path: Path) -> None:
    report = {"message": {"type": "end-of-call-report", "artifact": VAPI["artifact"], "call": VAPI}}

    claims = read_claims(beside(tmp_path, report))

    assert claims is not None
    assert (claims.call_id, len(claims.said)) == ("c-1", 2)


def test_retell_claims_end_to_end_latencies(tmp_path: Path) -> None:
    claims = read_claims(beside(tmp_path, RETELL))

    assert claims is not None
    assert (claims.platform, claims.latency_ms) == ("Retell", (700, 900))
    assert claims.started_utc == "2025-11-20T10:00:00+00:00"
    assert claims.said == (Said("agent", 700, 1300, "Hi."),)


def test_without_values_the_median_is_of_the_call(tmp_path: Path) -> None:
    claims = read_claims(beside(tmp_path, {**RETELL, "latency": {"e2e": {"p50": 800}}}))

    assert claims is not None
    assert (claims.latency_ms, claims.per_turn) == ((800,), False)


def test_latencies_with_a_gap_belong_to_no_turn(tmp_path: Path) -> None:
    latency = {"e2e": {"p50": 800, "values": [700, None, 900]}}
    claims = read_claims(beside(tmp_path, {**RETELL, "latency": latency}))

    assert claims is not None
    assert (claims.latency_ms, claims.per_turn) == ((800,), False)


def test_twilio_names_the_call(tmp_path: Path) -> None:
    claims = read_claims(beside(tmp_path, TWILIO))

    assert claims is not None
    assert (claims.platform, claims.call_id, claims.person) == ("Twilio", "CA0123", None)


def test_livekit_puts_the_agent_on_the_left(tmp_path: Path) -> None:
    claims = read_claims(beside(tmp_path, LIVEKIT, "call-7.wav.json"))

    assert claims is not None
    assert (claims.platform, claims.agent, claims.person) == ("LiveKit", "front-desk", "right")


@pytest.mark.parametrize(
    "odd",
    [
        {**RETELL, "latency": {"e2e": {"values": ["fast", None, -3, 1e400]}}},
        {**RETELL, "transcript_object": [7, None, {"words": [{"start": "soon"}]}]},
        {**RETELL, "start_timestamp": 1e30},
        {**RETELL, "start_timestamp": 10**400},
        {**RETELL, "latency": {"e2e": {"values": [True, 700, 10**400]}}},
        {**VAPI, "artifact": ["no", "object"]},
        {**VAPI, "artifact": {"messages": {"role": "user"}}},
        {**LIVEKIT, "started_at": "yesterday", "room_composite": 7},
    ],
)
def test_odd_values_are_left_out(tmp_path: Path, odd: Any) -> None:
    claims = read_claims(beside(tmp_path, odd))

    assert claims is not None
    assert all(ms >= 0 and isfinite(ms) for ms in claims.latency_ms)
    assert all(isfinite(each.start_ms) for each in claims.said)


def test_a_file_of_another_kind_says_nothing(tmp_path: Path) -> None:
    assert read_claims(beside(tmp_path, {"colour": "blue"})) is None
    assert read_claims(beside(tmp_path, [1, 2])) is None


def test_a_broken_file_with_the_name_of_the_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"call-7.json cannot be read"):
        read_claims(beside(tmp_path, '{"artifact": '))


def test_metadata_belongs_to_the_only_recording_of_its_folder(tmp_path: Path) -> None:
    recording = beside(tmp_path, TWILIO, "metadata.json")
    assert read_claims(recording) is not None

    (tmp_path / "call-8.wav").touch()
    assert read_claims(recording) is None
