"""A simulation as one page that needs nothing but itself, and a stored one read back."""

from pathlib import Path

from turngap.fleet import charts as simulate_charts
from turngap.fleet import words
from turngap.fleet.record import SIMULATION_FILE, SimulationRecord
from turngap.report import pages
from turngap.store.documents import read_document

PAGE_FILE = "simulation.html"

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


def read_simulation(folder: Path) -> SimulationRecord:
    """Read a simulation's folder.

    Raises:
        InputError: not readable, damaged, or of another version.
    """
    return read_document(folder / SIMULATION_FILE, SimulationRecord, hint=_HINT)
