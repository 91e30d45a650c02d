"""A simulation as one page that needs nothing but itself, and a stored one read back."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turngap.core.errors import InputError
from turngap.fleet import charts as simulate_charts
from turngap.fleet import words
from turngap.fleet.record import SIMULATION_FILE, SIMULATION_SCHEMA_VERSION, SimulationRecord
from turngap.report import pages
from turngap.store.runs import DEFAULT_ROOT, upgrade

PAGE_FILE = "simulation.html"
# As `turngap.store.runs.RUN_STEPS`: a new SIMULATION_SCHEMA_VERSION comes with its step here.
SIMULATION_STEPS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

_HINT = "give the folder that `turngap simulate` names at its end"


def render(record: SimulationRecord) -> str:
    """The page."""
    return pages.page(
        "simulate",
        styles=("simulate",),
        record=record,
        text=words,
        charts=simulate_charts.charts(record),
        height_px=simulate_charts.HEIGHT_PX,
        box=simulate_charts.BOX,
        settings=[(k, f"{v}") for k, v in record.settings.items() if v is not None],
    )


def write_page(record: SimulationRecord, folder: Path) -> Path:
    """Write the page into the simulation's folder; returns its path.

    Raises:
        InputError: the folder cannot be written to.
    """
    file = folder / PAGE_FILE
    pages.write(file, render(record).encode("utf-8", errors="replace"))
    return file


def find_simulation(name_or_path: str, root: Path | None = None) -> Path | None:
    """The simulation's folder meant by a path, or a name in `root` (default `./runs`), if any."""
    for candidate in (Path(name_or_path), (root or DEFAULT_ROOT) / name_or_path):
        if (candidate / SIMULATION_FILE).is_file():
            return candidate
        if candidate.name == SIMULATION_FILE and candidate.is_file():
            return candidate.parent
    return None


def read_simulation(folder: Path) -> SimulationRecord:
    """Read a simulation's folder.

    Raises:
        InputError: not readable, damaged, or of a newer turngap.
    """
    file = folder / SIMULATION_FILE
    try:
        document = json.loads(file.read_bytes())
    except OSError as e:
        raise InputError(
            "simulation.unreadable", f"{file}: cannot be read: {e.strerror or e}", hint=_HINT
        ) from e
    except ValueError as e:
        raise InputError(
            "simulation.damaged", f"{file}: not JSON (cut short?): {e}", hint="simulate again"
        ) from e
    if not isinstance(document, dict):
        raise InputError("simulation.damaged", f"{file}: expected one JSON object")
    current = upgrade(document, SIMULATION_STEPS, str(file), current=SIMULATION_SCHEMA_VERSION)
    try:
        return SimulationRecord.model_validate(current)
    except ValidationError as e:
        problem = e.errors()[0]
        at = ".".join(map(str, problem["loc"])) or "document"
        raise InputError("simulation.damaged", f"{file}: {at}: {problem['msg']}", hint=_HINT) from e
