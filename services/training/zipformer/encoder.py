"""The encoder of a streaming zipformer as an ONNX graph, for a batch of one.

Names of inputs and outputs, their order and the metadata are those that sherpa-onnx counts on: `x`,
then each layer's six states, `embed_states` and `processed_lens`.
"""

from collections.abc import Callable, Iterable

import numpy as np
import onnx

from training.zipformer.layer import Layer, State
from training.zipformer.shape import EMBEDDED, LEFT, MELS, Shape
from training.zipformer.weights import FLOAT, INT64, Weights

_BANDS = ((MELS - 1) // 2 - 1) // 2  # of the last convolution before the layers
_AROUND = 3  # frames to either side that the ConvNeXt layer sees
_OPSET = 18

# Makes the encoder's output from the graph, the input `x`, the number of frames (of 20 ms) heard
# before it (1,), and the encoder's own output (1, outputs, joiner).
Finish = Callable[[Weights, str, str, str], str]


def write_encoder(shape: Shape, finish: Finish) -> tuple[onnx.ModelProto, int]:
    """The model, and how many parameters it has."""
    w = Weights()
    states: list[State] = []
    mask, heard = _heard(w, shape)
    x = _embed(w, shape)
    outputs: list[str] = []
    number = 0
    for stack, slower in enumerate(shape.slower):
        x = _as_wide(w, x, shape, stack)
        begun = x
        if slower > 1:
            x = _slower(w, x, shape.chunk, shape.widths[stack], slower)
        positions = w.floats(_positions(shape, stack))
        seen = w.cut(mask, 1, 0, np.iinfo(np.int64).max, slower)
        for _ in range(shape.layers[stack]):
            layer = Layer(w, shape, stack, number, positions, seen)
            states += layer.states()
            x = layer.write(x)
            number += 1
        if slower > 1:
            x = w.bypass(
                begun,
                _faster(w, x, shape.chunk, shape.widths[stack], slower),
                shape.widths[stack],
            )
        outputs.append(x)
    x = _slower(w, _all_channels(w, outputs, shape), shape.chunk, max(shape.widths), 2)
    x = w.add("Transpose", x, perm=(1, 0, 2))
    finish(w, "x", heard, x)
    states += [State("embed_states", (1, EMBEDDED, _AROUND, _BANDS)), State("processed_lens", (1,))]
    return _model(w, shape, states), w.parameters


def _heard(w: Weights, shape: Shape) -> tuple[str, str]:
    """Which frames there are not, of those remembered and those now, and how many there were."""
    places = w.graph.constant(np.arange(LEFT)[::-1][None])
    missing = w.add("LessOrEqual", w.add("Unsqueeze", "processed_lens", w.ints(1)), places)
    now = w.graph.constant(np.zeros((1, shape.chunk)), np.bool_)
    w.add("Add", "processed_lens", w.ints(shape.chunk), name="new_processed_lens")
    return w.add("Concat", missing, now, axis=1), "processed_lens"


def _embed(w: Weights, shape: Shape) -> str:
    """Three convolutions and a ConvNeXt layer: half the frames, (frames, 1, width)."""
    x = w.add("Unsqueeze", "x", w.ints(1))
    x = w.swoosh_r(w.add("Conv", x, w.random(8, 1, 3, 3), w.random(8), pads=(0, 1, 0, 1)))
    x = w.swoosh_r(w.add("Conv", x, w.random(32, 8, 3, 3), w.random(32), strides=(2, 2)))
    last = w.random(EMBEDDED, 32, 3, 3), w.random(EMBEDDED)
    x = w.swoosh_r(w.add("Conv", x, *last, strides=(1, 2)))
    kept = w.cut(x, 2, 0, shape.chunk)
    both = w.add("Concat", "embed_states", x, axis=2)
    w.add(
        "Slice",
        both,
        w.ints(shape.chunk),
        w.ints(shape.chunk + _AROUND),
        w.ints(2),
        name="new_embed_states",
    )
    deep = w.random(EMBEDDED, 1, 7, 7), w.random(EMBEDDED)
    x = w.add("Conv", both, *deep, group=EMBEDDED, pads=(0, _AROUND, 0, _AROUND))
    hidden = 3 * EMBEDDED
    x = w.swoosh_l(w.add("Conv", x, w.random(hidden, EMBEDDED, 1, 1), w.random(hidden)))
    x = w.add("Conv", x, w.random(EMBEDDED, hidden, 1, 1), w.random(EMBEDDED))
    x = w.add("Transpose", w.add("Add", kept, x), perm=(0, 2, 1, 3))
    width = shape.widths[0]
    x = w.linear(w.shaped(x, 1, shape.chunk, EMBEDDED * _BANDS), EMBEDDED * _BANDS, width)
    return w.add("Transpose", w.norm(x, width), perm=(1, 0, 2))


def _positions(shape: Shape, stack: int) -> np.ndarray:
    """Encodings of every distance, (1, distances, width): bounded, and dense around 0."""
    slower, half = shape.slower[stack], shape.position // 2
    frames, left = shape.chunk // slower, LEFT // slower
    distance = np.arange(-(frames + left - 1), frames)[:, None]
    squeezed = np.sign(distance) * np.log1p(np.abs(distance) / np.sqrt(shape.position))
    angle = np.arctan(squeezed) * np.arange(1, half + 1)
    return np.stack((np.cos(angle), np.sin(angle)), axis=-1).reshape(1, len(distance), -1)


def _as_wide(w: Weights, x: str, shape: Shape, stack: int) -> str:
    """With as many channels as the stack has: cut, or zeros added."""
    before = shape.widths[max(stack - 1, 0)]
    after = shape.widths[stack]
    if after <= before:
        return x if after == before else w.cut(x, 2, 0, after)
    more = w.floats(np.zeros((shape.chunk, 1, after - before)))
    return w.add("Concat", x, more, axis=2)


def _slower(w: Weights, x: str, frames: int, width: int, slower: int) -> str:
    """Weighted means of `slower` frames each."""
    w.parameters += slower
    shares = w.floats(np.full((1, slower, 1, 1), 1 / slower))
    x = w.shaped(x, frames // slower, slower, 1, width)
    return w.add("ReduceSum", w.add("Mul", x, shares), w.ints(1), keepdims=0)


def _faster(w: Weights, x: str, frames: int, width: int, slower: int) -> str:
    """Each frame `slower` times."""
    x = w.add("Unsqueeze", x, w.ints(1))
    x = w.add("Expand", x, w.ints(frames // slower, slower, 1, width))
    return w.shaped(x, frames, 1, width)


def _all_channels(w: Weights, outputs: list[str], shape: Shape) -> str:
    """The last stack's channels, and from wider stacks before it those that it lacks."""
    pieces, reached = [outputs[-1]], shape.widths[-1]
    for output, width in zip(outputs[-2::-1], shape.widths[-2::-1], strict=True):
        if width > reached:
            pieces.append(w.cut(output, 2, reached, width))
            reached = width
    return pieces[0] if len(pieces) == 1 else w.add("Concat", *pieces, axis=2)


def _model(w: Weights, shape: Shape, states: list[State]) -> onnx.ModelProto:
    def value(name: str, of: tuple[int, ...]) -> onnx.ValueInfoProto:
        kind = INT64 if name.endswith("processed_lens") else FLOAT
        return onnx.helper.make_tensor_value_info(name, kind, of)

    inputs = [value("x", (1, shape.window, MELS)), *(value(s.name, s.shape) for s in states)]
    outputs = [
        value("encoder_out", (1, shape.chunk // 2, shape.joiner)),
        *(value(f"new_{s.name}", s.shape) for s in states),
    ]
    stacks = len(shape.layers)
    return model_of(
        w,
        "encoder",
        inputs,
        outputs,
        model_type="zipformer2",
        decode_chunk_len=shape.decode_chunk,
        T=shape.window,
        num_encoder_layers=listed(shape.layers),
        encoder_dims=listed(shape.widths),
        cnn_module_kernels=listed(shape.kernels),
        left_context_len=listed(LEFT // slower for slower in shape.slower),
        query_head_dims=listed([shape.query] * stacks),
        value_head_dims=listed([shape.value] * stacks),
        num_heads=listed(shape.heads),
    )


def model_of(
    w: Weights,
    name: str,
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    **metadata: object,
) -> onnx.ModelProto:
    """A model with the metadata that sherpa-onnx reads."""
    graph = w.graph.made(name, inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", _OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.helper.set_model_props(model, {key: str(given) for key, given in metadata.items()})
    return model


def listed(values: Iterable[int]) -> str:
    """Numbers in the way of the metadata."""
    return ",".join(map(str, values))
