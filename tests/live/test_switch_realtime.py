"""The built-in agent, for real: another LLM in mid-reply, the talk saved, and played again."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import soxr
from played_device import ROUND_TRIP_MS, PlayedDevice, room
from quiet import Quiet

from turngap.caller.line import open_line
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm, audible_end
from turngap.core.clock import ms_to_ns
from turngap.live.keeping import Keeping, LiveRun
from turngap.live.sound import DEVICE_RATE
from turngap.live.terminal import Shown, TalkDialect, TerminalTalk
from turngap.play.process import running
from turngap.scenario.library import library_dir, load_scenario
from turngap.store.runs import read_run

pytestmark = pytest.mark.realtime

FIRST_MS = 1500.0
# Well after the first reply would have ended.
PAUSE_MS = 4500.0

NEW_REPLY = "The new model speaks."


class Person:
    """Switches in the middle of the first reply, and hangs up after the second."""

    def __init__(self, device: PlayedDevice) -> None:
        self.device = device
        self.turns = 0
        self.switched_ms = 0.0
        self._lines = self._talk()

    async def __call__(self) -> str | None:
        return await anext(self._lines)

    async def _talk(self) -> AsyncGenerator[str]:
        await self._until(lambda: self.device.onset_ms() is not None)
        onset_ms = self.device.onset_ms() or 0.0
        await self._until(lambda: self.device.now_ms > onset_ms + 300)
        self.switched_ms = self.device.now_ms
        yield "/llm slow"
        await self._until(lambda: self.turns == 2)
        yield "/quit"

    async def _until(self, there: Any) -> None:
        clock = MonotonicClock()
        while not there():
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(10))


def recorded() -> tuple[Pcm, float]:
    """Two turns of a shipped scenario as a microphone would hear them; the second one's start."""
    loaded = load_scenario(library_dir() / "coffee-order.yaml")
    clips = [loaded.clips[turn.audio] for turn in loaded.scenario.turns[:2]]
    pcm = room(40_000)
    at_ms = FIRST_MS
    starts: list[float] = []
    for clip in clips:
        spoken = soxr.resample(clip.pcm, clip.rate, DEVICE_RATE)
        first = round(at_ms * DEVICE_RATE / 1000)
        pcm[first : first + len(spoken)] = spoken
        starts.append(at_ms)
        at_ms += clip.duration_ms + PAUSE_MS
    return pcm, starts[1]


async def talked(tmp_path: Path) -> tuple[LiveRun, PlayedDevice, Person, float]:
    mic, second_ms = recorded()
    device = PlayedDevice(mic)
    person = Person(device)
    run = LiveRun(Keeping(tmp_path / "runs", tmp_path / "saved"), "embedded-talk", {"stack": "x"})

    def on_turn(_: Any) -> None:
        person.turns += 1

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(library_dir() / "museum-visit.yaml", elsewhere)
    # A model that knows of nothing that is asked here: its answer is no other's.
    slow = f"slow=sim,ttft_ms=300,library={elsewhere},default_reply={NEW_REPLY}"
    serve = ["turngap", "serve", "--port", "0", "--json", "--llm", "sim", "--offer", slow]
    clock, dialect = MonotonicClock(), TalkDialect()
    async with (
        running(serve, tmp_path / "agent.log") as url,
        open_line(url, dialect, clock) as line,
    ):
        talk = TerminalTalk(device, run, "talk", clock, Shown(on_turn, lambda _: None))
        async with asyncio.timeout(60):
            await talk.run(line, dialect, person)
    return run, device, person, second_ms


def replayed(scenario: Path, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "turngap", "replay", str(scenario), "--json"]
    command += ["--calibration", "0", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return json.loads(done.stdout)


async def test_a_switch_in_mid_reply_is_heard_at_once_and_the_talk_can_be_played_again(
    tmp_path: Path, quiet: Quiet
) -> None:
    run, device, person, second_ms = await talked(tmp_path)
    first, second = read_run(run.stored()).turns

    # The old one is silent at the ear within 250 ms, the sound device's 30 included.
    ear = device.ear()[: round(second_ms * DEVICE_RATE / 1000)]
    silent = audible_end(ear, DEVICE_RATE)
    assert silent is not None
    silent_ms = silent * 1000 / DEVICE_RATE + ROUND_TRIP_MS

    assert (first.llm, second.llm) == ("sim", "slow")
    assert (first.ended, second.ended) == ("interrupted", "reply_done")
    assert first.gap_ms is not None
    assert second.gap_ms is not None
    assert "latte" in first.transcript
    assert "small one" in second.transcript
    assert second.reply == NEW_REPLY

    (scenario,) = (tmp_path / "saved").glob("*.yaml")
    played = await asyncio.to_thread(replayed, scenario, tmp_path / "replays")
    assert [t["transcript"] for t in played["turns"]] == [first.transcript, second.transcript]
    assert {t["outcome"] for t in played["turns"]} <= {"answered", "late"}

    held_up_ms = max(device.late_ms[round(person.switched_ms / 10) :][:30])
    with quiet.measured():
        assert silent_ms - person.switched_ms < 250 + held_up_ms
