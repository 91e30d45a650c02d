"""Tables of turns: CSV, Parquet, JSON and `Run.rows` hold the very same values."""

import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow.csv as arrow_csv
import pyarrow.parquet as arrow_parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import every_outcome, make_record, make_turn

from turngap.core.errors import InputError
from turngap.core.results import TURN_COLUMNS, Turn
from turngap.core.stages import STAGES
from turngap.core.stored import AnswerRecord, Column, JudgeRecord
from turngap.report.run import run_json
from turngap.store.runs import (
    COLUMNS,
    RUN_COLUMNS,
    Run,
    Table,
    arrow_schema,
    csv_text,
    safe_cell,
    text_of_cell,
    turns_table,
)
from turngap.store.writer import RunWriter

# A gap that no shorter decimal than all of its digits gives back, and texts that break tables.
ODD_MS = 100.0 / 3.0 + 0.1
ODD = [
    make_turn(turn=8, gap_ms=ODD_MS, lead_ms=1e-7, yield_ms=1e16 / 3, phase_ms=0.1 + 0.2),
    make_turn(
        turn=9,
        first_sound_ms=160.0,
        onset_spread_ms=4.5,
        bed_dbfs=-36.5,
        reply='=HYPERLINK("http://x","y")',
        transcript="-5, @ home;\n=1+1",
    ),
    make_turn(turn=10, reply="'=2", transcript="über „q\" \r x;'+1", llm="a,b", left_out="-"),
    make_turn(
        turn=11,
        answer=AnswerRecord(verdict="right", heard="x"),
        transcribed=AnswerRecord(verdict="wrong", source="transcribed", failed=("x",)),
        judged=JudgeRecord(right=True),
    ),
    make_turn(turn=12, marks_ms={"agent_onset": 300.0}, starved=True, audio=None),
    make_turn(turn=13, counts={"agent_gap_ms": 372.5}),
    make_turn(turn=14, counts={"agent_gap_ms": 372.5, "user_bot_latency_ms": 333.3333}),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    turns = [*every_outcome(), *ODD]
    record = make_record(planned_turns=len(turns), label="before the fix")
    with RunWriter.create(tmp_path_factory.mktemp("runs"), "replay", record) as writer:
        for turn in turns:
            writer.append_turn(turn)
        writer.finish(record)
    return Run.load(writer.path)


def read_cell(column: Column[Any], cell: str) -> Any:
    """Read a cell as docs/data.md says."""
    if column.type == "text":
        return None if column.optional and not cell else text_of_cell(cell)
    if not cell:
        return None
    as_type: dict[str, Any] = {
        "integer": int,
        "number": float,
        "boolean": {"true": True, "false": False}.get,
    }
    return as_type[column.type](cell)


def read_csv(text: str) -> list[dict[str, Any]]:
    names, *rows = csv.reader(io.StringIO(text, newline=""))
    assert names == [column.name for column in COLUMNS]
    return [
        {c.name: read_cell(c, cell) for c, cell in zip(COLUMNS, row, strict=True)} for row in rows
    ]


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, and of the same type."""
    return type(a) is type(b) and (a == b or a is b)


def assert_same(found: list[dict[str, Any]], rows: list[dict[str, Any]]) -> None:
    assert len(found) == len(rows)
    for one, other in zip(found, rows, strict=True):
        assert list(one) == list(other)
        assert [name for name in one if not same(one[name], other[name])] == []


def row_of_json(document: dict[str, Any], turn: dict[str, Any]) -> dict[str, Any]:
    """The row that the JSON document tells, without a figure of turngap's own."""
    spent: dict[str, float] = {}
    for stage in turn["stages"]:
        spent[stage["name"]] = spent.get(stage["name"], 0.0) + stage["ms"]
    right = {"right": True, "wrong": False, "not_judged": None}
    pacing, audio, counts = turn["pacing"], turn["audio"] or {}, turn["counts"]
    sources = {"user_bot_latency_ms": "pipecat", "agent_gap_ms": "marks"}
    claims = next(((counts[name], by) for name, by in sources.items() if name in counts), None)
    told = {
        "run": Path(document["run"]).name,
        "agent": document["agent"]["stack"],
        "commit": document["agent"].get("commit") or document["commit"],
        "label": document["label"],
        "valid": document["valid"],
        **turn,
        **{c.name: spent.get(c.name.removesuffix("_ms")) for c in COLUMNS if c.name in STAGE_MS},
        "claimed_gap_ms": claims[0] if claims else None,
        "claimed_by": claims[1] if claims else None,
        "longest_hole_ms": max((hole["ms"] for hole in turn["holes"]), default=None),
        "ambiguous": any(note.startswith("ambiguous: ") for note in turn["notes"]),
        "right": right[turn["answer"]["verdict"]],
        "right_by_sound": turn["transcribed"] and right[turn["transcribed"]["verdict"]],
        "right_by_judge": turn["judged"] and turn["judged"]["right"],
        "starved": pacing["starved"],
        "caller_error_ms": (pacing["late_ms_max"] or 0.0) + (pacing["loop_lag_ms_max"] or 0.0),
        "label_error_ms": audio.get("label_error_ms"),
        "audio": audio.get("file"),
        "plain_gap_ms": (turn["line"] or {}).get("plain_gap_ms"),
    }
    return {column.name: told[column.name] for column in COLUMNS}


STAGE_MS = {f"{name}_ms" for name in STAGES}


def test_the_run_has_every_outcome_and_every_column_a_value_somewhere(run: Run) -> None:
    rows = run.rows()
    assert {row["outcome"] for row in rows} == {
        *("answered", "late", "no_reply", "cut_in", "abandoned", "error")
    }
    never = {"speech_ms", "error", "label_error_ms", "tool_call_ms", "tool_result_ms"}
    never |= {"first_answer_ms", "longest_hole_ms", "greeting_ms", "waited_ms", "playout_ms"}
    never |= {"talk_over_ms", "dead_air_ms", "plain_gap_ms", "line_up_ms", "line_down_ms"}
    empty = {c.name for c in COLUMNS if all(row[c.name] is None for row in rows)}
    assert empty == never


def test_csv_holds_the_rows_to_the_last_digit(run: Run, tmp_path: Path) -> None:
    text = run.to_csv(tmp_path / "turns.csv").read_bytes().decode("utf-8")
    assert_same(read_csv(text), run.rows())


def test_parquet_holds_the_rows_to_the_last_digit(run: Run, tmp_path: Path) -> None:
    table = arrow_parquet.read_table(run.to_parquet(tmp_path / "turns.parquet"))
    assert_same(table.to_pylist(), run.rows())
    for column in COLUMNS:
        field = table.schema.field(column.name)
        assert (field.metadata[b"description"].decode(), field.nullable) == (
            column.about,
            column.optional,
        )


def test_json_holds_the_rows_to_the_last_digit(run: Run) -> None:
    document = json.loads(json.dumps(run_json(run)))
    assert_same([row_of_json(document, turn) for turn in document["turns"]], run.rows())


def test_another_reader_of_csv_gets_the_same_table_as_from_parquet(
    run: Run, tmp_path: Path
) -> None:
    schema = arrow_schema(COLUMNS)
    table = arrow_csv.read_csv(
        run.to_csv(tmp_path / "turns.csv"),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=schema, strings_can_be_null=True, null_values=[""]
        ),
    )
    optional = {c.name for c in COLUMNS if c.optional}
    found = [
        {
            name: ("" if value is None and name not in optional else value)
            if not isinstance(value, str)
            else text_of_cell(value)
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]
    assert_same(found, run.rows())


def test_the_rows_of_several_runs_stand_in_one_table(run: Run, tmp_path: Path) -> None:
    text = csv_text(turns_table([run, run]))
    assert_same(read_csv(text), [*run.rows(), *run.rows()])


def test_each_value_has_the_type_of_its_column(run: Run) -> None:
    types = {"text": str, "integer": int, "number": float, "boolean": bool}
    for row in run.rows():
        for column in COLUMNS:
            value = row[column.name]
            assert type(value) is types[column.type] or (column.optional and value is None)


def test_each_column_says_what_it_holds() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert all(column.about.endswith((".", ")")) for column in COLUMNS)
    assert tuple(RUN_COLUMNS) == tuple(COLUMNS[: len(RUN_COLUMNS)])


def test_what_no_file_can_hold_is_the_same_everywhere() -> None:
    row = make_turn(transcript="x \ud800", llm="").row()
    assert (row["transcript"], row["llm"]) == ("x ?", None)
    written = csv_text(Table(TURN_COLUMNS, [row]))
    assert "x ?" in written


# --- spreadsheets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("=1+1", "'=1+1"),
        ("  =cmd|' /C calc'!A0", "'  =cmd|' /C calc'!A0"),
        ("\t@SUM(1)", "'\t'@SUM(1)"),
        ('"=1', "'\"=1"),
        ("-5 degrees", "'-5 degrees"),
        ("+49 30 1234", "'+49 30 1234"),
        ("＝1+1", "'＝1+1"),
        ("yes;=1", "yes;'=1"),
        ("yes\n=1", "yes\n'=1"),
        ("'=1", "''=1"),
        ("'Tis so", "'Tis so"),
        ("twenty-five, = 25", "twenty-five, = 25"),
        ("at 5; then - at 6", "at 5; then - at 6"),
        ("", ""),
    ],
)
def test_no_text_is_a_formula_in_a_spreadsheet(said: str, written: str) -> None:
    assert safe_cell(said) == written
    assert text_of_cell(written) == said


TEXTS = st.text(st.sampled_from("=+-@'\";,\t\r\n ax＝"), max_size=12) | st.text(max_size=12)


@given(TEXTS)
def test_a_safe_cell_gives_back_its_text_and_begins_no_cell_with_a_formula(text: str) -> None:
    cell = safe_cell(text)
    assert text_of_cell(cell) == text
    for part in cell.replace("\t", ";").replace("\r", ";").replace("\n", ";").split(";"):
        assert part.strip().lstrip('"').strip()[:1] not in tuple("=+-@＝＋－＠")


@given(
    st.lists(
        st.tuples(
            TEXTS,
            st.none() | st.floats(allow_nan=False),
            st.none() | st.booleans(),
            st.none() | TEXTS,
        )
    )
)
def test_any_table_can_be_read_back(rows: list[tuple[Any, ...]]) -> None:
    columns: tuple[Column[Any], ...] = (
        Column("a", "text", ".", lambda row: row[0]),
        Column("b", "number", ".", lambda row: row[1], True),
        Column("c", "boolean", ".", lambda row: row[2], True),
        Column("d", "text", ".", lambda row: row[3], True),
    )
    made = [{column.name: column.cell(row) for column in columns} for row in rows]
    _, *lines = csv.reader(io.StringIO(csv_text(Table(columns, made)), newline=""))
    found = [
        {c.name: read_cell(c, cell) for c, cell in zip(columns, line, strict=True)}
        for line in lines
    ]
    assert_same(found, made)
    assert all(row["b"] is None or not math.isnan(row["b"]) for row in found)


def test_negative_numbers_are_numbers(run: Run) -> None:
    (cut_in,) = (row for row in run.rows() if row["outcome"] == "cut_in")
    line = csv_text(Table(COLUMNS, [cut_in])).splitlines()[1]
    assert ",-340.0,-340000000," in line


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*none/x\.parquet: No such file"):
        run.to_parquet(tmp_path / "none" / "x.parquet")
    with pytest.raises(InputError, match="cannot write"):
        run.to_csv("a\0b")
    with pytest.raises(InputError, match="no turn to write"):
        Run(run.record, (), run.path).to_parquet(tmp_path / "x.parquet")


def test_without_pyarrow_it_says_what_brings_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pyarrow") as failed:
        run.to_parquet(tmp_path / "x.parquet")
    assert failed.value.hint == "pip install 'turngap[parquet]'"
    assert not (tmp_path / "x.parquet").exists()


def test_a_turn_of_a_stored_document_makes_the_same_row() -> None:
    turn = ODD[0]
    assert Turn.model_validate(json.loads(turn.model_dump_json())).row() == turn.row()
