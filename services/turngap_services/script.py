"""The scenario library as the engines made from it see it."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turngap.scenario.model import Scenario


@cache
def scenarios(library: Path | None) -> tuple["Scenario", ...]:
    """Every scenario of the library, read once a process; recordings are not opened.

    Raises:
        InputError: no library, or a scenario in it that cannot be read.
    """
    # ruamel.yaml and soundfile cost 0.1 s to import: not at the registry's import.
    from turngap.scenario.library import library_dir, library_paths, read_scenario

    return tuple(read_scenario(path) for path in library_paths(library_dir(library)))
