"""The computer's microphone and loudspeaker, by PortAudio: the one place that knows the device.

Everything else is given blocks of samples with their instants, so that a test can be the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError

# What every device can do without resampling of its own.
DEVICE_RATE = 48_000
# 10 ms: what PortAudio's own low latency comes to on most machines.
BLOCK = DEVICE_RATE // 100

_HINT = "Debian and Ubuntu: apt-get install libportaudio2; or talk in the browser: turngap talk"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the device's time, on its own clock.

    Attributes:
        mic: what the microphone heard, mono at DEVICE_RATE.
        adc_ns: when the first of these samples was taken.
        dac_ns: when the first sample that is given back will sound.
        glitch: the device says that it lost audio before this block, in either direction.
    """

    mic: Pcm
    adc_ns: int
    dac_ns: int
    glitch: bool = False


# Called for each block in the device's own thread; gives as many samples to play.
Exchange = Callable[[Block], Pcm]


class Device(Protocol):
    """A sound device that records and plays at DEVICE_RATE, with one clock for both."""

    def start(self, exchange: Exchange) -> None:
        """Begin to call `exchange`."""
        ...

    def stop(self) -> None:
        """Call it no more."""
        ...


class PortAudioDevice:
    """The default microphone and loudspeaker, or the ones that are named.

    Raises (when made):
        AgentError: no PortAudio here, or no such device.
    """

    def __init__(self, name: str | None = None) -> None:
        self._sd = _sounddevice()
        self._name = name
        self._stream: Any = None
        try:
            self._sd.check_input_settings(name, 1, "int16", samplerate=DEVICE_RATE)
            self._sd.check_output_settings(name, 1, "int16", samplerate=DEVICE_RATE)
        except (ValueError, self._sd.PortAudioError) as e:
            raise _no_device(e) from e

    def start(self, exchange: Exchange) -> None:
        """Open the device.

        Raises:
            AgentError: it cannot be opened.
        """

        def callback(indata: Any, outdata: Any, frames: int, time: Any, status: Any) -> None:
            mic: Pcm = np.frombuffer(indata, dtype=np.int16)
            adc_ns, dac_ns = _instants(time, self._stream.latency, frames)
            outdata[:] = exchange(Block(mic, adc_ns, dac_ns, bool(status))).tobytes()

        try:
            self._stream = self._sd.RawStream(
                samplerate=DEVICE_RATE,
                blocksize=BLOCK,
                device=self._name,
                channels=1,
                dtype="int16",
                latency="low",
                callback=callback,
            )
            self._stream.start()
        except (ValueError, self._sd.PortAudioError) as e:
            raise _no_device(e) from e

    def stop(self) -> None:
        """Close the device."""
        if self._stream is not None:
            self._stream.close()


def _instants(time: Any, latency: tuple[float, float], frames: int) -> tuple[int, int]:
    """When a block was heard and when the next will sound; some drivers leave both at 0."""
    adc_s, dac_s = time.inputBufferAdcTime, time.outputBufferDacTime
    if adc_s <= 0:
        adc_s = time.currentTime - latency[0] - frames / DEVICE_RATE
    if dac_s <= 0:
        dac_s = time.currentTime + latency[1]
    return round(adc_s * NS_PER_S), round(dac_s * NS_PER_S)


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError as e:
        raise AgentError(
            "audio.missing",
            "the terminal's microphone and loudspeaker need the sounddevice package",
            hint="pip install 'turngap[audio]', or talk in the browser: turngap talk",
        ) from e
    except OSError as e:
        raise AgentError("audio.no_portaudio", f"no PortAudio here: {e}", hint=_HINT) from e
    return sounddevice


def _no_device(error: Exception) -> AgentError:
    return AgentError(
        "audio.no_device",
        f"no microphone and loudspeaker that can be used: {error}",
        hint="`python -m sounddevice` lists them, --device picks one; or talk in the browser",
    )
