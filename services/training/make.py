"""Make both models from nothing: train, save, convert, and report how often each is right.

    python -m training.make OUT                 # as the shipped ones were made
    python -m training.make OUT --scale 0.01    # a trial of all of it

It continues from its last checkpoints in OUT. On one thread, the committed recipe makes the same
weights.
"""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from training.evaluate import DIALOGUES, Tally, evaluate_directory, paired
from training.export import save, size_mb
from training.model import Learner
from training.recipe import Recipe
from training.ship import ship
from training.train import NAMES, checkpoint, train


def finish(recipe: Recipe, directory: Path, dialogues: int) -> dict[str, Any]:
    """Save the checkpoints' models below `directory` and report their size and accuracy.

    Args:
        recipe: the recipe of their training.
        directory: where the checkpoints are; gets `teacher`, `student` (transformers' format),
            the same two for the backend `small` in `small`, and `models.json`.
        dialogues: held-out dialogues to count right answers in.
    """
    told: dict[str, Any] = {"recipe": recipe.as_json(), "steps_done": {}}
    tallies: dict[str, Tally] = {}
    for name in NAMES:
        saved = torch.load(checkpoint(directory, name))
        learner = Learner(recipe.course(name).shape, recipe, recipe.seed)
        learner.load(saved["learner"])
        told["steps_done"][name] = saved["step"]
        out = directory / name
        save(learner.model, directory, out)
        tallies[name] = evaluate_directory(out, dialogues)
        told[name] = {
            "parameters": sum(p.numel() for p in learner.model.parameters()),
            "size_mb": round(size_mb(out), 2),
            "held_out": tallies[name].as_json(),
        }
        told[f"{name}-int8"] = ship(out, directory / "small" / name, dialogues)
    told["teacher_against_student"] = paired(tallies["teacher"], tallies["student"])
    path = directory / "models.json"
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return told


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where checkpoints and models go")
    parser.add_argument(
        "--only", choices=NAMES, help="train this model and stop; both can be trained side by side"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="a share of all steps")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--dialogues", type=int, default=DIALOGUES, help="held-out dialogues")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = Recipe() if arguments.scale == 1 else Recipe().scaled(arguments.scale)
    for name in [arguments.only] if arguments.only else NAMES:
        train(recipe, arguments.directory, name)
    if arguments.only:
        return
    told = finish(recipe, arguments.directory, arguments.dialogues)
    for name in (*NAMES, *(f"{name}-int8" for name in NAMES)):
        turns = told[name]["held_out"]["turns"]
        low, high = turns["right_interval_95"]
        print(
            f"{name}: {told[name]['size_mb']} MB, {turns['right']:.1%} of {turns['n']} held-out "
            f"turns right (95 %: {low:.1%} to {high:.1%}), {turns['exact']:.1%} word for word"
        )
    against = told["teacher_against_student"]
    print(
        f"the teacher has more right than the student in {against['dialogues_with_more_right']} "
        f"dialogues and fewer in {against['dialogues_with_fewer_right']} "
        f"(sign test: p = {against['two_sided_p']:.2g})"
    )


if __name__ == "__main__":
    main()
