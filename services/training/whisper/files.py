"""A Whisper of any shape as a directory that faster-whisper loads offline. Needs no torch."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ctranslate2.specs.whisper_spec import WhisperSpec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END, START, NO_TIMESTAMPS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
# In Whisper's own order, which both libraries rely on: what a prompt is made of lies between its
# first token and `NO_TIMESTAMPS`, and the timestamps follow that.
_MARKS = (
    END,
    START,
    "<|en|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    NO_TIMESTAMPS,
)
_TIMESTAMPS = tuple(f"<|{n * 0.02:.2f}|>" for n in range(1501))


def make_tokenizer(texts: Iterable[str], pieces: int, *, room: int = 0) -> Tokenizer:
    """Train a byte-pair vocabulary like Whisper's, of an English-only model.

    Args:
        texts: texts that it is to write in few pieces.
        pieces: the most pieces, the 256 bytes included.
        room: pads the vocabulary with so many entries in all that are never used, timestamps and
            other marks not counted: a larger vocabulary costs more per token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Words are spoken, and so learnt, with the space before them.
    tokenizer.train_from_iterator([f" {text}" for text in texts], trainer)
    if room > tokenizer.get_vocab_size():
        written = json.loads(tokenizer.to_str())
        vocabulary = written["model"]["vocab"]
        for number in range(len(vocabulary), room):
            vocabulary[f"[unused {number}]"] = number
        tokenizer = Tokenizer.from_str(json.dumps(written))
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in _MARKS])
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in _TIMESTAMPS])
    return tokenizer


def mark(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that every Whisper has."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def save(
    spec: WhisperSpec,
    tokenizer: Tokenizer,
    directory: Path,
    *,
    window_s: int,
    hop: int,
    mels: int = 80,
    quantization: str | None = None,
) -> None:
    """Write the model; `directory` is made if it is not there.

    Args:
        spec: the model with all its weights.
        tokenizer: from `make_tokenizer`.
        directory: gets `model.bin`, `config.json`, `vocabulary.json`, `tokenizer.json` and
            `preprocessor_config.json`.
        window_s: how much audio the encoder reads.
        hop: samples (16 kHz) from one frame to the next.
        mels: bands of a frame.
        quantization: CTranslate2's name of the weights' number format; None keeps theirs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    spec.register_vocabulary([token for token, _ in by_id])
    config: Any = spec.config
    config.suppress_ids = config.suppress_ids_begin = config.lang_ids = []
    config.alignment_heads = []
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(directory))
    tokenizer.save(str(directory / "tokenizer.json"))
    extractor = {
        "chunk_length": window_s,
        "feature_size": mels,
        "hop_length": hop,
        "n_fft": 400,
        "sampling_rate": 16000,
    }
    path = directory / "preprocessor_config.json"
    path.write_text(json.dumps(extractor, indent=2) + "\n", encoding="utf-8")
