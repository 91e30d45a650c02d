"""A comparison's files: read back, and as Markdown and JSON."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turngap.compare import words as text
from turngap.compare.record import COMPARISON_FILE, COMPARISON_SCHEMA_VERSION, ComparisonRecord
from turngap.core.errors import InputError
from turngap.report import pages
from turngap.report.markdown import escaped
from turngap.store.documents import is_dir, is_file
from turngap.store.runs import DEFAULT_ROOT, Document, upgrade

MARKDOWN_FILE = "compare.md"
# As `turngap.store.runs.RUN_STEPS`: a new COMPARISON_SCHEMA_VERSION comes with its step here.
# 2: how long a backend took to its first token and how fast it was then; before, only what came
# within the window was kept. 3: each two backends beside each other, and intervals of the chain.
# 4: how many recorded turns the takes are of, which intervals go by. 5: a judge model's verdicts.
COMPARISON_STEPS: Mapping[int, Callable[[Document], Document]] = {
    1: lambda comparison: comparison,
    2: lambda comparison: comparison,
    3: lambda comparison: comparison,
    4: lambda comparison: comparison,
}


def find_comparison(name_or_path: str, root: Path | None = None) -> Path | None:
    """The folder of a comparison that a path or a name in `root` (`./runs`) means, if it is one."""
    for candidate in (Path(name_or_path), (root or DEFAULT_ROOT) / name_or_path):
        if candidate.name == COMPARISON_FILE and is_file(candidate):
            return candidate.parent
        if is_dir(candidate) and is_file(candidate / COMPARISON_FILE):
            return candidate
    return None


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read a stored comparison, of this schema version or any older one.

    Raises:
        InputError: it cannot be read, is damaged, or of a newer turngap.
    """
    file = folder / COMPARISON_FILE
    try:
        document = json.loads(file.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("expected one JSON object")
        current = upgrade(document, COMPARISON_STEPS, str(file), current=COMPARISON_SCHEMA_VERSION)
        return ComparisonRecord.model_validate(current)
    except OSError as e:
        raise InputError("run.unreadable", f"{file}: cannot be read: {e.strerror}") from e
    except ValidationError as e:
        problem = e.errors()[0]
        at = ".".join(map(str, problem["loc"]))
        raise InputError("run.damaged", f"{file}: {at}: {problem['msg']}") from e
    except ValueError as e:
        raise InputError("run.damaged", f"{file}: {e}") from e


def comparison_json(record: ComparisonRecord, folder: Path) -> dict[str, Any]:
    """What `--json` prints. Scripts rely on its keys: more may come, none goes."""
    document = record.model_dump(mode="json")
    for backend in document["backends"]:
        backend["hit_rate_ci95"] = [backend["hit_rate"]["low"], backend["hit_rate"]["high"]]
        backend["hit_rate"] = backend["hit_rate"]["value"]
    valid = record.failure is None and all(b.valid for b in record.backends)
    return {"path": str(folder), "valid": valid, **document}


def write_markdown(record: ComparisonRecord, folder: Path) -> Path:
    """Write `compare.md` into the comparison's folder.

    Raises:
        InputError: it cannot be written.
    """
    file = folder / MARKDOWN_FILE
    pages.write(file, markdown(record).encode("utf-8", errors="replace"))
    return file


def markdown(record: ComparisonRecord) -> str:
    """The comparison for a pull request or a page."""
    blocks = ["## turngap compare", _table(text.head(record), text.rows(record))]
    if record.failure:
        blocks.insert(1, f"**Ended early:** {escaped(record.failure)}")
    blocks += ["\n".join(f"- {escaped(note)}" for note in text.missing(record))]
    blocks += ["\n".join(f"- {escaped(note)}" for note in text.judge_notes(record))]
    if record.pairs:
        blocks += ["\n".join(f"- {escaped(text.pair(pair))}" for pair in record.pairs)]
    if record.chain:
        head = (*text.CHAIN_HEAD, *(chain.name for chain in record.chain))
        blocks += [f"A task of several turns: {text.CHAIN_NOTE}."]
        blocks += [_table(head, text.chain_rows(record))]
    blocks += ["\n".join(f"- {escaped(text.crossing(found))}" for found in record.crossings)]
    blocks += [f"Compared: {escaped(text.basis(record))}."]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [
        [cell if number == 1 else escaped(cell) for cell in line]
        for number, line in enumerate(lines)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
