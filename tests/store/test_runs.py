import asyncio
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from made_records import every_outcome, make_record, make_turn

from turngap.core.errors import ExitCode, InputError
from turngap.core.events import ToolCall
from turngap.core.run_record import METRICS_CHANGED, METRICS_VERSION, PlanRecord
from turngap.core.secrets import REMOVED
from turngap.core.stored import MarkRecord, PauseRecord
from turngap.play.process import child
from turngap.store.documents import encode, writing
from turngap.store.folders import (
    INTERRUPTED,
    beside,
    find_run,
    latest_run,
    latest_to_resume,
    new_folder,
    read_record,
    run_folders,
    utc_now,
)
from turngap.store.runs import read_run
from turngap.store.sound import read_sound
from turngap.store.writer import RunWriter


def written(out: Path, turns=None, **changes) -> Path:
    record = make_record(**changes)
    with RunWriter.create(out, "replay", record) as writer:
        for turn in every_outcome() if turns is None else turns:
            writer.append_turn(turn)
        writer.finish(record)
    return writer.path


def refused(path: Path) -> InputError:
    with pytest.raises(InputError) as e:
        read_run(path)
    assert e.value.exit_code is ExitCode.BAD_INPUT
    return e.value


def reopened(path: Path) -> None:
    with RunWriter.reopen(path, make_record()) as writer:
        writer.write_audio("001", np.zeros(9, np.int16), np.zeros(9, np.int16), 16_000)


def heard(path: Path) -> None:
    read_sound(path / "audio" / "001.wav", "run", below=path, channels=2)


def logged(path: Path) -> None:
    async def start() -> None:
        async with child(["turngap"], path / "agent.log"):
            pass

    asyncio.run(start())


LINKS = [
    *(("run.json", read_run), ("turns.jsonl", read_run), ("turns.jsonl", reopened)),
    *(("audio", reopened), ("audio/001.wav", reopened), ("audio", heard), ("audio/001.wav", heard)),
    *(("agent.log", logged), ("run", lambda path: beside(path / "check.json", "run"))),
]


@pytest.mark.parametrize(("name", "act"), LINKS)
def test_no_link_in_a_stored_folder_is_followed(tmp_path, name, act):
    path, outside = written(tmp_path), tmp_path / "mine"
    outside.mkdir()
    (outside / "001.wav").write_bytes(b"mine")
    if name == "audio":
        (path / name).rmdir()
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(outside if name == "audio" else outside / "001.wav")
    with pytest.raises(InputError, match=f"{name} is a link.* no link in") as error:
        act(path)
    assert (error.value.kind, error.value.hint[:15]) == ("document.link", "remove the link")
    assert (outside / "001.wav").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "disk full"), (errno.EROFS, "another folder"), (errno.EACCES, "may not write")],
)
def test_the_disk_is_called_full_only_if_it_is(code, says, tmp_path):
    with pytest.raises(InputError) as error, writing(tmp_path):
        raise OSError(code, os.strerror(code))
    assert says in error.value.hint
    assert ("full" in error.value.hint) == (code == errno.ENOSPC)


def test_nothing_ends_before_it_began_though_the_clock_was_set_back():
    assert utc_now("2999-01-01T00:00:00.000+00:00")[:4] == "2999"
    assert utc_now() < "2999"
    assert utc_now("9 o'clock") < "2999"
    assert utc_now("2999-01-01T09:00:00+09:00", "2999-01-01T00:30:00+00:00")[14:16] == "30"


@pytest.mark.parametrize(
    "plan",
    [
        *({"rounds": 10**15}, {"rounds": 0}, {"phase": -1}, {"phase": 10**12}),
        *({"greeting_ms": 1e300}, {"greeting_ms": -1.0}, {"budget_ms": 1e300}),
        {"calibration_turns": 10**12},
    ],
)
def test_a_stored_plan_is_bounded(tmp_path, plan):
    path = written(tmp_path)
    record = json.loads((path / "run.json").read_text())
    stored = PlanRecord(agent="embedded", library="scenarios", files=(), rounds=1).model_dump()
    for change in ({"plan": stored | plan}, {"starved_ms": 1e300}):
        (path / "run.json").write_text(json.dumps(record | change))
        assert refused(path).kind == "document.damaged"


def test_what_is_written_is_read_back(tmp_path):
    run = read_run(written(tmp_path))
    assert list(run.turns) == every_outcome()
    assert run.record.machine == make_record().machine
    assert run.problems == ()


def test_folder_is_named_by_utc_start_and_name(tmp_path):
    started = "2026-11-20T16:28:03+01:00"
    with RunWriter.create(tmp_path, "Coffee order/../x", make_record(started_utc=started)) as w:
        assert w.path == tmp_path / "20261120T152803Z-coffee-order-..-x"


@pytest.mark.parametrize("name", ["", "..", "///", "\x1b[31m"])
def test_no_name_leaves_the_folder(tmp_path, name):
    with RunWriter.create(tmp_path, name, make_record()) as w:
        assert w.path.parent == tmp_path
        assert w.path.name.startswith("20261120T152803Z-")


def test_runs_of_one_second_do_not_meet(tmp_path):
    paths = [written(tmp_path, started_utc=f"2026-11-20T15:28:03.{i}+00:00") for i in range(3)]
    assert len(set(paths)) == 3
    assert run_folders(tmp_path) == paths
    assert latest_run(tmp_path) == paths[-1]


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write") as e:
        RunWriter.create(tmp_path / "file", "x", make_record())
    assert "--out" in e.value.hint


def test_started_utc_must_be_an_instant(tmp_path):
    with pytest.raises(InputError, match="ISO 8601"):
        RunWriter.create(tmp_path, "x", make_record(started_utc="yesterday"))


def test_secrets_never_reach_the_disk(tmp_path):
    agent = {"url": "wss://ann:pw-1@host:1/x?api_key=sk-2&model=m", "headers": {"Cookie": "sk-3"}}
    failure = "no answer from wss://ann:pw-1@host:1/x?api_key=sk-2"
    path = written(tmp_path, agent=agent, failure=failure)
    everything = b"".join(f.read_bytes() for f in path.iterdir() if f.is_file())
    for secret in (b"sk-123", b"pw-1", b"sk-2", b"sk-3"):
        assert secret not in everything
    assert read_run(path).record.settings["llm"] == {"first_token_ms": 120, "api_key": REMOVED}


def test_turns_are_appended_from_many_threads_unbroken(tmp_path):
    with RunWriter.create(tmp_path, "x", make_record()) as writer:

        def append(n):
            writer.append_turn(make_turn(turn=n, reply="long " * 5000))

        threads = [threading.Thread(target=append, args=(n,)) for n in range(1, 21)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert sorted(t.turn for t in read_run(writer.path).turns) == list(range(1, 21))


def test_each_turn_is_synced_to_the_disk_before_append_returns(tmp_path, monkeypatch):
    synced: list[tuple[int, int]] = []
    real = os.fsync

    def watched(fd):
        real(fd)
        synced.append((os.fstat(fd).st_ino, os.fstat(fd).st_size))

    with RunWriter.create(tmp_path, "x", make_record()) as writer:
        monkeypatch.setattr(os, "fsync", watched)
        for n in range(1, 4):
            writer.append_turn(make_turn(turn=n))
            status = (writer.path / "turns.jsonl").stat()
            assert synced[-1] == (status.st_ino, status.st_size)
    assert len(synced) == 3


def test_audio_is_stereo_user_left_heard_right(tmp_path):
    with RunWriter.create(tmp_path, "x", make_record()) as writer:
        left, right = np.full(100, 1000, np.int16), np.full(160, -2000, np.int16)
        file = writer.write_audio("001", left, right, 16_000)
    assert file == "audio/001.wav"
    pcm, rate = soundfile.read(writer.path / file, dtype="int16")
    assert rate == 16_000
    assert pcm.shape == (160, 2)
    np.testing.assert_array_equal(pcm[:, 0], np.pad(left, (0, 60)))
    np.testing.assert_array_equal(pcm[:, 1], right)
    assert soundfile.info(writer.path / file).subtype == "PCM_16"


def test_a_run_has_the_digest_of_each_audio_file(tmp_path):
    def audio(writer: RunWriter, number: int) -> None:
        pcm = np.full(100 * number, number, np.int16)
        file = writer.write_audio(f"{number:03d}", pcm, pcm, 16_000)
        turn = make_turn(turn=number)
        assert turn.audio is not None
        named = turn.audio.model_copy(update={"file": file})
        writer.append_turn(turn.model_copy(update={"audio": named}))

    def digests() -> dict[str, str]:
        files = sorted((path / "audio").iterdir())
        return {f"audio/{f.name}": hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

    with RunWriter.create(tmp_path, "x", make_record()) as killed:
        audio(killed, 1)
    path = killed.path
    assert read_record(path).audio_sha256 == {}
    with RunWriter.reopen(path, make_record()) as writer:
        audio(writer, 2)
        writer.finish(make_record())
    assert read_record(path).audio_sha256 == digests()
    assert list(digests()) == ["audio/001.wav", "audio/002.wav"]


def test_unfinished_run_says_so(tmp_path):
    with RunWriter.create(tmp_path, "x", make_record(finished_utc=None)) as writer:
        writer.append_turn(make_turn())
    run = read_run(writer.path)
    assert not run.valid
    assert run.record.why_invalid == ("unfinished: 1 of 7 planned turns were played",)
    assert not read_record(writer.path).valid
    # Whoever reads the file itself, without turngap, is told as well.
    assert json.loads((writer.path / "run.json").read_text())["valid"] is False


def test_a_run_stored_as_valid_that_never_ended_is_not(tmp_path):
    path = written(tmp_path, [make_turn()])
    document = json.loads((path / "run.json").read_text()) | {"finished_utc": None, "valid": True}
    (path / "run.json").write_text(json.dumps(document))
    assert not read_run(path).valid
    assert not read_record(path).valid


def test_half_a_surrogate_pair_from_the_agent_costs_no_turn(tmp_path):
    turn = make_turn(reply="caf\u00e9 \ud83d", events=({"text": "\ude00", "at_ns": 1},))
    (read,) = read_run(written(tmp_path, [turn])).turns
    assert read.reply == "café ?"
    assert read.events == ({"text": "?", "at_ns": 1},)


@pytest.mark.parametrize("cut", [1, 40, -60])
def test_a_last_line_cut_off_is_dropped_and_reported(tmp_path, cut):
    path = written(tmp_path)
    file = path / "turns.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
    run = read_run(path)
    assert list(run.turns) == every_outcome()[:-1]
    assert run.problems == ("turns.jsonl:7: the last line was cut off and is left out",)


def test_a_cut_inside_a_multibyte_letter_is_a_cut(tmp_path):
    path = written(tmp_path, [make_turn(), make_turn(turn=2, scenario="ä")])
    file = path / "turns.jsonl"
    raw = file.read_bytes()
    file.write_bytes(raw[: raw.index("ä".encode()) + 1])
    assert [t.turn for t in read_run(path).turns] == [1]


def test_a_whole_last_line_without_its_newline_counts(tmp_path):
    path = written(tmp_path)
    file = path / "turns.jsonl"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert len(read_run(path).turns) == 7
    assert read_run(path).problems == ()


@pytest.mark.parametrize("garbage", [b"garbage\n", b"\n", b"[1]\n", b"\xff\xfe\n", b'{"a": 1}\n'])
def test_garbage_in_the_middle_is_refused_with_its_line(tmp_path, garbage):
    path = written(tmp_path)
    file = path / "turns.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], garbage, *lines[2:]]))
    error = refused(path)
    assert error.kind == "document.damaged"
    assert "turns.jsonl:3:" in error.message


def test_a_wrong_value_is_refused_with_line_and_field(tmp_path):
    path = written(tmp_path)
    file = path / "turns.jsonl"
    file.write_text(file.read_text().replace('"late"', '"tardy"'))
    assert refused(path).message.startswith(f"{file}:2: outcome: Input should be 'answered'")


def test_another_schema_version_is_refused_and_both_are_named(tmp_path):
    path = written(tmp_path)
    for name in ("turns.jsonl", "run.json"):
        file = path / name
        file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": 2'))
        error = refused(path)
        assert error.kind == "document.version"
        assert name in error.message
        assert "found schema version 2, this turngap reads 1" in error.message
        assert "upgrade" in error.hint


@pytest.mark.parametrize("version", [None, "1", 0, True, 1.0])
def test_a_version_that_is_none_is_refused(tmp_path, version):
    path = written(tmp_path)
    document = json.loads((path / "run.json").read_text()) | {"schema_version": version}
    (path / "run.json").write_text(json.dumps(document))
    error = refused(path)
    assert error.kind == "document.damaged"
    assert f"schema_version is {version!r}, expected 1" in error.message


@pytest.mark.parametrize(("off", "changed"), [(1, False), (-1, True)])
def test_other_metrics_are_named_and_what_changed_since(tmp_path, off, changed):
    path = written(tmp_path, metrics_version=METRICS_VERSION + off)
    (problem,) = read_run(path).problems
    assert f"metrics version {METRICS_VERSION + off}, this" in problem
    assert f"computes version {METRICS_VERSION}" in problem
    assert "do not compare" in problem
    assert (METRICS_CHANGED in problem) is changed


def test_a_run_without_turns_is_refused_and_says_why(tmp_path):
    error = refused(written(tmp_path, [], failure="connection refused"))
    assert error.kind == "run.empty"
    assert "connection refused" in error.message


def test_a_run_without_its_turns_file_is_refused(tmp_path):
    path = written(tmp_path)
    (path / "turns.jsonl").unlink()
    assert refused(path).kind == "run.empty"


def test_run_json_cut_off_is_refused(tmp_path):
    path = written(tmp_path)
    (path / "run.json").write_text('{"schema_version": 1, ')
    assert refused(path).kind == "document.damaged"


def test_find_run_by_path_name_and_latest(tmp_path):
    path = written(tmp_path)
    for name in (str(path), str(path / "run.json"), path.name, "latest"):
        assert find_run(name, tmp_path) == path


def test_find_run_names_what_there_is(tmp_path):
    path = written(tmp_path)
    with pytest.raises(InputError) as e:
        find_run("nope", tmp_path)
    assert path.name in e.value.hint


def test_a_label_names_a_run_where_no_other_has_it(tmp_path):
    one, two = (written(tmp_path / name) for name in "ab")
    folders = {"one": tmp_path / "runs" / "one", "two": tmp_path / "runs" / "two"}
    folders["one"].parent.mkdir()
    one.rename(folders["one"])
    two.rename(folders["two"])

    def label(name: str, text: str) -> None:
        file = folders[name] / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"label": text}))

    label("one", "before the change")
    assert find_run("before the change", tmp_path / "runs") == folders["one"]
    with pytest.raises(InputError) as e:
        find_run("before a change", tmp_path / "runs")
    assert "did you mean before the change?" in e.value.hint
    label("two", "before the change")
    with pytest.raises(InputError, match="2 runs in") as e:
        find_run("before the change", tmp_path / "runs")
    assert e.value.kind == "run.several"
    assert "one" in e.value.hint
    assert "two" in e.value.hint


def test_no_run_at_all(tmp_path):
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="no run in") as e:
            latest_run(root)
        assert "`turngap history` lists checks" in e.value.hint


def test_latest_run_survives_a_damaged_neighbour(tmp_path):
    path = written(tmp_path)
    broken = written(tmp_path, started_utc="2027-01-01T00:00:00+00:00")
    (broken / "run.json").write_text("{")
    assert latest_run(tmp_path) == path


def test_a_hidden_folder_is_never_the_latest(tmp_path):
    path = written(tmp_path)
    hidden = written(tmp_path, started_utc="2027-01-01T00:00:00+00:00")
    hidden.rename(tmp_path / ".old")
    assert run_folders(tmp_path) == [path]
    assert latest_run(tmp_path) == path


LATER = {"started_utc": "2027-01-01T00:00:00+00:00"}
PLAN = PlanRecord(agent="embedded", library="scenarios", files=(), rounds=1)


@pytest.mark.parametrize(
    ("turns", "changes", "became"),
    [
        ([], {"failure": "no answer"}, "has failed: no answer"),
        ([], {"failure": INTERRUPTED}, "is unfinished, with 0 of 7 turns"),
        (None, {"failure": "the line was lost"}, "has failed: the line was lost"),
        (None, {"failure": INTERRUPTED}, "is unfinished, with 7 of 7 turns"),
        ([make_turn()], {}, "is unfinished, with 1 of 7 turns"),
        (None, {"finished_utc": None}, "is unfinished, with 7 of 7 turns"),
    ],
)
def test_a_run_that_failed_or_is_unfinished_is_never_the_latest(tmp_path, turns, changes, became):
    bad = written(tmp_path, turns, **LATER, **changes)
    with pytest.raises(InputError, match="no finished run") as e:
        latest_run(tmp_path)
    assert became in str(e.value)
    assert bad.name in e.value.hint
    path = written(tmp_path)
    assert latest_run(tmp_path) == find_run("latest", tmp_path) == path


def test_an_invalid_run_that_is_finished_may_be_the_latest(tmp_path):
    written(tmp_path)
    path = written(tmp_path, **LATER, valid=False, why_invalid=("late",))
    assert latest_run(tmp_path) == path


def test_a_conversation_that_nobody_planned_may_be_the_latest(tmp_path):
    path = written(tmp_path, [make_turn()], planned_turns=0)
    assert latest_run(tmp_path) == path


def test_the_latest_to_resume_lacks_turns_and_says_how_it_was_played(tmp_path):
    whole = written(tmp_path, plan=PLAN)
    assert latest_to_resume(tmp_path) == whole  # nothing is missing
    none = written(tmp_path, [], plan=PLAN, failure="no answer", **LATER)
    assert latest_to_resume(tmp_path) == none
    some = written(tmp_path, [make_turn()], plan=PLAN, failure=INTERRUPTED)
    written(tmp_path, [make_turn()], **LATER)
    assert latest_to_resume(tmp_path) == some


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from made_records import make_record, make_turn
from turngap.store.writer import RunWriter
writer = RunWriter.create(Path(sys.argv[1]), "killed", make_record(finished_utc=None))
for n in range(1, 4):
    writer.append_turn(make_turn(turn=n))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_sigkill_loses_no_finished_turn(tmp_path):
    here = str(Path(__file__).parents[1] / "helpers")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), here], check=False)
    assert done.returncode == -signal.SIGKILL
    run = read_run(run_folders(tmp_path)[-1])
    assert [t.turn for t in run.turns] == [1, 2, 3]
    assert not run.valid
    assert run.record.why_invalid == ("unfinished: 3 of 7 planned turns were played",)


def test_rewriting_run_json_leaves_no_scraps(tmp_path):
    path = written(tmp_path)
    assert sorted(p.name for p in path.iterdir()) == ["audio", "run.json", "turns.jsonl"]


def test_a_failed_rewrite_leaves_the_old_record(tmp_path, monkeypatch):
    with RunWriter.create(tmp_path, "x", make_record(finished_utc=None)) as writer:
        writer.append_turn(make_turn())

        def full_disk(fd):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full_disk)
        with pytest.raises(InputError, match="No space") as error:
            writer.finish(make_record())
        assert error.value.kind == "run.unwritable"
    assert json.loads((writer.path / "run.json").read_text())["finished_utc"] is None
    assert not list(writer.path.glob(".run.json*"))


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_mount_without_locks_takes_a_run(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    assert read_run(written(tmp_path)).turns


def test_a_run_that_cannot_be_locked_leaves_no_descriptor(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InputError, match="Input/output error"):
        written(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_turn_too_large_to_be_read_is_stored_without_its_events(tmp_path, monkeypatch):
    turn = make_turn()
    monkeypatch.setattr("turngap.store.writer.MAX_EVENTS_BYTES", len(encode(turn)) + 1000)
    events = tuple({"event": "AgentText", "text": "and so on"} for _ in range(1000))
    (stored,) = read_run(written(tmp_path, [turn.model_copy(update={"events": events})])).turns
    assert stored.events == ()
    assert "its 1000 events are not stored" in next(iter(stored.notes))
    assert stored.gap_ns == turn.gap_ns


def test_a_run_never_grows_larger_than_what_is_read(tmp_path, monkeypatch):
    turn = make_turn()
    monkeypatch.setattr("turngap.store.writer.MAX_RUN_BYTES", len(encode(turn)) * 2)
    writer = RunWriter.create(tmp_path, "replay", make_record())
    writer.append_turn(turn)
    writer.append_turn(turn)
    with pytest.raises(InputError, match="could not be read") as e:
        writer.append_turn(turn)
    assert e.value.kind == "run.too_large"
    writer.finish(make_record())
    assert len(read_run(writer.path).turns) == 2
    RunWriter.reopen(writer.path, make_record()).close()


def test_reading_takes_memory_for_the_largest_turn_and_not_for_all_events(tmp_path):
    events = tuple({"event": "AgentText", "at_ns": n * n, "text": f"w{n}"} for n in range(1_000))
    path = written(tmp_path, [make_turn(turn=1 + n, events=events) for n in range(24)])
    largest, size = len(encode(make_turn(events=events))), (path / "turns.jsonl").stat().st_size
    tracemalloc.start()
    run = read_run(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 23 * largest
    assert peak < 40 * largest
    assert run.turns[23].instants("AgentText")[-1] == 999**2


MARK = MarkRecord(name="a", at_ns=1, vantage="agent")
# At most so many times the size of its file a run takes in memory.
OF_THE_FILE = 7


@pytest.mark.parametrize(
    "bulk",
    [
        {"agent_turns": ((MARK,) * 100,) * 10},
        {"marks": (MARK,) * 1_000},
        {"calls": (ToolCall("", {str(n): [] for n in range(100)}),) * 20},
        {"pauses": (PauseRecord(start_ms=1, end_ms=2),) * 1_000},
        {"marks_ms": None},
    ],
)
def test_a_stored_run_takes_so_much_of_its_file_in_memory(tmp_path, bulk):
    path = written(tmp_path, [make_turn(**bulk)] * 9)
    size = (path / "turns.jsonl").stat().st_size
    read_run(path)
    tracemalloc.start()
    run = read_run(path)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < OF_THE_FILE * size
    assert run.turns[8] == make_turn(**bulk)


def test_lines_are_bounded_when_they_are_read(tmp_path, monkeypatch):
    path = written(tmp_path)
    monkeypatch.setattr("turngap.store.documents.MAX_TURN_BYTES", 100)
    assert "a line is larger than" in refused(path).message


@pytest.mark.parametrize("inside", [True, False])
def test_git_leaves_out_what_is_stored_in_a_new_folder(tmp_path: Path, inside: bool):
    if inside:
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
    first = new_folder(tmp_path / "runs", "check")
    (first / "check.json").write_text("{}")
    ignored = tmp_path / "runs" / ".gitignore"
    assert ignored.exists() == inside
    if inside:
        status = ["git", "-C", str(tmp_path), "status", "--porcelain"]
        assert not subprocess.run(status, capture_output=True, check=True).stdout
        ignored.unlink()  # whoever wants to commit runs removes it once
        new_folder(tmp_path / "runs", "check")
        assert not ignored.exists()


def test_a_folder_that_was_there_is_not_made_invisible(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    new_folder(tmp_path, "check")
    (tmp_path / "results").mkdir()
    new_folder(tmp_path / "results", "check")
    assert not list(tmp_path.rglob(".gitignore"))
