"""A command whose reader has closed the pipe, or whose user interrupts it."""

import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from commandline import ROOT, turngap_here
from fake_agents import NEW, OLD, FakeAgents, stand_in
from made_records import make_turn

from turngap.caller.endpoint import Endpoint
from turngap.cli.shared import take_any_encoding
from turngap.compare.report import read_comparison
from turngap.play.target import Target
from turngap.report.looks import STAGES, UNKNOWN_STAGE
from turngap.store.comparisons import COMPARISON_FILE
from turngap.store.documents import find_folder

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize("arguments", [("scenarios",), ("scenarios", "--json"), ("backends",)])
def test_a_closed_pipe_ends_a_command_quietly_and_with_its_own_exit_code(
    arguments: tuple[str, ...],
) -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does when it has seen enough
    try:
        done = subprocess.run(
            [sys.executable, "-m", "turngap", *arguments],
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=180,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr.decode()) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_an_encoding_lacks_is_replaced_and_ends_nothing(
    agents: FakeAgents,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    def shown(*arguments: str | Path) -> str:
        written = {"stdout": io.BytesIO(), "stderr": io.BytesIO()}
        with monkeypatch.context() as patch:
            for name, raw in written.items():
                patch.setattr(sys, name, io.TextIOWrapper(raw, encoding, write_through=True))
            assert turngap_here(capsys, *arguments).code == 0
            out, err = (raw.getvalue().decode(encoding) for raw in written.values())
        assert "\\u" not in err
        return out

    monkeypatch.setattr(agents, "turn", lambda *_: make_turn(reply="九時 µ"))
    out = tmp_path / "runs"
    played = ("replay", "quick-questions", "--agent", NEW, "--calibration", "0", "--out", out)
    assert "?? " in shown(*played, "-v")
    (run,) = out.iterdir()
    assert "?? " in shown("report", run, "-v")
    assert "九時 µ" in {
        turn["reply"] for turn in json.loads(shown("report", run, "--json"))["turns"]
    }
    shown("history", "--runs", out)
    shown("dialects")
    assert json.loads(shown("dialects", "--json"))


def test_in_ascii_no_two_stages_look_alike() -> None:
    take_any_encoding()
    looks = [*STAGES.values(), UNKNOWN_STAGE]
    shown = {look.pattern.encode("ascii", "turngap") for look in looks}
    assert len(shown) == len(looks)


def test_a_full_disk_behind_stdout_is_an_error_of_its_own() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "turngap", "scenarios"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=180,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: stdout cannot be written to: No space left")


def interrupt_after(agents: FakeAgents, conversations: int) -> None:
    def interrupt(played: int) -> float:
        if played > conversations:
            raise KeyboardInterrupt
        return 0.0

    agents.slower = dict.fromkeys((NEW, OLD), interrupt)


@pytest.mark.parametrize("conversations", [0, 1, 3])
def test_an_interrupted_check_says_what_is_left_of_it(
    agents: FakeAgents, conversations: int, tmp_path: Path, capsys: Capsys
) -> None:
    interrupt_after(agents, conversations)
    out = tmp_path / "runs"
    done = turngap_here(
        capsys, "check", "quick-questions", "--agent", NEW, "--against", OLD,
        "--calibration", "0", "--out", out,
    )  # fmt: skip
    assert done.code not in (0, 1)
    (check,) = out.iterdir()
    shown = done.err.replace("\n", "")
    held = [run for run in check.iterdir() if f"turngap report {run}" in shown]
    assert len(held) == min(conversations, 2)  # A B B: after the first, only A has been heard
    assert ("nothing to show" in shown) is (conversations == 0)


@pytest.mark.parametrize(("conversations", "turns"), [(0, None), (1, [3, 0]), (2, [3, 3])])
def test_an_interrupted_comparison_is_kept_as_far_as_it_was_played(
    monkeypatch: pytest.MonkeyPatch,
    conversations: int,
    turns: list[int] | None,
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    agents = FakeAgents()
    stand_in(monkeypatch, agents, lambda _: NEW)
    interrupt_after(agents, conversations)
    done = turngap_here(
        capsys, "compare", "quick-questions", "--llm", "sim:full", "--llm", "sim:distilled",
        "--rounds", "2", "--out", tmp_path,
    )  # fmt: skip
    assert (done.code, "Traceback" in done.err) == (130, False)
    (folder,) = tmp_path.iterdir()
    if turns is None:
        assert "interrupted before the first turn: there is nothing to show" in done.err
        assert find_folder(str(folder), COMPARISON_FILE) is None
    else:
        assert f"turngap report {folder}" in done.err
        assert [b.turns for b in read_comparison(folder).backends] == turns


def test_an_interrupted_simulation_says_that_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capsys
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("turngap.fleet.run.run_simulation", interrupted)
    done = turngap_here(
        capsys, "simulate", ROOT / "examples" / "fleet.toml", "--out", tmp_path,
        *(f"--set={key}={value}" for key, value in {
            "turn.before_ms": 300, "turn.after_ms": 40, "turn.speech_ms": 1500,
            "turn.reply_ms": 2000, "turn.user_tokens": 9, "turn.reply_tokens": 30,
            "turn.opening_tokens": 6, "call.system_tokens": 300, "call.turns": 5,
        }.items()),
    )  # fmt: skip
    assert (done.code, list(tmp_path.iterdir())) == (130, [])
    assert "nothing is kept" in done.err


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def serving(*_: object) -> AsyncIterator[Endpoint]:
        yield Endpoint(NEW)

    monkeypatch.setattr(Target, "serving", serving)


def varied(capsys: Capsys, out: Path, *arguments: str) -> tuple[int, str, str]:
    done = turngap_here(
        capsys, "turns", "quick-questions", "--vary", "turn.hold_ms=0,100",
        "--out", out, *arguments,
    )  # fmt: skip
    return done.code, done.out, done.err.replace("\n", "")


@pytest.mark.usefixtures("served")
def test_a_varied_agent_whose_caller_was_starved_says_so_and_exits_with_3(
    agents: FakeAgents, tmp_path: Path, capsys: Capsys
) -> None:
    assert varied(capsys, tmp_path)[0] == 0
    agents.starved = lambda _url, _nth: True
    code, out, _ = varied(capsys, tmp_path)
    assert code == 3
    assert "0 is invalid: the caller was starved in 3 of 3 turns" in out
    assert "0 (invalid)" in out


@pytest.mark.usefixtures("served")
def test_an_interrupted_sweep_says_what_is_left_of_it(
    agents: FakeAgents, tmp_path: Path, capsys: Capsys
) -> None:
    interrupt_after(agents, 1)
    code, _, err = varied(capsys, tmp_path, "--starved-ms", "40")
    assert code not in (0, 1)
    (folder,) = tmp_path.iterdir()
    runs = sorted(folder.iterdir())
    assert f"turngap report {runs[0]}" in err
    assert f"turngap report {runs[1]}" not in err
    stored = (runs[0] / "run.json").read_text(encoding="utf-8")
    assert "interrupted by the user" in stored
    assert '"starved_ms": 40.0' in stored
