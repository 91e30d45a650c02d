"""Training of the teacher on the grammar's dialogues, then of the student, last on its words.

Until the student's last phase the two share only the tokenizer, so both can be trained at the same
time, in two processes.
"""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import time
from pathlib import Path

import torch
from torch.nn import functional

from training.batches import Batch, batches
from training.model import Learner
from training.recipe import Recipe
from training.tokens import save_tokenizer, train_tokenizer

NAMES = ("teacher", "student")
_CHECKPOINT_S = 90
_REPORT_EVERY = 20


def checkpoint(directory: Path, name: str) -> Path:
    """Return the file in which a model's training is kept."""
    return directory / f"{name}.pt"


def train(recipe: Recipe, directory: Path, name: str) -> None:
    """Train one model to the end, continuing from its last checkpoint in `directory`.

    Args:
        recipe: what decides the result.
        directory: folder of the tokenizer and checkpoints; created if missing. A student that
            learns from the teacher needs the teacher's checkpoint here.
        name: `teacher` or `student`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe.seed)
    save_tokenizer(tokenizer, directory)
    course = recipe.course(name)
    learner, step = Learner(course.shape, recipe, recipe.seed + NAMES.index(name)), 0
    kept_in = checkpoint(directory, name)
    if kept_in.exists():
        saved = torch.load(kept_in)
        learner.load(saved["learner"])
        step = saved["step"]
    began = kept = time.monotonic()
    while step < course.steps:
        number, first = course.at(step)
        phase = course.phases[number]
        teacher = _teacher(recipe, directory) if phase.soft_share else None
        data = batches(
            tokenizer,
            # Each phase of each model has dialogues of its own.
            recipe.seed + number + 100 * NAMES.index(name),
            recipe.batch_tokens,
            start=first,
            hard=phase.hard,
            thorough=phase.thorough,
        )
        for batch, into in zip(data, range(first, phase.steps), strict=False):
            where = batch.targets != -100
            logits = learner.logits(batch.ids, where)
            loss = hard_loss(logits, batch)
            if teacher:
                with torch.no_grad():
                    taught = teacher.logits(batch.ids, where)
                soft = soft_loss(logits, taught, recipe.temperature)
                loss = (1 - phase.soft_share) * loss + phase.soft_share * soft
            learner.learn(loss, phase.rate_at(into, recipe.warmup))
            step += 1
            now = time.monotonic()
            if step % _REPORT_EVERY == 0:
                print(f"{name} {step}/{course.steps} {now - began:.0f} s {loss:.4f}", flush=True)
            if now - kept > _CHECKPOINT_S:
                kept = now
                _keep(kept_in, learner, step)
    _keep(kept_in, learner, step)


def hard_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Compute how far the model is from the right replies."""
    return functional.cross_entropy(logits, batch.targets[batch.targets != -100])


def soft_loss(logits: torch.Tensor, taught: torch.Tensor, temperature: float) -> torch.Tensor:
    """Compute how far the model is from the teacher; both (predicted tokens, vocabulary)."""
    apart = functional.kl_div(
        functional.log_softmax(logits / temperature, -1),
        functional.softmax(taught / temperature, -1),
        reduction="batchmean",
    )
    return temperature**2 * apart


def _teacher(recipe: Recipe, directory: Path) -> Learner:
    learner = Learner(recipe.teacher.shape, recipe, recipe.seed)
    learner.load(torch.load(checkpoint(directory, "teacher"))["learner"])
    return learner


def _keep(path: Path, learner: Learner, step: int) -> None:
    partial = path.with_suffix(".part")
    torch.save({"learner": learner.state(), "step": step}, partial)
    partial.replace(path)
