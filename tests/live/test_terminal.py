"""Talking in the terminal, with a sound device that a test plays."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from played_device import ROUND_TRIP_MS, PlayedDevice, VirtualDevice, room

from turngap.core.audio import Pcm
from turngap.core.errors import AgentError, ExitCode
from turngap.core.results import Turn
from turngap.live.keeping import Keeping, LiveRun
from turngap.live.sound import BLOCK, DEVICE_RATE, Block, PortAudioDevice
from turngap.live.terminal import Shown, TalkDialect, TerminalTalk
from turngap.store.runs import read_run
from turngap.testing import LoopClock, in_virtual_time
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to


def speaking(*stretches_ms: tuple[float, float], until_ms: float) -> Pcm:
    """A microphone in a quiet room, with a voice in these stretches."""
    pcm = room(until_ms)
    for start_ms, end_ms in stretches_ms:
        first, last = (round(DEVICE_RATE * ms / 1000) for ms in (start_ms, end_ms))
        pcm[first:last] += (np.cos(np.arange(last - first) / 30) * 8000).astype(np.int16)
    return pcm


class Typist:
    """A person's lines, each so many turns after the start."""

    def __init__(self, *lines: tuple[int, str]) -> None:
        self.lines = list(lines)
        self.turns = 0
        self.came = asyncio.Event()

    async def __call__(self) -> str | None:
        if not self.lines:
            await asyncio.Event().wait()
        after, line = self.lines.pop(0)
        while self.turns < after:
            self.came.clear()
            await self.came.wait()
        return line


def talk(
    tmp_path: Path, script: Script, device: PlayedDevice, *lines: tuple[int, str]
) -> tuple[LiveRun, list[str]]:
    async def course() -> tuple[LiveRun, list[str]]:
        kept = Keeping(tmp_path / "runs", tmp_path / "saved")
        run = LiveRun(kept, "made-talk", {"url": "here"})
        typist, said = Typist(*lines), list[str]()

        def on_turn(turn: Turn) -> None:
            typist.turns += 1
            typist.came.set()

        clock, dialect = LoopClock(), TalkDialect()
        terminal = TerminalTalk(device, run, "made", clock, Shown(on_turn, said.append))
        async with line_to(script, dialect, clock) as line, asyncio.timeout(60):
            await terminal.run(line, dialect, typist)
        return run, said

    return in_virtual_time(course())


def turns_of(run: LiveRun) -> Sequence[Turn]:
    return read_run(run.stored()).turns


def test_the_gap_is_what_the_device_itself_would_say(tmp_path: Path) -> None:
    device = VirtualDevice(speaking((1000, 1800), (4000, 4800), until_ms=20_000))
    script = Script(replies=(Reply(delay_ms=300), Reply(delay_ms=500, pad_ms=150)))
    run, _ = talk(tmp_path, script, device, (2, "/quit"))
    first, second = turns_of(run)
    for turn, end_ms in ((first, 1800), (second, 4800)):
        onset_ms = device.onset_ms(end_ms)
        assert onset_ms is not None
        assert turn.gap_ms == pytest.approx(onset_ms - end_ms, abs=3)
        assert turn.outcome in ("answered", "late")
        assert turn.reply == "scripted reply"
        assert sum(stage.ns for stage in turn.stages) == turn.gap_ns
        assert {m.name for m in turn.marks} >= {"user_end", "endpoint", "sent", "agent_onset"}
        assert turn.left_out is None
    # Never less than the agent and the device took, whatever the machine added.
    assert first.gap_ms is not None
    assert first.gap_ms > 300 + ROUND_TRIP_MS - 3
    assert second.gap_ms is not None
    assert second.gap_ms > 650 + ROUND_TRIP_MS - 3
    assert second.lead_ms == pytest.approx(150, abs=25)
    assert read_run(run.stored()).record.settings["ended"] == "quit"


def test_a_glitch_of_the_device_takes_its_turn_out_of_the_figures(tmp_path: Path) -> None:
    mic = speaking((1000, 1800), until_ms=20_000)
    device = VirtualDevice(mic, glitch_at=150)
    run, _ = talk(tmp_path, Script(), device, (1, "/quit"))
    (turn,) = turns_of(run)
    assert (turn.left_out, turn.pacing.loop_lag_ms_max) == ("device stall", 10.0)


def test_commands_are_followed_or_explained(tmp_path: Path) -> None:
    device = VirtualDevice(speaking((1000, 1800), until_ms=20_000))
    lines = [
        (0, "/help"),
        (0, "/llms"),
        (0, "/save x"),
        (0, "/what"),
        (1, "/save Ä"),
        (1, " /quit "),
    ]
    run, said = talk(tmp_path, Script(), device, *lines)
    assert said[0].startswith("type a line to send it as a turn")
    assert said[1] == "this agent offers no other LLM"
    assert said[2].startswith("no turn of this conversation has been stored yet")
    assert said[3] == said[0]
    assert "cannot be a scenario's name" in said[4]
    assert len(turns_of(run)) == 1


def test_an_agent_that_dies_ends_the_talk_and_what_was_said_is_kept(tmp_path: Path) -> None:
    device = VirtualDevice(speaking((1000, 1800), until_ms=20_000))
    script = Script(replies=(Reply(action="die"),))
    with pytest.raises(AgentError):
        talk(tmp_path, script, device)
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_run(folder)
    assert run.turns[0].outcome == "error"
    assert run.record.failure


# --- the device itself ------------------------------------------------------------------------


class NoSound:
    """sounddevice where nothing is plugged in."""

    class PortAudioError(Exception):
        pass

    def check_input_settings(self, *_: Any, **__: Any) -> None:
        raise ValueError("No input device matching 'nonesuch'")


def test_no_device_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", NoSound())  # pyright: ignore[reportArgumentType]
    with pytest.raises(AgentError) as raised:
        PortAudioDevice("nonesuch")
    assert raised.value.kind == "audio.no_device"
    assert "nonesuch" in raised.value.message
    assert raised.value.exit_code == ExitCode.AGENT_FAILED


def test_a_missing_extra_is_an_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(AgentError) as raised:
        PortAudioDevice()
    assert raised.value.kind == "audio.missing"
    assert "turngap[audio]" in raised.value.hint


class Stream:
    """A PortAudio stream that calls back once, as the library does."""

    latency = (0.012, 0.018)

    def __init__(self, callback: Any, **settings: Any) -> None:
        self.callback, self.settings, self.closed = callback, settings, False

    def start(self) -> None:
        class Time:
            inputBufferAdcTime = 0.0  # noqa: N815  # PortAudio's names
            outputBufferDacTime = 0.0  # noqa: N815
            currentTime = 5.0  # noqa: N815

        self.out = bytearray(BLOCK * 2)
        mic = np.arange(BLOCK, dtype=np.int16).tobytes()
        self.callback(mic, memoryview(self.out), BLOCK, Time(), 1)

    def close(self) -> None:
        self.closed = True


class Sound(NoSound):
    def __init__(self) -> None:
        self.streams: list[Stream] = []

    def check_input_settings(self, *_: Any, **__: Any) -> None:
        return

    check_output_settings = check_input_settings

    def RawStream(self, **settings: Any) -> Stream:  # noqa: N802
        self.streams.append(Stream(**settings))
        return self.streams[-1]


def test_a_block_is_swapped_with_its_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = Sound()
    monkeypatch.setitem(sys.modules, "sounddevice", sound)  # pyright: ignore[reportArgumentType]
    blocks: list[Block] = []

    def exchange(block: Block) -> Pcm:
        blocks.append(block)
        return np.full(len(block.mic), 9, np.int16)

    device = PortAudioDevice("mine")
    device.start(exchange)
    device.stop()
    (stream,) = sound.streams
    assert stream.settings["device"] == "mine"
    assert stream.settings["samplerate"] == DEVICE_RATE
    assert stream.closed
    assert np.array_equal(np.frombuffer(stream.out, np.int16), np.full(BLOCK, 9))
    (block,) = blocks
    assert block.glitch
    assert np.array_equal(block.mic, np.arange(BLOCK))
    # A driver that leaves the instants at 0: from its latency.
    assert block.adc_ns == pytest.approx((5 - 0.012 - 0.01) * 1e9, abs=1000)
    assert block.dac_ns == pytest.approx((5 + 0.018) * 1e9, abs=1000)
