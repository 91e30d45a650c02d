"""A folder in which the documentation's commands run, and stand-ins for agents.

Agents answer at once (`FakeAgents`), and so do a load test, a server that would serve until Ctrl-C,
a hub and a judge. Everything else is turngap's own:
its command line, scenarios, stacks, plans, statistics, stored documents and reports.
"""

import asyncio
import contextlib
import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commandline import ROOT, SCENARIOS
from fake_agents import OLD, FakeAgents, somebody_is_there, speaks_pipecat, stand_in
from made_checks import make_turns, store
from made_loads import make_load, store_load
from recorded_calls import make_call

import turngap.cli
from turngap.agent.access import Access
from turngap.backends import Weights
from turngap.caller.endpoint import Endpoint
from turngap.cli import agents, lines, serving
from turngap.cli.options import PORT
from turngap.cli.serving import Announce, Wanted, Where
from turngap.load import play as loading
from turngap.load.play import Loaded
from turngap.play.plan import Progress
from turngap.play.target import resolve
from turngap.scenario.model import library_dir
from turngap.store.folders import new_folder
from turngap.turns import play as taking

# What pages name of the library, all of them short here.
NAMED = ("quick-questions", "coffee-order", "smart-home", "mine")
# Conversations of the reader's own, and one of text alone.
OWN_FOLDERS = ("mine", "judge", "held-out", "eot-en")
STACK = ROOT / "services/turngap_services/stacks/embedded.toml"
TEXT_ALONE = """\
name: opening-hours
turns:
  - say: When do you open on Sundays?
"""
BOT = """\
import pipecat

if __name__ == "__main__":
    pipecat.run()
"""
# What readers have to put in themselves.
KEYS = ("MY_KEY", "OPENAI_API_KEY", "GROQ_API_KEY")


def furnish(folder: Path) -> None:
    """Put into `folder` what the documentation takes for granted."""
    (folder / "scenarios").mkdir()
    for name in NAMED:
        own_scenario(folder / "scenarios", name)
    own_scenario(folder / "scenarios", "paused", tags="[pause]")
    for own in OWN_FOLDERS:
        (folder / own).mkdir()
        own_scenario(folder / own, "own")
        own_scenario(folder / own, "paused", tags="[pause]")
    (folder / "held-out/prompt.txt").write_text("Answer briefly.\n", encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples/fleet.toml", folder)
    for stack in ("my-stack.toml", "new.toml", "old.toml"):
        shutil.copy(STACK, folder / stack)
    (folder / "models").symlink_to(ROOT / "models")
    (folder / "bot.py").write_text(BOT, encoding="utf-8")
    (folder / "opening-hours.yaml").write_text(TEXT_ALONE, encoding="utf-8")
    shutil.copy(folder / "opening-hours.yaml", folder / "my-scenario.yaml")
    store(folder / "runs", "replay", make_turns(6))
    make_call(folder / "calls/monday.wav", [600.0])


def name_runs(folder: Path) -> None:
    """Have runs by the names that pages give them: one whole, and one that broke off."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        asked = ["replay", "quick-questions", "--repeat", "2", "--agent", OLD, "--out", "named"]
        turngap.cli.app(asked, standalone_mode=False)
    (made,) = (folder / "named").iterdir()
    shutil.copytree(made, folder / "RUN")
    made.rename(folder / "runs/NAME")
    turns = folder / "runs/NAME/turns.jsonl"
    turns.write_text("".join(turns.read_text("utf-8").splitlines(True)[:-1]), "utf-8")


def own_scenario(folder: Path, name: str, tags: str = "[]") -> None:
    """The first turn of a shipped conversation."""
    text = (SCENARIOS / "quick-questions.yaml").read_text(encoding="utf-8")
    text = "  - say:".join(text.replace("quick-questions/", f"{name}/").split("  - say:")[:2])
    shutil.copytree(SCENARIOS / "quick-questions", folder / name, dirs_exist_ok=True)
    lines = [line for line in text.splitlines() if not line.startswith(("name:", "tags:"))]
    there = "\n".join([f"name: {name}", f"tags: {tags}", *lines])
    (folder / f"{name}.yaml").write_text(there + "\n", encoding="utf-8")


def stand_ins(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have nothing started, called, fetched or recorded, and nothing take real time."""
    stand_in(monkeypatch, FakeAgents(), lambda target: str(target.choice))
    monkeypatch.setattr("turngap.play.rounds.identify", speaks_pipecat)
    monkeypatch.setattr(Endpoint, "knock", somebody_is_there)
    monkeypatch.setattr("turngap.play.target.require_free", lambda *_: None)
    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(taking, "turns_in_virtual_time", in_turns)
    monkeypatch.setattr(serving, "host_agent", host)
    monkeypatch.setattr(lines, "_serve", proxied)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    for room in ("turngap.backends.weights", "turngap.play.target", "turngap.scenario.spoken"):
        monkeypatch.setattr(f"{room}.bring", bring)
    monkeypatch.setattr("turngap.play.rounds.calibrated", calibrated)
    monkeypatch.setattr("turngap.play.calibrate.play_zoo", lambda **_: iter(()))
    for step in ("judged", "transcribed"):
        monkeypatch.setattr(f"turngap.judge.{step}", lambda run, *_: run)
    monkeypatch.setattr(agents, "_can_ask", lambda: True)
    monkeypatch.setattr("typer.prompt", first_answer)
    monkeypatch.setattr("turngap.setup.reached", reached)
    for key in KEYS:
        monkeypatch.setenv(key, "a-key-of-the-reader")
    monkeypatch.chdir(folder)


def first_answer(*_: object, default: Any, **__: object) -> Any:
    """Answer as a reader who only presses Enter."""
    return default


async def proxied(*_: object, **__: object) -> None:
    """Take the place of a proxy that is ended at once."""


async def reached(*_: object) -> Endpoint:
    return Endpoint(OLD, "pipecat")


async def calibrated(*_: object) -> None:
    """Leave the instrument as it is, which would take seconds."""


def in_turns(plan: taking.TurnsPlan, progress: Progress) -> taking.Played:
    """Play in order what `--virtual` would."""
    return asyncio.run(taking.turns(plan, progress))


async def load(plan: Any, progress: Any, *_: Any) -> Loaded:
    """Store a load test in place of playing one."""
    record = make_load()
    folder = store_load(new_folder(plan.out, "load"), record)
    progress.on_folder(folder)
    return Loaded(record, folder, None)


def host(wanted: Wanted, _: object, library: Path | None, announce: Announce) -> None:
    """Say where an agent is served, once it is known that it can be."""
    Access.for_host(wanted.address[0], wanted.token, wanted.origins)
    able: Any = resolve(wanted.choice, library_dir(library))
    name, port = wanted.address
    announce(Where(name, port or PORT, wanted.token), able)


def bring(wanted: Sequence[Weights], *_: Any) -> list[Path]:
    return [Path("weights") / weights.name for weights in wanted]
