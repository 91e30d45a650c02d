"""Make a scenario library of eot-bench's data set, for `turngap turns` with any agent.

The data set is `livekit/eot-bench-data` on the Hugging Face hub (real turns of people to agents, in
14 languages, CC BY 4.0): fetch the parquet files of a language where there is a network, then

    python benchmarks/eot_bench.py data/en/*.parquet --out eot-en
    turngap turns eot-en --agent ws://127.0.0.1:8765/ws

Each row is a turn with every silence of 100 ms or more; the last one is the turn's end, and those
before it become its pauses. A row that cannot be played is left out and named. It takes pyarrow.
"""

import argparse
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from endings import errors_told
from pydantic import ValidationError

from turngap.core.errors import InputError
from turngap.core.untrusted import reason
from turngap.scenario.model import Scenario

# What is read of a row; `words` is optional in the data set.
COLUMNS = ("id", "language", "audio", "silence_spans")
# A silence that begins so soon lies before the person's first sound, not inside the turn.
LEADING_MS = 20.0
# Everybody is told this by the simulated model (--llm sim): no one knows what these people ask for.
REPLY = "All right, let me look that up."
# The name of a file, and of a scenario.
LONGEST_NAME = 60


@dataclass(frozen=True)
class Made:
    """Result for the rows: turns written, and those left out by id, with the reason."""

    turns: int
    left_out: dict[str, str]


class _UnusableError(Exception):
    """Reason why a row cannot be played."""


def make_library(files: Sequence[Path], library: Path, *, language: str, most: int) -> Made:
    """Write a scenario for each row of that language, up to so many.

    Raises:
        InputError: a file is no parquet file of these columns, pyarrow is missing, or `library`
            holds something already.
    """
    _make_empty(library)
    names: set[str] = set()
    left_out: dict[str, str] = {}
    for row in rows_of(files):
        if row["language"] != language:
            continue
        if len(names) == most:
            break
        name = _name(str(row["id"]), names)
        try:
            _write(library, name, row)
        except _UnusableError as e:
            left_out[str(row["id"])] = str(e)
        else:
            names.add(name)
    return Made(len(names), left_out)


def rows_of(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Read the rows, a few at a time: a file holds hundreds of recordings."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as e:
        raise InputError(
            "eot_bench.pyarrow", "pyarrow is missing", hint="pip install pyarrow"
        ) from e
    for file in files:
        try:
            opened = parquet.ParquetFile(file)
        except (OSError, pyarrow.ArrowException) as e:
            raise InputError(
                "eot_bench.unreadable",
                f"{file}: no parquet file that can be read: {e}",
                hint="give the *.parquet files of one language of livekit/eot-bench-data",
            ) from e
        columns = opened.schema_arrow.names
        if missing := [name for name in COLUMNS if name not in columns]:
            raise InputError(
                "eot_bench.columns",
                f"{file}: has no column {', '.join(missing)}; it has {', '.join(columns)}",
            )
        wanted = [*COLUMNS, *(["words"] if "words" in columns else [])]
        for batch in opened.iter_batches(batch_size=16, columns=wanted):
            yield from batch.to_pylist()


def _make_empty(library: Path) -> None:
    try:
        library.mkdir(parents=True, exist_ok=True)
        taken = any(library.iterdir())
    except OSError as e:
        raise InputError(
            "eot_bench.unwritable", f"cannot write {library}: {e.strerror or e}"
        ) from e
    if taken:
        raise InputError("eot_bench.taken", f"{library} is not empty", hint="give a new folder")


def _name(row_id: str, taken: set[str]) -> str:
    """Make a scenario's name of a row's id; ids that differ in other characters get a number."""
    slug = re.sub(r"[^a-z0-9]+", "-", row_id.lower()).strip("-")[:LONGEST_NAME].strip("-") or "turn"
    number = 1
    while (name := slug if number == 1 else f"{slug}-{number}") in taken:
        number += 1
    return name


def _write(library: Path, name: str, row: dict[str, Any]) -> None:
    """Write the recording and the scenario of one row."""
    sound, rate = _sound(row["audio"])
    scenario = _scenario(name, row, 1000 * len(sound) / rate)
    folder = library / name
    folder.mkdir()
    soundfile.write(folder / "1.flac", sound, rate, subtype="PCM_16")
    # JSON is YAML.
    (library / f"{name}.yaml").write_text(json.dumps(scenario, ensure_ascii=False), "utf-8")


def _sound(audio: Any) -> tuple[np.ndarray, int]:
    """Decode a row's recording, mono."""
    encoded = audio.get("bytes") if isinstance(audio, dict) else None
    if not encoded:
        raise _UnusableError("it has no recording in it")
    try:
        sound, rate = soundfile.read(io.BytesIO(encoded), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as e:
        raise _UnusableError(f"its recording cannot be read: {e}") from e
    return sound.mean(axis=1), rate


def _scenario(name: str, row: dict[str, Any], lasts_ms: float) -> dict[str, Any]:
    """Build the scenario, checked as a file of it would be."""
    words = row.get("words") or []
    spans = [(1000 * span["start"], 1000 * span["end"]) for span in row["silence_spans"] or ()]
    if not spans:
        raise _UnusableError("it names no silence, so that its end is not known")
    *pauses, (end_ms, _) = sorted(spans)
    if pauses and pauses[0][0] <= LEADING_MS:
        start_ms = pauses.pop(0)[1]
    else:
        start_ms = 1000 * words[0]["start"] if words else 0.0
    inside = [(first, last) for first, last in pauses if start_ms < first and last < end_ms]
    said = " ".join(str(word.get("word") or word.get("text") or "") for word in words).strip()
    turn = {
        "say": said or "(not transcribed)",
        "audio": f"{name}/1.flac",
        "speech": _span(start_ms, min(end_ms, lasts_ms)),
        "pauses": [_span(first, last) for first, last in inside],
        "reply": REPLY,
    }
    scenario = {"name": name, "about": f"eot-bench, {row['id']}", "voices": "recorded"}
    try:
        Scenario.model_validate({**scenario, "turns": [turn]})
    except ValidationError as e:
        raise _UnusableError(reason(e.errors()[0])) from e
    return {**scenario, "turns": [turn]}


def _span(start_ms: float, end_ms: float) -> dict[str, float]:
    return {"start_ms": round(start_ms, 2), "end_ms": round(end_ms, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="*.parquet of livekit/eot-bench-data")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the library")
    parser.add_argument("--language", default="en")
    parser.add_argument("--most", type=int, default=400, help="turns at most")
    arguments = parser.parse_args()
    with errors_told():
        made = make_library(
            arguments.files, arguments.out, language=arguments.language, most=arguments.most
        )
    for name, why in made.left_out.items():
        print(f"left out: {name}: {why}")
    print(f"{made.turns} turns in {arguments.out}")


if __name__ == "__main__":
    main()
