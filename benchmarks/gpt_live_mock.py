"""Measure a mock of the Live API that was not written here, and compare the gap with the truth.

    npm install --prefix MOCK @copilotkit/aimock
    python benchmarks/gpt_live_mock.py MOCK

The mock (aimock of CopilotKit) validates each message of ours and lets its next 20 ms of audio go
when the byte that a transcript names has come in, so the truth is counted in our own samples: from
the last of the person's to the packet that lets the first of its tone go. The mock checks that our
audio is what the transcript holds, byte by byte.

The error holds the mock's own time, and what came late before: in a stream without end each hold-up
pushes all that follows it, as in a player that skips nothing. How long the tone waited for that is
printed beside it.
"""

import argparse
import asyncio
import base64
import json
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from turngap.caller.conversation import Conversation, Patience, TurnCue
from turngap.caller.dialects.gpt_live import SPEC
from turngap.caller.endpoint import Endpoint
from turngap.caller.line import Line
from turngap.caller.stream import PACKET_MS, UserStream
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm
from turngap.core.results import OffsetRecord
from turngap.scenario.model import SpeechBounds, When

RATE = 24_000
PACKET = RATE * PACKET_MS // 1000
SPEECH_MS, AT_MS, SECONDS = 500, 640, 8
PATIENCE = Patience(quiet_ms=800)
NOT_COMPARED = OffsetRecord(offset_ns=None, bound_ns=None, n=0)

SERVER = """
import { LLMock } from "@copilotkit/aimock";
import fs from "fs";
const mock = new LLMock({ port: 0, host: "127.0.0.1" });
const live = JSON.parse(fs.readFileSync(process.argv[2]));
mock.on({ endpoint: "openai-live" }, { live, liveTiming: "immediate" });
await mock.start();
console.log(mock.url);
"""


def tone(ms: float, hz: float) -> Pcm:
    samples = np.arange(round(ms * RATE / 1000))
    return np.rint(np.cos(2 * np.pi * hz * samples / RATE) * 8000).astype(np.int16)


def transcript(gap_packets: int) -> tuple[dict[str, Any], float]:
    """Make what the mock expects and says, and the gap in it, ms.

    The person speaks at `AT_MS` of the stream, and the tone goes with the packet that is
    `gap_packets` after the one that holds the person's last sample.
    """
    stream = UserStream(0, RATE)
    stream.place(tone(SPEECH_MS, 250), stream.samples(AT_MS))
    session = SPEC.session({})
    session.open()
    (start,) = map(json.loads, session.data_to_send())
    end = stream.samples(AT_MS + SPEECH_MS) - 1
    released = end // PACKET + gap_packets
    reply = np.concatenate((np.zeros(released * PACKET, np.int16), tone(400, 220)))
    reply = np.pad(reply, (0, SECONDS * RATE - len(reply)))
    about = {**start["session"], "id": "live_1", "expires_at": 2_000_000_000, "status": "active"}
    entries: list[dict[str, Any]] = []

    def client(event: Any) -> None:
        entries.append({"direction": "client", "atMs": 0, "event": event})

    def server(command: int, size: int, **event: Any) -> None:
        barrier = {"command": command, "audioBytes": size}
        entries.append({"direction": "server", "atMs": 0, "event": event, "barrier": barrier})

    def define(pointer: str, name: str, action: str = "define") -> dict[str, Any]:
        about = {"pointer": pointer, "name": name, "action": action, "owner": "server"}
        return {"entry": len(entries) - 1, **about}

    client(start)
    server(1, 0, type="session.started", event_id="event_1", session=about)
    bindings = [define("/event_id", "first"), define("/session/id", "session")]
    for at in range(0, SECONDS * RATE, PACKET):
        session.send_audio(stream.read(at, PACKET).tobytes())
        client(json.loads(session.data_to_send()[0]))
        delta = base64.b64encode(reply[at : at + PACKET].tobytes()).decode()
        server(1, 2 * (at + PACKET), type="session.output_audio.delta", delta=delta)
    session.close()
    client(json.loads(session.data_to_send()[0]))
    closed = {"type": "session.closed", "event_id": "event_2", "reason": "close_requested"}
    server(2, 0, **closed, session=about, usage={"seconds": float(SECONDS)})
    bindings += [define("/event_id", "last"), define("/session/id", "session", "reference")]
    audio = {"encoding": "pcm16le", "sampleRateHz": RATE, "channels": 1}
    capture = {"source": "authored", "complete": True, "terminalEntry": len(entries) - 1}
    about_it = {"version": 1, "model": "gpt-live-1", "mode": "client", "audio": audio}
    parts = {"entries": entries, "bindings": bindings, "capture": capture}
    truth_ms = ((released + 1) * PACKET - end) * 1000 / RATE
    return {**about_it, "configuration": start["session"], **parts}, truth_ms


async def gap_ms(line: Line) -> tuple[float, float] | None:
    """Return the gap, and how long the tone's first chunk waited to be played, ms."""
    bounds = SpeechBounds(start_ms=0, end_ms=(SPEECH_MS * RATE // 1000 - 1) * 1000 / RATE)
    cue = TurnCue(tone(SPEECH_MS, 250), bounds, When(at_ms=AT_MS), 800)
    clock = MonotonicClock(precise=True)
    conversation = Conversation(line, [cue], clock, offset=NOT_COMPARED, patience=PATIENCE)
    (played,) = [turn async for turn in conversation.play()]
    turn = played.turn
    if turn.gap_ns is None or turn.onset_ns is None:
        return None
    return turn.gap_ns / 1e6, (turn.onset_ns - turn.marks["received"]) / 1e6


async def measure(url: str) -> tuple[float, float] | None:
    async with Endpoint(url, "gpt-live").open(MonotonicClock()) as line:
        return await gap_ms(line)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mock", type=Path, help="folder into which npm installed the mock")
    parser.add_argument("--times", type=int, default=10)
    asked = parser.parse_args()
    for number in range(asked.times):
        live, truth_ms = transcript(gap_packets=10 + number % 10)
        with tempfile.TemporaryDirectory(dir=asked.mock) as folder:
            script, file = Path(folder) / "serve.mjs", Path(folder) / "live.json"
            script.write_text(SERVER)
            file.write_text(json.dumps(live))
            command = ["node", str(script), str(file)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
                assert node.stdout is not None
                url = node.stdout.readline().strip().replace("http", "ws")
                with suppress(KeyboardInterrupt):
                    found = asyncio.run(measure(f"{url}/v1/live/sessions"))
                    if found is None:
                        print(f"truth {truth_ms:.1f} ms, not heard")
                    else:
                        error = f"error {found[0] - truth_ms:+.1f}, waited {found[1]:.1f}"
                        print(f"truth {truth_ms:.1f} ms, heard {found[0]:.1f}, {error}")
                node.terminate()


if __name__ == "__main__":
    main()
