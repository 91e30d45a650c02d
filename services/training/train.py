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
from typing import Any

import torch
from torch.nn import functional

from training.batches import Batch, batches
from training.model import Learner
from training.recipe import Phase, Recipe
from training.tokens import save_tokenizer, train_tokenizer

CHECKPOINT = "checkpoint.pt"
_CHECKPOINT_S = 180
_REPORT_EVERY = 20


def teacher_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """How far the teacher is from the right replies."""
    return functional.cross_entropy(logits, batch.targets[batch.targets != -100])


def student_loss(
    logits: torch.Tensor, taught: torch.Tensor, batch: Batch, recipe: Recipe, step: int
) -> torch.Tensor:
    """How far the student is from the right replies, and from what the teacher would say.

    `logits` and `taught` are (predicted tokens, vocabulary), the student's and the teacher's.
    """
    soft = functional.softmax(taught.detach() / recipe.temperature, -1)
    apart = functional.kl_div(
        functional.log_softmax(logits / recipe.temperature, -1), soft, reduction="batchmean"
    )
    share = recipe.soft_at(step)
    hard = functional.cross_entropy(logits, batch.targets[batch.targets != -100])
    return (1 - share) * hard + share * recipe.temperature**2 * apart


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
    checkpoint, step = directory / CHECKPOINT, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        teacher.load(saved["teacher"])
        student.load(saved["student"])
        step, recipe = saved["step"], replace(recipe, phases=as_phases(saved["phases"]))
    began = kept = time.monotonic()
    first = step
    while step < recipe.steps:
        phase = recipe.phase_at(step)
        data = batches(
            tokenizer,
            recipe.seed + recipe.phases.index(phase),
            recipe.batch_tokens,
            start=step - phase.start,
            hard=phase.hard,
        )
        for batch in data:
            spent_s = time.monotonic() - began
            if finish_by_s is not None:
                recipe = _shortened(recipe, step, step - first, spent_s, finish_by_s)
            height = recipe.height_at(step)
            where = batch.targets != -100
            taught = teacher.logits(batch.ids, where)
            loss = {"teacher": teacher_loss(taught, batch)}
            teacher.learn(loss["teacher"], phase.teacher_rate * height)
            if phase.student_rate:
                learned = student.logits(batch.ids, where)
                loss["student"] = student_loss(learned, taught, batch, recipe, step)
                student.learn(loss["student"], phase.student_rate * height)
            step += 1
            if step % _REPORT_EVERY == 0:
                told = "  ".join(f"{name} {value.item():.4f}" for name, value in loss.items())
                print(f"{step:6d}/{recipe.steps} {spent_s:6.0f} s  {told}", flush=True)
            if time.monotonic() - kept > _CHECKPOINT_S:
                kept = time.monotonic()
                _keep(checkpoint, teacher, student, step, recipe)
            if step >= recipe.phase_at(step - 1).end:
                break
    _keep(checkpoint, teacher, student, step, recipe)
    return recipe


def _shortened(recipe: Recipe, step: int, done: int, spent_s: float, finish_by_s: float) -> Recipe:
    """The recipe with the decay of its last phase from here, if that just fits.

    The decay takes a third of the steps that the phase has had before it.
    """
    phase = recipe.phases[-1]
    length = max((step - phase.start) // 3, 50)
    if step <= phase.start or step >= phase.decay_from or done < 20:
        return recipe
    if spent_s + length * spent_s / done < finish_by_s:
        return recipe
    shorter = replace(phase, decay_from=step, end=step + length)
    return replace(recipe, phases=(*recipe.phases[:-1], shorter))


def as_phases(saved: list[dict[str, Any]]) -> tuple[Phase, ...]:
    """The phases that a checkpoint has."""
    return tuple(Phase(**phase) for phase in saved)


def _keep(path: Path, teacher: Learner, student: Learner, step: int, recipe: Recipe) -> None:
    partial = path.with_suffix(".part")
    phases = recipe.as_json()["phases"]
    torch.save(
        {"teacher": teacher.state(), "student": student.state(), "step": step, "phases": phases},
        partial,
    )
    partial.replace(path)
