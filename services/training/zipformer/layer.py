"""One layer of a streaming zipformer, with what it remembers of the frames before.

Values are (frames, 1, channels) unless said otherwise.
"""

from dataclasses import dataclass

import numpy as np

from training.zipformer.shape import LEFT, Shape
from training.zipformer.weights import Weights

_NEVER = -1000.0


@dataclass(frozen=True, slots=True)
class State:
    """What a layer remembers: an input of the graph, and the output that takes its place."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """Writes one layer of a stack.

    Attributes:
        weights: gets the operations.
        shape: of the encoder.
        stack: number of the stack.
        number: of the layer in the whole encoder.
        positions: encodings of the distances between frames, (1, keys + frames - 1, width).
        mask: (1, keys), true where there was no frame yet.
    """

    weights: Weights
    shape: Shape
    stack: int
    number: int
    positions: str
    mask: str

    @property
    def width(self) -> int:
        return self.shape.widths[self.stack]

    @property
    def heads(self) -> int:
        return self.shape.heads[self.stack]

    @property
    def frames(self) -> int:
        return self.shape.chunk // self.shape.slower[self.stack]

    @property
    def left(self) -> int:
        return LEFT // self.shape.slower[self.stack]

    @property
    def keys(self) -> int:
        """Frames that attention sees."""
        return self.left + self.frames

    def states(self) -> list[State]:
        """In the order in which sherpa-onnx passes them."""
        kernel, value = self.shape.kernels[self.stack] // 2, self.heads * self.shape.value
        shapes = {
            "key": (self.left, 1, self.heads * self.shape.query),
            "nonlin_attn": (1, 1, self.left, 3 * self.width // 4),
            "val1": (self.left, 1, value),
            "val2": (self.left, 1, value),
            "conv1": (1, self.width, kernel),
            "conv2": (1, self.width, kernel),
        }
        return [State(f"cached_{name}_{self.number}", each) for name, each in shapes.items()]

    def write(self, x: str) -> str:
        """The layer's output for its input."""
        key, nonlinear, first, second, early, late = (state.name for state in self.states())
        w, wide = self.weights, self.shape.feed_forward[self.stack]
        begun = x
        attention = self._attention(x, key)
        x = w.add("Add", x, self._feed_forward(x, wide * 3 // 4))
        x = w.add("Add", x, self._nonlinear(x, attention, nonlinear))
        x = w.add("Add", x, self._attend(x, attention, first))
        x = w.add("Add", x, self._convolution(x, early))
        x = w.add("Add", x, self._feed_forward(x, wide))
        x = w.bypass(begun, x, self.width)
        x = w.add("Add", x, self._attend(x, attention, second))
        x = w.add("Add", x, self._convolution(x, late))
        x = w.add("Add", x, self._feed_forward(x, wide * 5 // 4))
        return w.bypass(begun, w.norm(x, self.width), self.width)

    def _remember(self, cached: str, x: str, axis: int, kept: int) -> str:
        """What was remembered and `x` after it; the last of that is remembered for the next."""
        both = self.weights.add("Concat", cached, x, axis=axis)
        begin = self.weights.ints(-kept)
        end, along = self.weights.ints(np.iinfo(np.int64).max), self.weights.ints(axis)
        self.weights.add("Slice", both, begin, end, along, name=f"new_{cached}")
        return both

    def _heads(self, x: str, frames: int, width: int, order: tuple[int, ...]) -> str:
        split = self.weights.shaped(x, frames, 1, self.heads, width)
        return self.weights.add("Transpose", split, perm=order)

    def _attention(self, x: str, cached: str) -> str:
        """How much each frame attends to each, (heads, 1, frames, keys)."""
        w, shape = self.weights, self.shape
        query = self.heads * shape.query
        place = self.heads * shape.position_head
        x = w.linear(x, self.width, 2 * query + place)
        keys = self._remember(cached, w.cut(x, 2, query, 2 * query), 0, self.left)
        asked = self._heads(w.cut(x, 2, 0, query), self.frames, shape.query, (2, 1, 0, 3))
        keys = self._heads(keys, self.keys, shape.query, (2, 1, 3, 0))
        scores = w.add("MatMul", asked, keys)
        places = w.cut(x, 2, 2 * query, 2 * query + place)
        places = self._heads(places, self.frames, shape.position_head, (2, 1, 0, 3))
        scores = w.add("Add", scores, self._distances(places))
        mask = w.add("Unsqueeze", self.mask, w.ints(1))
        scores = w.add("Where", mask, w.floats(_NEVER), scores)
        return w.add("Softmax", scores, axis=-1)

    def _distances(self, places: str) -> str:
        """What the distance between two frames adds to their score."""
        w, width, distances = self.weights, self.shape.position_head, self.keys + self.frames - 1
        embedded = w.linear(self.positions, self.shape.position, self.heads * width, bias=False)
        embedded = w.shaped(embedded, 1, distances, self.heads, width)
        scores = w.add("MatMul", places, w.add("Transpose", embedded, perm=(2, 0, 3, 1)))
        # From distance to place: row t begins at distance frames - 1 - t.
        rows = np.arange(self.frames - 1, -1, -1)[:, None] + np.arange(self.keys)
        indices = w.graph.constant(np.tile(rows, (self.heads, 1)))
        flat = w.shaped(scores, self.heads * self.frames, distances)
        picked = w.add("GatherElements", flat, indices, axis=1)
        return w.shaped(picked, self.heads, 1, self.frames, self.keys)

    def _attend(self, x: str, attention: str, cached: str) -> str:
        w, value = self.weights, self.shape.value
        x = w.linear(x, self.width, self.heads * value)
        x = self._remember(cached, x, 0, self.left)
        heard = w.add("MatMul", attention, self._heads(x, self.keys, value, (2, 1, 0, 3)))
        heard = w.add("Transpose", heard, perm=(2, 1, 0, 3))
        heard = w.shaped(heard, self.frames, 1, self.heads * value)
        return w.linear(heard, self.heads * value, self.width)

    def _nonlinear(self, x: str, attention: str, cached: str) -> str:
        """The first head's attention, gated before and after."""
        w, hidden = self.weights, 3 * self.width // 4
        before, x, after = w.graph.split(w.linear(x, self.width, 3 * hidden), 3, 2)
        x = w.add("Mul", x, w.add("Tanh", before))
        x = w.add("Transpose", w.shaped(x, self.frames, 1, 1, hidden), perm=(2, 1, 0, 3))
        x = self._remember(cached, x, 2, self.left)
        x = w.add("MatMul", w.cut(attention, 0, 0, 1), x)
        x = w.add("Transpose", x, perm=(2, 1, 0, 3))
        x = w.add("Mul", w.shaped(x, self.frames, 1, hidden), after)
        return w.linear(x, hidden, self.width)

    def _feed_forward(self, x: str, hidden: int) -> str:
        w = self.weights
        return w.linear(w.swoosh_l(w.linear(x, self.width, hidden)), hidden, self.width)

    def _convolution(self, x: str, cached: str) -> str:
        """A causal convolution, and one within what is read at once."""
        w, width, kernel = self.weights, self.width, self.shape.kernels[self.stack]
        x, gate = w.graph.split(w.linear(x, width, 2 * width), 2, 2)
        x = w.add("Mul", x, w.add("Sigmoid", gate))
        x = w.add("Transpose", x, perm=(1, 2, 0))
        now = w.add("Unsqueeze", w.cut(self.mask, 1, self.left, self.keys), w.ints(1))
        x = w.add("Where", now, w.floats(0), x)
        both = self._remember(cached, x, 2, kernel // 2)
        half = (kernel + 1) // 2
        causal = w.add(
            "Conv", both, w.random(width, 1, half), w.random(width), group=width, pads=(0, 0)
        )
        around = (kernel // 2, kernel // 2)
        within = w.add(
            "Conv", x, w.random(width, 1, kernel), w.random(width), group=width, pads=around
        )
        w.parameters += 2 * width * kernel
        scale = w.floats(np.ones((width, self.frames)))
        x = w.add("Add", w.add("Mul", within, scale), causal)
        x = w.swoosh_r(w.add("Transpose", x, perm=(2, 0, 1)))
        return w.linear(x, width, width)
