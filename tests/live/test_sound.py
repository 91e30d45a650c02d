"""The sound device of `turngap record`, with a PortAudio that a test plays."""

import sys
from typing import Any

import numpy as np
import pytest

from turngap.core.audio import Pcm
from turngap.core.errors import AgentError, ExitCode
from turngap.live.sound import BLOCK, DEVICE_RATE, Block, PortAudioDevice


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

    def __init__(self, callback: Any, **settings: Any) -> None:
        self.callback, self.settings, self.closed = callback, settings, False

    def start(self) -> None:
        self.out = bytearray(BLOCK * 2)
        mic = np.arange(BLOCK, dtype=np.int16).tobytes()
        self.callback(mic, memoryview(self.out), BLOCK, None, 1)

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


def test_a_block_is_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
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
