"""Dialogues in batches of about equal length."""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from training.grammar.dialogue import make_dialogues
from training.tokens import PAD, SPECIAL, Encoded, encode

# Dialogues sorted by length at a time: padding stays below a twentieth.
_POOL = 1024


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and the targets to predict, both of shape (dialogues, tokens).

    Attributes:
        ids: int64, padded on the right.
        targets: int64; the next token if the model is to predict it, else -100.
    """

    ids: torch.Tensor
    targets: torch.Tensor


def batches(
    tokenizer: Tokenizer,
    seed: int,
    batch_tokens: int,
    *,
    start: int = 0,
    hard: bool = False,
    thorough: float = 0.0,
) -> Iterator[Batch]:
    """Yield batches without end, from number `start` on; no dialogue comes twice.

    `hard` and `thorough` mean the same as in `make_dialogue`.
    """
    number = 0
    for pool in itertools.count():
        order = random.Random(f"{seed}|pool {pool}")
        made = make_dialogues(
            seed, holding=False, start=pool * _POOL * 2, hard=hard, thorough=thorough
        )
        dialogues = itertools.islice(made, _POOL)
        encoded = [encode(tokenizer, d, cuts=order) for d in dialogues]
        encoded.sort(key=lambda e: len(e.ids))
        groups = list(_groups(encoded, batch_tokens))
        order.shuffle(groups)
        for group in groups:
            if number >= start:
                yield collate(group, SPECIAL.index(PAD))
            number += 1


def _groups(encoded: list[Encoded], batch_tokens: int) -> Iterator[list[Encoded]]:
    group: list[Encoded] = []
    for one in encoded:
        if group and len(one.ids) * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(one)
    yield group


def collate(group: list[Encoded], pad: int) -> Batch:
    """Stack the dialogues; attention needs no mask because padding comes last."""
    longest = max(len(e.ids) for e in group)
    ids = torch.full((len(group), longest), pad)
    targets = torch.full((len(group), longest), -100)
    for row, one in enumerate(group):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
        wanted = torch.tensor(
            [t if learn else -100 for t, learn in zip(one.ids, one.learn, strict=True)]
        )
        targets[row, : len(one.ids) - 1] = wanted[1:]
    return Batch(ids, targets)
