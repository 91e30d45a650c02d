"""A language model with a known reply, of any published shape: real compute, no weights needed.

    python -m training.canned_llm OUT [--shape smollm2-135m]

It has as many layers as the model whose shape it takes, of the same width, with random weights and
a vocabulary of the same size. So a prompt and a token cost the same. But the output of each layer
is multiplied by 0: the last layer sees the embedding of the previous token, and answers with the
next token of the reply.

It splits text as the project's own models do, at about 1.3 tokens a word. The result is a directory
for `--set llm.model=OUT` of the backend `small`. It takes a minute at most, and needs numpy and
CTranslate2, but no torch.
"""

import argparse
import itertools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.transformer_spec import TransformerDecoderModelSpec
from numpy.typing import NDArray
from tokenizers import Tokenizer

_TOKENIZER = Path(__file__).parents[2] / "models" / "teacher"
REPLY = "of course, your table is booked for two at seven tonight."
_START, _END, _UNKNOWN = "<|assistant|>", "<|end|>", "<unk>"
# Logit of the token that comes next; all others have about 0.
_LOGIT = 30.0

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that decide what a prompt and a token cost, with their names in `config.json`.

    Attributes:
        width: `hidden_size`.
        layers: `num_hidden_layers`.
        heads: `num_attention_heads`.
        shared: `num_key_value_heads`.
        hidden: `intermediate_size`.
        vocabulary: `vocab_size`.
        head: `head_dim`; by default the width divided by the heads.
    """

    width: int
    layers: int
    heads: int
    shared: int
    hidden: int
    vocabulary: int
    head: int = 0

    @property
    def head_width(self) -> int:
        return self.head or self.width // self.heads


SHAPES = {
    "toy": Shape(64, 2, 4, 2, 128, 1024),
    "smollm2-135m": Shape(576, 30, 9, 3, 1536, 49_152),
    "smollm2-360m": Shape(960, 32, 15, 5, 2560, 49_152),
    "qwen2.5-0.5b": Shape(896, 24, 14, 2, 4864, 151_936),
    "qwen3-0.6b": Shape(1024, 28, 16, 8, 3072, 151_936, 128),
}


def make_canned(
    directory: Path, *, shape: Shape = SHAPES["toy"], reply: str = REPLY, read: int = 2048
) -> None:
    """Write a model that answers everything with `reply`.

    Args:
        directory: the target folder; created if missing.
        shape: the shape of its layers and its vocabulary.
        reply: lower-case words of the project's grammar, without a repeated token.
        read: the most tokens of a prompt and its reply together.

    Raises:
        ValueError: a token comes twice in the reply, or the vocabulary is too small for it.
    """
    tokenizer = Tokenizer.from_file(str(_TOKENIZER / "tokenizer.json"))
    said = tokenizer.encode(reply, add_special_tokens=False).ids
    start, end = tokenizer.token_to_id(_START), tokenizer.token_to_id(_END)
    assert start is not None and end is not None
    if len({*said, start, end}) < len(said) + 2:
        raise ValueError("a token comes twice in the reply, so what follows it is not known")
    known = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    if len(known) > shape.vocabulary:
        raise ValueError(f"a vocabulary of {shape.vocabulary} has no room for {len(known)} tokens")
    spec = TransformerDecoderModelSpec.from_config(
        shape.layers,
        shape.heads,
        activation=Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        num_heads_kv=shape.shared,
        head_dim=shape.head_width,
    )
    _fill(spec.decoder, shape, np.random.default_rng(0))
    _chain(spec.decoder, shape.vocabulary, [start, *said, end])
    spec.register_vocabulary(known + [f"[unused {n}]" for n in range(len(known), shape.vocabulary)])
    config: Any = spec.config
    config.bos_token, config.eos_token, config.unk_token = _END, _END, _UNKNOWN
    spec.validate()
    spec.optimize(quantization="int8")
    directory.mkdir(parents=True, exist_ok=True)
    spec.save(str(directory))
    shutil.copyfile(_TOKENIZER / "tokenizer.json", directory / "tokenizer.json")
    settings = json.loads((_TOKENIZER / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["model_max_length"] = read
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _fill(decoder: Any, shape: Shape, random: np.random.Generator) -> None:
    """Make layers that calculate and add nothing."""

    def norm(of: Any) -> None:
        of.gamma = np.ones(shape.width, np.float32)

    def linear(of: Any, out: int, into: int, scale: float = 0.02) -> None:
        of.weight = random.standard_normal((out, into), np.float32) * np.float32(scale)

    decoder.scale_embeddings = False
    norm(decoder.layer_norm)
    queries, keys = (n * shape.head_width for n in (shape.heads, shape.shared))
    for layer in decoder.layer:
        norm(layer.self_attention.layer_norm)
        linear(layer.self_attention.linear[0], queries + 2 * keys, shape.width)
        linear(layer.self_attention.linear[1], shape.width, queries, 0)
        norm(layer.ffn.layer_norm)
        linear(layer.ffn.linear_0, shape.hidden, shape.width)
        linear(layer.ffn.linear_0_noact, shape.hidden, shape.width)
        linear(layer.ffn.linear_1, shape.width, shape.hidden, 0)


def _chain(decoder: Any, vocabulary: int, tokens: list[int]) -> None:
    """Set the weights so that each of `tokens` is answered with the next one."""
    random = np.random.default_rng(1)
    width = len(decoder.layer_norm.gamma)
    embeddings: Array = random.choice(np.array([-1, 1], np.float32), (vocabulary, width))
    decoder.embeddings.weight = embeddings
    answers = random.standard_normal((vocabulary, width), np.float32) * np.float32(0.001)
    for before, after in itertools.pairwise(tokens):
        answers[after] = embeddings[before] * _LOGIT / width
    decoder.projection.weight = answers


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="smollm2-135m")
    parser.add_argument("--reply", default=REPLY)
    arguments = parser.parse_args()
    make_canned(arguments.directory, shape=SHAPES[arguments.shape], reply=arguments.reply)


if __name__ == "__main__":
    main()
