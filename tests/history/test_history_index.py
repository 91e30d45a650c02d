"""The index: it spares reading, and is never believed over the folders."""

import os
import sqlite3
import threading
from pathlib import Path

import pytest
from every_document import every_document
from history_runs import stored
from made_checks import make_turns

from turngap.history import index as indexing
from turngap.history.index import Index, index_file
from turngap.history.kinds import read_entry
from turngap.history.reading import entries


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    every_document(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "cache" / "history.sqlite")


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """The names of the folders that were read."""
    names: list[str] = []

    def watched(folder, kind):
        names.append(folder.name)
        return read_entry(folder, kind)

    monkeypatch.setattr("turngap.history.reading.read_entry", watched)
    return names


def test_what_has_not_changed_is_not_read_again(runs, index, read):
    first = entries([runs], index=index)
    assert len(read) == 5
    read.clear()
    assert entries([runs], index=index) == first == entries([runs], index=Index(index.file))
    assert read == []


@pytest.mark.parametrize("changed", ["run", "check", "turns"])
def test_what_has_changed_is_read_again(runs, index, read, changed):
    folders = {path.name: path for path in runs.iterdir()}
    folders["run"] = next(path for name, path in folders.items() if name.endswith("-run"))
    entries([runs], index=index)
    read.clear()
    turns = next(folders[changed].rglob("turns.jsonl"))
    lines = turns.read_bytes().splitlines(keepends=True)
    turns.write_bytes(b"".join(lines[:-1]))
    after = entries([runs], index=index)
    assert read == [folders[changed].name]
    assert after == entries([runs])


def test_a_folder_that_is_gone_is_forgotten_and_a_new_one_is_found(runs, index):
    path = stored(runs, started_utc="2026-11-21T00:00:00+00:00")
    assert len(entries([runs], index=index)) == 6
    path.rename(path.with_name("renamed"))
    assert entries([runs], index=index) == entries([runs])
    assert len(index.known(os.path.realpath(runs))) == 6
    assert "renamed" in index.known(os.path.realpath(runs))


def test_a_run_that_goes_on_is_read_again(tmp_path, index):
    path = stored(tmp_path / "runs", make_turns(3), finished_utc=None)
    (before,) = entries([tmp_path / "runs"], index=index)
    with (path / "turns.jsonl").open("ab") as turns:
        turns.write((path / "turns.jsonl").read_bytes())
    (after,) = entries([tmp_path / "runs"], index=index)
    assert (before.n, after.n) == (3, 6)


def test_entries_are_named_as_their_folder_is_now(runs, index, monkeypatch):
    entries([runs], index=index)
    monkeypatch.chdir(runs.parent)
    assert {Path(e.path).parent for e in entries([Path("runs")], index=index)} == {Path("runs")}
    monkeypatch.chdir(runs / "check")
    (here,) = entries([Path()], index=index)
    assert (here.kind, here.path) == ("check", ".")


SPOILED = {
    "no database": lambda file: file.write_bytes(b"x" * 5000),
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:5000]),
    "empty": lambda file: file.write_bytes(b""),
    "another version": lambda file: _execute(file, "PRAGMA user_version = 7"),
    "another table": lambda file: _execute(
        file, "DROP TABLE entry", "CREATE TABLE entry (parent TEXT)"
    ),
    "a row of nonsense": lambda file: _execute(file, "UPDATE entry SET entry = '{}'"),
    "a row of bytes": lambda file: _execute(file, "UPDATE entry SET entry = x'ff00', stamp = 1"),
}


def _execute(file: Path, *statements: str) -> None:
    database = sqlite3.connect(file)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_spoiled_index_is_made_again(runs, index, read, spoil):
    first = entries([runs], index=index)
    spoil(index.file)
    assert entries([runs], index=index) == first
    entries([runs], index=index)
    read.clear()
    assert entries([runs], index=index) == first
    assert read == []


@pytest.mark.parametrize("where", ["a folder", "a file above it", "a pipe"])
def test_where_no_index_can_be_nothing_fails(runs, tmp_path, where):
    file = tmp_path / "cache" / "history.sqlite"
    if where == "a folder":
        file.mkdir(parents=True)
    elif where == "a pipe":
        file.parent.mkdir()
        os.mkfifo(file)
    else:
        file.parent.write_text("")
    assert entries([runs], index=Index(file)) == entries([runs])


def test_a_disk_that_refuses_it_fails_nothing(runs, index, read, monkeypatch):
    first = entries([runs], index=index)
    monkeypatch.setattr(sqlite3, "connect", _refused)
    assert entries([runs], index=index) == first
    assert index.file.exists()
    assert len(read) == 10


def _refused(*args, **kwargs):
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY
    raise error


def test_another_process_that_writes_is_not_waited_for_long(runs, index, monkeypatch):
    monkeypatch.setattr(indexing, "BUSY_S", 0.0)
    first = entries([runs], index=index)
    other = sqlite3.connect(index.file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    stored(runs, started_utc="2026-11-21T00:00:00+00:00")
    assert len(entries([runs], index=index)) == len(first) + 1
    other.execute("ROLLBACK")
    other.close()
    assert len(index.known(os.path.realpath(runs))) == 5
    entries([runs], index=index)
    assert len(index.known(os.path.realpath(runs))) == 6


def test_two_at_once_find_the_same(runs, index):
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(entries([runs], index=Index(index.file))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [entries([runs])] * 4


def test_what_cannot_be_read_now_is_tried_again(tmp_path, index, read):
    path = stored(tmp_path / "runs")
    (path / "turns.jsonl").unlink()
    (path / "turns.jsonl").mkdir()
    for _ in range(2):
        (entry,) = entries([tmp_path / "runs"], index=index)
        assert entry.status == "unreadable"
    assert len(read) == 2


def test_rows_of_other_folders_go_before_there_are_too_many(runs, index, tmp_path, monkeypatch):
    stored(tmp_path / "other")
    entries([tmp_path / "other"], index=index)
    monkeypatch.setattr(indexing, "MOST_ROWS", 5)
    entries([runs], index=index)
    assert index.known(os.path.realpath(tmp_path / "other")) == {}
    assert len(index.known(os.path.realpath(runs))) == 5


def test_the_index_lies_in_the_cache_and_not_with_the_runs(runs, monkeypatch, tmp_path):
    before = sorted(runs.rglob("*"))
    entries([runs], index=Index())
    assert sorted(runs.rglob("*")) == before
    monkeypatch.delenv("TURNGAP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert index_file() == tmp_path / "turngap" / "history.sqlite"
