"""Other people's clients against `turngap serve`, in real time: what each of them gets.

    python benchmarks/other_clients.py sdk
    python benchmarks/other_clients.py js MODULES
    python benchmarks/other_clients.py eval ENVIRONMENT

`sdk` is the `openai` package's realtime client. `js` is pipecat's official JavaScript client in
node (22 or later), with samples for its microphone: MODULES is a folder in which you ran `npm
install @pipecat-ai/client-js @pipecat-ai/websocket-transport`. `eval` is `pipecat eval`, which
wants an environment of its own, because its extras downgrade packages: `python -m venv ENVIRONMENT`
and `ENVIRONMENT/bin/pip install 'pipecat-ai[evals,websocket]'`. Each says the first turn of the
scenario coffee-order, and the figures are those of one turn on this machine: they show that it
works, not how fast the agent is.
"""

import argparse
import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm, audible_onset
from turngap.core.clock import ms_to_ns

HERE = Path(__file__).parent
SPEECH = HERE.parent / "scenarios" / "coffee-order" / "1.flac"
SPEECH_ENDS_MS = 1707.8  # of its label, in coffee-order.yaml
CLOCK = MonotonicClock()


@contextmanager
def served(*sets: str) -> Iterator[str]:
    """The address of the default agent, without its scheme and path, while it is served."""
    command = ["serve", "--json", "--port", "0", "--no-keep"]
    chosen = [word for each in sets for word in ("--set", each)]
    with subprocess.Popen(
        [sys.executable, "-m", "turngap", *command, *chosen], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        try:
            url = json.loads(agent.stdout.readline())["url"]
            yield url.removeprefix("ws://").removesuffix("/ws")
        finally:
            agent.terminate()


def speech(rate: int) -> Pcm:
    pcm, own = soundfile.read(SPEECH, dtype="int16")
    return np.asarray(soxr.resample(pcm, own, rate) if own != rate else pcm, "<i2")


def report(name: str, pieces: list[tuple[float, Pcm]], events: dict[str, int]) -> None:
    """Print what came, and the gap: `pieces` are of 24 kHz, each with its ms since speech began."""
    played: list[Pcm] = []
    free_ms = pieces[0][0] if pieces else 0.0
    first_ms = free_ms
    for at_ms, pcm in pieces:
        played += [np.zeros(max(0, round((at_ms - free_ms) * 24)), "<i2"), pcm]
        free_ms = max(free_ms, at_ms) + len(pcm) / 24
    sound = np.concatenate(played) if played else np.zeros(0, "<i2")
    onset = audible_onset(sound, 24_000)
    gap = None if onset is None else first_ms + onset / 24 - SPEECH_ENDS_MS
    audio_s = sum(len(pcm) for _, pcm in pieces) / 24_000
    print(f"{name}: {len(pieces)} pieces of audio, {audio_s:.2f} s, turn gap {gap} ms")
    for kind, n in events.items():
        print(f"  {n:4} {kind}")


async def sdk(address: str) -> None:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key="unused", websocket_base_url=f"ws://{address}/v1")
    pcm = np.concatenate((speech(24_000), np.zeros(24_000 * 5, "<i2")))
    pieces: list[tuple[float, Pcm]] = []
    events: dict[str, int] = {}
    async with client.realtime.connect(model="turngap") as connection:

        async def speak() -> None:
            for n, start in enumerate(range(0, len(pcm), 480)):
                await CLOCK.sleep_until_ns(begun_ns + ms_to_ns(20 * n))
                audio = base64.b64encode(pcm[start : start + 480].tobytes()).decode()
                await connection.input_audio_buffer.append(audio=audio)

        begun_ns = CLOCK.now_ns()
        speaking = asyncio.create_task(speak())
        async for event in connection:
            events[event.type] = events.get(event.type, 0) + 1
            at_ms = (CLOCK.now_ns() - begun_ns) / 1e6
            if event.type == "response.output_audio.delta":
                audio = np.frombuffer(base64.b64decode(event.delta), "<i2")
                pieces.append((at_ms, audio))
            elif event.type == "response.done":
                break
        speaking.cancel()
    report("the openai SDK", pieces, events)


def js(address: str, modules: Path) -> None:
    node = shutil.which("node") or "node"
    with tempfile.NamedTemporaryFile(suffix=".pcm") as file:
        file.write(speech(16_000).tobytes())
        file.flush()
        command = [node, HERE / "js_client" / "client.mjs", modules.absolute()]
        done = subprocess.run(
            [*command, f"ws://{address}/ws", file.name], stdout=subprocess.PIPE, check=True
        )
    # The client logs to the same stream, also after its last word.
    said: dict[str, Any] = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith(b'{"events"'))
    )
    pieces = [
        (at_ms - said["began"], np.array(samples, "<i2")) for at_ms, samples in said["chunks"]
    ]
    events: dict[str, int] = {}
    for _, kind, *_ in said["events"]:
        events[kind] = events.get(kind, 0) + 1
    report("pipecat's JavaScript client", pieces, events)
    print("  errors:", said["errors"])


def evaluate(address: str, environment: Path) -> int:
    folder = HERE / "pipecat_eval"
    with tempfile.TemporaryDirectory() as scratch:
        recording = Path(scratch) / "speech.wav"
        with wave.open(str(recording), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(speech(16_000).tobytes())
        command = [environment.absolute() / "bin" / "pipecat", "eval", "run"]
        options = ["--bot-url", f"ws://{address}/ws", "--verbose", "--no-cache"]
        return subprocess.run(
            [*command, folder / "coffee.yaml", *options, "--logs-dir", scratch],
            env={**os.environ, "PYTHONPATH": str(folder), "RECORDING": str(recording)},
            check=False,
        ).returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("client", choices=["sdk", "js", "eval"])
    parser.add_argument("folder", nargs="?", type=Path, help="MODULES or ENVIRONMENT")
    chosen = parser.parse_args()
    if chosen.client != "sdk" and chosen.folder is None:
        parser.error("give MODULES or ENVIRONMENT")
    with served("pipeline.metrics=true") as address:
        if chosen.client == "sdk":
            asyncio.run(sdk(address))
        elif chosen.client == "js":
            js(address, chosen.folder)
        else:
            sys.exit(evaluate(address, chosen.folder))


if __name__ == "__main__":
    main()
