"""Hearing one line at a microphone, with a device that a test plays as fast as it is heard."""

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from made_speech import spoken
from played_device import room

from turngap.caller.stream import RATE
from turngap.core.audio import Pcm, audible_end, audible_onset
from turngap.core.errors import AgentError
from turngap.live import microphone
from turngap.live.microphone import Microphone
from turngap.live.sound import BLOCK, DEVICE_RATE, Block, Exchange

MS = DEVICE_RATE // 1000


class PulledDevice:
    """Hands over its next block when somebody waits for one. At the end it hands over nothing."""

    def __init__(self, mic: Pcm, glitch_at: int | None = None) -> None:
        self.mic, self.glitch_at = mic, glitch_at
        self.at = 0
        self.played: list[Pcm] = []
        self.stopped = False

    def start(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def stop(self) -> None:
        self.stopped = True

    def step(self) -> None:
        first = self.at * BLOCK
        if first + BLOCK <= len(self.mic):
            block = Block(self.mic[first : first + BLOCK], self.at == self.glitch_at)
            self.at += 1
            self.played.append(self.exchange(block))


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a microphone whose device hands over a block when one is waited for."""

    def make(device: PulledDevice) -> Microphone:
        class Swaps(queue.Queue[Any]):
            def get(self, block: bool = True, timeout: float | None = None) -> Any:
                if timeout is not None:
                    device.step()
                    timeout = 0.01
                return super().get(block, timeout)

        monkeypatch.setattr(queue, "Queue", Swaps)
        return Microphone(device)

    yield make


def at_the_device(pcm: Pcm) -> Pcm:
    """16 kHz at the device's rate: the microphone's filter keeps what lies below 7 kHz."""
    import soxr

    return soxr.resample(pcm, RATE, DEVICE_RATE).astype(np.int16)


def heard(device: PulledDevice, make: Any) -> tuple[Any, list[float]]:
    levels: list[float] = []
    with make(device) as mic:
        return mic.take(levels.append), levels


def test_a_line_is_over_a_second_after_its_last_word(pulled: Any) -> None:
    said = spoken(before_ms=1500, after_ms=5000)
    device = PulledDevice(at_the_device(said.pcm))
    take, levels = heard(device, pulled)
    assert take.spoken
    assert not take.lost
    end, onset = audible_end(take.pcm, RATE), audible_onset(take.pcm, RATE)
    assert end is not None
    assert onset is not None
    assert onset / 16 == pytest.approx(said.start_ms, abs=30)
    assert 1000 <= len(take.pcm) / 16 - end / 16 < 1100
    # The meter moved, ten times a second, and saw the voice.
    assert len(levels) == pytest.approx(len(take.pcm) / 1600, abs=1)
    assert min(levels) < -55
    assert max(levels) > -30
    assert device.stopped


def test_a_press_of_a_key_does_not_end_a_line_before_it_began(pulled: Any) -> None:
    said = spoken(before_ms=3000, after_ms=2000)
    pcm = said.pcm.copy()
    pcm[16 * 700 : 16 * 740] += np.random.default_rng(0).integers(-6000, 6000, 640, np.int16)
    take, _ = heard(PulledDevice(at_the_device(pcm)), pulled)
    assert take.spoken
    assert len(take.pcm) / 16 > said.end_ms + 900


def test_a_pause_of_most_of_a_second_belongs_to_the_line(pulled: Any) -> None:
    one = spoken(before_ms=1000, after_ms=400)
    other = spoken(before_ms=400, after_ms=2000)
    take, _ = heard(PulledDevice(at_the_device(np.concatenate((one.pcm, other.pcm)))), pulled)
    assert len(take.pcm) / 16 > len(one.pcm) / 16 + other.end_ms + 900


def test_who_says_nothing_for_ten_seconds_is_told(pulled: Any) -> None:
    take, _ = heard(PulledDevice(room(12_000)), pulled)
    assert not take.spoken
    assert len(take.pcm) / 16 == pytest.approx(10_000, abs=20)


def test_noise_that_never_ends_is_heard_for_a_minute_at_most(pulled: Any) -> None:
    voice = spoken(before_ms=50, after_ms=50).pcm
    pcm = np.concatenate((room(1000)[::3], np.tile(voice, 80)))
    take, _ = heard(PulledDevice(at_the_device(pcm)), pulled)
    assert len(take.pcm) / 16 == pytest.approx(60_000, abs=20)


def test_audio_that_the_device_lost_is_reported(pulled: Any) -> None:
    pcm = at_the_device(spoken(before_ms=1500, after_ms=2000).pcm)
    assert heard(PulledDevice(pcm, glitch_at=160), pulled)[0].lost


def test_a_device_that_is_unplugged_is_an_error(pulled: Any) -> None:
    device = PulledDevice(room(2000))
    with pytest.raises(AgentError) as error:
        heard(device, pulled)
    assert error.value.kind == "audio.gone"
    assert device.stopped


def test_a_take_is_played_back_whole(pulled: Any) -> None:
    said = spoken(before_ms=0)
    device = PulledDevice(room(10_000))
    with pulled(device) as mic:
        mic.play(said.pcm)
    played = np.concatenate(device.played)
    end = audible_end(played, DEVICE_RATE)
    assert end is not None
    assert end / MS == pytest.approx(said.end_ms, abs=30)


def test_while_nobody_listens_only_the_last_seconds_are_kept(pulled: Any) -> None:
    device = PulledDevice(room(20_000))
    with pulled(device) as mic:
        for _ in range(1500):
            device.step()
        assert mic._blocks.qsize() == microphone.KEPT_BLOCKS
