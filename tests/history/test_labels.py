"""`--label`: stored with whatever is measured, and shown in the history."""

from pathlib import Path

import pytest
from commandline import SCENARIOS, turngap_here
from fake_agents import NEW, OLD
from history_runs import stored

import turngap
from turngap.core.errors import InputError
from turngap.core.run_record import PlanRecord
from turngap.core.untrusted import MOST_LABEL, checked_label
from turngap.history.listing import entries
from turngap.play.resume import next_piece
from turngap.store.folders import read_record
from turngap.store.runs import Run

PLAYED = (SCENARIOS / "quick-questions.yaml", "--calibration", "0", "--out", "runs")


def labels() -> list[tuple[str, str]]:
    return [(entry.kind, entry.label) for entry in entries()]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("agents")
def test_a_replay_and_a_check_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    turngap_here(capsys, "replay", *PLAYED, "--agent", OLD, "--label", " before ")
    turngap_here(capsys, "check", *PLAYED, "--agent", NEW, "--against", OLD, "--label", "after")
    assert labels() == [("replay", "before"), ("check", "after")]
    listed = turngap_here(capsys, "history", "--last", "1")
    assert "after" in listed.out
    assert "before" not in listed.out


@pytest.mark.usefixtures("agents")
def test_python_gives_it_too() -> None:
    played = {"scenarios": "quick-questions", "library": SCENARIOS, "calibration": 0}
    assert turngap.replay(OLD, label="nightly", **played).record.label == "nightly"
    with pytest.raises(turngap.InputError, match="the label"):
        turngap.replay(OLD, label="a\nb", **played)


def test_a_run_that_is_continued_keeps_it() -> None:
    plan = PlanRecord(agent="embedded", library="scenarios", files=(), rounds=1)
    path = stored(Path("runs"), [], label="nightly", plan=plan, failure="no answer")
    record = read_record(path)
    opening = record.model_copy(update={"label": ""})
    assert next_piece(Run(record, (), path), opening).label == "nightly"


@pytest.mark.parametrize("label", ["x" * (MOST_LABEL + 1), "a\nb", "\x1b[31m", "\u202e", "\ud800"])
def test_what_does_not_fit_into_a_list_is_refused(
    label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="the label"):
        checked_label(label)
    done = turngap_here(capsys, "replay", *PLAYED, "--label", label)
    assert (done.code, "one line of at most" in done.err) == (2, True)
    assert not Path("runs").exists()


def test_a_secret_in_it_is_not_stored() -> None:
    path = stored(Path("runs"), label="with --api-key sk-abcdefgh12345678")
    assert b"sk-abc" not in (path / "run.json").read_bytes()
