"""Language models, described by what a server has to move and compute for them."""

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from turngap.core.errors import InputError
from turngap.inference.hardware import BYTES, Precision


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer.

    Attributes:
        params_b: all parameters, 10^9.
        layers: its depth.
        heads: query heads; the arithmetic of attention goes with them.
        kv_heads: key and value heads; the KV cache goes with them.
        head_dim: width of a head.
        active_b: parameters that a token passes through, 10^9; all of them unless the model is a
            mixture of experts.
        experts: routed experts in each layer; 0 if the model is dense.
        experts_per_token: how many of them a token passes through.
    """

    name: str = "custom"
    _: KW_ONLY
    params_b: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    active_b: float | None = None
    experts: int = 0
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        for name in ("params_b", "layers", "heads", "kv_heads", "head_dim"):
            if not 0 < getattr(self, name) < 1e6:
                raise _bad(self.name, name, getattr(self, name), "more than 0")
        if self.active_b is not None and not 0 < self.active_b <= self.params_b:
            raise _bad(self.name, "active_b", self.active_b, f"0 to {self.params_b:g}")
        if self.experts and self.active_b is None:
            raise _bad(self.name, "active_b", None, "a number, because there are experts")
        if not 0 <= self.experts_per_token <= self.experts:
            raise _bad(self.name, "experts_per_token", self.experts_per_token, "0 to experts")

    @property
    def flops_per_token(self) -> float:
        """Operations for one token without attention: two for each weight."""
        return 2e9 * (self.active_b or self.params_b)

    @property
    def flops_per_context_token(self) -> float:
        """Operations over all layers that attention adds for each token it looks back at."""
        return 4.0 * self.layers * self.heads * self.head_dim

    @property
    def width(self) -> int:
        """Size of the vector that stands for a token between layers."""
        return self.heads * self.head_dim

    def weight_bytes(self, precision: Precision) -> float:
        return 1e9 * self.params_b * BYTES[precision]

    def moved_bytes(self, precision: Precision, tokens: int) -> float:
        """Return the size of the weights that a step over that many tokens reads.

        Of a mixture of experts, a step reads the experts that its tokens are routed to: with even
        routing, a share 1 - (1 - k/E)^tokens of them. It always reads the rest.
        """
        if not self.experts or self.active_b is None:
            return self.weight_bytes(precision)
        chosen = self.experts_per_token / self.experts
        # params = rest + routed, active = rest + chosen * routed.
        routed_b = (self.params_b - self.active_b) / (1 - chosen)
        touched = 1 - (1 - chosen) ** max(1, tokens)
        return 1e9 * (self.params_b - routed_b + routed_b * touched) * BYTES[precision]

    def kv_bytes(self, precision: Precision) -> float:
        """Return the size of one token's keys and values over all layers."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * BYTES[precision]


def _bad(owner: str, name: str, value: object, want: str) -> InputError:
    return InputError("inference.model", f"model {owner}: {name} is {value!r}, expected {want}")


# Shapes from the publishers' config.json.
MODELS: Mapping[str, Model] = {
    m.name: m
    for m in (
        Model("llama-3.1-8b", params_b=8.03, layers=32, heads=32, kv_heads=8, head_dim=128),
        Model("llama-3.3-70b", params_b=70.55, layers=80, heads=64, kv_heads=8, head_dim=128),
        Model("llama-3.1-405b", params_b=405.85, layers=126, heads=128, kv_heads=8, head_dim=128),
        Model(
            "qwen3-30b-a3b", params_b=30.53, layers=48, heads=32, kv_heads=4, head_dim=128,
            active_b=3.34, experts=128, experts_per_token=8,
        ),
        Model(
            "gpt-oss-120b", params_b=116.83, layers=36, heads=64, kv_heads=8, head_dim=64,
            active_b=5.13, experts=128, experts_per_token=4,
        ),
    )
}  # fmt: skip

_SIZE = re.compile(r"(?:dense-)?(\d+(?:\.\d+)?)b", re.IGNORECASE)
_LARGEST_B = 10_000


def dense(params_b: float) -> Model:
    """Make a dense model of that many 10^9 parameters in the proportions of the Llama family.

    Between its 8B, 70B and 405B the width is about 116 times the depth, a layer holds about 13.2
    times its width squared, heads are 128 wide, and 8 of them hold keys and values.
    """
    width = 128 * max(1, round((1e9 * params_b * 116 / 13.2) ** (1 / 3) / 128))
    return Model(
        f"dense-{params_b:g}b",
        params_b=params_b,
        layers=max(1, round(1e9 * params_b / (13.2 * width**2))),
        heads=width // 128,
        kv_heads=min(8, width // 128),
        head_dim=128,
    )


def find_model(name: str) -> Model:
    """Find a known model, or make a dense one of a size such as `20b`.

    Raises:
        InputError: the name is neither; the message lists the known models.
    """
    if name in MODELS:
        return MODELS[name]
    size = _SIZE.fullmatch(name)
    if size and 0 < float(size[1]) <= _LARGEST_B:
        return dense(float(size[1]))
    raise InputError(
        "inference.model",
        f"no model {name!r}",
        hint=f"known: {', '.join(MODELS)}; a size such as 20b makes a dense model of that size",
    )
