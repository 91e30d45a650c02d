"""What all pages share: templates, style, links to recordings, and how they are written."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.report import charts, words
from turngap.store.documents import write_atomically
from turngap.store.runs import Run

# A turn's clip begins so long before the person speaks: a player that starts on the word cuts it.
LEAD_IN_MS = 300.0


def page(name: str, *, styles: Sequence[str] = (), **values: Any) -> str:
    """The page of template `name`. Every value is text in it, whatever it looks like.

    `styles` are style sheets to go after the one that all pages share.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("turngap.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": words.clean,
        "ms": words.ms,
        "percent": words.percent,
        "instant": words.instant,
    }
    folder = resources.files("turngap.report") / "templates"
    sheets = [(folder / f"{sheet}.css").read_text("utf-8") for sheet in ("report", *styles)]
    # Globals, not values: templates that are imported for their macros see no values.
    environment.globals |= {
        "style": "\n".join(sheets),
        "axis_px": charts.AXIS_PX,
        "row_px": charts.ROW_PX,
        "symbols": words.SYMBOLS,
        "look_of": words.look_of,
        "gap_words": words.gap_words,
        "tokens_words": words.tokens_words,
        "turns_words": words.turns_words,
    }
    return environment.get_template(f"{name}.html.j2").render(**values)


def audio_link(run: Run, turn: Turn, base: Path) -> str | None:
    """A link from a page in `base` that plays this turn, up to where the next one in it begins.

    None where there is no recording, or it lies outside the run's folder or that one outside
    `base`: a stored run may come from anybody.
    """
    if turn.audio is None or not run.path.is_relative_to(base):
        return None
    path = PurePosixPath(turn.audio.file)
    if path.is_absolute() or ".." in path.parts or not (run.path / path).is_file():
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
    link = quote((run.path.relative_to(base) / path).as_posix())
    return f"{link}#t={start_ms / 1000:.2f}{end}"


def write(file: Path, content: bytes) -> None:
    """Write a report as a whole, in place of an older one.

    Raises:
        InputError: the folder cannot be written to.
    """
    try:
        write_atomically(file, content)
    except OSError as e:
        raise InputError("report.unwritable", f"cannot write {file}: {e.strerror or e}") from e
