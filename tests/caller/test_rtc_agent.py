"""The scripted agent on WebRTC: its script, its mouth and the faults of its line."""

import asyncio
import json
from itertools import islice
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from turngap.caller.line.spec import Way
from turngap.core.errors import InputError
from turngap.play.calibrate import Calibration, Sample, calibrate, packet_faults
from turngap.report.run import calibration_block
from turngap.testing.agent import Reply, Script, ScriptedAgent, voice
from turngap.testing.rtc import AgentStream, RtcAgent, faults_ns


def test_an_agent_on_websockets_refuses_to_speak_webrtc() -> None:
    with pytest.raises(InputError, match="WebSockets"):
        ScriptedAgent(dialect="webrtc")


def drawn(loss: float, jitter_ms: float, seed: int, packets: int = 5000) -> list[int | None]:
    return list(islice(faults_ns(loss, jitter_ms, seed), packets))


def test_the_same_seed_gives_the_same_faults() -> None:
    assert drawn(0.02, 20, seed=3) == drawn(0.02, 20, seed=3)
    assert drawn(0.02, 20, seed=3) != drawn(0.02, 20, seed=4)
    # Whether there is jitter changes nothing in what is lost.
    lost = [late_ns is None for late_ns in drawn(0.02, 20, seed=3)]
    assert lost == [late_ns is None for late_ns in drawn(0.02, 0, seed=3)]


def test_faults_are_as_frequent_and_as_long_as_they_are_asked_for() -> None:
    late_ms = [None if ns is None else ns / 1e6 for ns in drawn(0.02, 20, seed=1)]
    kept = [ms for ms in late_ms if ms is not None]
    assert late_ms.count(None) / len(late_ms) == pytest.approx(0.02, abs=0.01)
    assert (min(kept) >= 0, max(kept) <= 20) == (True, True)
    assert np.mean(kept) == pytest.approx(10, abs=0.5)
    assert set(drawn(0, 0, seed=1)) == {0}


@pytest.mark.parametrize("start", [7680, 7681, 10_000])
def test_speech_begins_at_any_sample_and_stops_at_any(start: int) -> None:
    stream, speech = AgentStream(0, 48_000), voice(100, 48_000)
    silence = stream.read(0, 20_000)
    assert stream.place(speech, start, phase=start % stream.grid) == start
    assert (stream.read(start, len(speech)) == speech).all()
    stream.cut(start + 1000)
    heard = stream.read(0, 20_000)
    assert (heard[start : start + 1000] == speech[:1000]).all()
    assert (heard[start + 1000 :] == silence[start + 1000 :]).all()
    assert (heard[:start] == silence[:start]).all()


def answered(url: str, path: str, body: bytes) -> tuple[int, dict[str, str]]:
    try:
        with urlopen(Request(url + path, body), timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as e:
        return e.code, json.loads(e.read())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/", b"{}", 404),
        ("/api/offer", b"no JSON", 400),
        ("/api/offer", b"{}", 400),
        ("/api/offer", b'{"sdp": "v=0", "type": "offer"}', 400),
    ],
)
def test_what_is_no_offer_is_refused_over_http(path: str, body: bytes, status: int) -> None:
    async def course() -> tuple[int, dict[str, str]]:
        async with RtcAgent(script=Script(dialect="webrtc")) as agent:
            return await asyncio.to_thread(answered, agent.url, path, body)

    code, said = asyncio.run(course())
    assert code == status
    assert said["detail"]


def test_calibrate_takes_a_line_of_loss_and_jitter() -> None:
    assert packet_faults("", "twilio") == Way()
    assert packet_faults("loss=2%,jitter=20", "webrtc") == Way(loss=0.02, jitter_ms=20)
    for line in ("lte", "loss=2%,burst=40", "loss=2%,half-open=5", "loss=bad", "loss=2%jitter=1"):
        with pytest.raises(InputError, match="--line"):
            packet_faults(line, "webrtc")
    with pytest.raises(InputError, match="twilio does not have"):
        packet_faults("loss=2%", "twilio")


@pytest.mark.parametrize("buffer_ms", [None, 0])
def test_a_buffer_without_a_length_is_not_compared(buffer_ms: int | None) -> None:
    found = Calibration(
        "webrtc", 48_000, 48_000, (Sample(Reply(), 300.0, 300.5, 0.1),), 0, "loss=2%", buffer_ms
    )
    assert "of buffer" not in calibration_block(found.as_json(), 100).plain


def test_known_gaps_are_measured_over_sockets(tmp_path: Path) -> None:
    """All that two processes add; how much it is depends on the machine."""
    found = asyncio.run(
        calibrate(3, dialect="webrtc,buffer=40", line="jitter=0", log=tmp_path / "log")
    )
    assert (len(found.samples) + found.missed, found.lost) == (3, ())
    assert (found.rate, found.agent_rate, found.buffer_ms) == (48_000, 48_000, 40)
    document = found.as_json()
    assert document["playout_error_ms"]["n"] == len(found.samples) > 0
    assert "behind 40 ms of buffer" in calibration_block(document, 100).plain
