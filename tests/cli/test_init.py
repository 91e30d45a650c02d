"""`turngap init`: what it finds, what it asks, what it writes, and the check that then follows."""

import shlex
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from commandline import turngap_here
from reserved_ports import reserved_port
from ruamel.yaml import YAML
from virtual_agents import VirtualAgents

from turngap import setup
from turngap.caller.endpoint import Endpoint
from turngap.cli import agents
from turngap.play import target
from turngap.testing.agent import Reply, Script

Capsys = pytest.CaptureFixture[str]
WRITTEN = ["turngap.toml", "tests/test_turn_gap.py", ".github/workflows/turn-gap.yml"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNGAP_AGENT", raising=False)
    monkeypatch.delenv("TURNGAP_CONFIG", raising=False)
    monkeypatch.setattr(setup, "USUAL_PORTS", ())
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commands, in place of the processes that they would start."""
    commands: list[str] = []

    @asynccontextmanager
    async def start(command: str, url: str, log: Path, waits: object) -> AsyncIterator[None]:
        commands.append(command)
        yield

    for module in (setup, target):
        monkeypatch.setattr(module, "started", start)
    monkeypatch.setattr(target, "require_free", lambda command, url: None)
    return commands


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every agent answer in the dialect that was given, or in pipecat's."""

    async def reached(
        bot: setup.Bot, dialect: str, headers: tuple[str, ...], *_: object
    ) -> Endpoint:
        return Endpoint(bot.url or "ws://127.0.0.1:8765/ws", dialect or "pipecat", headers)

    monkeypatch.setattr(setup, "reached", reached)


def test_with_only_a_bot_a_check_reaches_a_verdict_without_a_flag(
    folder: Path,
    capsys: Capsys,
    started: list[str],
    virtual_agents: VirtualAgents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bot is one in memory; the test of the real one is in tests/play/test_init_on_a_bot.py."""
    (folder / "bot.py").write_text('import pipecat\nif __name__ == "__main__":\n    pass\n')
    url = virtual_agents.url_of(Script(replies=(Reply(),)))

    @asynccontextmanager
    async def served_by(command: str, log: Path) -> AsyncIterator[list[int]]:
        started.append(command)
        yield [8765]

    async def answers(endpoint: Endpoint, _: object) -> Endpoint:
        return Endpoint(url, "pipecat")

    async def knock(self: Endpoint, **_: float) -> None:
        """There is no socket to knock at."""

    monkeypatch.setattr(Endpoint, "knock", knock)
    monkeypatch.setattr(setup, "served_by", served_by)
    monkeypatch.setattr(setup, "identify", answers)
    done = turngap_here(capsys, "init", "--yes")
    assert done.code == 0, done.err
    with (folder / "turngap.toml").open("r+") as file:
        text = file.read()
        file.seek(0)
        file.write(f"calibration = 0\n{text}")  # the known gaps are those of a real socket
    done = turngap_here(capsys, "check", "--json")
    assert done.code == 0, done.err
    assert done.document()["verdict"] == "pass"
    assert len(started) == 2
    assert started[0].endswith("bot.py")
    assert f"turngap.toml starts the agent with this command: {started[0]}" in done.err


def test_a_url_is_called_and_the_files_are_written(
    folder: Path, capsys: Capsys, virtual_agents: VirtualAgents
) -> None:
    url = virtual_agents.url_of(Script(replies=(Reply(),)))
    done = turngap_here(capsys, "init", "--agent", url, "--dialect", "pipecat", "--json")
    assert done.code == 0, done.err
    assert done.document() == {
        "written": WRITTEN[:2],  # its host is none of this machine's
        "agent": url,
        "start": "",
        "dialect": "pipecat",
    }
    said = tomllib.loads((folder / "turngap.toml").read_text())
    assert (said["agent"], said["dialect"]) == (url, "pipecat")
    assert said["check"]["budget"] == {"gap": 800}


def test_nobody_is_asked_without_a_terminal(folder: Path, capsys: Capsys) -> None:
    done = turngap_here(capsys, "init", "--yes")
    assert (done.code, "nothing here looks like a bot" in done.err) == (2, True)
    (folder / "bot.py").write_text('import pipecat\nif __name__ == "__main__":\n    pass\n')
    done = turngap_here(capsys, "init")
    assert done.code == 2
    assert "found here: bot.py" in done.err
    assert "turngap init --yes takes the first" in done.err
    assert [each.name for each in folder.iterdir()] == ["bot.py"]


def test_an_agent_that_is_not_there_leaves_nothing(folder: Path, capsys: Capsys) -> None:
    with reserved_port() as port:
        url = f"ws://127.0.0.1:{port}/ws"
        done = turngap_here(capsys, "init", "--agent", url)
    assert (done.code, [*folder.iterdir()]) == (4, [])


def test_a_bot_whose_packages_are_elsewhere_is_told_where_to_find_them(
    folder: Path, capsys: Capsys
) -> None:
    (folder / "bot.py").write_text("import no_such_package_as_pipecat\n")
    done = turngap_here(capsys, "init", "--start", f"{sys.executable} bot.py")
    assert done.code == 4
    said = " ".join(done.err.split())
    assert "If its packages are in an environment of its own" in said


@pytest.mark.usefixtures("answering")
def test_files_that_are_there_stay_unless_told(folder: Path, capsys: Capsys) -> None:
    arguments = ("init", "--agent", "ws://127.0.0.1:9/ws")
    (folder / "tests").mkdir()
    (folder / WRITTEN[1]).write_text("mine")
    done = turngap_here(capsys, *arguments)
    assert done.code == 0, done.err
    assert f"kept {WRITTEN[1]}" in done.out
    (folder / "turngap.toml").write_text('agent = "stock"\n')
    done = turngap_here(capsys, *arguments)
    assert (done.code, "turngap.toml is there already" in done.err) == (2, True)
    assert (folder / "turngap.toml").read_text() == 'agent = "stock"\n'
    assert (folder / WRITTEN[1]).read_text() == "mine"
    (folder / WRITTEN[2]).write_text("mine, too")
    assert turngap_here(capsys, *arguments, "--force").code == 0
    assert [(folder / name).read_text() for name in WRITTEN[1:]] == ["mine", "mine, too"]
    assert "ws://127.0.0.1:9/ws" in (folder / "turngap.toml").read_text()


@pytest.mark.usefixtures("answering")
@pytest.mark.parametrize(
    "given",
    [
        ("--header", "Authorization: Bearer sk-abcdefgh12345678abcdefgh"),
        ("--header", "X-Api-Key:hunter2hunter2"),
        ("--agent", "ws://127.0.0.1:9/ws?token=a1b2c3d4e5f6"),
        ("--start", "python bot.py --api-key a1b2c3d4e5f6"),
        ("--dialect", "twilio,parameters={token=a1b2c3d4e5f6}"),
    ],
)
def test_no_secret_is_written_down(folder: Path, capsys: Capsys, given: tuple[str, str]) -> None:
    done = turngap_here(capsys, "init", "--agent", "ws://127.0.0.1:9/ws", *given)
    assert (done.code, [*folder.iterdir()]) == (2, []), done.err
    assert "environment variable" in done.err
    assert "12345678" not in done.err


@pytest.mark.usefixtures("answering")
def test_a_header_reaches_the_defaults_and_the_workflow(folder: Path, capsys: Capsys) -> None:
    header = "Authorization: Bearer ${API_KEY}"
    arguments = ("--agent", "ws://127.0.0.1:9/ws", "--header", header)
    done = turngap_here(capsys, "init", *arguments)
    assert done.code == 0, done.err
    assert tomllib.loads((folder / "turngap.toml").read_text())["header"] == [header]
    (job,) = YAML(typ="safe").load(folder / WRITTEN[2])["jobs"].values()
    action = job["steps"][-1]
    assert shlex.split(action["with"]["options"]) == ["--header", header]
    assert action["env"] == {"API_KEY": "${{ secrets.API_KEY }}"}


@pytest.mark.usefixtures("answering")
def test_what_is_left_to_adapt_is_named(folder: Path, capsys: Capsys) -> None:
    done = turngap_here(capsys, "init", "--agent", "ws://127.0.0.1:9/ws")
    lines = (folder / WRITTEN[2]).read_text().splitlines()
    assert any("URL-OF-THE-TURNGAP-REPOSITORY # yours" in line for line in lines)
    assert f'adapt the lines of {WRITTEN[2]} that are marked "yours"' in done.err


@pytest.mark.usefixtures("answering")
def test_an_agent_elsewhere_gets_no_workflow(folder: Path, capsys: Capsys) -> None:
    arguments = ("--agent", "wss://prod.example/ws", "--json")
    done = turngap_here(capsys, "init", *arguments)
    assert done.document()["written"] == WRITTEN[:2]
    assert "no workflow was written: the agent is on another machine" in done.err


@pytest.mark.usefixtures("answering")
def test_below_the_root_the_workflow_lies_at_the_root(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".git").mkdir()
    below = folder / "bots" / "one"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    done = turngap_here(capsys, "init", "--agent", "ws://127.0.0.1:9/ws", "--json")
    assert done.document()["written"] == [*WRITTEN[:2], f"../../{WRITTEN[2]}"]
    assert (below / "turngap.toml").exists()
    (job,) = YAML(typ="safe").load(folder / WRITTEN[2])["jobs"].values()
    assert job["steps"][-1]["with"]["working-directory"] == "bots/one"


def test_defaults_in_pyproject_stay_the_only_ones(folder: Path, capsys: Capsys) -> None:
    (folder / "pyproject.toml").write_text('[tool.turngap]\nagent = "stock"\n')
    done = turngap_here(capsys, "init", "--agent", "stock")
    assert (done.code, "two files would disagree" in done.err) == (2, True)


@pytest.mark.usefixtures("answering")
def test_a_person_at_a_terminal_is_asked(
    folder: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bot.py", "other.py"):
        (folder / name).write_text('import pipecat\nif __name__ == "__main__":\n    pass\n')
    monkeypatch.setattr(agents, "_can_ask", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: 3)
    done = turngap_here(capsys, "init")
    assert (done.code, "the list has no number 3" in done.err) == (2, True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: 2)
    done = turngap_here(capsys, "init")
    assert done.code == 0, done.err
    assert "  1  bot.py" in done.err
    assert tomllib.loads((folder / "turngap.toml").read_text())["start"].endswith("other.py")
