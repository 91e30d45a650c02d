"""Throws random and mutated messages at the caller in mid-conversation, in virtual time.

    python benchmarks/fuzz_caller.py --messages 100000 --seed 1

A scripted agent holds ordinary conversations; beside its own messages it sends mutations of real
ones: cut, spliced, with flipped bits, with other values in their JSON, or mere bytes. Everything
that a replay does is done, down to the stored turns, which are read back. The same seed sends the
same messages. What must come of it: no crash, an outcome for every turn, memory that stays flat.
"""

import argparse
import asyncio
import copy
import gc
import json
import math
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from turngap.caller.connection import Line
from turngap.caller.dialects.pipecat import PipecatSession, audio_frame, interruption_frame, parse
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.said import Message
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import AgentError
from turngap.core.wire import message_frame
from turngap.play.plan import PlayPlan
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths
from turngap.store.runs import read_run
from turngap.testing import LoopClock, ManualClock, in_virtual_time
from turngap.testing.agent import Reply, Script, converse
from turngap.testing.dialects.pipecat import wav_file
from turngap.testing.memory import End, line_to

SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios"
# A conversation of three turns lasts so long, and takes so many messages beside its own.
LASTS_MS = 9_000
EACH = 1_000

TONE = (np.sin(np.arange(3200) / 5) * 8000).astype("<i2").tobytes()
MARKS = {"turngap": "marks", "turn": 2, "marks": {"endpoint": 2 * 10**9, "sent": 3 * 10**9}}
CALL = {"name": "pay", "arguments": {"sum": 5}, "ms": 12.5, "result": "{}", "error": None}
PAYLOADS = [
    rtvi("bot-ready", {"version": "2.2.0"}),
    rtvi("bot-llm-text", {"text": "It's ten past nine."}),
    rtvi("user-transcription", {"text": "what time is it", "final": True}),
    rtvi("bot-stopped-speaking"),
    rtvi("user-stopped-speaking"),
    rtvi("bot-llm-stopped"),
    rtvi("error", {"error": "no server", "fatal": False}),
    rtvi("error-response", {"error": "unsupported"}),
    rtvi("server-message", {**MARKS, "counts": {"llm_ttft_ms": 80.5}, "why": "number"}),
    rtvi("server-message", {**MARKS, "calls": [CALL], "error": "no voice"}),
    rtvi("server-message", {"turngap": "pong", "ping": 1, "agent_ns": 10**9}),
]
REAL: list[bytes] = [
    *map(message_frame, PAYLOADS),
    interruption_frame(),
    *(audio_frame(TONE[:size], rate) for size, rate in ((640, 16_000), (960, 24_000))),
    audio_frame(wav_file(TONE[:640], 16_000), 16_000),
    audio_frame(wav_file(TONE[:640], 16_000)[:30], 16_000),
]
VALUES: list[Any] = [
    *(None, True, 0, -1, 2**31, 2**63, -(2**63), 10**40, 10**300, 0.5, 1e308),
    *(math.nan, math.inf, -math.inf, "", " ", "\x1b[2J", "\ud83d", "\udc00", "\u202e", "\x00"),
    *("x" * 3_000, [], {}, [[]] * 50, {"": {}}, "NaN", "1e999", "marks", "pong", 2**64 - 1),
]


# --- messages -----------------------------------------------------------------------------------


def mutated(draw: random.Random) -> Message:
    """Make one message: a real one as it is, one that was changed, or mere bytes."""
    real = draw.choice(REAL)
    match draw.randrange(10):
        case 0:
            return real
        case 1:
            return draw.randbytes(draw.randrange(200))
        case 2:
            return draw.choice(["", "hello", '{"event": "media"}', "\x1b[2J", "x" * 10_000])
        case 3:
            return real[: draw.randrange(len(real) + 1)]
        case 4:
            return real[: draw.randrange(len(real))] + draw.choice(REAL)
        case 5:
            return _audio(draw)
        case 6:
            return _flipped(real, draw)
        case _:
            return _other_values(draw)


def _flipped(real: bytes, draw: random.Random) -> bytes:
    data = bytearray(real)
    for _ in range(draw.randrange(1, 8)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _audio(draw: random.Random) -> bytes:
    frame = parse(audio_frame(draw.randbytes(draw.choice([0, 1, 2, 640, 5_000])), 16_000))
    frame.audio.sample_rate = draw.choice([0, 1, 8_000, 16_000, 44_100, 192_000, 2**32 - 1])
    frame.audio.num_channels = draw.choice([1, 1, 1, 0, 2, 2**32 - 1])
    if draw.random() < 0.3:
        header = bytearray(wav_file(b"", draw.choice([8_000, 16_000, 44_100])))
        header[draw.randrange(len(header))] = draw.randrange(256)
        frame.audio.audio = bytes(header) + frame.audio.audio
    return frame.SerializeToString()


def _other_values(draw: random.Random) -> bytes:
    """Put another value somewhere into a real message's JSON, or a key, or itself once more."""
    payload = copy.deepcopy(draw.choice(PAYLOADS))
    for _ in range(draw.randrange(1, 4)):
        place, key = draw.choice(list(_places(payload)))
        match draw.randrange(4):
            case 0:
                place.pop(key)
            case 1 if isinstance(place, dict):
                place[str(draw.choice(VALUES))[:500]] = place.pop(key)
            case 2:
                place[key] = copy.deepcopy(payload)
            case _:
                place[key] = copy.deepcopy(draw.choice(VALUES))
        if not list(_places(payload)):
            break
    frame = parse(message_frame({}))
    try:
        frame.message.data = json.dumps(payload)
    except ValueError:  # an integer of too many digits, which Python does not write
        frame.message.data = '{"label": "rtvi-ai", "data": ' + "9" * 5_000 + "}"
    return frame.SerializeToString()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value: what holds it, and its key there."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


# --- conversations ------------------------------------------------------------------------------


@dataclass
class Found:
    """Results of all conversations."""

    messages: int = 0
    conversations: int = 0
    ended_early: Counter[str] = field(default_factory=Counter[str])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    without_outcome: int = 0
    crashes: list[str] = field(default_factory=list[str])
    failed_on: Counter[str] = field(default_factory=Counter[str])
    rss_mib: list[float] = field(default_factory=list[float])
    descriptors: list[int] = field(default_factory=list[int])


def babbling(draw: random.Random, messages: int, found: Found) -> Callable[..., Any]:
    """Run an agent that converses, and sends other messages besides."""

    async def babble(end: End, clock: Clock) -> None:
        begun_ns = clock.now_ns() + ms_to_ns(500)  # once the clocks are compared
        for at_ms in sorted(draw.uniform(0, LASTS_MS) for _ in range(messages)):
            await clock.sleep_until_ns(begun_ns + ms_to_ns(at_ms))
            await end.send(mutated(draw))
            found.messages += 1

    async def course(end: End, clock: Clock) -> None:
        beside = asyncio.create_task(babble(end, clock))
        try:
            await converse(Script(replies=(Reply(delay_ms=400),), hold_ms=300.0), end, clock)
        finally:
            beside.cancel()

    return course


def fuzz_conversation(draw: random.Random, messages: int, folder: Path, found: Found) -> None:
    """Play one conversation, store it, and read it back."""
    scenarios = load_scenarios(scenario_paths(SCENARIOS, ["quick-questions"]))
    plan = PlayPlan(scenarios=scenarios, out=folder, greeting_ms=0.0)
    run = RunInProgress(plan, Target(AgentChoice("ws://fuzz"), SCENARIOS, None), "fuzz")

    async def play() -> None:
        clock = LoopClock()
        async with line_to(babbling(draw, messages, found), clock=clock) as line:
            await run.play_over(line, clock, scenarios[0], watch=clock)

    failure: str | None = None
    try:
        in_virtual_time(play())
    except AgentError as e:
        failure = e.kind
        found.ended_early[e.kind] += 1
    except Exception:
        failure = "crashed"
        found.crashes.append(traceback.format_exc())
    run.finish(failure)
    found.conversations += 1
    found.without_outcome += 0 if failure else len(scenarios[0].scenario.turns) - len(run.turns)
    if run.turns:
        for turn in read_run(run.folder).turns:
            found.outcomes[turn.outcome] += 1
            found.failed_on.update(n for n in turn.notes if n.startswith("turngap itself failed"))


def fuzz(messages: int, seed: int, *, each: int = EACH, show: bool = False) -> Found:
    """Play conversations until so many messages were sent."""
    found, draw = Found(), random.Random(seed)
    with TemporaryDirectory(prefix="turngap-fuzz-") as folder:
        while found.messages < messages and found.conversations * each < 3 * messages:
            fuzz_conversation(draw, min(each, messages), Path(folder), found)
            if found.conversations % 10 == 1:
                gc.collect()
                process = psutil.Process()
                found.rss_mib.append(process.memory_info().rss / 2**20)
                found.descriptors.append(process.num_fds())
            if show:
                sys.stderr.write(f"\r{found.messages:,} messages")
    return found


def fuzz_one(data: bytes) -> None:
    """Read one message as a line does; raises only if the line would."""
    clock = ManualClock()
    line = Line(End(clock, asyncio.Queue(), asyncio.Queue()), PipecatSession(), clock)
    said = line._read(data)  # pyright: ignore[reportPrivateUsage]
    if getattr(said, "traceback", ""):
        raise AssertionError(said)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found = fuzz(options.messages, options.seed, show=True)
    first, last = found.rss_mib[min(1, len(found.rss_mib) - 1)], found.rss_mib[-1]
    rows = [
        ("messages", f"{found.messages:,} in {found.conversations} conversations"),
        ("ended early", dict(found.ended_early) or "none"),
        ("outcomes", dict(found.outcomes)),
        ("turns without an outcome", found.without_outcome),
        ("crashes", len(found.crashes)),
        ("turns in which turngap failed", dict(found.failed_on) or "none"),
        ("resident memory", f"{first:.0f} MiB after 11 conversations, {last:.0f} MiB at the end"),
        ("open descriptors", f"{found.descriptors[0]} at first, {found.descriptors[-1]} at last"),
    ]
    sys.stderr.write("\n")
    for name, value in rows:
        sys.stdout.write(f"{name}: {value}\n")
    for crash in found.crashes[:3]:
        sys.stdout.write(crash)
    sys.exit(bool(found.crashes or found.failed_on or found.without_outcome))


if __name__ == "__main__":
    main()
