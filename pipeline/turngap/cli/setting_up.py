"""`turngap init`."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turngap.cli.shared import print_json, print_text, say
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.play.options import Asked

if TYPE_CHECKING:
    from turngap.setup.files import Chosen
    from turngap.setup.look import Bot


def init(_: typer.Context, asked: Asked) -> None:
    """Write turngap.toml, a test and a workflow, so that `turngap check` needs no flags.

    It looks for files that import pipecat and for servers on the usual ports, starts and calls what
    you choose, and finds out its dialect. Without a terminal it takes --yes, --agent or --start.

    Exit: 0 written, 2 bad input or files that are there already, 4 no agent could be reached.
    """
    from turngap.play.defaults import FILE, PYPROJECT, read_defaults, repository_of, strangers
    from turngap.setup.files import WORKFLOW, Chosen, contents, require_no_secrets, write

    folder, here = Path(), Path.cwd()
    if not asked.force and (folder / FILE).exists():
        raise InputError(
            "init.exists", f"{FILE} is there already", hint="turngap init --force replaces it"
        )
    there = None if (folder / FILE).exists() else read_defaults()
    if there is not None and there.path == Path(PYPROJECT):
        raise InputError(
            "init.exists",
            f"{PYPROJECT} has defaults for turngap already, and two files would disagree",
            hint=f"edit [tool.turngap] in {PYPROJECT}",
        )
    given = Chosen(asked.agent or "", asked.start or "", asked.dialect, asked.headers)
    require_no_secrets(given)
    chosen = _chosen(folder, given, yes=asked.yes)
    # Where GitHub looks for workflows. A `.git` that another user has put above does not count.
    root = repository_of(here)
    root = here if root is None or strangers(root / ".git") else root
    files = contents(chosen, here.relative_to(root))
    written = write(folder, files, force=asked.force, root=root)
    if asked.json_:
        agent_facts = {"agent": chosen.agent, "start": chosen.start, "dialect": chosen.dialect}
        print_json({"written": written, **agent_facts})
    else:
        for name in files:
            print_text(f"wrote {name}" if name in written else f"kept {name}, which was there")
    if chosen.is_elsewhere:
        say("no workflow was written: the agent is on another machine")
    adapt = [name for name in written if name.endswith(WORKFLOW)]
    more = f'; then adapt the lines of {adapt[0]} that are marked "yours"' if adapt else ""
    say(f"next: is it fast enough? turngap check{more}")


def _chosen(folder: Path, given: "Chosen", *, yes: bool) -> "Chosen":
    """Return the agent that was given, or that is found here, once it has answered."""
    from turngap.clocks import MonotonicClock
    from turngap.setup.files import SCENARIO, Chosen
    from turngap.setup.look import Bot, reached

    own = any(Path("scenarios").glob("*.yaml"))
    scenarios = () if own else (SCENARIO,)
    agent, start, headers = given.agent, given.start, given.headers
    if agent and "://" not in agent:
        from turngap.agent.stack import load_stack

        load_stack(agent)
        return Chosen(agent, scenarios=scenarios)
    if agent or start:
        bot = Bot(agent, start or None, takes_port="--port" in start)
    else:
        bot = _bot_here(folder, yes=yes)
    endpoint = asyncio.run(reached(bot, given.dialect, headers, MonotonicClock(), say))
    say(f"{text_without_secrets(endpoint.url)} answers, and speaks {endpoint.spec().name}")
    command = bot.start or ""
    return Chosen(endpoint.url, command, endpoint.dialect, headers, scenarios, bot.takes_port)


def _bot_here(folder: Path, *, yes: bool) -> "Bot":
    """Return the first bot that is here with `yes`, or else the one that the person chooses.

    Raises:
        InputError: there is none, or no one to ask.
    """
    from turngap.setup.look import Bot, bots, servers

    choices = bots(folder)
    choices |= {f"port {port}": Bot(f"ws://127.0.0.1:{port}") for port in servers()}
    names = list(choices)
    hint = "name your agent: turngap init --agent ws://HOST:PORT/PATH, with --start COMMAND if "
    hint += "turngap shall start it"
    if not names:
        raise InputError("init.nothing_found", "nothing here looks like a bot", hint=hint)
    if yes:
        return choices[names[0]]
    if not _can_ask():
        hint += "; or turngap init --yes takes the first"
        raise InputError("init.nobody_to_ask", f"found here: {'; '.join(names)}", hint=hint)
    for number, name in enumerate(names, start=1):
        say(f"  {number}  {name}")
    number = typer.prompt("Which is your agent? A number", default=1, type=int, err=True)
    if not 1 <= number <= len(names):
        raise InputError("init.number", f"there is no number {number}", hint=hint)
    return choices[names[number - 1]]


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
