"""The computer's microphone and loudspeaker through PortAudio; only this module knows the device.

All others get blocks of samples, so that a test can stand in for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from turngap.core.audio import Pcm
from turngap.core.errors import AgentError

# Every device supports this rate without resampling.
DEVICE_RATE = 48_000
# 10 ms, which is PortAudio's own low latency on most machines.
BLOCK = DEVICE_RATE // 100

_HINT = "Debian and Ubuntu: apt-get install libportaudio2; or talk in the browser: turngap talk"


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the device's time.

    Attributes:
        mic: what the microphone heard, mono at DEVICE_RATE.
        glitch: whether the device lost audio before this block, in either direction.
    """

    mic: Pcm
    glitch: bool = False


# Called for each block in the device's own thread; returns as many samples to play.
Exchange = Callable[[Block], Pcm]


class Device(Protocol):
    """A sound device that records and plays at DEVICE_RATE, with one clock for both."""

    def start(self, exchange: Exchange) -> None: ...

    def stop(self) -> None: ...


class PortAudioDevice:
    """The default microphone and loudspeaker, or the named device.

    Raises:
        AgentError: there is no PortAudio or no such device.
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
            outdata[:] = exchange(Block(mic, bool(status))).tobytes()

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
        if self._stream is not None:
            self._stream.close()


def devices() -> str:
    """Return a table of the sound devices, with the numbers and names by which they are chosen.

    Raises:
        AgentError: there is no PortAudio.
    """
    listed = str(_sounddevice().query_devices())
    return listed or "PortAudio finds no sound device"


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError as e:
        raise AgentError(
            "audio.missing",
            "microphone and loudspeaker need the package sounddevice",
            hint="pip install 'turngap[audio]', or talk in the browser: turngap talk",
        ) from e
    except OSError as e:
        raise AgentError("audio.no_portaudio", f"PortAudio is missing: {e}", hint=_HINT) from e
    return sounddevice


def _no_device(error: Exception) -> AgentError:
    return AgentError(
        "audio.no_device",
        f"no usable microphone and loudspeaker: {error}",
        hint="`python -m sounddevice` lists them, --device picks one; or talk in the browser",
    )
