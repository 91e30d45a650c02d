"""A check's reports as files in its folder, and a stored check read back."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from turngap.check import page as check_html
from turngap.check.charts import llm_words
from turngap.check.console import check_block
from turngap.check.junit import junit
from turngap.check.markdown import markdown
from turngap.check.record import (
    CHECK_FILE,
    CHECK_SCHEMA_VERSION,
    NOTHING_COMPARED,
    CheckRecord,
    SideRecord,
)
from turngap.core.errors import InputError
from turngap.report import pages
from turngap.store.runs import DEFAULT_ROOT, Run, read_record, read_run, upgrade

PAGE_FILE = "check.html"
TEXT_WIDTH = 100
# As `turngap.store.runs.RUN_STEPS`: a new CHECK_SCHEMA_VERSION comes with its step here.
# 2: what was not stored in version 1 has the default that it had then; a run that was only saved
# was called a pass.
# 3: of a starved caller nothing was kept, since it forbade every verdict.
CHECK_STEPS: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: lambda check: check if _judged(check) else check | _UNJUDGED,
    2: lambda check: check,
}
_UNJUDGED = {"verdict": "cannot_compare", "why": [NOTHING_COMPARED]}

_HINT = "give the folder that `turngap check` names at its end"


def write_reports(record: CheckRecord, folder: Path, candidate: Run, reference: Run | None) -> None:
    """Write `check.html`, `summary.md` and `junit.xml` into `folder`, each whole or not at all.

    Raises:
        InputError: the folder cannot be written to.
    """
    texts = {
        PAGE_FILE: check_html.render(record, folder, candidate, reference),
        "summary.md": markdown(
            record, llm_words(candidate.turns, reference.turns if reference else ())
        ),
    }
    for name, text in texts.items():
        pages.write(folder / name, text.encode("utf-8", errors="replace"))
    pages.write(folder / "junit.xml", junit(record, check_text(record)))


def check_text(record: CheckRecord, width: int = TEXT_WIDTH) -> str:
    """What the terminal shows, as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(check_block(record, width), end="")
    return captured.get()


def check_json(record: CheckRecord, folder: Path) -> dict[str, Any]:
    """What `--json` prints. Scripts rely on its keys: more may come, none goes."""
    return {**record.model_dump(mode="json"), "path": str(folder)}


def find_check(name_or_path: str, root: Path | None = None) -> Path | None:
    """The check's folder meant by a path, or a name in `root` (default `./runs`), if any."""
    for candidate in (Path(name_or_path), (root or DEFAULT_ROOT) / name_or_path):
        if (candidate / CHECK_FILE).is_file():
            return candidate
        if candidate.name == CHECK_FILE and candidate.is_file():
            return candidate.parent
    return None


def read_check(path: Path) -> tuple[CheckRecord, Run, Run | None]:
    """Read a check's folder: its record, the candidate's run, the reference's where it was played.

    Raises:
        InputError: no check, damaged, of a newer turngap, or a run of it is missing.
    """
    record = _read_record(path / CHECK_FILE)
    candidate = _read_side(path, record.candidate)
    if candidate is None:
        raise InputError(
            "check.damaged", f"{path / CHECK_FILE}: names no run of the candidate", hint=_HINT
        )
    reference = record.reference and _read_side(path, record.reference)
    return _still_borne(record, candidate, reference), candidate, reference


def _still_borne(record: CheckRecord, candidate: Run, reference: Run | None) -> CheckRecord:
    """A verdict whose runs have lost turns since cannot be shown by them any more."""
    sides = [("candidate", record.candidate, candidate)]
    if record.reference is not None and reference is not None:
        sides.append(("reference", record.reference, reference))
    lost = tuple(
        f"the {name}'s run holds {len(run.turns)} of the {side.turns} turns that were judged"
        for name, side, run in sides
        if len(run.turns) != side.turns
    )
    if not lost:
        return record
    return record.model_copy(update={"verdict": "cannot_compare", "why": lost})


def _judged(check: dict[str, Any]) -> bool:
    return check.get("verdict") != "pass" or bool(check.get("metrics") or check.get("budgets"))


def _read_record(file: Path) -> CheckRecord:
    try:
        document = json.loads(file.read_bytes())
    except OSError as e:
        raise InputError(
            "check.unreadable", f"{file}: cannot be read: {e.strerror or e}", hint=_HINT
        ) from e
    except ValueError as e:
        raise InputError(
            "check.damaged", f"{file}: not JSON (cut short?): {e}", hint="run the check again"
        ) from e
    if not isinstance(document, dict):
        raise InputError(
            "check.damaged", f"{file}: expected one JSON object, found {type(document).__name__}"
        )
    current = upgrade(document, CHECK_STEPS, str(file), current=CHECK_SCHEMA_VERSION)
    try:
        return CheckRecord.model_validate(current)
    except ValidationError as e:
        problem = e.errors()[0]
        at = ".".join(map(str, problem["loc"])) or "document"
        raise InputError("check.damaged", f"{file}: {at}: {problem['msg']}", hint=_HINT) from e


def _read_side(folder: Path, side: SideRecord) -> Run | None:
    """The run beside `check.json`; a check that failed at once has one without turns.

    Its name must be one: a stored check may come from anybody, and is not to lead elsewhere.
    """
    if side.run is None:
        return None
    if Path(side.run).name != side.run or side.run in ("", ".", ".."):
        raise InputError(
            "check.damaged", f"{folder / CHECK_FILE}: {side.run!r} is no folder beside it"
        )
    path = folder / side.run
    try:
        return read_run(path)
    except InputError as e:
        if e.kind != "run.empty":
            raise
        return Run(read_record(path), (), path)
