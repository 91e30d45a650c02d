"""Scenarios of the library with their first turns alone: each turn takes seconds in real time."""

import shutil
from pathlib import Path

from commandline import SCENARIOS

_TURN = "\n  - say:"


def first_turns(folder: Path, turns: dict[str, int]) -> Path:
    """Write a library of these scenarios with so many of their turns; return its folder."""
    for name, count in turns.items():
        text = (SCENARIOS / f"{name}.yaml").read_text(encoding="utf-8")
        head, *said = text.rstrip().split(_TURN)
        assert 0 < count < len(said)
        shutil.copytree(SCENARIOS / name, folder / name)
        kept = _TURN.join((head, *said[:count]))
        (folder / f"{name}.yaml").write_text(f"{kept}\n", encoding="utf-8")
    return folder
