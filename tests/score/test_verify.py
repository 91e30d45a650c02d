"""A stored run is verified by its audio, digests and arithmetic: a fault is one difference."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from made_records import make_record, make_turn
from made_speech import RATE, louder, room, spoken
from recorded_calls import make_call
from typer.testing import CliRunner

import turngap
from turngap.cli import app
from turngap.core.clock import ms_to_ns
from turngap.core.errors import InputError
from turngap.report.publish import publish
from turngap.score.recording import find_recordings
from turngap.score.verify import Difference, verify
from turngap.store.runs import read_run
from turngap.store.writer import RunWriter

GAPS_MS = (420.0, 910.0, None, -500.0)
NAME = "coffee-order turn {} round 1"


def _turn(writer: RunWriter, number: int, gap_ms: float | None) -> None:
    said = spoken(before_ms=400, after_ms=3000)
    heard = np.zeros_like(said.pcm)
    if gap_ms is not None:
        reply = spoken(before_ms=20, after_ms=20)
        at = round((said.end_ms + gap_ms - reply.start_ms) * RATE / 1000)
        heard[at : at + len(reply.pcm)] = reply.pcm[: len(heard) - at]
    file = writer.write_audio(f"{number:03d}", said.pcm, heard, RATE)
    marks = None if gap_ms is None else {"received": gap_ms - 10, "agent_onset": gap_ms}
    turn = make_turn(turn=number, marks_ms=marks, ended="reply_done" if marks else "timeout")
    audio = {
        "file": file,
        "user_start_ms": said.start_ms,
        "user_end_ms": said.end_ms,
        "onset_ms": None if gap_ms is None else said.end_ms + gap_ms,
        "label_error_ms": 30.0,
    }
    assert turn.audio is not None
    update = {"audio": turn.audio.model_copy(update=audio), "first_answer_ms": gap_ms}
    writer.append_turn(turn.model_copy(update=update))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    record = make_record(planned_turns=len(GAPS_MS))
    with RunWriter.create(tmp_path_factory.mktemp("runs"), "x", record) as writer:
        for number, gap_ms in enumerate(GAPS_MS, start=1):
            _turn(writer, number, gap_ms)
        writer.finish(record)
    return writer.path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return publish(read_run(whole), tmp_path / "published")


def _only(folder: Path) -> Difference:
    (difference,) = verify(folder).differ
    return difference


def _change(folder: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "turns.jsonl"
    turns = [json.loads(line) for line in file.read_text().splitlines()]
    change(turns[number - 1])
    file.write_text("".join(json.dumps(turn) + "\n" for turn in turns))


def test_a_run_as_it_was_stored_has_no_difference(run):
    done: list[tuple[int, int]] = []
    verified = verify(run, lambda n, of: done.append((n, of)))
    assert verified.differ == ()
    assert (verified.checked, verified.derived, verified.files) == (4, 4, 4)
    assert verified.not_derived == {}
    assert done[-1] == (4, 4)


def test_an_altered_sample_range_is_its_file(run):
    file = run / "audio" / "002.wav"
    pcm, rate = soundfile.read(file, dtype="int16")
    pcm[3 * RATE : 3 * RATE + 400, 1] += 1
    soundfile.write(file, pcm, rate, subtype="PCM_16")
    found = _only(run)
    assert (found.turn, found.what) == ("audio/002.wav", "sha256")
    assert NAME.format(2) in found.why
    assert found.derived == hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_missing_and_an_added_file_are_differences(run):
    (run / "audio" / "001.wav").unlink()
    (run / "audio" / "x.wav").write_bytes(b"")
    assert [(d.turn, d.what) for d in verify(run).differ] == [
        ("audio/001.wav", "sha256"),
        ("audio/x.wav", "sha256"),
    ]


def test_an_altered_gap_is_a_difference(run):
    _change(run, 2, lambda turn: turn.update(gap_ms=turn["gap_ms"] - 200))
    found = _only(run)
    assert (found.turn, found.what) == (NAME.format(2), "gap_ms")
    assert (found.stored, found.derived) == (710.0, 910.0)


@pytest.mark.parametrize("by_ms", [-200, -120, 150, 300])
def test_a_gap_that_is_altered_everywhere_differs_from_its_audio(run, by_ms):
    def alter(turn: dict[str, Any]) -> None:
        fresh = make_turn(
            turn=2, marks_ms={"received": 900.0 + by_ms, "agent_onset": 910.0 + by_ms}
        )
        stored = fresh.model_dump(mode="json")
        turn |= {name: stored[name] for name in ("gap_ms", "gap_ns", "stages", "marks", "outcome")}
        turn["audio"]["onset_ms"] += by_ms
        turn["first_answer_ms"] = turn["gap_ms"]

    _change(run, 2, alter)
    found = _only(run)
    assert (found.turn, found.what, found.stored) == (NAME.format(2), "gap_ms", 910.0 + by_ms)
    assert abs(found.derived - 910) < 40


def test_a_persons_end_that_is_altered_differs_from_its_audio(run):
    def alter(turn: dict[str, Any]) -> None:
        gap_ms = turn["gap_ms"] - 200
        stored = make_turn(turn=1, marks_ms={"agent_onset": gap_ms}).model_dump(mode="json")
        turn |= {name: stored[name] for name in ("gap_ms", "gap_ns", "stages", "marks", "outcome")}
        turn["audio"]["user_end_ms"] += 200
        turn["first_answer_ms"] = gap_ms

    _change(run, 1, alter)
    assert (_only(run).turn, _only(run).what) == (NAME.format(1), "user_end_ms")


def test_a_reply_that_is_denied_is_heard(run):
    def alter(turn: dict[str, Any]) -> None:
        stored = make_turn(turn=2, marks_ms=None, ended="timeout").model_dump(mode="json")
        turn |= stored | {"audio": turn["audio"] | {"onset_ms": None}}

    _change(run, 2, alter)
    found = _only(run)
    assert (found.turn, found.what, found.stored) == (NAME.format(2), "gap_ms", None)
    assert abs(found.derived - 910) < 40


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"outcome": "answered"}, "outcome"),
        ({"gap_ns": ms_to_ns(900)}, "stages"),
        ({"stages": []}, "stages"),
        ({"why_no_gap": "none"}, "why_no_gap"),
    ],
)
def test_a_figure_that_does_not_follow_is_a_difference(run, change, what):
    _change(run, 2, lambda turn: turn.update(change))
    differ = verify(run).differ
    assert what in {d.what for d in differ}
    assert {d.turn for d in differ} == {NAME.format(2)}
    assert len(differ) == 1 or "gap_ns" in change  # which three others contradict


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_missing_turn_is_one_difference(run, number):
    lines = (run / "turns.jsonl").read_text().splitlines(keepends=True)
    del lines[number - 1]
    (run / "turns.jsonl").write_text("".join(lines))
    found = _only(run)
    assert (found.what, found.stored, found.derived) == ("turns", 3, 4)
    assert f"audio/00{number}.wav belongs to no turn" in found.why


def test_a_turn_that_is_stored_twice_is_a_difference(run):
    lines = (run / "turns.jsonl").read_text().splitlines(keepends=True)
    (run / "turns.jsonl").write_text("".join([*lines, lines[0]]))
    assert "more than once" in _only(run).why


def test_what_cannot_be_derived_is_counted(tmp_path):
    record = make_record(planned_turns=2)
    with RunWriter.create(tmp_path, "x", record) as writer:
        said = spoken(before_ms=400, after_ms=3000)
        at = np.arange(len(said.pcm)) / RATE
        beep = (9000 * np.sin(2 * np.pi * 900 * at) * (at % 0.5 < 0.2)).astype(np.int16)
        beep[: RATE * 2] = 0
        file = writer.write_audio("001", said.pcm, beep, RATE)
        turn = make_turn(turn=1, marks_ms={"agent_onset": 2000 - said.end_ms})
        audio = {"file": file, "user_start_ms": said.start_ms, "user_end_ms": said.end_ms}
        audio["onset_ms"] = 2000.0
        assert turn.audio is not None
        writer.append_turn(
            turn.model_copy(
                update={
                    "audio": turn.audio.model_copy(update=audio),
                    "first_answer_ms": turn.gap_ms,
                }
            )
        )
        writer.append_turn(make_turn(turn=2).model_copy(update={"audio": None}))
        writer.finish(record)
    verified = verify(writer.path)
    assert verified.differ == ()
    assert verified.derived == 0
    assert verified.not_derived == {
        "the agent's sound is no speech to this reading": 1,
        "no audio was kept of the turn": 1,
    }


def test_an_older_run_has_no_digests_and_is_verified(run):
    record = json.loads((run / "run.json").read_text())
    del record["audio_sha256"]
    (run / "run.json").write_text(json.dumps(record))
    verified = verify(run)
    assert (verified.differ, verified.files, verified.derived) == ((), 0, 4)


def test_noise_and_a_soft_voice_are_no_difference(tmp_path):
    record = make_record(planned_turns=1)
    with RunWriter.create(tmp_path, "x", record) as writer:
        said, reply = spoken(after_ms=3000), louder(spoken(before_ms=20).pcm, -12)
        heard = room(len(said.pcm) * 1000 / RATE, -62)[: len(said.pcm)]
        at = round((said.end_ms + 480) * RATE / 1000)
        heard[at : at + len(reply)] += reply[: len(heard) - at]
        noisy = said.pcm + room(len(said.pcm) * 1000 / RATE, -50)[: len(said.pcm)]
        file = writer.write_audio("001", noisy, heard, RATE)
        turn = make_turn(turn=1, marks_ms={"agent_onset": 500.0})
        assert turn.audio is not None
        audio = {"file": file, "user_start_ms": said.start_ms, "user_end_ms": said.end_ms}
        audio["onset_ms"] = said.end_ms + 500
        update = {"audio": turn.audio.model_copy(update=audio), "first_answer_ms": 500.0}
        writer.append_turn(turn.model_copy(update=update))
        writer.finish(record)
    assert verify(writer.path).differ == ()


def test_the_command_exits_by_the_result(run):
    def called(*words: str) -> Any:
        return CliRunner().invoke(app, ["verify", *words])

    good = called(str(run), "--json")
    assert good.exit_code == 0
    assert {"checked": 4, "differ": []}.items() <= json.loads(good.stdout).items()
    _change(run, 1, lambda turn: turn.update(outcome="late"))
    bad = called(str(run))
    assert bad.exit_code == 1
    assert "coffee-order turn 1 round 1: outcome late, derived answered" in bad.stdout
    with pytest.raises(InputError):
        verify(run / "audio")


def test_a_run_is_published_with_its_digests(run, whole):
    names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    audio = {f"audio/00{n}.wav" for n in range(1, 5)}
    documents = {"run.json", "turns.jsonl", "report.html", "README.txt", "SHA256SUMS"}
    assert names == audio | documents
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=run, check=True)
    assert len((run / "SHA256SUMS").read_text().splitlines()) == len(names) - 1
    assert "turngap verify" in (run / "README.txt").read_text()
    with pytest.raises(InputError, match="not an empty folder"):
        publish(read_run(whole), run)


def test_the_command_publishes_one_run(whole, tmp_path):
    there = tmp_path / "site"
    done = CliRunner().invoke(app, ["report", str(whole), "--publish", str(there)])
    assert done.exit_code == 0
    assert (there / "SHA256SUMS").is_file()


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    made = make_call(folder / "calls/desk/one.wav", [500.0, 1200.0])
    (folder / "calls/linked.wav").symlink_to(made)
    soundfile.write(folder / "calls/desk/mono.wav", np.zeros(RATE, np.int16), RATE)
    return folder / "calls"


@pytest.fixture(scope="module")
def scored(calls: Path) -> Path:
    run = turngap.score(calls, out=calls.parent / "runs", workers=1, progress=False)
    assert verify(run.path).differ == ()
    return run.path


@pytest.mark.parametrize(
    "change",
    [
        {"left_out": "the recording ends 9 ms after the person"},
        {"budget_ms": 2000.0, "outcome": "answered"},
        {"yield_ms": 50.0},
        {"talk_over_ms": 300.0},
        {"dead_air_ms": 2500.0},
        {"first_answer_ms": 100.0},
        {"first_answer_ms": 5000.0},
        {"greeting_ms": 5.0},
        {"holes": [{"at_ms": 100.0, "ms": 900.0}]},
    ],
)
def test_an_altered_figure_of_a_scored_turn_is_found(scored, tmp_path, change):
    folder = shutil.copytree(scored, tmp_path / "copy")
    _change(folder, 2, lambda turn: turn.update(change))
    found = _only(folder)
    assert (found.turn, found.what) == ("one turn 2 round 1", next(iter(change)))


def test_a_run_without_valid_reasons_and_an_altered_call_differ(scored, tmp_path):
    folder = shutil.copytree(scored, tmp_path / "copy")
    record = json.loads((folder / "run.json").read_text())
    record["valid"] = False
    record["scored"]["calls"][0] |= {"greeting_ms": 1.0, "sha256": "0" * 64}
    (folder / "run.json").write_text(json.dumps(record))
    assert [each.what for each in verify(folder).differ] == ["valid", "sha256", "greeting_ms"]


@pytest.mark.parametrize("event", [{"event": "UserSpeech"}, {"event": "AgentSilence", "at_ns": []}])
def test_events_that_cannot_be_read_are_a_difference(scored, tmp_path, event):
    folder = shutil.copytree(scored, tmp_path / "copy")
    _change(folder, 2, lambda turn: turn.update(events=[event, *turn["events"]]))
    assert "events" in {each.what for each in verify(folder).differ}


@pytest.mark.parametrize("by_ms", [200.0, 400.0, 950.0])
def test_an_end_that_is_altered_everywhere_differs_in_a_scored_run(scored, tmp_path, by_ms):
    def alter(turn: dict[str, Any]) -> None:
        gap_ms = turn["gap_ms"] - by_ms
        stored = make_turn(turn=2, marks_ms={"agent_onset": gap_ms}).model_dump(mode="json")
        turn |= {name: stored[name] for name in ("gap_ms", "gap_ns", "stages", "marks", "outcome")}
        turn["audio"]["user_end_ms"] += by_ms
        turn["first_answer_ms"] = gap_ms

    folder = shutil.copytree(scored, tmp_path / "copy")
    _change(folder, 2, alter)
    assert _only(folder).what == "user_end_ms"


def test_an_end_that_no_reading_allows_differs_where_readings_disagree(tmp_path):
    record = make_record(planned_turns=1)
    with RunWriter.create(tmp_path, "x", record) as writer:
        said = spoken(before_ms=400, after_ms=3000)
        fade = 10 ** (-np.arange(RATE // 2) / RATE * 2 * 60 / 20)
        at = round(said.end_ms * RATE / 1000)
        tone = 6000 * np.sin(2 * np.pi * 300 * np.arange(RATE // 2) / RATE) * fade
        pcm = said.pcm.copy()
        pcm[at : at + RATE // 2] = tone.astype(np.int16)
        file = writer.write_audio("001", pcm, np.zeros_like(pcm), RATE)
        turn = make_turn(turn=1, marks_ms=None, ended="timeout")
        audio = {"file": file, "user_start_ms": said.start_ms, "user_end_ms": said.end_ms + 680}
        audio |= {"onset_ms": None, "label_error_ms": 30.0}
        assert turn.audio is not None
        update = {"audio": turn.audio.model_copy(update=audio)}
        writer.append_turn(turn.model_copy(update=update))
        writer.finish(record)
    assert _only(writer.path).what == "user_end_ms"


def test_a_run_that_its_audio_cannot_confirm_is_inconclusive(run):
    for number in range(1, 5):
        _change(run, number, lambda turn: turn.update(audio=None))
    record = json.loads((run / "run.json").read_text()) | {"audio_sha256": {}}
    (run / "run.json").write_text(json.dumps(record))
    shutil.rmtree(run / "audio")
    done = CliRunner().invoke(app, ["verify", str(run)])
    assert done.exit_code == 3
    assert "no turn is confirmed" in done.stdout
    assert "not covered" in done.stdout


def test_paths_above_the_given_folder_and_links_stay_out(scored, calls):
    record = read_run(scored).record.scored
    assert record is not None
    assert [each.file for each in record.calls] == ["desk/one.wav"]
    assert [each.file for each in record.unscored] == ["desk/mono.wav"]
    assert str(calls.parent) not in (scored / "run.json").read_text()
    assert find_recordings([calls / "linked.wav"]) == [calls / "linked.wav"]


def test_only_audio_of_turns_is_published_and_to_no_link(scored, tmp_path):
    folder = shutil.copytree(scored, tmp_path / "copy")
    shutil.copy(folder / "audio/001.wav", folder / "audio/private.wav")
    published = publish(read_run(folder), tmp_path / "site")
    assert sorted(p.name for p in (published / "audio").iterdir()) == ["001.wav", "002.wav"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(InputError, match="is a link"):
        publish(read_run(scored), tmp_path / "link")
