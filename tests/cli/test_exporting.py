"""`turngap report --csv`, `--parquet` and `--junit`, for each kind of folder."""

import csv
import sys
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet
import pytest
from commandline import Finished, turngap_here
from every_document import every_document
from made_records import every_outcome, make_record

from turngap.store.runs import Run
from turngap.store.writer import RunWriter

Capsys = pytest.CaptureFixture[str]


def store(out: Path, name: str, **changes: str) -> Path:
    record = make_record(name=name, **changes)
    with RunWriter.create(out, name, record) as writer:
        for turn in every_outcome():
            writer.append_turn(turn)
        writer.finish(record)
    return writer.path


def report(capsys: Capsys, *arguments: str | Path) -> Finished:
    return turngap_here(capsys, "report", *arguments)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_a_run_is_written_in_every_form_at_once(capsys: Capsys, tmp_path: Path) -> None:
    run = store(tmp_path, "replay")
    files = [tmp_path / f"x.{end}" for end in ("csv", "parquet", "xml")]
    flags = ("--csv", "--parquet", "--junit")
    wanted = [each for pair in zip(flags, files, strict=True) for each in pair]
    done = report(capsys, run, *wanted, "--json")
    assert done.code == 0
    assert done.document()["run"] == str(run)  # stdout has the one document still
    for file in files:
        assert f"written: {file}" in done.err
    assert len(rows_of(files[0])) == 7
    assert pyarrow.parquet.read_table(files[1]).to_pylist() == Run.load(run).rows()
    assert len(list(ElementTree.parse(files[2]).iter("testcase"))) == 7


def test_where_one_form_cannot_be_made_none_is_written(capsys: Capsys, tmp_path: Path) -> None:
    runs = [store(tmp_path, name) for name in ("one", "two")]
    table, single = tmp_path / "x.csv", tmp_path / "x.xml"
    done = report(capsys, *runs, "--csv", table, "--junit", single)
    assert done.code == 2
    assert not table.exists()
    assert not single.exists()
    files = [tmp_path / f"y.{end}" for end in ("xml", "parquet")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "pyarrow", None)
        done = report(capsys, runs[0], "--junit", files[0], "--parquet", files[1])
    assert done.code == 2
    assert not any(file.exists() for file in files)


def test_several_runs_stand_in_one_table(capsys: Capsys, tmp_path: Path) -> None:
    runs = [store(tmp_path, name) for name in ("one", "two")]
    assert report(capsys, *runs, "--csv", tmp_path / "x.csv").code == 0
    assert [row["run"] for row in rows_of(tmp_path / "x.csv")] == [
        r.name for r in runs for _ in range(7)
    ]


def test_an_export_says_what_was_written_and_shows_nothing(capsys: Capsys, tmp_path: Path) -> None:
    done = report(capsys, store(tmp_path, "replay"), "--csv", tmp_path / "x.csv")
    assert (done.code, done.out) == (0, "")
    assert done.err.strip() == f"written: {tmp_path / 'x.csv'}"


def test_a_label_of_several_runs_names_them_all_for_a_table_alone(
    capsys: Capsys, tmp_path: Path
) -> None:
    runs = [store(tmp_path / "runs", f"n{n}", label="nightly") for n in range(3)]
    store(tmp_path / "runs", "other")
    asked = ("nightly", "--runs", tmp_path / "runs")
    assert report(capsys, *asked, "--csv", tmp_path / "x.csv").code == 0
    assert {row["run"] for row in rows_of(tmp_path / "x.csv")} == {run.name for run in runs}
    for refused in ([], ["--csv", tmp_path / "y.csv", "--junit", tmp_path / "y.xml"], ["--json"]):
        done = report(capsys, *asked, *refused)
        assert (done.code, "3 runs in" in done.err) == (2, True)
    assert not (tmp_path / "y.csv").exists()


def test_what_is_of_one_run_is_refused_for_two(capsys: Capsys, tmp_path: Path) -> None:
    runs = [store(tmp_path, name) for name in ("one", "two")]
    done = report(capsys, *runs, "--junit", tmp_path / "x")
    assert done.code == 2
    assert "--junit writes a run" in done.err
    assert "2 are given" in done.err
    assert not (tmp_path / "x").exists()


def test_a_file_that_cannot_be_written_is_bad_input(capsys: Capsys, tmp_path: Path) -> None:
    run = store(tmp_path, "replay")
    for flag in ("--csv", "--parquet", "--junit"):
        done = report(capsys, run, flag, tmp_path / "none" / "x")
        assert (done.code, done.out) == (2, "")
        assert f"cannot write {tmp_path / 'none' / 'x'}: No such file or directory" in done.err


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = every_document(tmp_path_factory.mktemp("all"))
    store(found["compare"], "backend").rename(found["compare"] / "r")  # the run that it names
    return found


@pytest.mark.parametrize("kind", ["run", "check", "compare", "turns", "load"])
def test_turns_are_written_of_whatever_holds_some(
    kind: str, stored: dict[str, Path], capsys: Capsys, tmp_path: Path
) -> None:
    done = report(
        capsys, stored[kind], "--csv", tmp_path / "x.csv", "--parquet", tmp_path / "x.parquet"
    )
    assert done.code == 0, done.err
    rows, table = rows_of(tmp_path / "x.csv"), pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert list(rows[0]) == table.column_names
    assert len(rows) == table.num_rows > 0


def test_a_checks_junit_is_the_one_in_its_folder(
    stored: dict[str, Path], capsys: Capsys, tmp_path: Path
) -> None:
    assert report(capsys, stored["check"], "--html", "--junit", tmp_path / "x.xml").code == 0
    written = (tmp_path / "x.xml").read_bytes()
    assert written == (stored["check"] / "junit.xml").read_bytes()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("simulate", "--csv writes turns, and a simulation stores none"),
        ("load", "--junit writes a run or a check, but this is neither"),
    ],
)
def test_what_there_is_not_of_a_kind_is_refused(
    kind: str, words: str, stored: dict[str, Path], capsys: Capsys, tmp_path: Path
) -> None:
    done = report(capsys, stored[kind], words.split(maxsplit=1)[0], tmp_path / "x")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert not (tmp_path / "x").exists()


def test_a_table_has_the_same_columns_throughout(
    stored: dict[str, Path], capsys: Capsys, tmp_path: Path
) -> None:
    done = report(capsys, stored["run"], stored["load"], "--csv", tmp_path / "x")
    assert done.code == 2
    assert "give load tests by themselves" in done.err
