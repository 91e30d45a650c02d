"""Write what `turngap` ships: both models for the backend `small`, and how often each is right.

    python -m training.ship models services/turngap_services/llm/small

Each model of the first folder (transformers' format) is converted to int8 below the second one,
with `held_out.json` beside it: its share of right turns in held-out dialogues, which every run
with this model shows. `models.json` in the first folder gets the whole table, as `NAME-int8`.
"""

# torch and transformers are in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import argparse
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.evaluate import DIALOGUES, evaluate_directory
from training.export import convert, size_mb
from training.train import NAMES
from turngap.core.stats import proportion_of
from turngap_services.llm.small.held_out import FILE


def ship(model_directory: Path, directory: Path, dialogues: int) -> dict[str, Any]:
    """Convert a model and count its right answers; return its entry of `models.json`.

    Args:
        model_directory: the model in transformers' format.
        directory: gets the model in CTranslate2's format, int8, and `held_out.json`.
        dialogues: held-out dialogues to count right answers in.
    """
    convert(model_directory, directory)
    tally = evaluate_directory(directory, dialogues)
    turns = [
        (right, (str(dialogue), 1, n))
        for dialogue, rights in enumerate(tally.right_of_each)
        for n, right in enumerate(rights)
    ]
    told = {
        "model": directory.name,
        "sha256": hashlib.sha256((directory / "model.bin").read_bytes()).hexdigest(),
        "dialogues": tally.dialogues,
        # The turns of a dialogue are right or wrong together.
        "right": asdict(proportion_of([right for right, _ in turns], [take for _, take in turns])),
    }
    (directory / FILE).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return {"size_mb": round(size_mb(directory), 2), "held_out": tally.as_json()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, help="where teacher, student and models.json are")
    parser.add_argument("out", type=Path, help="where the converted models go")
    parser.add_argument("--dialogues", type=int, default=DIALOGUES, help="held-out dialogues")
    arguments = parser.parse_args()
    path = arguments.models / "models.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    for name in NAMES:
        source, out = arguments.models / name, arguments.out / name
        told[f"{name}-int8"] = ship(source, out, arguments.dialogues)
        print((out / FILE).read_text(encoding="utf-8"))
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
