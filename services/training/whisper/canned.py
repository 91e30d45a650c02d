"""A Whisper with a known transcript, of any shape: real compute, and no weights to download.

    python -m training.whisper.canned OUT [--shape tiny] [--text "..."] [--token-ms 250]

It has as many layers as the model whose shape it takes, of the same width. They calculate as there,
but most of them add nothing. It writes its text as far as the audio goes: token n (from 0) if there
is sound at n * `token_ms` or later. So the last word is missing if the last sound is, which is the
error of a recogniser that reads too little.

How: encoder position t carries a sign for each token, + from that token's time on, and one channel
whether there is sound. The first decoder layer's first head asks at the place of token n for a
position with sound and a + for n. The encoder's first position stands for "there is none", and what
is read there is the end mark: audio has to begin with 20 ms of silence. Takes seconds, needs numpy
and CTranslate2, no torch.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs.whisper_spec import WhisperSpec
from numpy.typing import NDArray
from tokenizers import Tokenizer

from training.whisper.files import END, make_tokenizer, mark, save

TEXT = (
    "the quick brown fox jumps over the lazy dog and then it runs back home through the wide field"
)
TOKEN_MS = 250.0
WINDOW_S, HOP, MELS = 30, 160, 80

# Text tokens of Whisper's English-only vocabulary.
WHISPER_PIECES = 50_257

_POSITIONS_S = 0.02  # the encoder halves the frames' rate
_DECODER_POSITIONS = 448
# What comes before the text: the start mark, and "no timestamps" or the first of them.
_PROMPT = 2
_HEAD = 64  # width of a head in every Whisper

# A frame's mean log-mel value (Whisper's scale) from which on it is sound, and how sharply. Speech
# at -20 dBFS has 0.5 and more, the noise floor of the shipped recordings -0.3.
_SOUND, _SHARPNESS = 0.2, 20.0
_LOUD = 4.0  # of the channels that say "sound" and "first": far from where GELU bends
# Scores of attention: sound counts 2, the sign +-1, "first" so much that it lies between sound in
# time (3) and sound too early (1).
_SOUND_SCORE, _FIRST_SCORE, _CERTAINTY = 2.0, 3.0, 20.0
_END_STRENGTH = 3.0
# Logit of what is written: as sure as a good model is of a clear word.
_LOGIT = 30.0

Array = NDArray[np.float32]
_Spec = Any  # a WhisperSpec, whose weights CTranslate2 declares as None


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a Whisper: the width of its layers, and the layers of encoder and decoder."""

    width: int
    encoder: int
    decoder: int


# The distilled ones have their teacher's encoder and fewer layers in the decoder; those of the
# published files follow from their sizes (332 and 789 MB in float16).
SHAPES = {
    "toy": Shape(128, 1, 1),
    "tiny": Shape(384, 4, 4),
    "base": Shape(512, 6, 6),
    "small": Shape(768, 12, 12),
    "distil-small": Shape(768, 12, 4),
    "distil-medium": Shape(1024, 24, 2),
}


def make_canned(
    directory: Path,
    *,
    text: str = TEXT,
    token_ms: float = TOKEN_MS,
    shape: Shape = SHAPES["toy"],
    room: int = 0,
    quantization: str | None = "int8",
) -> None:
    """Write a model that reads `text` from whatever sounds long enough.

    Args:
        directory: see `training.whisper.files.save`.
        text: what it writes; lower case words of English are about a token each.
        token_ms: the audio per token; 0: the whole text wherever there is sound.
        shape: the shape of its layers.
        room: see `make_tokenizer`.
        quantization: the number format of the weights.

    Raises:
        ValueError: the text has more tokens than a head is wide.
    """
    tokenizer = make_tokenizer([text], 256 + len(text), room=room)
    tokens = tokenizer.encode(f" {text}").ids
    most = min(_HEAD - 2, shape.width // 2 - 1)
    if len(tokens) > most:
        raise ValueError(f"the text has {len(tokens)} tokens, and at most {most} can be canned")
    heads = shape.width // _HEAD
    spec = WhisperSpec(shape.encoder, heads, shape.decoder, heads)
    codes = _codes(shape.width)
    _fill(spec, shape, np.random.default_rng(0))
    _hear(spec, len(tokens), token_ms, shape.width)
    _ask(spec, len(tokens), codes, shape.width)
    _write(spec, tokens, tokenizer, codes, shape.width)
    save(spec, tokenizer, directory, window_s=WINDOW_S, hop=HOP, quantization=quantization)


def _codes(width: int) -> Array:
    """Make orthogonal rows of mean 0 and variance 1, which layer normalisation leaves as is."""
    random = np.random.default_rng(1).normal(size=(width, width))
    random[:, 0] = 1
    basis, _ = np.linalg.qr(random)
    return (basis[:, 1:].T * np.sqrt(width)).astype(np.float32)


def _fill(spec: _Spec, shape: Shape, random: np.random.Generator) -> None:
    """Make layers that calculate and add nothing: the output of each is multiplied by 0."""
    width = shape.width

    def norm(of: Any) -> None:
        of.gamma, of.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def linear(of: Any, out: int, into: int, scale: float = 0.02) -> None:
        of.weight = (random.standard_normal((out, into), np.float32)) * np.float32(scale)
        of.bias = np.zeros(out, np.float32)

    def feed_forward(of: Any) -> None:
        norm(of.layer_norm)
        linear(of.linear_0, 4 * width, width)
        linear(of.linear_1, width, 4 * width, 0)

    norm(spec.encoder.layer_norm)
    norm(spec.decoder.layer_norm)
    for layer in (*spec.encoder.layer, *spec.decoder.layer):
        norm(layer.self_attention.layer_norm)
        linear(layer.self_attention.linear[0], 3 * width, width)
        linear(layer.self_attention.linear[1], width, width, 0)
        feed_forward(layer.ffn)
    for layer in spec.decoder.layer:
        norm(layer.attention.layer_norm)
        linear(layer.attention.linear[0], width, width)
        linear(layer.attention.linear[1], 2 * width, width)
        linear(layer.attention.linear[2], width, width, 0)


def _hear(spec: _Spec, tokens: int, token_ms: float, width: int) -> None:
    """Set the encoder's channels: one of each sign a token, then sound, then first."""
    encoder = spec.encoder
    sound, first = 2 * tokens, 2 * tokens + 1
    # A step from 0 to 1 where there is sound, as the difference of two ramps.
    encoder.conv1.weight = np.zeros((width, MELS, 3), np.float32)
    encoder.conv1.bias = np.zeros(width, np.float32)
    encoder.conv1.weight[:2, :, 1] = _SHARPNESS / MELS
    encoder.conv1.bias[:2] = -_SHARPNESS * _SOUND - np.array([0, 1])
    encoder.conv2.weight = np.zeros((width, width, 3), np.float32)
    encoder.conv2.bias = np.zeros(width, np.float32)
    encoder.conv2.weight[sound, :2, 1] = [_LOUD, -_LOUD]
    places = round(WINDOW_S / _POSITIONS_S)
    # Whatever a position means, it is as large as every other one, as what follows is normalised.
    positions = np.empty((places, width), np.float32)
    positions[:, ::2], positions[:, 1::2] = 1, -1
    at_ms = np.arange(places)[:, None] * _POSITIONS_S * 1000
    signs = np.where(at_ms >= np.arange(tokens)[None] * token_ms, 1, -1)
    signs[0] = -1
    positions[:, :tokens], positions[:, tokens:sound] = signs, -signs
    positions[:, [sound, first]] = 0
    positions[0, first] = _LOUD
    encoder.position_encodings.encodings = positions


def _ask(spec: _Spec, tokens: int, codes: Array, width: int) -> None:
    """Set the first decoder head: is there sound at or after this token's time?"""
    query, memory, out = spec.decoder.layer[0].attention.linear
    sound, first = 2 * tokens, 2 * tokens + 1
    sharp = _CERTAINTY * np.sqrt(_HEAD)  # attention divides by the root of a head's width
    query.weight = np.zeros((width, width), np.float32)
    query.weight[:tokens] = sharp * codes[_PROMPT - 1 :][:tokens] / width
    query.bias[[tokens, tokens + 1]] = sharp * _SOUND_SCORE, sharp * _FIRST_SCORE
    memory.weight = np.zeros((2 * width, width), np.float32)
    for token in range(tokens):
        memory.weight[token, [token, tokens + token]] = 0.5, -0.5
    memory.weight[tokens, sound] = memory.weight[tokens + 1, first] = 1 / _LOUD
    memory.weight[width, first] = 1 / _LOUD  # the value: 1 where there is no such sound
    out.weight[:, 0] = _END_STRENGTH * codes[-1]


def _write(spec: _Spec, tokens: list[int], tokenizer: Tokenizer, codes: Array, width: int) -> None:
    """Give each place in the text a code; a token answers to the codes of its places."""
    size = tokenizer.get_vocab_size()
    end = mark(tokenizer, END)
    decoder = spec.decoder
    decoder.embeddings.weight = np.zeros((size, width), np.float32)
    positions = np.zeros((_DECODER_POSITIONS, width), np.float32)
    known = min(len(codes) - 1, _DECODER_POSITIONS)
    positions[:known] = codes[:known]
    decoder.position_encodings.encodings = positions
    answers = np.zeros((size, width), np.float32)
    for place, token in enumerate([*tokens, end], start=_PROMPT - 1):
        answers[token] += _LOGIT * codes[place] / width
    answers[end] += _LOGIT * codes[-1] / width
    decoder.projection.weight = answers


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--token-ms", type=float, default=TOKEN_MS)
    arguments = parser.parse_args()
    make_canned(
        arguments.directory,
        text=arguments.text,
        token_ms=arguments.token_ms,
        shape=SHAPES[arguments.shape],
        room=WHISPER_PIECES,
    )


if __name__ == "__main__":
    main()
