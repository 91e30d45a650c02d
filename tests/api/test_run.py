"""A run and a turn in Python: figures, rows, a CSV file, and a notebook's view."""

import csv
from pathlib import Path

import pytest
from made_records import MARKS_MS, every_outcome, make_record, make_run, make_turn

import turngap
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.stages import STAGES
from turngap.core.summary import summarise
from turngap.store.runs import Run
from turngap.store.writer import RunWriter


def stored(out: Path, turns: list[Turn]) -> Path:
    record = make_record(planned_turns=len(turns))
    with RunWriter.create(out, "replay", record) as writer:
        for turn in turns:
            writer.append_turn(turn)
        writer.finish(record)
    return writer.path


def turns_of(n: int) -> list[Turn]:
    return [
        make_turn(scenario=f"call-{i}", turn=1, marks_ms={"agent_onset": 300.0 + 5 * i})
        for i in range(n)
    ]


def test_a_run_is_loaded_by_folder_by_name_and_as_the_latest(tmp_path: Path) -> None:
    folder = stored(tmp_path, turns_of(6))
    for run in (Run.load(folder), Run.load(folder.name, tmp_path), Run.load(root=tmp_path)):
        assert run.path == folder
        assert run.turns == tuple(turns_of(6))
    with pytest.raises(InputError, match="no run 'nowhere'"):
        Run.load("nowhere", tmp_path)


def test_its_figures_are_those_of_the_summary() -> None:
    run = make_run([*turns_of(20), *every_outcome()])
    summary = summarise(run.turns)
    gap = run.gap_ms
    assert {"p50": gap.p50, "p90": gap.p90, "p95": gap.p95} == summary.gap_ms
    assert (gap.n, gap.recorded) == (summary.gap_n, summary.gap_recorded)
    assert run.hit_rate == summary.hit_rate
    assert run.hit_rate.hits == 21
    assert run.valid
    assert not make_run(turns_of(1), valid=False).valid


def test_a_figure_prints_with_its_interval_or_with_the_reason_why_there_is_none() -> None:
    run = make_run(turns_of(21))
    assert str(run.gap_ms.p50).startswith("350 (95 % interval from ")
    assert str(run.hit_rate).startswith("1.00 (21 of 21; 95 % interval from ")
    few = make_run(turns_of(3))
    assert str(few.gap_ms.p50) == "none (n=3, needs 5)"
    assert "n=3" in str(few.gap_ms)


def test_each_turn_is_a_row_of_the_same_plain_columns() -> None:
    run = make_run([*every_outcome(), make_turn(turn=8, marks_ms={"agent_onset": 300.0})])
    rows = run.rows()
    assert len({tuple(row) for row in rows}) == 1
    assert all(v is None or isinstance(v, str | int | float) for row in rows for v in row.values())
    assert {f"{stage}_ms" for stage in STAGES} < set(rows[0])
    first, last = rows[0], rows[-1]
    assert (first["scenario"], first["turn"], first["outcome"]) == ("coffee-order", 1, "answered")
    assert first["llm_first_token_ms"] == pytest.approx(120.0)
    assert first["unattributed_ms"] is None
    assert first["gap_ms"] == MARKS_MS["agent_onset"]
    assert sum(first[f"{s}_ms"] or 0 for s in STAGES) == pytest.approx(first["gap_ms"])
    assert rows[2]["gap_ms"] is None
    assert rows[2]["why_no_gap"]
    assert last["unattributed_ms"] == 300.0


def test_a_csv_file_holds_the_rows(tmp_path: Path) -> None:
    odd = make_turn(reply='Yes, "really";\nso', transcript="über \ud800")
    run = make_run([odd, make_turn(turn=2, marks_ms=None, ended="timeout")])
    file = run.to_csv(tmp_path / "turns.csv")
    with file.open(encoding="utf-8", newline="") as f:
        first, second = csv.DictReader(f)
    assert first["reply"] == 'Yes, "really";\nso'
    assert first["transcript"] == "über ?"
    assert float(first["gap_ms"]) == 398.25
    assert second["gap_ms"] == ""
    with pytest.raises(InputError, match="cannot write"):
        run.to_csv(tmp_path / "none" / "turns.csv")
    with pytest.raises(InputError, match="no turn to write"):
        make_run([]).to_csv(tmp_path / "empty.csv")


def test_a_notebook_shows_figures_and_warnings_and_no_markup_of_the_run() -> None:
    run = make_run(turns_of(6), name="<script>", valid=False, why_invalid=("a <b>busy</b> caller",))
    page = run._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &lt;b&gt;busy&lt;/b&gt; caller" in page
    assert "6 answered" in page
    assert "95 % interval" in page


def test_print_shows_a_compact_table_with_the_gap_first() -> None:
    run = make_run(turns_of(6), name="\x1b[31m", valid=False, why_invalid=("a busy caller",))
    head, *rows = str(run).splitlines()
    assert head.startswith("turngap: ")
    assert "\x1b" not in head
    assert rows[:2] == ["INVALID", "a busy caller"]
    assert rows[2].startswith("  gap p50, ms  ")
    assert len(rows) < 24


def test_whether_a_turn_was_right_is_known_or_none() -> None:
    assert make_turn().right is None
    answered = make_turn().answer
    assert make_turn(answer=answered.model_copy(update={"verdict": "wrong"})).right is False
    assert turngap.__version__
