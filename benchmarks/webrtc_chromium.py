"""Let Chromium call the agent that turngap measures, and compare when each hears it.

    python benchmarks/webrtc_chromium.py                        # 24 turns each: some two minutes
    python benchmarks/webrtc_chromium.py --write docs/webrtc.md

The loopback agent answers after known delays. turngap calls it, then a page in Chromium whose
microphone is a file, with a plain `RTCPeerConnection` and SmallWebRTC's offer. The page records its
microphone and the agent by one `AudioContext`, sample by sample; both are then read by turngap's
detector. So the page's gap is the person's, with all that Chromium does to either direction.
"""

import argparse
import asyncio
import base64
import json
import os
import shutil
import sys
import urllib.request
from contextlib import aclosing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pages
import soundfile
from playwright.async_api import Route, async_playwright

from turngap.caller.conversation import Conversation
from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm, SpeechDetector, SpeechEnd, SpeechStart
from turngap.core.clock import ns_to_ms
from turngap.core.run_record import OffsetRecord
from turngap.play.calibrate import PATIENCE, loopback_script, utterance
from turngap.play.process import running
from turngap.testing.agent import Reply, read_truths, script_to_json

BEGIN = "<!-- made by benchmarks/webrtc_chromium.py -->"
RATE = 48_000
DELAYS_MS = (120.0, 480.0)
SPEECH_MS = 200.0
# In the microphone's file: before the first utterance the call begins; each has room for an answer.
LEAD_S, TURN_S, TAIL_S = 5.0, 1.3, 1.0
GAP_MS = 60.0
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--autoplay-policy=no-user-gesture-required", "--use-fake-ui-for-media-stream"),
    "--use-fake-device-for-media-stream",
)
URL = "http://localhost:1/"  # never asked: Playwright answers, and the page may use a microphone

WORKLET = """registerProcessor("both", class extends AudioWorkletProcessor {
  process([person, agent]) {
    const two = new Int16Array(256);
    for (const [at, input] of [[0, person], [128, agent]]) {
      (input[0] ?? []).forEach((x, i) => { two[at + i] = Math.max(-1, Math.min(1, x)) * 32767; });
    }
    this.port.postMessage(two);
    return true;
  }
});"""
CALL = """async ([worklet, rate, leadS, seconds]) => {
  const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const microphone = await navigator.mediaDevices.getUserMedia({ audio });
  const context = new AudioContext({ sampleRate: rate, latencyHint: 0 });
  const code = new Blob([worklet], { type: "text/javascript" });
  await context.audioWorklet.addModule(URL.createObjectURL(code));
  const both = new AudioWorkletNode(context, "both", { numberOfInputs: 2, numberOfOutputs: 0 });
  const pieces = [];
  both.port.onmessage = ({ data }) => pieces.push(data);
  context.createMediaStreamSource(microphone).connect(both, 0, 0);

  const pc = new RTCPeerConnection();
  const chat = pc.createDataChannel("chat", { ordered: true });
  const transceiver = pc.addTransceiver(microphone.getAudioTracks()[0], { direction: "sendrecv" });
  const agent = new MediaStream([transceiver.receiver.track]);
  const loud = Object.assign(new Audio(), { srcObject: agent });  // else nothing is decoded
  context.createMediaStreamSource(agent).connect(both, 0, 1);
  chat.onopen = () => {
    const data = { version: "1.0.0", about: { library: "chromium" } };
    chat.send(JSON.stringify({ label: "rtvi-ai", type: "client-ready", id: "1", data }));
    setInterval(() => chat.send(`ping: ${Date.now()}`), 1000);
  };
  await pc.setLocalDescription(await pc.createOffer());
  while (pc.iceGatheringState !== "complete") await new Promise((r) => setTimeout(r, 10));
  const { sdp, type } = pc.localDescription;
  await pc.setRemoteDescription(await exchange({ sdp, type }));
  await loud.play();
  const heard = async (s) => {
    await new Promise((r) => setTimeout(r, s * 1000));
    return [...(await pc.getStats()).values()].find((each) => each.type === "inbound-rtp");
  };
  const before = await heard(leadS), after = await heard(seconds - leadS);
  const inbound = Object.fromEntries(
    ["EmittedCount", "Delay", "TargetDelay"]
      .map((name) => [name, after[`jitterBuffer${name}`] - before[`jitterBuffer${name}`]]));
  pc.close();
  const all = new Int16Array(pieces.length * 256);
  pieces.forEach((piece, i) => all.set(piece, i * 256));
  const bytes = new Uint8Array(all.buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) {
    text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  }
  return { sound: btoa(text), inbound, baseMs: context.baseLatency * 1000 };
}"""


async def by_turngap(endpoint: Endpoint, turns: int) -> list[tuple[float, float]]:
    """Return each turn's gap at arrival, and behind the adaptive buffer, ms."""
    clock = MonotonicClock(precise=True)
    async with endpoint.open(clock) as line:
        offset = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
        cues = [utterance(line.rate)] * turns
        conversation = Conversation(line, cues, clock, offset=offset, patience=PATIENCE)
        gaps: list[tuple[float, float]] = []
        async with aclosing(conversation.play()) as played:
            async for each in played:
                gap_ns, behind_ns = each.turn.gap_ns, each.turn.playout_ns
                if gap_ns is None or behind_ns is None:
                    sys.exit(f"turn {each.turn.turn} has no gap, or none behind the buffer")
                gaps.append((ns_to_ms(gap_ns), ns_to_ms(gap_ns + behind_ns)))
        if conversation.failure is not None:
            raise conversation.failure
    return gaps


def microphone(file: Path, turns: int) -> float:
    """Write what Chromium's person says; return how long it is, s."""
    said = np.zeros(round((LEAD_S + turns * TURN_S + TAIL_S) * RATE), np.int16)
    pcm = utterance(RATE).pcm
    for turn in range(turns):
        # Anywhere on the grids of packets and buffers.
        start = round((LEAD_S + turn * TURN_S) * RATE) + turn * 389
        said[start : start + len(pcm)] = pcm
    soundfile.write(file, said, RATE)
    return len(said) / RATE


async def by_chromium(url: str, scratch: Path, turns: int) -> tuple[Pcm, dict[str, Any], float]:
    """Return what the page recorded, person and agent, the stream's statistics and its latency."""

    async def exchange(offer: dict[str, str]) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/api/offer", json.dumps(offer).encode(), headers)
        answered = await asyncio.to_thread(urllib.request.urlopen, request)
        answer = json.loads(answered.read())
        return {"sdp": answer["sdp"], "type": answer["type"]}

    async def page_of(route: Route) -> None:
        await route.fulfill(body="<!doctype html><title>ear</title>", content_type="text/html")

    file = scratch / "microphone.wav"
    seconds = microphone(file, turns)
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path,
            args=[*FLAGS, f"--use-file-for-fake-audio-capture={file}%noloop"],
        )
        page = await browser.new_page()
        await page.route("**/*", page_of)
        await page.expose_function("exchange", exchange)
        await page.goto(URL)
        found = await page.evaluate(CALL, [WORKLET, RATE, LEAD_S, seconds])
        await browser.close()
    sound = np.frombuffer(base64.b64decode(found["sound"]), np.int16).reshape(-1, 2, 128)
    return sound.transpose(1, 0, 2).reshape(2, -1), found["inbound"], found["baseMs"]


def gaps_in(both: Pcm) -> list[float]:
    """Return each gap, from the person's last audible sample to the agent's first, ms."""
    ends, onsets = (
        [e.sample for e in SpeechDetector(RATE, gap_ms=GAP_MS).feed(side) if isinstance(e, kind)]
        for side, kind in zip(both, (SpeechEnd, SpeechStart), strict=True)
    )
    after = [next((at for at in onsets if at > end), None) for end in ends]
    return [(at - end) * 1000 / RATE for at, end in zip(after, ends, strict=True) if at]


def row(name: str, errors: list[float]) -> str:
    p10, p50, p90 = np.percentile(errors, (10, 50, 90))
    return f"| {name} | {len(errors)} | {p50:+.1f} | {p10:+.1f} to {p90:+.1f} |"


async def measure(turns: int, keep: Path | None) -> str:
    """Play both and return the table."""
    delays = np.random.default_rng(1).uniform(*DELAYS_MS, turns).tolist()
    script = loopback_script([Reply(ms, speech_ms=SPEECH_MS) for ms in delays], "webrtc")
    with TemporaryDirectory(prefix="turngap-chromium-") as folder:
        scratch = Path(folder)
        truths = scratch / "truths.jsonl"
        argv = ["turngap.testing.agent", script_to_json(script, truths)]
        async with running(argv, scratch / "agent.log") as url:
            ours = await by_turngap(Endpoint(url, "webrtc,buffer=adaptive"), turns)
            known = [ns_to_ms(t.gap_ns or 0) for t in read_truths(truths).values()]
            truths.unlink()
            both, inbound, base_ms = await by_chromium(url, scratch, turns)
            theirs_known = [ns_to_ms(t.gap_ns or 0) for t in read_truths(truths).values()]
    if keep is not None:
        soundfile.write(keep, both.T, RATE)
    theirs = gaps_in(both)
    if not len(theirs) == len(theirs_known) == len(known) == turns:
        sys.exit(f"{turns} turns: the page heard {len(theirs)}, the agent {len(theirs_known)}")
    at_arrival = [gap - truth for (gap, _), truth in zip(ours, known, strict=True)]
    behind = [gap - truth for (_, gap), truth in zip(ours, known, strict=True)]
    chromium = [gap - truth for gap, truth in zip(theirs, theirs_known, strict=True)]
    each_ms = 1000 / inbound["EmittedCount"]
    kept_ms, target_ms = each_ms * inbound["Delay"], each_ms * inbound["TargetDelay"]
    apart = median(chromium) - median(behind)
    rest = median(chromium) - kept_ms
    return "\n".join(
        [
            "| ear | n | longer than the agent's own gap, ms: p50 | p10 to p90 |",
            "| --- | --- | --- | --- |",
            row("turngap at arrival", at_arrival),
            row("turngap behind the adaptive buffer", behind),
            row("Chromium, microphone to loudspeaker", chromium),
            "",
            f"Chromium is {apart:+.1f} ms from turngap behind the adaptive buffer. By its own "
            f"statistics its buffer held sound for {kept_ms:.1f} ms, with a target of "
            f"{target_ms:.1f} ms (means from the first turn on). The rest, {rest:+.1f} ms, is the "
            "6.5 ms by which its encoder delays the person and pieces of 10 ms on both ways, less "
            "what its microphone takes to the page. The loudspeaker's own "
            f"{base_ms:.1f} ms (`baseLatency`) are left out.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--keep", type=Path, metavar="WAV", help="keep what the page recorded")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    chosen = parser.parse_args()
    text = asyncio.run(measure(chosen.turns, chosen.keep))
    print(text)
    if chosen.write is not None:
        pages.write(chosen.write, BEGIN, text)


if __name__ == "__main__":
    main()
