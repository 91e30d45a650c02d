"""eot-bench's rows as scenarios, from parquet files with the data set's columns."""

import io
from pathlib import Path
from typing import Any

import eot_bench
import numpy as np
import pytest
import soundfile

from turngap.core.errors import InputError
from turngap.scenario.library import load_scenarios, scenario_paths

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

RATE = 16_000


def recording(seconds: float) -> dict[str, Any]:
    file = io.BytesIO()
    pcm = np.rint(3000 * np.sin(np.arange(round(seconds * RATE)) / 9)).astype(np.int16)
    soundfile.write(file, pcm, RATE, format="WAV", subtype="PCM_16")
    return {"bytes": file.getvalue(), "path": None}


def row(number: int, *spans: tuple[float, float], **changes: Any) -> dict[str, Any]:
    words = [
        {"word": "a", "start": 0.1, "end": 0.4},
        {"word": "table", "start": 0.9, "end": 1.5},
    ]
    return {
        "id": f"en/turn {number}",
        "language": "en",
        "audio": recording(3),
        "silence_spans": [{"start": start, "end": end} for start, end in spans],
        "words": words,
        "messages": [{"role": "assistant", "content": "What can I do for you?"}],
        **changes,
    }


def written(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    file = tmp_path / "validation-00000-of-00001.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
    return file


def made(tmp_path: Path, *rows: dict[str, Any], most: int = 400) -> eot_bench.Made:
    file = written(tmp_path, *rows)
    return eot_bench.make_library([file], tmp_path / "eot", language="en", most=most)


def test_the_last_silence_is_the_end_and_those_before_it_are_pauses(tmp_path: Path):
    done = made(tmp_path, row(1, (0.4, 0.9), (1.1, 1.2), (2.5, 3.0)), row(2, (2.0, 3.0)))
    assert done == eot_bench.Made(2, {})
    first, second = load_scenarios(scenario_paths(tmp_path / "eot"))
    (turn,) = first.scenario.turns
    assert (first.scenario.name, turn.say) == ("en-turn-1", "a table")
    assert first.scenario.voices == "recorded"
    assert turn.speech is not None
    assert (turn.speech.start_ms, turn.speech.end_ms) == (100, 2500)
    assert [(p.start_ms, p.end_ms) for p in turn.pauses or ()] == [(400, 900), (1100, 1200)]
    assert first.clips[turn.audio].duration_ms == 3000
    assert second.scenario.turns[0].pauses == ()


def test_a_silence_before_the_first_sound_is_no_pause(tmp_path: Path):
    made(tmp_path, row(1, (0.0, 0.3), (0.9, 1.2), (2.5, 3.0), words=None))
    (only,) = load_scenarios(scenario_paths(tmp_path / "eot"))
    (turn,) = only.scenario.turns
    assert turn.say == "(not transcribed)"
    assert turn.speech is not None
    assert turn.speech.start_ms == 300
    assert [(p.start_ms, p.end_ms) for p in turn.pauses or ()] == [(900, 1200)]


def test_rows_that_cannot_be_played_are_left_out_with_the_reason(tmp_path: Path):
    done = made(
        tmp_path,
        row(1, (2.0, 3.0)),
        row(2),
        row(3, (2.0, 3.0), audio={"bytes": b"no sound", "path": None}),
        row(4, (2.0, 3.0), audio={"bytes": None, "path": "a.wav"}),
        row(5, (0.05, 3.0)),
        row(6, (2.0, 3.0), language="de"),
        row(7, (2.0, 3.0), id="EN/turn.1"),
    )
    assert done.turns == 2
    assert {name: why.split(":")[0] for name, why in done.left_out.items()} == {
        "en/turn 2": "it names no silence, so that its end is not known",
        "en/turn 3": "its recording cannot be read",
        "en/turn 4": "it has no recording in it",
        "en/turn 5": "end_ms (50) must lie after start_ms (100)",
    }
    names = sorted(path.stem for path in scenario_paths(tmp_path / "eot"))
    assert names == ["en-turn-1", "en-turn-1-2"]


def test_no_more_are_made_than_asked_for(tmp_path: Path):
    assert made(tmp_path, *(row(n, (2.0, 3.0)) for n in range(5)), most=3).turns == 3


def test_other_files_and_full_folders_are_refused(tmp_path: Path):
    no_spans = row(1, (2.0, 3.0))
    del no_spans["silence_spans"]
    file = written(tmp_path, no_spans)
    with pytest.raises(InputError, match="no column silence_spans; it has id, language"):
        eot_bench.make_library([file], tmp_path / "a", language="en", most=9)
    file.write_bytes(b"no parquet")
    with pytest.raises(InputError, match="no parquet file"):
        eot_bench.make_library([file], tmp_path / "b", language="en", most=9)
    with pytest.raises(InputError, match="no parquet file"):
        eot_bench.make_library([tmp_path / "none"], tmp_path / "c", language="en", most=9)
    with pytest.raises(InputError, match="is not empty"):
        eot_bench.make_library([file], tmp_path, language="en", most=9)
