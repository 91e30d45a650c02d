"""A Llama of a given shape, and the optimisers it is trained with."""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.recipe import Recipe, Shape
from training.tokens import END, PAD, SPECIAL, VOCABULARY


def new_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """A model with random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(END),
        pad_token_id=SPECIAL.index(PAD),
    )
    return LlamaForCausalLM(config)


class Learner:
    """A model with its optimisers: Muon for the matrices in its layers, AdamW for the rest."""

    def __init__(self, shape: Shape, recipe: Recipe, seed: int) -> None:
        self.model = new_model(shape, seed)
        rate = recipe.phases[0].student_rate  # until the first step sets it
        self.model.train()
        named = list(self.model.named_parameters())
        inside = [p for n, p in named if p.ndim == 2 and ".layers." in n]
        rest = [p for n, p in named if p.ndim != 2 or ".layers." not in n]
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                inside,
                lr=rate,
                weight_decay=recipe.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
        )

    def logits(self, ids: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """(predicted tokens, vocabulary) at the true places of `where`, as float32."""
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[where]
            return self.model.lm_head(hidden).float()

    def learn(self, loss: torch.Tensor, rate: float) -> None:
        """One step down the gradient of `loss`."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()

    def state(self) -> dict[str, Any]:
        """All that a later run needs to go on from here."""
        return {
            "model": self.model.state_dict(),
            "parts": [part.state_dict() for part in self._parts],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.model.load_state_dict(state["model"])
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(saved)
