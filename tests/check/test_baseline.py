"""Baselines: saved whole, refused plainly, never compared with what they do not describe."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_records import make_record, make_turn

from turngap.check.baseline import load, matched, more_pairs, save, why_not_comparable
from turngap.check.verdict import judge
from turngap.core.errors import InputError
from turngap.core.run_record import METRICS_VERSION
from turngap.core.stored import PacingRecord
from turngap.store.checks import BaselineRecord

RUN = make_record()
TURNS = [make_turn(turn=turn, repeat=repeat) for repeat in (1, 2) for turn in (1, 2, 3)]
HASHES = RUN.scenario_hashes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "base.json"
    save(path, RUN, TURNS)
    return path


def changed(file: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads(file.read_text(encoding="utf-8"))
    change(document)
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as raised:
        load(path)
    assert str(path) in raised.value.message
    return raised.value


def test_what_is_saved_comes_back_and_pairs_with_the_same_turns(file: Path) -> None:
    stored = load(file)
    assert why_not_comparable(stored, RUN.machine, HASHES) == []
    found = matched(stored, TURNS)
    assert [p.key for p in found.pairs] == [("coffee-order", t.turn, 0.0, t.repeat) for t in TURNS]
    assert all(p.reference == p.candidate for p in found.pairs)
    assert (found.unmatched, found.rejudged) == (0, 0)


def test_turns_of_other_rounds_or_phases_have_no_pair_and_are_counted(file: Path) -> None:
    others = [make_turn(repeat=3), make_turn(phase_ms=8.0)]
    found = matched(load(file), others)
    assert (found.pairs, found.unmatched) == ([], 2)
    assert judge(found.pairs).verdict == "undecided"


def test_a_baseline_has_turns_for_so_many_rounds_of_its_phases_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    phases = (0.0, 16.0)
    turns = [
        make_turn(turn=t, repeat=r + 1, phase_ms=phases[r % 2]) for r in range(6) for t in (1, 2)
    ]
    save(path, RUN, turns)
    stored = load(path)

    def left(rounds: int, phase_ms: Callable[[int], float]) -> int:
        return more_pairs(stored, {"coffee-order"}, rounds, phase_ms)

    assert [left(n, lambda r: phases[r % 2]) for n in (0, 4, 6, 9)] == [12, 4, 0, 0]
    assert left(0, lambda _: 0.0) == 6
    assert more_pairs(stored, {"tea-order"}, 0, lambda _: 0.0) == 0


def test_both_sides_are_judged_by_the_candidates_budget(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    save(path, RUN, [make_turn(turn=t) for t in (1, 2)])  # answered after 398 ms of 800
    strict = [make_turn(turn=t, budget_ms=300.0) for t in (1, 2)]
    assert {t.outcome for t in strict} == {"late"}
    found = matched(load(path), strict)
    assert {(p.reference.outcome, p.candidate.outcome) for p in found.pairs} == {("late", "late")}
    assert found.rejudged == 2
    (hit_rate,) = [m for m in judge(found.pairs).metrics if m.name == "hit rate"]
    assert hit_rate.difference == 0
    save(path, RUN, strict)
    found = matched(load(path), [make_turn(turn=t) for t in (1, 2)])
    assert {p.reference.outcome for p in found.pairs} == {"answered"}


def test_a_budget_makes_no_answer_of_a_turn_without_one(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    save(
        path, RUN, [make_turn(marks_ms=None, ended="timeout"), make_turn(turn=2, ended="line_lost")]
    )
    found = matched(load(path), [make_turn(budget_ms=9000.0), make_turn(turn=2, budget_ms=9000.0)])
    assert [p.reference.outcome for p in found.pairs] == ["no_reply", "error"]


def test_what_a_starved_caller_may_have_added_is_saved_with_its_turn(tmp_path: Path) -> None:
    late = PacingRecord(packets=9, late_ms_p50=0.1, late_ms_max=22.0, starved=True)
    path = tmp_path / "base.json"
    save(path, RUN, [make_turn(pacing=late), make_turn(turn=2)])
    found = matched(load(path), [make_turn(), make_turn(turn=2)])
    assert [p.reference.caller_error_ms for p in found.pairs] == [22.0, 0.0]
    assert found.pairs[0].reference.at_best.gap_ms == pytest.approx(398.25 - 22)
    assert judge(found.pairs).starvation.reference == 1


def test_nothing_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs turns"):
        save(tmp_path / "base.json", RUN, [])
    assert not (tmp_path / "base.json").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        save(tmp_path / "none" / "base.json", RUN, TURNS)
    assert raised.value.kind == "baseline.unwritable"


# --- files that are no baseline ---------------------------------------------------------------


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    error = refusal(tmp_path / "none.json")
    assert error.kind == "document.unreadable"
    assert "--save" in error.hint


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.99])
def test_a_file_that_was_cut_short(file: Path, kept: float) -> None:
    raw = file.read_bytes()
    file.write_bytes(raw[: int(kept * len(raw))])
    error = refusal(file)
    assert error.kind == "document.damaged"
    assert "cut short" in error.message


def test_a_file_that_is_not_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    assert refusal(file).kind == "document.damaged"


@pytest.mark.parametrize("version", [2, 99])
def test_another_schema_version_is_refused_and_both_are_named(file: Path, version: int) -> None:
    def newer(document: dict[str, Any]) -> None:
        document.update(schema_version=version, more={})

    error = refusal(changed(file, newer))
    assert error.kind == "document.version"
    assert f"found schema version {version}, this turngap reads 1" in error.message


@pytest.mark.parametrize("version", [0, -1, None, "1", True, 1.5])
def test_a_version_that_never_was(file: Path, version: object) -> None:
    changed(file, lambda d: d.update(schema_version=version))
    error = refusal(file)
    assert error.kind == "document.damaged"
    assert "schema_version" in error.message


@pytest.mark.parametrize("text", ["[]", "{}", '"x"', "3", "null"])
def test_a_document_of_something_else(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    assert refusal(file).kind == "document.damaged"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d.pop("machine"), "machine"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d["turns"][0].update(outcome="fine"), "turns.0.outcome"),
        (lambda d: d["turns"][1].update(gap_ms="fast"), "turns.1.gap_ms"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    file: Path, change: Callable[[dict[str, Any]], object], place: str
) -> None:
    error = refusal(changed(file, change))
    assert error.kind == "document.damaged"
    assert place in error.message


def test_a_number_that_is_none(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace("398.25", "NaN"), encoding="utf-8")
    assert refusal(file).kind == "document.damaged"


# --- baselines of something else --------------------------------------------------------------


def compared(file: Path, **changes: Any) -> list[str]:
    stored = BaselineRecord.model_validate(load(file).model_dump() | changes)
    return why_not_comparable(stored, RUN.machine, HASHES)


def test_another_machine(file: Path) -> None:
    other = RUN.machine.model_copy(update={"fingerprint": "f00", "cpu": "Another CPU", "cores": 64})
    (reason,) = compared(file, machine=other.model_dump())
    assert "another machine (Another CPU, 64 cores; here A CPU at 2 GHz, 2 cores)" in reason


def test_another_python_or_kernel_is_the_same_machine(file: Path) -> None:
    other = RUN.machine.model_copy(update={"python": "3.13.1", "system": "Linux 7"})
    assert compared(file, machine=other.model_dump()) == []


@pytest.mark.parametrize("version", [METRICS_VERSION - 1, METRICS_VERSION + 1])
def test_other_metrics(file: Path, version: int) -> None:
    (reason,) = compared(file, metrics_version=version)
    assert f"metrics version {version}, these of {METRICS_VERSION}" in reason


def test_a_changed_recording(file: Path) -> None:
    (reason,) = compared(file, scenario_hashes={"coffee-order": "other"})
    assert reason == "scenario coffee-order or one of its recordings has changed since"


def test_a_missing_scenario(file: Path) -> None:
    (reason,) = compared(file, scenario_hashes={"tea-order": "ab12"})
    assert reason == "it has no scenario coffee-order"


def test_a_caller_that_might_be_later_than_this_one(file: Path) -> None:
    (reason,) = compared(file, starved_ms=200.0)
    assert reason == "its caller might be 200 ms late, this one 10: give both the same starved-ms"


def test_an_empty_baseline(file: Path) -> None:
    assert compared(file, turns=()) == ["it holds no turns"]
