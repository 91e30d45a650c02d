"""`--start`: the run it is started for, what is stored of it, what is refused."""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from commandline import SCENARIOS, Finished, only_run, turngap_here
from virtual_agents import VirtualAgents

import turngap
from turngap.check.plan import CheckPlan
from turngap.core.errors import InputError
from turngap.core.secrets import REMOVED
from turngap.play import target
from turngap.play.resume import continued
from turngap.play.target import AgentChoice, resolve
from turngap.store.folders import slug
from turngap.store.runs import read_run
from turngap.testing.agent import Reply, Script

# Nobody serves there, nor asks for it: it is the port for throwing away (RFC 863).
HERE = "ws://127.0.0.1:9/"

Capsys = pytest.CaptureFixture[str]

BOT = f"{sys.executable} bot.py"
OTHER = f"{sys.executable} other.py"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of processes that were started and ended, in order."""
    log: list[str] = []

    @asynccontextmanager
    async def started(command: str, url: str, file: Path, waits: object) -> AsyncIterator[None]:
        folder = file.parent.name.rpartition("Z-")[2]
        log.append(f"{command} for {url} into {folder}/{file.name}")
        try:
            yield
        finally:
            log.append(f"end of {command}")

    monkeypatch.setattr(target, "started", started)
    return log


def replay(capsys: Capsys, out: Path, *arguments: str | Path) -> Finished:
    return turngap_here(
        capsys, "replay", SCENARIOS / "quick-questions.yaml", "--calibration", "0",
        "--out", out, *arguments,
    )  # fmt: skip


def test_a_replay_starts_its_agent_and_ends_it(
    tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents, log: list[str]
):
    url = virtual_agents.url_of(Script(replies=(Reply(),)))
    done = replay(capsys, tmp_path, "--start", BOT, "--agent", url)
    assert done.code == 0, done.err
    folder = slug(urlsplit(url).netloc)
    assert log == [f"{BOT} for {url} into {folder}/agent.log", f"end of {BOT}"]
    run = read_run(only_run(tmp_path))
    assert (run.record.agent["url"], run.record.agent["start"]) == (url, BOT)


def test_a_failed_replay_ends_its_agent_and_is_continued_with_it(
    tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents, log: list[str]
):
    url = virtual_agents.url_of(Script(replies=(Reply(action="die"),)))
    done = replay(capsys, tmp_path, "--start", BOT, "--agent", url, "--stop-on-error")
    assert done.code == 4
    assert log[1] == f"end of {BOT}"
    run = only_run(tmp_path)
    assert f"turngap replay --resume {run} --agent {url} --start '{BOT}'" in done.err
    again = continued(read_run(run), agent=url, start=BOT)
    assert again.target.choice.start == BOT


def test_a_secret_in_the_command_is_not_stored(
    tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents, log: list[str]
):
    url = virtual_agents.url_of(Script(replies=(Reply(), Reply(action="die"))))
    secret = "sk-abcdefgh12345678"
    command = f"env OPENAI_API_KEY={secret} {BOT}"
    done = replay(capsys, tmp_path, "--start", command, "--agent", url)
    assert done.code == 4
    assert secret not in done.err
    run = only_run(tmp_path)
    assert not [file for file in run.rglob("*") if file.is_file() and secret in _text(file)]
    log.clear()
    again = turngap_here(capsys, "replay", "--resume", run)
    assert (again.code, log) == (2, [])
    assert f"--start 'env OPENAI_API_KEY={REMOVED} {BOT}'" in again.err
    plan = continued(read_run(run), agent=url, start=command)
    assert plan.target.choice.start == command


def _text(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")


def test_a_check_starts_both_sides(tmp_path: Path, virtual_agents: VirtualAgents, log: list[str]):
    script = Script(replies=(Reply(),))
    new, old = (virtual_agents.url_of(script, host) for host in ("new", "old"))
    turngap.check(
        new, start=BOT, against=old, start_against=OTHER, rounds=1, calibration=0,
        scenarios="quick-questions", library=SCENARIOS, out=tmp_path,
    )  # fmt: skip
    assert log == [
        f"{BOT} for {new} into candidate/agent.log",
        f"{OTHER} for {old} into reference/agent.log",
        f"end of {OTHER}",
        f"end of {BOT}",
    ]


def test_the_curve_of_a_bot_starts_it(
    tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents, log: list[str]
):
    url = virtual_agents.url_of(Script(replies=(Reply(),)))
    done = turngap_here(
        capsys, "turns", SCENARIOS / "quick-questions.yaml", "--start", BOT,
        "--agent", url, "--out", tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert log[1:] == [f"end of {BOT}"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "--start", BOT), "turngap starts embedded itself"),
        (("check", "--start-against", BOT, "--budget", "gap=800"), "no URL of the reference"),
        (
            ("check", "--start", BOT, "--agent", HERE, "--against", HERE, "--start-against", BOT),
            "would be one and the same",
        ),
        (
            (
                "check",
                "--start",
                BOT,
                "--agent",
                f"{HERE}a",
                "--start-against",
                BOT,
                "--against",
                f"{HERE}b",
            ),
            "would be one and the same",
        ),
        (
            ("check", "--start", BOT, "--agent", HERE, "--against", "ws://0.0.0.0:9"),
            "would be one and the same",
        ),
        (
            ("check", "--agent", HERE, "--against", HERE, "--start-against", BOT),
            "would be one and the same",
        ),
        (("replay", "--start", "no-such-program", "--agent", "ws://127.0.0.1:9/"), "no program"),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_is_stored(
    tmp_path: Path, capsys: Capsys, arguments: tuple[str, ...], words: str
):
    done = turngap_here(capsys, *arguments, "--out", tmp_path / "runs")
    assert done.code == 2
    assert words in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("starts", "against"),
    [
        ({"start": BOT}, f"{HERE}other"),  # both in one server
        ({"start": BOT, "against_headers": ("X-Version: 2",)}, HERE),
        ({"start": BOT, "against_dialect": "twilio"}, HERE),
        ({"start": BOT}, "ws://127.0.0.1:10/"),
        ({"start": BOT}, "ws://127.0.0.2:9/"),
        ({"start": BOT, "start_against": OTHER}, "ws://[::1]:9/"),
        ({"start": BOT}, "ws://192.0.2.1:9/"),
        ({"start": BOT, "start_against": OTHER}, "ws://127.0.0.1:10/"),
        ({}, HERE),  # on purpose
    ],
)
def test_two_agents_of_a_check_may_be(starts: dict[str, Any], against: str, tmp_path: Path):
    choice = AgentChoice(HERE, start=starts.pop("start", None))
    plan = CheckPlan.of(
        choice, ["quick-questions"], None, SCENARIOS, against=against, against_sets=(),
        baseline=None, save=None, budgets={}, out=tmp_path, **starts,
    )  # fmt: skip
    assert plan.reference is not None
    assert plan.reference.choice.agent == against


def test_a_misspelled_dialect_is_refused_before_the_port_is_looked_at(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"ws://127.0.0.1:{server.getsockname()[1]}/ws"
        with pytest.raises(InputError, match="twillio"):
            resolve(AgentChoice(url, start="true", dialect="twillio"), tmp_path)
