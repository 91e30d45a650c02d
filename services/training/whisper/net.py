"""A small Whisper for training, and its export."""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

from pathlib import Path

import torch
from ctranslate2.converters.transformers import WhisperLoader
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import WhisperConfig, WhisperForConditionalGeneration

from training.whisper.files import END, NO_TIMESTAMPS, START, mark, save
from training.whisper.recipe import Recipe

# What the encoder is to spell; 0 is CTC's blank.
LETTERS = " abcdefghijklmnopqrstuvwxyz'"


class Net(nn.Module):
    """A Whisper, and a head that spells what its encoder hears."""

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer) -> None:
        super().__init__()
        torch.manual_seed(recipe.seed)
        end = mark(tokenizer, END)
        config = WhisperConfig(
            vocab_size=tokenizer.get_vocab_size(),
            num_mel_bins=80,
            d_model=recipe.width,
            encoder_layers=recipe.encoder_layers,
            decoder_layers=recipe.decoder_layers,
            encoder_attention_heads=recipe.heads,
            decoder_attention_heads=recipe.heads,
            encoder_ffn_dim=4 * recipe.width,
            decoder_ffn_dim=4 * recipe.width,
            max_source_positions=recipe.window_s * 16_000 // recipe.hop // 2,
            max_target_positions=448,
            dropout=0.0,  # nothing is heard so often that it could be learnt by heart
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            decoder_start_token_id=mark(tokenizer, START),
            suppress_tokens=[],
            begin_suppress_tokens=[],
            # On a CPU 1.4 times as fast a step as the fused kernel, whose way back is slow.
            attn_implementation="eager",
        )
        self.whisper = WhisperForConditionalGeneration(config)
        with torch.no_grad():
            self.whisper.model.encoder.embed_positions.weight.mul_(recipe.position_scale)
        self.spell = nn.Linear(recipe.width, len(LETTERS) + 1)
        self._prompt = [mark(tokenizer, START), mark(tokenizer, NO_TIMESTAMPS)]
        self._end = end
        self._recipe = recipe

    def optimisers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Make Muon for its layers' matrices and AdamW for the rest, each with its highest rate."""
        named = list(self.named_parameters())
        inside = [p for n, p in named if p.ndim == 2 and ".layers." in n]
        rest = [p for n, p in named if p.ndim != 2 or ".layers." not in n]
        muon = torch.optim.Muon(
            [{"params": inside, "highest": self._recipe.matrix_rate}],
            weight_decay=0.01,
            adjust_lr_fn="match_rms_adamw",
        )
        adam = torch.optim.AdamW(
            [{"params": rest, "highest": self._recipe.rate}], betas=(0.9, 0.98), fused=True
        )
        return muon, adam

    def losses(
        self, features: torch.Tensor, texts: list[list[int]], letters: list[list[int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute how far its text, and its encoder's spelling, are from these transcripts.

        Args:
            features: (utterances, mels, frames), of the whole window or of less.
            texts: token ids of each transcript.
            letters: its letters, numbered from 1 in the order of `LETTERS`.
        """
        longest = max(map(len, texts)) + len(self._prompt)
        read = torch.full((len(texts), longest), self._end)
        wanted = torch.full((len(texts), longest), -100)
        for row, text in enumerate(texts):
            whole = torch.tensor([*self._prompt, *text, self._end])
            read[row, : len(whole) - 1] = whole[:-1]
            wanted[row, len(self._prompt) - 1 : len(whole) - 1] = whole[len(self._prompt) :]
        sounds = self._encode(features)
        out = self.whisper(encoder_outputs=(sounds,), decoder_input_ids=read)
        written = functional.cross_entropy(out.logits.float().flatten(0, 1), wanted.flatten())
        heard = self.spell(sounds).float().log_softmax(-1).transpose(0, 1)
        spelt = functional.ctc_loss(
            heard,
            torch.tensor([each for row in letters for each in row]),
            torch.full((len(letters),), len(heard)),
            torch.tensor([len(row) for row in letters]),
            zero_infinity=True,
        )
        return written, spelt

    def _encode(self, features: torch.Tensor) -> torch.Tensor:
        """Encode like transformers' encoder, but accept less than its window."""
        encoder = self.whisper.model.encoder
        heard = functional.gelu(encoder.conv2(functional.gelu(encoder.conv1(features))))
        placed = heard.transpose(1, 2) + encoder.embed_positions.weight[: heard.shape[-1]]
        for layer in encoder.layers:
            placed = layer(placed, None)
        return encoder.layer_norm(placed)


def spelling(text: str) -> list[int]:
    """Convert a text to letter numbers, as `Net.losses` expects them."""
    return [LETTERS.index(letter) + 1 for letter in text]


def export(net: Net, tokenizer: Tokenizer, recipe: Recipe, directory: Path) -> None:
    """Write what faster-whisper loads: int8 weights, without the head that spells."""
    spec = WhisperLoader().get_model_spec(net.whisper.eval())
    save(
        spec,
        tokenizer,
        directory,
        window_s=recipe.window_s,
        hop=recipe.hop,
        quantization="int8",
    )
