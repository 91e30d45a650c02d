"""Operations of a zipformer's graph, with random weights that are counted.

What icefall's `export-onnx-streaming.py` exports and sherpa-onnx quantizes: linear layers are int8,
with activations that are quantized as they come; convolutions and attention are float32.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from training.voices.graph import Graph

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
# Standard deviation of random weights.
_SPREAD = 0.02

Array = NDArray[Any]


class Weights:
    """A graph with random weights.

    Attributes:
        graph: what was made so far.
        parameters: how many numbers a training would set.
    """

    def __init__(self, seed: int = 0) -> None:
        self.graph = Graph()
        self.add = self.graph.add
        self.parameters = 0
        self._random = np.random.default_rng(seed)

    def floats(self, values: Any) -> str:
        return self.graph.constant(values, np.float32)

    def ints(self, *values: int) -> str:
        return self.graph.constant(list(values))

    def random(self, *shape: int) -> str:
        self.parameters += int(np.prod(shape))
        return self.floats(self._random.normal(0, _SPREAD, shape))

    def linear(self, x: str, into: int, out: int, *, bias: bool = True) -> str:
        """`x` (..., into) times int8 weights: (..., out)."""
        self.parameters += into * out
        weights = self._random.integers(-127, 128, (into, out), np.int8)
        return self.times(x, weights, _SPREAD / 64, self.random(out) if bias else None)

    def times(self, x: str, weights: Array, scale: float, bias: str | None) -> str:
        """`x` times `scale` * `weights`, which are int8."""
        name = f"quantized_{x}_{self.parameters}"
        parts = [f"{name}_{part}" for part in ("values", "scale", "zero")]
        self.graph.several("DynamicQuantizeLinear", [x], parts)
        product = self.add(
            "MatMulInteger",
            parts[0],
            self.graph.constant(weights, np.int8),
            parts[2],
            self.graph.constant(0, np.int8),
        )
        both = self.add("Mul", parts[1], self.floats(scale))
        out = self.add("Mul", self.add("Cast", product, to=FLOAT), both)
        return out if bias is None else self.add("Add", out, bias)

    def cut(self, x: str, axis: int, begin: int, end: int, step: int = 1) -> str:
        """x[begin:end:step] along an axis."""
        ranges = (self.ints(each) for each in (begin, end, axis, step))
        return self.add("Slice", x, *ranges)

    def shaped(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.ints(*shape))

    def swoosh(self, x: str, shift: float, offset: float) -> str:
        """log(1 + exp(x - shift)) - 0.08 x - offset, as it is exported."""
        moved, zero = self.add("Sub", x, self.floats(shift)), self.floats(0)
        small = self.add("Exp", self.add("Neg", self.add("Abs", self.add("Sub", zero, moved))))
        soft = self.add(
            "Add",
            self.add("Max", zero, moved),
            self.add("Log", self.add("Add", small, self.floats(1))),
        )
        bent = self.add("Sub", soft, self.add("Mul", x, self.floats(0.08)))
        return self.add("Sub", bent, self.floats(offset))

    def swoosh_l(self, x: str) -> str:
        return self.swoosh(x, 4.0, 0.035)

    def swoosh_r(self, x: str) -> str:
        return self.swoosh(x, 1.0, 0.313261687)

    def norm(self, x: str, width: int) -> str:
        """BiasNorm."""
        square = self.add("Pow", self.add("Sub", x, self.random(width)), self.floats(2))
        mean = self.add("ReduceMean", square, self.ints(-1), keepdims=1)
        scale = self.add("Pow", self.add("Add", mean, self.floats(1e-6)), self.floats(-0.5))
        self.parameters += 1
        return self.add("Mul", x, self.add("Mul", scale, self.floats(1)))

    def bypass(self, before: str, after: str, width: int) -> str:
        """Half of `before`, half of `after`."""
        self.parameters += width
        step = self.add("Mul", self.add("Sub", after, before), self.floats([0.5] * width))
        return self.add("Add", before, step)
