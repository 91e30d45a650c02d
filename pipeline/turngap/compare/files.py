"""A comparison's files: read back, and as Markdown and JSON."""

from pathlib import Path
from typing import Any

from turngap.compare import words as text
from turngap.compare.record import COMPARISON_FILE, ComparisonRecord
from turngap.report import pages
from turngap.report.markdown import escaped
from turngap.store.documents import read_document

MARKDOWN_FILE = "compare.md"

_HINT = "give the folder that `turngap compare` names at its end"


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read a stored comparison.

    Raises:
        InputError: it cannot be read, is damaged, or of another version.
    """
    return read_document(folder / COMPARISON_FILE, ComparisonRecord, hint=_HINT)


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
