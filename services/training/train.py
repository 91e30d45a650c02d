"""Training: the teacher on the grammar's dialogues, the student beside it on the teacher's words.

Both see every batch once. The teacher learns the right replies; the student learns them and, more
and more, the teacher's distribution over every next token, which costs no second pass because the
teacher has just made it.
"""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import time
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

from training.batches import Batch, batches
from training.model import Learner
from training.recipe import Recipe
from training.tokens import save_tokenizer, train_tokenizer

_CHECKPOINT_S = 180
_REPORT_EVERY = 20


def losses(
    teacher: Learner, student: Learner, batch: Batch, recipe: Recipe, step: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The teacher's loss and the student's, each to be minimised by its own optimisers."""
    where = batch.targets != -100
    right = batch.targets[where]
    taught = teacher.logits(batch.ids, where)
    learned = student.logits(batch.ids, where)
    soft = functional.softmax(taught.detach() / recipe.temperature, -1)
    apart = functional.kl_div(
        functional.log_softmax(learned / recipe.temperature, -1), soft, reduction="batchmean"
    )
    share = recipe.soft_at(step)
    hard = functional.cross_entropy(learned, right)
    return (
        functional.cross_entropy(taught, right),
        (1 - share) * hard + share * recipe.temperature**2 * apart,
    )


def train(recipe: Recipe, directory: Path, *, finish_by_s: float | None = None) -> Recipe:
    """Train both to the end, going on from the last checkpoint in `directory`.

    Args:
        recipe: what decides the result.
        directory: for the tokenizer, checkpoints and a log; made if it is not there.
        finish_by_s: where given, the learning rate starts to fall as early as is needed to be done
            after that many seconds of wall time.

    Returns:
        The recipe as it was carried out: given again, it makes the same weights.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe.seed)
    save_tokenizer(tokenizer, directory)
    teacher = Learner(recipe.teacher, recipe, recipe.seed)
    student = Learner(recipe.student, recipe, recipe.seed + 1)
    checkpoint, step = directory / "checkpoint.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        teacher.load(saved["teacher"])
        student.load(saved["student"])
        step, recipe = saved["step"], saved["recipe"]
    began = kept = time.monotonic()
    first = step
    for batch in batches(tokenizer, recipe.seed, recipe.batch_tokens, start=step):
        if step >= recipe.steps:
            break
        if finish_by_s is not None and step < recipe.decay_from:
            recipe = _shortened(recipe, step, first, time.monotonic() - began, finish_by_s)
        loss, student_loss = losses(teacher, student, batch, recipe, step)
        teacher.learn(loss, recipe.rate_at(step))
        student.learn(student_loss, recipe.rate_at(step))
        step += 1
        now = time.monotonic()
        if step % _REPORT_EVERY == 0:
            print(
                f"{step:6d}/{recipe.steps} {now - began:6.0f} s  teacher {loss.item():.4f}  "
                f"student {student_loss.item():.4f}",
                flush=True,
            )
        if now - kept > _CHECKPOINT_S:
            kept = now
            _keep(checkpoint, teacher, student, step, recipe)
    _keep(checkpoint, teacher, student, step, recipe)
    return recipe


def _shortened(recipe: Recipe, step: int, first: int, spent_s: float, finish_by_s: float) -> Recipe:
    """The recipe with its decay from here, if a decay of a third of what was done just fits."""
    done = step - first
    if done < 20:
        return recipe
    length = max(step // 3, 50)
    if spent_s + length * spent_s / done < finish_by_s:
        return recipe
    return replace(recipe, decay_from=step, steps=step + length)


def _keep(path: Path, teacher: Learner, student: Learner, step: int, recipe: Recipe) -> None:
    partial = path.with_suffix(".part")
    torch.save(
        {"teacher": teacher.state(), "student": student.state(), "step": step, "recipe": recipe},
        partial,
    )
    partial.replace(path)
