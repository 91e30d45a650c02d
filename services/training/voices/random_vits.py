"""A piper voice that takes as long as a published one and says nothing: VITS with random weights.

    python -m training.voices.random_vits OUT.onnx [--quality medium] [--seed 1]

The layers that run when a voice speaks have the shapes of piper's qualities `medium` and `high` (as
its trainer has them: text encoder, duration predictor, four coupling layers, HiFi-GAN decoder), so
that they load the processor as piper's do. Two parts that take almost no time are left out: the
encoder's relative positions and the splines of the duration predictor. Each symbol lasts about two
and a half frames of 11.6 ms, so English takes as long as when people speak it. The output is noise.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from piper.phoneme_ids import DEFAULT_PHONEME_ID_MAP

from training.voices.files import inputs, outputs, write_voice
from training.voices.graph import Graph

SYMBOLS, WIDTH, FILTER, HEADS, LAYERS = 256, 192, 768, 2, 6
FLOWS, FLOW_LAYERS, FLOW_KERNEL = 4, 4, 5
# The logarithm of frames a symbol: rounded up, these make 2.5 on the average.
_LOG_FRAMES, _LOG_SPREAD = 0.75, 0.2


@dataclass(frozen=True, slots=True)
class Decoder:
    """HiFi-GAN as one quality has it.

    Attributes:
        channels: the channels of its first layer; half as many after each upsampling.
        upsampling: (factor, kernel) of each.
        dilations: of the convolutions of each residual block, by its kernel.
        paired: whether an undilated convolution follows each of them.
    """

    channels: int
    upsampling: tuple[tuple[int, int], ...]
    dilations: dict[int, tuple[int, ...]]
    paired: bool


QUALITIES = {
    "medium": Decoder(
        channels=256,
        upsampling=((8, 16), (8, 16), (4, 8)),
        dilations={3: (1, 2), 5: (2, 6), 7: (3, 12)},
        paired=False,
    ),
    "high": Decoder(
        channels=512,
        upsampling=((8, 16), (8, 16), (2, 4), (2, 4)),
        dilations={3: (1, 3, 5), 7: (1, 3, 5), 11: (1, 3, 5)},
        paired=True,
    ),
}


class Network(Graph):
    """Layers with random weights that keep what passes through them as loud as it is.

    Values are (1, channels, length).
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)

    def weights(self, *shape: int, fan_in: int) -> str:
        """Draw normal weights, of variance one over `fan_in`."""
        drawn = self._random.standard_normal(shape, dtype=np.float32)
        return self.constant(drawn / np.sqrt(fan_in), np.float32)

    def number(self, value: float) -> str:
        """Add a constant number."""
        return self.constant(value, np.float32)

    def convolved(
        self, x: str, channels: tuple[int, int], kernel: int = 1, dilation: int = 1, group: int = 1
    ) -> str:
        """Add a convolution that keeps the length."""
        into = channels[0] // group
        weights = self.weights(channels[1], into, kernel, fan_in=into * kernel)
        around = dilation * (kernel - 1) // 2
        return self.add(
            "Conv", x, weights, dilations=[dilation], pads=[around, around], group=group
        )

    def normalised(self, x: str, channels: int) -> str:
        """Add layer normalisation over the channels."""
        ones = self.constant(np.ones(channels), np.float32)
        turned = self.add("Transpose", x, perm=[0, 2, 1])
        return self.add(
            "Transpose", self.add("LayerNormalization", turned, ones, axis=-1), perm=[0, 2, 1]
        )

    def attended(self, x: str) -> str:
        """Add the self-attention of all heads."""
        size = WIDTH // HEADS
        shape = self.constant([1, HEADS, size, -1])
        query, key, value = (
            self.add("Reshape", self.convolved(x, (WIDTH, WIDTH)), shape) for _ in range(3)
        )
        asked = self.add("Transpose", query, perm=[0, 1, 3, 2])
        scores = self.add("Div", self.add("MatMul", asked, key), self.number(size**0.5))
        weights = self.add("Transpose", self.add("Softmax", scores, axis=-1), perm=[0, 1, 3, 2])
        mixed = self.add("MatMul", value, weights)
        joined = self.add("Reshape", mixed, self.constant([1, WIDTH, -1]))
        return self.convolved(joined, (WIDTH, WIDTH))

    def encoded(self) -> str:
        """Add the text encoder and return the encoded symbols."""
        found = self.add("Gather", self.weights(SYMBOLS, WIDTH, fan_in=1), "input")
        x = self.add("Transpose", found, perm=[0, 2, 1])
        for _ in range(LAYERS):
            x = self.normalised(self.add("Add", x, self.attended(x)), WIDTH)
            wide = self.add("Relu", self.convolved(x, (WIDTH, FILTER), 3))
            x = self.normalised(self.add("Add", x, self.convolved(wide, (FILTER, WIDTH), 3)), WIDTH)
        return x

    def separable(self, x: str) -> str:
        """Add three depthwise separable convolutions, as in the duration predictor."""
        for layer in range(3):
            apart = self.convolved(x, (WIDTH, WIDTH), 3, dilation=3**layer, group=WIDTH)
            active = self.gelu(self.normalised(apart, WIDTH))
            mixed = self.convolved(active, (WIDTH, WIDTH))
            x = self.add("Add", x, self.gelu(self.normalised(mixed, WIDTH)))
        return x

    def gelu(self, x: str) -> str:
        """Add the Gaussian error linear unit."""
        erf = self.add("Erf", self.add("Div", x, self.number(2**0.5)))
        half = self.add("Mul", x, self.number(0.5))
        return self.add("Mul", half, self.add("Add", erf, self.number(1)))

    def durations(self, x: str) -> str:
        """Compute the whole frames of each symbol."""
        x = self.separable(self.convolved(x, (WIDTH, WIDTH)))
        for _ in range(3):  # of the predictor's four flows one is left out where voices speak
            x = self.separable(self.convolved(x, (WIDTH, WIDTH)))
        drawn = self.convolved(self.normalised(x, WIDTH), (WIDTH, 1))
        spread = self.add("Mul", drawn, self.number(_LOG_SPREAD))
        frames = self.add("Exp", self.add("Add", spread, self.number(_LOG_FRAMES)))
        scaled = self.add("Mul", frames, self.add("Gather", "scales", self.constant(1)))
        whole = self.add("Cast", self.add("Ceil", scaled), to=onnx.TensorProto.INT64)
        return self.add("Reshape", whole, self.constant([-1]))

    def coupled(self, x: str) -> str:
        """Add one coupling layer, inverted."""
        kept, changed = self.split(x, 2, axis=1)
        hidden, skipped = self.convolved(kept, (WIDTH // 2, WIDTH)), ""
        for layer in range(FLOW_LAYERS):
            both = self.convolved(hidden, (WIDTH, 2 * WIDTH), FLOW_KERNEL)
            shape, gate = self.split(both, 2, axis=1)
            acted = self.add("Mul", self.add("Tanh", shape), self.add("Sigmoid", gate))
            if layer == FLOW_LAYERS - 1:
                passed = self.convolved(acted, (WIDTH, WIDTH))
            else:
                on, passed = self.split(self.convolved(acted, (WIDTH, 2 * WIDTH)), 2, axis=1)
                hidden = self.add("Add", hidden, on)
            skipped = self.add("Add", skipped, passed) if skipped else passed
        moved = self.add("Sub", changed, self.convolved(skipped, (WIDTH, WIDTH // 2)))
        return self.add("Concat", moved, kept, axis=1)

    def residual(self, x: str, channels: int, kernel: int, decoder: Decoder) -> str:
        """Add one residual block."""
        for dilation in decoder.dilations[kernel]:
            inner = self.add("LeakyRelu", x, alpha=0.1)
            inner = self.convolved(inner, (channels, channels), kernel, dilation)
            if decoder.paired:
                inner = self.add("LeakyRelu", inner, alpha=0.1)
                inner = self.convolved(inner, (channels, channels), kernel)
            x = self.add("Mul", self.add("Add", x, inner), self.number(0.5**0.5))
        return x

    def decoded(self, x: str, decoder: Decoder) -> str:
        """Add the decoder and return its samples."""
        channels = decoder.channels
        x = self.convolved(x, (WIDTH, channels), 7)
        for factor, kernel in decoder.upsampling:
            weights = self.weights(channels, channels // 2, kernel, fan_in=channels * 2)
            around = (kernel - factor) // 2
            x = self.add(
                "ConvTranspose",
                self.add("LeakyRelu", x, alpha=0.1),
                weights,
                strides=[factor],
                pads=[around, around],
            )
            channels //= 2
            blocks = [self.residual(x, channels, kernel, decoder) for kernel in decoder.dilations]
            x = self.add("Mean", *blocks)
        x = self.convolved(self.add("LeakyRelu", x, alpha=0.01), (channels, 1), 7)
        return self.add("Tanh", x)


def graph_of(decoder: Decoder, seed: int) -> onnx.GraphProto:
    """Build the graph from symbols to samples."""
    n = Network(seed)
    symbols = n.encoded()
    numbers, _, _ = n.repeated(n.durations(symbols))
    mean, spread = n.split(n.convolved(symbols, (WIDTH, 2 * WIDTH)), 2, axis=1)
    mean, spread = (n.add("Gather", each, numbers, axis=2) for each in (mean, spread))
    noise = n.add("RandomNormalLike", mean, seed=float(seed))
    noise = n.add("Mul", noise, n.add("Gather", "scales", n.constant(0)))
    x = n.add("Add", mean, n.add("Mul", noise, n.add("Exp", spread)))
    for _ in range(FLOWS):
        x = n.coupled(x)
    samples = n.decoded(x, decoder)
    n.add("Reshape", samples, n.constant([1, 1, 1, -1]), name="output")
    return n.made("random_vits", inputs(several_speakers=False), outputs())


def make(path: Path, quality: str = "medium", seed: int = 1) -> None:
    """Write the voice: 63 MB for `medium`."""
    write_voice(path, graph_of(QUALITIES[quality], seed), DEFAULT_PHONEME_ID_MAP)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="the .onnx file; its .onnx.json goes beside it")
    parser.add_argument("--quality", choices=QUALITIES, default="medium")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    make(arguments.path, arguments.quality, arguments.seed)


if __name__ == "__main__":
    main()
