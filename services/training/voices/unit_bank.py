"""A piper voice that speaks: sounds cut out of espeak-ng's speech, put together by an ONNX graph.

    python -m training.voices.unit_bank OUT.onnx [--voices en-us+klatt4 en-us+edward]

It takes seconds and nothing is trained. For each pair of successive sounds the graph has the
stretch from the middle of the first to the middle of the second; for a pair that was never heard,
the second half of the first and the first half of the second. `scales[1]` makes each stretch longer
and the voice deeper, like a slow tape. A recogniser understands it; no one would want to listen to
it.
"""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP

from training.grammar.dialogue import make_dialogues
from training.voices.files import RATE, inputs, outputs, write_voice
from training.voices.graph import Graph
from training.voices.units import SILENCE, Pcm, Speaker, Units, cut, usual

VOICES = ("en-us+klatt4", "en-us+edward")
# Texts of the project's own grammar; these many have nearly all pairs of sounds that any of it has.
_SEED, _TEXTS = 7, 260

# What piper sends where people pause, and around every sentence: two silences are a pause.
_PAUSES = ("^", "$", ",", ".", "?", "!", ":", ";")
_PAUSE_MS = 90.0


@dataclass(frozen=True, slots=True)
class Bank:
    """All stretches of sound, and the two that make up each pair of symbols.

    Attributes:
        pcm: the stretches, one after another.
        begins: where in `pcm`, shape (speakers · symbols², 2).
        lengths: numbers of samples, the same shape; 0 if there is no second stretch.
    """

    pcm: Pcm
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]


def texts(count: int) -> list[str]:
    """Return the texts that the sounds are cut out of."""
    said = _said()
    found: dict[str, None] = {}
    while len(found) < count:
        found[next(said)] = None
    return list(found)


def _said() -> Iterator[str]:
    for dialogue in make_dialogues(_SEED, holding=False):
        yield from (turn.reply for turn in dialogue.turns)


def bank_of(speakers: Sequence[Units], symbols: Mapping[str, int]) -> Bank:
    """Build the bank that the graph speaks with."""
    stretches: list[Pcm] = [np.zeros(round(_PAUSE_MS * RATE / 1000), np.int16)]
    begins: list[list[int]] = []
    lengths: list[list[int]] = []
    at = len(stretches[0])
    for units in speakers:
        for left, right in itertools.product(symbols, symbols):
            if left == right == SILENCE:
                begins.append([0, 0])
                lengths.append([len(stretches[0]), 0])
                continue
            parts = _parts(units, left, right)
            sizes = [len(part) for part in parts] + [0] * (2 - len(parts))
            begins.append([at, at + sizes[0]])
            lengths.append(sizes)
            stretches += parts
            at += sum(sizes)
    stretches.append(np.zeros(1, np.int16))  # a stretch that is drawn out may read one further
    return Bank(np.concatenate(stretches), np.array(begins), np.array(lengths))


def _parts(units: Units, left: str, right: str) -> list[Pcm]:
    if found := units.pairs.get((left, right)):
        return [usual(found)]
    halves = units.ends.get(left), units.starts.get(right)
    return [usual(half) for half in halves if half]


def graph_of(bank: Bank, symbols: int, speakers: int) -> onnx.GraphProto:
    """Build the graph from symbols to samples."""
    g = Graph()
    ids = g.add("Squeeze", "input", g.constant([0]))
    left = g.add("Slice", ids, g.constant([0]), g.constant([-1]))
    right = g.add("Slice", ids, g.constant([1]), g.constant([2**31]))
    pair = g.add("Add", g.add("Mul", left, g.constant(symbols)), right)
    if speakers > 1:
        pair = g.add("Add", pair, g.add("Mul", "sid", g.constant(symbols**2)))
    flat = g.constant([-1])
    begins = g.add("Reshape", g.add("Gather", g.constant(bank.begins), pair), flat)
    lengths = g.add("Reshape", g.add("Gather", g.constant(bank.lengths), pair), flat)
    drawn = g.add("Gather", "scales", g.constant(1))
    real = g.add("Mul", g.add("Cast", lengths, to=onnx.TensorProto.FLOAT), drawn)
    lengths = g.add("Cast", g.add("Round", real), to=onnx.TensorProto.INT64)
    numbers, starts, places = g.repeated(lengths)
    into = g.add("Sub", places, g.add("Gather", starts, numbers))
    into = g.add("Div", g.add("Cast", into, to=onnx.TensorProto.FLOAT), drawn)
    into = g.add("Cast", g.add("Floor", into), to=onnx.TensorProto.INT64)
    where = g.add("Add", g.add("Gather", begins, numbers), into)
    samples = g.add("Gather", g.constant(bank.pcm, np.int16), where)
    loud = g.add("Cast", samples, to=onnx.TensorProto.FLOAT)
    loud = g.add("Div", loud, g.constant(32768, np.float32))
    g.add("Reshape", loud, g.constant([1, 1, 1, -1]), name="output")
    return g.made("unit_bank", inputs(several_speakers=speakers > 1), outputs())


def make(path: Path, voices: Sequence[str] = VOICES) -> None:
    """Write the voice. This starts espeak-ng, which is possible once a process."""
    said = texts(_TEXTS)
    found: list[Units] = []
    for voice in voices:
        speaker = Speaker(voice)
        if speaker.rate != RATE:
            raise SystemExit(f"espeak-ng speaks at {speaker.rate} Hz, {RATE} were expected")
        found.append(cut(speaker, said))
    sounds = sorted(set().union(*(units.sounds() for units in found)) - {SILENCE})
    symbols = {name: number for number, name in enumerate([SILENCE, *sounds])}
    ids = {name: [number] for name, number in symbols.items() if name != SILENCE}
    ids |= {mark: [symbols[SILENCE]] * 2 for mark in _PAUSES}
    # Stress, length, what is between words, and sounds that the texts did not have.
    ids |= {symbol: [] for symbol in DEFAULT_PHONEME_ID_MAP if symbol not in ids}
    bank = bank_of(found, symbols)
    speakers = {name: number for number, name in enumerate(voices)} if len(voices) > 1 else None
    write_voice(path, graph_of(bank, len(symbols), len(voices)), ids, speakers=speakers)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="the .onnx file; its .onnx.json must be next to it")
    parser.add_argument("--voices", nargs="+", default=VOICES, help="espeak-ng's; one a speaker")
    arguments = parser.parse_args()
    make(arguments.path, tuple(arguments.voices))


if __name__ == "__main__":
    main()
