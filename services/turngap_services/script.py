"""The scenario library, for the engines that are made from it."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turngap.scenario.model import Scenario


@cache
def scenarios(library: Path | None) -> tuple["Scenario", ...]:
    """Return every scenario of the library, read once a process; recordings are not opened.

    Raises:
        InputError: there is no library, or a scenario in it cannot be read.
    """
    # ruamel.yaml and soundfile cost 0.1 s to import: not at the registry's import.
    from turngap.scenario.library import library_dir, library_paths
    from turngap.scenario.parsing import read_scenario

    return tuple(read_scenario(path) for path in library_paths(library_dir(library)))
