"""Recorded calls become a run, which everything takes that takes runs."""

import asyncio
import csv
import json
import shutil
from pathlib import Path

import pytest
import soundfile
from commandline import turngap_here
from otlp_collector import collector
from recorded_calls import RATE, make_call, silence

import turngap
from turngap.check import baseline
from turngap.check.stored import OTHER_CALLS, compare_stored
from turngap.core.errors import InputError
from turngap.history.kinds import read_entry
from turngap.play.options import checked
from turngap.pytest_plugin.fixture import Turngap
from turngap.pytest_plugin.options import Options
from turngap.report.calls import listed, unlisted_words
from turngap.report.ci import run_junit
from turngap.report.run import render
from turngap.score.play import ScorePlan, names_of, score
from turngap.store.folders import INTERRUPTED
from turngap.store.runs import Run, read_run

VAPI = {
    "id": "call-7",
    "assistantId": "desk",
    "type": "inboundPhoneCall",
    "startedAt": "2026-11-20T10:00:00.000Z",
    "endedAt": "2026-11-20T10:00:20.000Z",
    "artifact": {
        "recording": {"stereoUrl": "https://example.org/one.wav"},
        "performanceMetrics": {"turnLatencies": [{"turnLatency": 420}]},
    },
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two calls of one name in two folders, one with its platform's JSON; one mono file."""
    folder = tmp_path_factory.mktemp("recorded") / "calls"
    made = make_call(folder / "one.wav", [500.0, 1200.0])
    (folder / "late").mkdir()
    shutil.copy(made, folder / "late/one.wav")
    made.with_suffix(".json").write_text(json.dumps(VAPI), encoding="utf-8")
    soundfile.write(folder / "mono.wav", silence(2000), RATE)
    return folder


@pytest.fixture(scope="module")
def run(calls: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs")
    return turngap.score(calls, out=out, workers=1, label="october", progress=False)


def test_calls_become_a_run(run: Run, calls: Path) -> None:
    assert [(t.scenario, t.turn, t.outcome) for t in run.turns] == [
        ("late-one", 1, "answered"),
        ("late-one", 2, "late"),
        ("calls-one", 1, "answered"),
        ("calls-one", 2, "late"),
    ]
    first, second = (turn.gap_ms for turn in run.turns[:2])
    assert first is not None and second is not None
    assert second - first == pytest.approx(700, abs=20)
    assert run.valid and run.complete and read_run(run.path).turns == run.turns
    scored = run.record.scored
    assert scored is not None
    assert [call.side for call in scored.calls] == ["left", "left"]
    assert [(Path(each.file).name, each.kind) for each in scored.unscored] == [
        ("mono.wav", "call.not_stereo")
    ]
    for turn in run.turns:
        assert turn.audio is not None
        assert soundfile.info(run.path / turn.audio.file).channels == 2
        assert turn.stage_ms.keys() <= {"unattributed", "agent_onset"}


def test_a_report_shows_both_errors_and_the_claim(run: Run) -> None:
    page = render(run)
    assert "the person&#39;s end ±" in page or "the person's end ±" in page
    assert "first word ±" in page
    assert "by Vapi, median of 1 call; heard in the same" in page
    assert "1 of 3 calls could not be scored" in page
    assert "a recording does not hold them" in page
    assert "MarksObserver" not in page


def test_a_scored_run_is_a_run_like_any_other(run: Run, tmp_path: Path) -> None:
    assert read_entry(run.path, "replay").kind == "score"
    text = run.to_csv(tmp_path / "turns.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["scenario"] for row in rows] == [turn.scenario for turn in run.turns]
    assert all(row["label_error_ms"] and row["onset_spread_ms"] for row in rows)
    assert run_junit(run).count(b"<failure") == 2
    same = compare_stored(run, run)
    assert same.verdict in ("pass", "undecided")


def test_runs_of_other_calls_are_not_compared(run: Run) -> None:
    others = [t.model_copy(update={"scenario": f"new-{t.scenario}"}) for t in run.turns]
    hashes = {f"new-{name}": digest for name, digest in run.record.scenario_hashes.items()}
    record = run.record.model_copy(update={"scenario_hashes": hashes})
    check = compare_stored(run, Run(record, tuple(others), run.path))
    assert (check.verdict, check.why) == ("cannot_compare", (OTHER_CALLS,))
    played = Run(run.record.model_copy(update={"scored": None}), run.turns, run.path)
    assert "were played" in compare_stored(played, run).why[0]


def test_what_takes_no_scored_run_says_what_to_do(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="is a folder"):
        baseline.load(run.path)
    judged = turngap_here(capsys, "judge", run.path, "--transcribe", "pocketsphinx")
    assert judged.code == 2 and "turngap score CALLS --transcribe" in judged.err
    shown = turngap_here(capsys, "history", "diff", run.path, run.path).out
    assert "MarksObserver" not in shown and "caller on time" not in shown


def test_the_command_gates_and_prints_what_replay_prints(
    calls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["score", calls, "--out", tmp_path, "--no-audio", "--workers", "1"]
    done = turngap_here(capsys, *asked, "--json", "--min-hit-rate", "0.9")
    document = done.document()
    assert done.code == 1
    assert {"run", "valid", "summary", "turns", "scored"} <= document.keys()
    assert document["summary"]["hit_rate"] == 0.5
    assert [turn["audio"]["file"] for turn in document["turns"]] == [""] * 4
    assert "1 of 3 calls could not be scored" in done.err
    shown = turngap_here(capsys, "report", document["run"], "--html")
    assert shown.code == 0
    assert "could not be scored" in shown.out


def test_a_folder_of_mono_files_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", silence(1000), RATE)
    done = turngap_here(capsys, "score", tmp_path, "--out", tmp_path / "runs", "--quiet")
    assert done.code == 2
    assert "none of the 4 calls could be scored" in done.err
    assert done.err.count(".wav") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"person": "middle"}, "argument.person"),
        ({"audio": False, "transcribe": "pocketsphinx"}, "score.no_audio"),
        ({"budget_ms": 9000.0}, "argument.budget"),
    ],
)
def test_an_argument_that_cannot_be_used(given: dict[str, object], kind: str, calls: Path) -> None:
    with pytest.raises(InputError) as refused:
        turngap.score(calls, progress=False, **given)  # type: ignore[arg-type]
    assert refused.value.kind == kind


def test_what_was_scored_before_an_interruption_is_kept(calls: Path, tmp_path: Path) -> None:
    asked = checked("score", {"calls": [calls], "workers": 1, "out": tmp_path})

    def stop() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(score(ScorePlan.asked(asked), on_call=stop))
    (kept,) = tmp_path.iterdir()
    run = read_run(kept)
    assert run.record.failure == INTERRUPTED and not run.valid
    assert {turn.scenario for turn in run.turns} == {"late-one"}


def test_calls_are_traced_when_they_took_place(calls: Path, tmp_path: Path) -> None:
    with collector() as received:
        turngap.score(calls / "one.wav", out=tmp_path, otlp=received.url, progress=False)
    names = [span.name for span in received.spans]
    assert names.count("turngap.turn") == 2
    (root,) = [span for span in received.spans if span.name.startswith("invoke_agent")]
    assert root.ms == pytest.approx(1000 * soundfile.info(calls / "one.wav").duration, abs=1)


def test_a_test_scores_calls_by_the_fixture(calls: Path, tmp_path: Path) -> None:
    fixture = Turngap(
        "test",
        Options(*[None] * 8, skip_inconclusive=False),
        marker=None,
        folder=lambda: tmp_path,
    )
    run = fixture.score(calls / "one.wav")
    run.assert_cut_ins(at_most=0.0)
    assert fixture.runs == [run]
    assert fixture.rows("passed", None)[0]["verdict"] == "passed"


def test_each_call_has_a_name_of_its_own() -> None:
    files = ["a/call.wav", "b/call.wav", "b/call.flac", "c/monday.wav"]
    assert names_of([Path(file) for file in files]) == ["a-call", "b-call", "b-call-2", "monday"]


def test_the_page_of_a_large_set_lists_the_first_and_the_longest_waits(run: Run) -> None:
    late, silent = run.turns[1], run.turns[0].model_copy(update={"gap_ms": None, "gap_ns": None})
    many = Run(run.record, (*[run.turns[0]] * 1500, late, silent), run.path)
    found = listed(many)
    assert len(found) == 1000
    assert {1, 200, 1501, 1502} <= set(found) and 1400 not in found
    assert "of 1502" in unlisted_words(many)
    assert (len(listed(run)), unlisted_words(run)) == (4, "")


def test_a_folder_that_cannot_be_made_is_named(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InputError, match="cannot write"):
        turngap.score(calls / "one.wav", out=tmp_path / "file", workers=1, progress=False)
