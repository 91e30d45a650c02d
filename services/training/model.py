"""A Llama of a given shape, and the optimisers it is trained with."""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from training.recipe import Recipe, Shape
from training.tokens import END, PAD, SPECIAL, VOCABULARY


def new_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """Create a model with random weights."""
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
    model = LlamaForCausalLM(config)
    _look_for_the_like(model)
    return model


def _look_for_the_like(model: LlamaForCausalLM) -> None:
    """Let each head begin by attending to tokens like its own, and by passing them on.

    Most turns ask to repeat or look up something. A small model takes long to learn such attention
    from random matrices. On repeating lines of random tokens, a teacher learned more from this
    start in 100 steps (rate 3e-3, loss 4.9) than from a random one in 400 (4e-3, 5.1). After
    Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers" (2023).
    """
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.k_proj.weight.copy_(attention.q_proj.weight.mul_(2))
            torch.nn.init.orthogonal_(attention.v_proj.weight)
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)


class Learner:
    """A model with its optimisers: Muon for the matrices in its layers, AdamW for the rest."""

    def __init__(self, shape: Shape, recipe: Recipe, seed: int) -> None:
        self.model = new_model(shape, seed)
        self.model.train()
        # The flash kernel's backward pass was slower on a CPU than the plain products, which
        # compiling fuses: a teacher's step took 0.36 s of one core and 0.60 s without both.
        self.model.set_attn_implementation("eager")
        self._run = torch.compile(self.model.model, dynamic=True)
        rate = 1e-3  # until the first step sets it
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
        """Return float32 logits at the true places of `where`: (predicted tokens, vocabulary)."""
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self._run(input_ids=ids, use_cache=False).last_hidden_state[where]
            return self.model.lm_head(hidden).float()

    def learn(self, loss: torch.Tensor, rate: float) -> None:
        """Take one step down the gradient of `loss`."""
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()

    def state(self) -> dict[str, Any]:
        """Return all that a later run needs to continue from here."""
        return {
            "model": self.model.state_dict(),
            "parts": [part.state_dict() for part in self._parts],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.model.load_state_dict(state["model"])
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(saved)
