"""A streaming zipformer with a known transcript, of any shape: real compute, and no weights.

    python -m training.zipformer.canned OUT [--shape en-2023-06-26] [--text "..."] [--token-ms 250]

Its encoder has as many layers, as wide, as the model whose shape it has, reads as much at once and
calculates as that does, int8 layers included, but nothing comes out of it. What it writes is its
text, and how much of it depends on the audio: token n (from 0) once there is sound at n *
`token_ms` or after. So the last word is missing where the last sound was not read, which is what a
recogniser that stops too early gets wrong.

How: the encoder's output has a channel for each token, which is on where there is sound and the
token's time has come. The decoder knows which token is next, as no word comes twice. It takes
seconds and needs numpy and onnx, no torch.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx

from training.zipformer.encoder import model_of, write_encoder
from training.zipformer.shape import OUTPUT_MS, SHAPES, Shape
from training.zipformer.weights import FLOAT, INT64, Array, Weights

TEXT = (
    "the quick brown fox jumps over a lazy dog and then it runs back home through some wide field"
)
TOKEN_MS = 250.0

_BLANK, _MARKS = 0, ("<blk>", "<sos/eos>", "<unk>")
# Mean of a frame's log-mel values (kaldi's, of samples within 1) from which on it is sound: white
# noise above -50 dBFS, and speech at -20 dBFS to its audible end.
_SOUND = -6.0
# A channel that is on, of tokens that are not next, and the logits of a token and of the blank.
_ON, _NOT_NEXT, _LOGIT, _SILENT = 4.0, -8.0, 10.0, 5.0
_FRAMES = 4  # of 10 ms in an output


def make_canned(
    directory: Path,
    *,
    text: str = TEXT,
    token_ms: float = TOKEN_MS,
    shape: Shape = SHAPES["toy"],
) -> int:
    """Write `encoder.int8.onnx`, `decoder.onnx`, `joiner.onnx` and `tokens.txt`.

    Args:
        directory: is made if it is not there.
        text: what it writes; each word is a token.
        token_ms: so much audio a token.
        shape: of its layers.

    Returns:
        How many parameters a model of this shape has.

    Raises:
        ValueError: a word comes twice, or there are too many.
    """
    words = text.split()
    most = min(shape.vocabulary, shape.joiner) - len(_MARKS)
    if len(set(words)) < len(words) or len(words) > most:
        raise ValueError(f"expected at most {most} words, each once, got {text!r}")
    directory.mkdir(parents=True, exist_ok=True)
    numbers = [len(_MARKS) + n for n in range(len(words))]

    def finish(w: Weights, x: str, heard: str, encoded: str) -> str:
        nothing = np.zeros((max(shape.widths), shape.joiner), np.int8)
        w.parameters += nothing.size
        projected = w.times(encoded, nothing, 1.0, w.floats(np.zeros(shape.joiner)))
        due_ms = np.full((1, 1, shape.joiner), np.inf)
        due_ms[0, 0, numbers] = np.arange(len(numbers)) * token_ms
        on = _sound_in_time(w, x, heard, due_ms, shape.chunk)
        return w.add("Add", projected, on, name="encoder_out")

    encoder, parameters = write_encoder(shape, finish)
    onnx.save(encoder, directory / "encoder.int8.onnx")
    decoder, of_decoder = _decoder(numbers, shape)
    onnx.save(decoder, directory / "decoder.onnx")
    joiner, of_joiner = _joiner(numbers, shape)
    onnx.save(joiner, directory / "joiner.onnx")
    unused = shape.vocabulary - len(_MARKS) - len(words)
    symbols = [*_MARKS, *(f"▁{word}" for word in words), *(f"[{n}]" for n in range(unused))]
    lines = "".join(f"{symbol} {number}\n" for number, symbol in enumerate(symbols))
    (directory / "tokens.txt").write_text(lines, encoding="utf-8")
    return parameters + of_decoder + of_joiner


def _sound_in_time(w: Weights, x: str, heard: str, due_ms: Array, chunk: int) -> str:
    """(1, outputs, joiner): on from each channel's time on, where there is sound."""
    outputs = chunk // 2
    level = w.add("ReduceMean", w.cut(x, 1, 0, 2 * chunk), w.ints(2), keepdims=0)
    level = w.shaped(level, 1, outputs, _FRAMES)
    loud = w.add("ReduceMax", level, w.ints(2), keepdims=1)
    sound = w.add("Cast", w.add("Greater", loud, w.floats(_SOUND)), to=FLOAT)
    # `heard` counts frames of 20 ms.
    begun = w.add("Mul", w.add("Cast", heard, to=FLOAT), w.floats(OUTPUT_MS / 2))
    at_ms = w.add("Add", begun, w.floats(np.arange(outputs)[None, :, None] * OUTPUT_MS))
    in_time = w.add("Cast", w.add("GreaterOrEqual", at_ms, w.floats(due_ms)), to=FLOAT)
    return w.add("Mul", w.add("Mul", sound, in_time), w.floats(_ON))


def _decoder(numbers: list[int], shape: Shape) -> tuple[onnx.ModelProto, int]:
    """From the last two tokens to (1, joiner), below zero for each token that is not next."""
    w, width = Weights(), shape.joiner
    spoken = w.add("GreaterOrEqual", "y", w.ints(0))
    spoken = w.add("Unsqueeze", w.add("Cast", spoken, to=FLOAT), w.ints(2))
    embeddings = np.zeros((shape.vocabulary, width), np.float32)
    known = min(embeddings.shape)
    embeddings[np.arange(known), np.arange(known)] = 1
    known_y = w.add("Max", "y", w.ints(0))
    x = w.add("Mul", w.add("Gather", w.floats(embeddings), known_y), spoken)
    x = w.add("Transpose", x, perm=(0, 2, 1))
    kernel = np.zeros((width, 4, 2), np.float32)
    kernel[np.arange(width), np.arange(width) % 4, 1] = 1  # the last token only
    x = w.add("Relu", w.add("Conv", x, w.floats(kernel), group=width // 4))
    x = w.add("Squeeze", x, w.ints(2))
    after = np.zeros((width, width), np.float32)
    after[[_BLANK, *numbers[:-1]], numbers] = -_NOT_NEXT
    bias = w.floats(np.full(width, _NOT_NEXT))
    w.add("Gemm", x, w.floats(after), bias, name="decoder_out")
    y = onnx.helper.make_tensor_value_info("y", INT64, ("N", 2))
    out = onnx.helper.make_tensor_value_info("decoder_out", FLOAT, ("N", width))
    parameters = embeddings.size + kernel.size + after.size + width
    given = {"context_size": 2, "vocab_size": shape.vocabulary}
    return model_of(w, "decoder", [y], [out], **given), parameters


def _joiner(numbers: list[int], shape: Shape) -> tuple[onnx.ModelProto, int]:
    """The next token where it is on, the blank elsewhere."""
    w = Weights()
    weights = np.zeros((shape.joiner, shape.vocabulary), np.float32)
    weights[numbers, numbers] = _LOGIT
    bias = np.full(shape.vocabulary, -_LOGIT, np.float32)
    bias[_BLANK] = _SILENT
    bias[numbers] = 0
    both = w.add("Tanh", w.add("Add", "encoder_out", "decoder_out"))
    w.add("Gemm", both, w.floats(weights), w.floats(bias), name="logit")
    inputs = [
        onnx.helper.make_tensor_value_info(name, FLOAT, ("N", shape.joiner))
        for name in ("encoder_out", "decoder_out")
    ]
    out = onnx.helper.make_tensor_value_info("logit", FLOAT, ("N", shape.vocabulary))
    parameters = weights.size + bias.size
    return model_of(w, "joiner", inputs, [out], joiner_dim=shape.joiner), parameters


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="en-2023-06-26")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--token-ms", type=float, default=TOKEN_MS)
    arguments = parser.parse_args()
    parameters = make_canned(
        arguments.directory,
        text=arguments.text,
        token_ms=arguments.token_ms,
        shape=SHAPES[arguments.shape],
    )
    print(f"{parameters:,} parameters")
    for path in sorted(arguments.directory.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
