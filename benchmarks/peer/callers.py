"""Callers of the peers: each measures an agent as its user would, by its own command.

Each returns what it reported, ms, by the number of the turn; None where it heard nothing.
"""

import asyncio
import json
import os
import wave
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from peer.utterance import utterance
from turngap.caller.conversation import Conversation, Patience
from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.core.clock import ns_to_ms
from turngap.core.cue import Cue, SpeechBounds, When
from turngap.core.run_record import OffsetRecord

Reports = dict[int, float | None]

# Every agent here answers within a second, in one tone.
NO_REPLY_MS = 3000
PAUSE_MS = 100
PATIENCE = Patience(no_reply_ms=NO_REPLY_MS, quiet_ms=200, quiet_after_done_ms=50, settle_ms=20)
# streamdouble sends nothing after its clip, and an agent must hear that the person is silent.
CLIP_AFTER_MS = 300.0
# A peer that hangs is given up.
SECONDS_A_TURN, SECONDS_MORE = 8, 30


class PeerError(Exception):
    """A peer's own command failed; says what it said."""


async def by_turngap(url: str, dialect: str, turns: int) -> Reports:
    """Measure the turn gap by turngap's own caller."""
    clock = MonotonicClock(precise=True)
    async with Endpoint(url, dialect).open(clock) as line:
        pcm, start_ms, end_ms = utterance(line.rate)
        speech = SpeechBounds(start_ms=start_ms, end_ms=end_ms)
        cue = Cue(pcm, speech, When(after_reply_ms=PAUSE_MS), budget_ms=NO_REPLY_MS)
        offset = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
        conversation = Conversation(line, [cue] * turns, clock, offset=offset, patience=PATIENCE)
        reports: Reports = {}
        async with aclosing(conversation.play()) as played:
            async for turn in played:
                gap_ns = turn.turn.gap_ns
                reports[len(reports) + 1] = None if gap_ns is None else ns_to_ms(gap_ns)
        if conversation.failure is not None:
            raise conversation.failure
        return reports


async def by_voicebench(python: Path, url: str, turns: int, scratch: Path) -> dict[str, Reports]:
    """Its two latencies, by its names for them."""
    clip = _clip(scratch, 16_000)
    later = {"after": "agent_speech_end", "delay_ms": PAUSE_MS, "timeout_ms": NO_REPLY_MS}
    said = {"audio": {"file": str(clip)}, "response_timeout_ms": NO_REPLY_MS}
    scenario: dict[str, Any] = {
        "name": "peers",
        "tail_ms": 1000,
        "turns": [said, *[{**said, "start": later}] * (turns - 1)],
    }
    file = scratch / "scenario.yaml"
    file.write_text(json.dumps(scenario), encoding="utf-8")  # JSON is YAML
    out = ["--out", str(scratch), "--format", "json", "--quiet"]
    await _run(python, "voicebench", "run", str(file), "-a", "pipecat", "--url", url, *out, n=turns)
    with _understood("voicebench"):
        report = json.loads((scratch / "report.json").read_text(encoding="utf-8"))
        turns_told = report["sessions"][0]["turns"]
        return {
            name: {n: turn[key] for n, turn in enumerate(turns_told, 1)}
            for name, key in VOICEBENCH.items()
        }


# The figures in the summary that it prints, and their names in its report.
VOICEBENCH = {"response latency": "response_latency_ms", "time to first audio": "ttfa_ms"}


async def by_streamdouble(python: Path, url: str, calls: int, scratch: Path) -> Reports:
    """Its first audio, from which the instant of the clip at which the person ends is taken off.

    `calls` is 2 or more: one call has another document.
    """
    clip = _clip(scratch, 8000, CLIP_AFTER_MS)
    _, _, end_ms = utterance(8000)
    ends = ["--quiet-period", "0.3", "--response-timeout", "3", "--max-drain", "5"]
    said = await _run(
        *(python, "streamdouble", "call", url, "--audio", str(clip), "-n", str(calls)),
        *("--json", *ends),
        n=calls,
    )
    with _understood("streamdouble"):
        values = json.loads(said)["series"]["metrics"]["time_to_first_audio_ms"]["values"]
        return {n: None if v is None else v - end_ms for n, v in enumerate(values, 1)}


@contextmanager
def _understood(peer: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise PeerError(f"{peer} reported nothing that can be read ({type(e).__name__})") from e


def _clip(scratch: Path, rate: int, after_ms: float = 60.0) -> Path:
    path = scratch / f"utterance-{rate}.wav"
    pcm, _, _ = utterance(rate, after_ms)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.tobytes())
    return path


async def _run(python: Path, command: str, *argv: str, n: int) -> str:
    """Run a peer's command in its own environment, bounded in time; returns what it printed."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        *(str(python.with_name(command)), *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=alone,
    )
    try:
        async with asyncio.timeout(SECONDS_A_TURN * n + SECONDS_MORE):
            said, errors = await process.communicate()
    except TimeoutError as e:
        raise PeerError(f"{command} did not end in time") from e
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    # 1 and 2: it measured, and something that it checks is not so, such as a turn without a reply.
    if process.returncode not in (0, 1, 2):
        last = (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise PeerError(f"{command} ended with {process.returncode}: {last}")
    return said.decode()
