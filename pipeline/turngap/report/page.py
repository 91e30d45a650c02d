"""Write a report as one HTML page that needs no files but the recordings in its folder."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from turngap.core.results import Turn
from turngap.core.secrets import without_known_secrets
from turngap.core.untrusted import printable
from turngap.report import charts
from turngap.report.sections import Report
from turngap.store.documents import is_file, write_atomically, writing
from turngap.store.runs import Run

if TYPE_CHECKING:
    from jinja2 import Template

# A turn's clip begins so long before the person speaks: a player that starts on the word cuts it.
LEAD_IN_MS = 300.0
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|ms|s)(?!\w))")
# From this many turns on, they can be filtered and sorted.
MANY = 7


def render(report: Report) -> str:
    """Render the page; all content of the report is escaped as text."""
    return _template().render(report=report, many=MANY)


def write(file: Path, content: str | bytes) -> Path:
    """Write the whole report, replacing an older one; returns its path.

    Raises:
        InputError: the folder cannot be written to.
    """
    if isinstance(content, str):
        content = without_known_secrets(content).encode("utf-8", errors="replace")
    with writing(file, "report.unwritable"):
        write_atomically(file, content)
    return file


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("turngap.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"printable": unbroken, "breakable": breakable}
    folder = resources.files("turngap.report") / "templates"
    script = (folder / "page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "style": (folder / "page.css").read_text("utf-8"),
        "script": script,
        # A browser runs this script and no other, whatever got into the page.
        "policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
        "style-src 'unsafe-inline'; media-src 'self' file:; "
        f"script-src 'sha256-{digest}'",
        "box": charts.BOX,
        "character_px": charts.CHARACTER_PX,
        "label_px": charts.LABEL_PX,
    }
    return environment.get_template("page.html.j2")


def unbroken(text: str) -> str:
    """Return printable text that keeps each figure and its unit on one line."""
    return _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", printable(text))


def breakable(cell: str) -> str:
    """Let a cell break where a new figure begins, and nowhere else."""
    whole = cell.replace(" ", "\N{NO-BREAK SPACE}")
    for new in (",\N{NO-BREAK SPACE}", "\N{NO-BREAK SPACE}("):
        whole = whole.replace(new, new.replace("\N{NO-BREAK SPACE}", " "))
    return whole


def audio_file(run: Run, turn: Turn) -> Path | None:
    """Find a turn's recording; None if there is none, or if it is outside the run's folder."""
    if turn.audio is None:
        return None
    path = PurePosixPath(turn.audio.file)
    inside = not path.is_absolute() and ".." not in path.parts
    return run.path / path if inside and is_file(run.path / path) else None


def audio_link(run: Run, turn: Turn, base: Path) -> str | None:
    """Build a link from a page in `base` that plays this turn, up to where the next one begins.

    Return None if there is no recording, if it is outside the run's folder, or if that folder is
    outside `base`: a stored run may come from an untrusted source.
    """
    file = audio_file(run, turn)
    if file is None or turn.audio is None or not run.path.is_relative_to(base):
        return None
    start_ms = max(0.0, turn.audio.user_start_ms - LEAD_IN_MS)
    later = [
        t.audio.user_start_ms
        for t in run.turns
        if t.audio
        and t.audio.file == turn.audio.file
        and t.audio.user_start_ms > turn.audio.user_start_ms
    ]
    end = f",{min(later) / 1000:.2f}" if later else ""
    link = quote(file.relative_to(base).as_posix())
    return f"{link}#t={start_ms / 1000:.2f}{end}"
