"""`entries` reads each kind of stored folder, whatever state it is in."""

import os

import pytest
from every_document import every_document
from history_runs import stored
from made_checks import make_turns, store
from made_records import every_outcome

from turngap.core.run_record import RunRecord
from turngap.history.kinds import Entry
from turngap.history.listing import entries
from turngap.store.folders import INTERRUPTED
from turngap.store.runs import read_run


def only(root) -> Entry:
    (entry,) = entries([root])
    return entry


def test_every_kind_is_listed_in_the_order_in_which_it_began(tmp_path):
    every_document(tmp_path)
    found = entries([tmp_path, tmp_path / "simulate"])
    assert [entry.kind for entry in found] == [
        *("compare", "turns", "replay", "load", "check", "simulate")
    ]
    assert all(entry.status == "finished" and entry.valid for entry in found)
    by_kind = {entry.kind: entry for entry in found}
    assert by_kind["check"].verdict == "pass"
    assert by_kind["load"].verdict == "8 sessions"
    assert (by_kind["load"].n, by_kind["load"].hits) == (180, 178)
    assert by_kind["compare"].verdict == "2 backends"
    assert by_kind["compare"].gap_ms == {"p50": None, "p95": None}
    assert by_kind["turns"].verdict == "2 values"


@pytest.mark.parametrize("turns", [every_outcome(), make_turns(43)], ids=["each outcome", "many"])
def test_the_figures_are_those_of_the_run(tmp_path, turns):
    run = read_run(stored(tmp_path, [*turns, turns[0].model_copy(update={"left_out": "late"})]))
    entry, summary = only(tmp_path), run.summary
    assert entry.n == summary.hit_rate.n == len(turns)
    assert entry.hits == summary.hit_rate.hits
    assert entry.cut_ins == summary.cut_ins.hits
    assert entry.gap_ms == {name: summary.gap_ms[name].value for name in ("p50", "p95")}
    assert entry.agent == "embedded"
    assert entry.machine == run.record.machine.fingerprint


@pytest.mark.parametrize(
    ("changes", "status", "why"),
    [
        ({}, "finished", ()),
        ({"failure": "no answer", "valid": False, "why_invalid": ("ended early",)}, "failed", None),
        ({"failure": INTERRUPTED, "valid": False, "planned_turns": 9}, "unfinished", None),
        ({"finished_utc": None}, "unfinished", None),
        ({"planned_turns": 9, "valid": False}, "unfinished", None),
        ({"valid": False, "why_invalid": ("starved",)}, "finished", ("starved",)),
    ],
)
def test_a_run_says_how_it_ended(tmp_path, changes, status, why):
    stored(tmp_path, **changes)
    entry = only(tmp_path)
    assert entry.status == status
    assert entry.valid is (changes == {})
    if why is None:
        assert entry.why
        assert entry.n == 7
    else:
        assert entry.why == why


def test_a_check_that_was_killed_is_unfinished(tmp_path):
    folder = tmp_path / "20261120T152803Z-check"
    store(folder, "candidate", make_turns(6))
    entry = only(tmp_path)
    assert (entry.kind, entry.status, entry.valid, entry.n) == ("check", "unfinished", False, 0)
    assert entry.started_utc == "2026-11-20T15:28:03+00:00"


def test_what_cannot_be_read_is_listed_with_its_reason(tmp_path):
    path = stored(tmp_path)
    (path / "run.json").write_bytes(b'{"schema_version": 1, "name"')
    entry = only(tmp_path)
    assert (entry.status, entry.n, entry.valid) == ("unreadable", 0, False)
    assert "run.json" in entry.why[0]
    stored(tmp_path, turns=make_turns(3))
    assert [entry.status for entry in entries([tmp_path])] == ["unreadable", "finished"]


@pytest.mark.parametrize("size", [2**25 + 2, 5 * 2**30], ids=["one line", "all of it"])
def test_what_is_too_large_is_not_read_to_its_end(tmp_path, size):
    turns = stored(tmp_path) / "turns.jsonl"
    turns.write_bytes(b"")
    os.truncate(turns, size)
    entry = only(tmp_path)
    assert entry.status == "unreadable"
    assert "larger than" in entry.why[0]


@pytest.mark.parametrize("cut", [1, 40, 900])
def test_a_last_turn_that_was_cut_off_is_left_out(tmp_path, cut):
    path = stored(tmp_path, finished_utc=None)
    turns = path / "turns.jsonl"
    lines = turns.read_bytes().splitlines(keepends=True)
    turns.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
    assert (only(tmp_path).n, only(tmp_path).status) == (6, "unfinished")
    turns.write_bytes(b"".join([lines[0], lines[1][:cut] + b"\n", *lines[2:]]))
    assert only(tmp_path).status == "unreadable"
    assert "turns.jsonl:2" in only(tmp_path).why[0]


def test_what_is_not_turngaps_is_left_out(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    (tmp_path / "file.json").write_text("{}")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    assert entries([tmp_path]) == []


def test_a_link_to_a_run_does_not_count_it_twice(tmp_path):
    path = stored(tmp_path / "a")
    (tmp_path / "a" / "again").symlink_to(path)
    assert len(entries([tmp_path / "a", tmp_path / "a", path])) == 1


def test_a_record_has_the_label(tmp_path):
    stored(tmp_path, label="before the change")
    assert only(tmp_path).label == "before the change"
    assert "label" in RunRecord.model_fields
