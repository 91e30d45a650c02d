"""A graph written operation by operation, each named after what it makes."""

from typing import Any

import numpy as np
import onnx


class Graph:
    """Adds operations and constants; every value goes by its name."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def add(self, operation: str, *inputs: str, name: str | None = None, **options: Any) -> str:
        """Add an operation on these values and return its output."""
        output = name or f"{operation}_{len(self._nodes)}"
        self._nodes.append(onnx.helper.make_node(operation, inputs, [output], **options))
        return output

    def several(
        self, operation: str, inputs: list[str], outputs: list[str], **options: Any
    ) -> None:
        """Add an operation that makes several values."""
        self._nodes.append(onnx.helper.make_node(operation, inputs, outputs, **options))

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        """Add a constant value."""
        name = f"constant_{len(self._constants)}"
        array = np.asarray(values, dtype=kind)
        self._constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def split(self, value: str, into: int, axis: int) -> list[str]:
        """Split a value into equal parts."""
        parts = [f"part_{len(self._nodes)}_{number}" for number in range(into)]
        node = onnx.helper.make_node("Split", [value], parts, axis=axis, num_outputs=into)
        self._nodes.append(node)
        return parts

    def made(
        self,
        name: str,
        inputs: list[onnx.ValueInfoProto],
        outputs: list[onnx.ValueInfoProto],
    ) -> onnx.GraphProto:
        """Build the graph so far."""
        return onnx.helper.make_graph(self._nodes, name, inputs, outputs, self._constants)

    def repeated(self, lengths: str) -> tuple[str, str, str]:
        """Lay parts of these lengths (n) end to end and return what is where.

        Returns (total) the number of each place's part, where each part begins (n), and the places.
        """
        zero, one = self.constant(0), self.constant(1)
        ends = self.add("CumSum", lengths, zero)
        begins = self.add("Sub", ends, lengths)
        total = self.add("ReduceMax", ends, keepdims=0)
        places = self.add("Range", zero, total, one)
        # A part that ends at a place adds one to the number of every place from there on.
        size = self.add("Unsqueeze", self.add("Add", total, one), self.constant([0]))
        none = self.add("ConstantOfShape", size, value=_zero())
        each = self.add("ConstantOfShape", self.add("Shape", ends), value=_one())
        steps = self.add("ScatterElements", none, ends, each, axis=0, reduction="add")
        numbers = self.add("Gather", self.add("CumSum", steps, zero), places)
        return numbers, begins, places


def _zero() -> onnx.TensorProto:
    return onnx.helper.make_tensor("zero", onnx.TensorProto.INT64, [1], [0])


def _one() -> onnx.TensorProto:
    return onnx.helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
