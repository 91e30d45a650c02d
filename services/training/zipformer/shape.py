"""The shapes of streaming zipformers: how many layers, how wide, how much they hear at once."""

from dataclasses import dataclass, replace

MELS = 80
# The convolutions before the layers: they halve the frame rate, and look this many frames ahead.
AHEAD = 13
FRAME_MS = 10
LEFT = 128  # frames (of 20 ms) that attention remembers
EMBEDDED = 128  # channels of the last of these convolutions
OUTPUT_MS = 40  # from one output of the encoder to the next


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a zipformer: a value a stack of layers, or one for all of them.

    Attributes:
        layers: of each stack.
        widths: of each stack's layers.
        feed_forward: widths inside their feed-forward modules.
        heads: of attention.
        kernels: of the convolutions, in frames.
        slower: each stack works at a frame rate so many times lower.
        joiner: width in which encoder and decoder meet.
        vocabulary: tokens, the blank included.
        chunk: frames (of 20 ms) that are read at once.
    """

    layers: tuple[int, ...]
    widths: tuple[int, ...]
    feed_forward: tuple[int, ...]
    heads: tuple[int, ...]
    kernels: tuple[int, ...]
    slower: tuple[int, ...]
    joiner: int = 512
    vocabulary: int = 500
    chunk: int = 16
    query: int = 32
    value: int = 12
    position_head: int = 4
    position: int = 48

    @property
    def decode_chunk(self) -> int:
        """Frames of 10 ms from one reading to the next."""
        return 2 * self.chunk

    @property
    def window(self) -> int:
        """Frames of 10 ms that one reading is given."""
        return self.decode_chunk + AHEAD


# What `sherpa-onnx-streaming-zipformer-en-2023-06-26` was exported with, by the script in its
# repository (export-onnx-zipformer-online.sh).
_EN_2023_06_26 = Shape(
    layers=(2, 2, 3, 4, 3, 2),
    widths=(192, 256, 384, 512, 384, 256),
    feed_forward=(512, 768, 1024, 1536, 1024, 768),
    heads=(4, 4, 4, 8, 4, 4),
    kernels=(31, 31, 15, 15, 15, 31),
    slower=(1, 2, 4, 8, 4, 2),
)

SHAPES = {
    "toy": Shape((1, 1), (16, 24), (32, 32), (2, 2), (7, 7), (1, 2), joiner=64, vocabulary=64),
    "en-2023-06-26": _EN_2023_06_26,
    # Twice as much at once: some are published like that, or do not say which they are.
    "en-2023-06-26-640ms": replace(_EN_2023_06_26, chunk=32),
}
