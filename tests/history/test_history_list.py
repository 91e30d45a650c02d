"""`turngap history`: what it prints, filters and writes."""

import csv
import re
from datetime import UTC, datetime

import pytest
from commandline import turngap_here
from every_document import every_document
from history_runs import stored
from made_records import make_turn

from turngap.core.errors import InputError
from turngap.history.kinds import Entry
from turngap.history.listing import COLUMNS, chosen, entries, entries_table, list_block, list_json
from turngap.store.runs import csv_text

KEYS = {"path", "kind", "label", "agent", "commit", "n", "gap_ms", "hit_rate", "valid"}


def entry(path="runs/x", **changes) -> Entry:
    values = {"kind": "replay", "status": "finished", "valid": True, "n": 8, "hits": 6}
    gap_ms = {"p50": 400.0, "p95": None}
    return Entry(path=path, **(values | {"gap_ms": gap_ms, "cut_ins": 1} | changes))


def test_json_has_the_keys_that_scripts_rely_on(tmp_path, capsys):
    every_document(tmp_path)
    done = turngap_here(capsys, "history", "--runs", tmp_path, "--json")
    runs = done.document()["runs"]
    assert (done.code, len(runs)) == (0, 5)
    assert all(run.keys() >= KEYS for run in runs)
    (run,) = [run for run in runs if run["kind"] == "replay"]
    assert (run["n"], run["hit_rate"], run["gap_ms"]["p95"]) == (6, 1.0, None)


def test_the_list_names_every_folder_and_why_one_cannot_be_used(tmp_path, capsys):
    folders = every_document(tmp_path)
    stored(tmp_path, finished_utc=None)
    done = turngap_here(capsys, "history", "--runs", tmp_path)
    for kind in ("run", "check", "compare", "turns", "load"):
        assert folders[kind].name in done.out
    assert "? unfinished" in done.out


def test_csv_has_a_row_for_each_entry(tmp_path, capsys):
    file = tmp_path / "history.csv"
    stored(tmp_path / "runs", label='=a, "b"\nc')
    done = turngap_here(capsys, "history", "--runs", tmp_path / "runs", "--csv", file)
    with file.open(newline="") as written:
        (row,) = csv.DictReader(written)
    assert list(row) == [column.name for column in COLUMNS]
    assert (row["label"], row["n"], row["gap_p95_ms"]) == ('\'=a, "b" c', "7", "")
    assert "written" in done.err
    done = turngap_here(capsys, "history", "--runs", tmp_path / "runs", "--csv", tmp_path)
    assert (done.code, "cannot write" in done.err) == (2, True)


def test_nothing_stored_is_no_error_and_a_folder_that_is_not_there_is(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = turngap_here(capsys, "history")
    assert (done.code, done.out) == (0, "")
    assert turngap_here(capsys, "history", "--json").document() == {"runs": []}
    done = turngap_here(capsys, "history", "--runs", "gone")
    assert (done.code, "cannot list gone" in done.err) == (2, True)
    (tmp_path / "file").write_text("")
    assert turngap_here(capsys, "history", "--runs", "file").code == 2


def test_since_last_and_valid():
    rows = [entry(str(day), started_utc=f"2026-11-{day}T12:00:00+00:00") for day in range(10, 20)]
    rows[3] = entry("13", started_utc="2026-11-13T12:00:00+00:00", valid=False)

    def kept(**asked):
        now = datetime(2026, 11, 20, tzinfo=UTC)
        return [row.path for row in chosen(rows, now=now, **asked)]

    assert kept(since="2026-11-18") == ["18", "19"]
    assert kept(since="2026-11-18T12:00:01") == ["19"]
    assert kept(since="35h") == ["19"]
    assert kept(since="1w", valid=True, last=7) == ["14", "15", "16", "17", "18", "19"]
    assert kept(last=2) == ["18", "19"]


@pytest.mark.parametrize("bad", ["yesterday", "7y", "=x", "\x1b[31m"])
def test_what_is_no_instant_is_refused_with_what_there_is(bad):
    with pytest.raises(InputError, match="--since") as e:
        chosen([], since=bad)
    assert e.value.hint


def test_texts_of_others_cannot_command_a_terminal(tmp_path):
    stored(tmp_path, label="\x1b[31mred\u202e", agent={"url": "ws://x/\x07\x1b]0;t\x07"})
    bad = tmp_path / "\x1b[2Jrun\n"
    bad.mkdir()
    (bad / "run.json").write_text("{")
    (tmp_path / "\udcff").mkdir()
    (tmp_path / "\udcff" / "run.json").write_text("{")
    found = entries([tmp_path])
    assert len(found) == 3
    for width in (40, 80, 200):
        plain = list_block(found, width).plain
        assert all(line.isprintable() for line in plain.split("\n"))
    csv_text(entries_table(found)).encode()
    str(list_json(found)).encode()


def test_cut_ins_and_the_hit_rate_stand_side_by_side(tmp_path):
    stored(tmp_path, [make_turn(), make_turn(turn=2, marks_ms={"agent_onset": -90.0})])
    (found,) = entries([tmp_path])
    assert (found.hit_rate, found.cut_ins) == (0.5, 1)


def test_the_page_links_each_row_to_its_own_page(tmp_path, capsys):
    folder = stored(tmp_path / "runs").rename(tmp_path / "runs" / "a b:c")
    (folder / "report.html").write_text("x")
    stored(tmp_path / "runs")
    page = tmp_path / "pages" / "history.html"
    page.parent.mkdir()
    done = turngap_here(capsys, "history", "--runs", tmp_path / "runs", "--html", page)
    assert done.code == 0
    assert re.findall(r'<a href="([^"]*)"', page.read_text()) == ["../runs/a%20b%3Ac/report.html"]
