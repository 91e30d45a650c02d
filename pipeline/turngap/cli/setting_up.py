"""`turngap init`."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from turngap.cli import options
from turngap.cli.next_steps import say_next
from turngap.cli.shared import print_json, print_text, say
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets

if TYPE_CHECKING:
    from turngap.setup.chosen import Chosen
    from turngap.setup.look import Bot
    from turngap.setup.reach import Asked


def init(
    agent: Annotated[
        str | None,
        options.for_agent("--agent", help="The ws:// URL of your bot, or a built-in agent's name."),
    ] = None,
    start: options.Start = None,
    dialect: options.Dialect = "",
    header: options.Headers = None,
    try_: Annotated[
        bool,
        options.for_agent(
            "--try/--no-try", help="Start the bot, where a command is known, and call it once."
        ),
    ] = True,
    budget_ms: Annotated[
        float | None,
        options.for_limits(
            "--budget-ms",
            min=1,
            max=60_000,
            help="The longest gap that keeps the budget. Default: 800.",
        ),
    ] = None,
    target: Annotated[
        float | None,
        options.for_limits(
            min=0.5, max=0.999, help="The share of turns that must keep the budget. Default: 0.9."
        ),
    ] = None,
    yes: Annotated[
        bool,
        options.for_output("--yes", "-y", help="Ask nothing: take what is found, and run it."),
    ] = False,
    force: Annotated[
        bool, options.for_output("--force", help="Replace turngap.toml. Other files stay.")
    ] = False,
    json_: options.Json = False,
) -> None:
    """Write turngap.toml, a test and a workflow, so that `turngap check` needs no flags.

    It looks for files that import pipecat and for servers on the usual ports, starts and calls what
    you choose, and finds out what it speaks. Without a terminal it takes --yes, --agent or --start.

    Exit: 0 written, 2 bad input or files that are there already, 4 no agent could be reached.
    """
    from turngap.setup.chosen import require_no_secrets
    from turngap.setup.files import WORKFLOW, contents, write
    from turngap.setup.workflow import lines_to_adapt, why_none

    folder = Path()
    _require_none_yet(folder, force)
    require_no_secrets(agent or "", start or "", dialect, header or ())
    chosen = _chosen(folder, agent, start, dialect, tuple(header or ()), yes=yes, try_=try_)
    chosen = _with_limits(chosen, budget_ms, target, ask=_asks(yes) and not agent and not start)
    root = _root()
    files = contents(chosen, Path.cwd().relative_to(root))
    written = write(folder, files, force=force, root=root)
    if json_:
        found = {"agent": chosen.agent, "start": chosen.start, "dialect": chosen.dialect}
        print_json({"written": written, **found})
    else:
        for name in files:
            print_text(f"wrote {name}" if name in written else f"kept {name}, which was there")
    workflow = next((name for name in files if name.endswith(WORKFLOW)), None)
    if workflow is None:
        say(why_none(chosen))
    steps = ["is it fast enough? turngap check"]
    if workflow in written and (lines := lines_to_adapt(files[workflow])):
        numbers = ", ".join(map(str, lines))
        steps.append(f'then adapt the lines of {workflow} that are marked "yours": {numbers}')
    say_next("; ".join(steps))


def _root() -> Path:
    """The repository's root, where GitHub looks for workflows; outside of one, this folder.

    A `.git` that a stranger has put above is none.
    """
    from turngap.defaults.file import repository_of
    from turngap.defaults.owner import strangers

    root = repository_of(Path.cwd())
    return Path.cwd() if root is None or strangers(root / ".git") else root


def _require_none_yet(folder: Path, force: bool) -> None:
    """Refuse to be a second file, or to replace the one there is.

    Raises:
        InputError: there is one, and it is not to be replaced.
    """
    from turngap.defaults.file import FILE, PYPROJECT, read_defaults

    if (folder / FILE).exists():
        if force:
            return
        raise InputError(
            "init.exists",
            f"{FILE} is there already",
            hint="turngap init --force replaces it",
        )
    found = read_defaults()
    if found is not None and found.path == Path(PYPROJECT):
        raise InputError(
            "init.exists",
            f"{PYPROJECT} has defaults for turngap already, and two files would disagree",
            hint=f"remove [tool.turngap] from {PYPROJECT}, or add to it",
        )


def _asks(yes: bool) -> bool:
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def _chosen(
    folder: Path,
    agent: str | None,
    start: str | None,
    dialect: str,
    headers: tuple[str, ...],
    *,
    yes: bool,
    try_: bool,
) -> "Chosen":
    """What is known after looking, asking and trying."""
    from turngap.clocks import MonotonicClock
    from turngap.setup.chosen import Chosen
    from turngap.setup.reach import Asked, reached

    if agent is not None and "://" not in agent:
        from turngap.agent.stack import load_stack

        load_stack(agent)
        return Chosen(agent)
    asked, takes_port = Asked(agent or "", start, dialect, headers), "--port" in (start or "")
    if agent is None and start is None:
        asked, takes_port = _found(folder, dialect, headers, yes=yes)
    if not try_:
        if not asked.url:
            raise InputError(
                "init.no_url", "--no-try takes the agent's URL", hint="add --agent ws://HOST:PORT/"
            )
        return Chosen(asked.url, asked.start or "", dialect, headers, takes_port=takes_port)
    endpoint = asyncio.run(reached(asked, MonotonicClock(), say))
    say(f"{text_without_secrets(endpoint.url)} answers, and speaks {endpoint.spec().name}")
    return Chosen(endpoint.url, asked.start or "", endpoint.dialect, headers, takes_port=takes_port)


def _found(
    folder: Path, dialect: str, headers: tuple[str, ...], *, yes: bool
) -> "tuple[Asked, bool]":
    """What to try of what is here: the first with `--yes`, or else what the person chooses.

    Raises:
        InputError: nothing is found, or nobody can be asked.
    """
    from turngap.setup.look import bots, servers
    from turngap.setup.reach import Asked

    choices: list[tuple[str, Callable[[], tuple[Asked, bool]]]] = [
        (str(bot.file), lambda bot=bot: _start_of(folder, bot, dialect, headers))
        for bot in bots(folder)
        if bot.program
    ]
    for port in servers():
        url = f"ws://127.0.0.1:{port}"
        words = f"what serves at port {port}"
        choices.append((words, lambda url=url: (Asked(url, None, dialect, headers), False)))
    if not _asks(yes):
        if not choices or not yes:
            what = "; ".join(words for words, _ in choices) or "nothing that looks like a bot"
            raise InputError(
                "init.nobody_to_ask" if choices else "init.nothing_found",
                f"found here: {what}",
                hint="say what to call: turngap init --agent ws://HOST:PORT/PATH, with --start "
                "COMMAND if turngap shall start it"
                + ("; or turngap init --yes takes the first" if choices else ""),
            )
        return choices[0][1]()
    return _asked_for([words for words, _ in choices], [make for _, make in choices], dialect)


def _start_of(
    folder: Path, bot: "Bot", dialect: str, headers: tuple[str, ...]
) -> "tuple[Asked, bool]":
    import shlex

    from turngap.setup.look import python_of
    from turngap.setup.reach import Asked

    command = f"{python_of(folder)} {shlex.quote(str(bot.file))}"
    return Asked("", command, dialect, headers, bot.paths), bot.takes_port


def _asked_for(
    words: list[str], make: "list[Callable[[], tuple[Asked, bool]]]", dialect: str
) -> "tuple[Asked, bool]":
    """Ask which of these, or for a URL."""
    from rich.console import Console
    from rich.prompt import Prompt

    from turngap.setup.reach import Asked

    console = Console(stderr=True, highlight=False)
    for number, each in enumerate(words, start=1):
        console.print(f"  {number}  {each}", markup=False)
    default = "1" if words else "ws://127.0.0.1:8765/ws"
    question = "Which is your agent? A number, or its ws:// URL" if words else "Your agent's URL"
    while True:
        answer = Prompt.ask(question, console=console, default=default).strip()
        if "://" in answer:
            command = Prompt.ask(
                "The command that starts it (empty: it runs already)", console=console, default=""
            )
            return Asked(answer, command.strip() or None, dialect), "--port" in command
        if answer.isdecimal() and 1 <= int(answer) <= len(words):
            return make[int(answer) - 1]()
        console.print("Type one of the numbers, or a URL that begins with ws:// or wss://")


def _with_limits(
    chosen: "Chosen", budget_ms: float | None, target: float | None, *, ask: bool
) -> "Chosen":
    """Add the limits that were given, or that the person names."""
    from dataclasses import replace

    limits = {"gap_ms": budget_ms, "target": target}
    if ask and budget_ms is None:
        from rich.console import Console
        from rich.prompt import FloatPrompt

        console = Console(stderr=True, highlight=False)
        question = "How long may the turn gap be, in ms? [prompt.default](800)[/]"
        while limits["gap_ms"] is None:
            answer = FloatPrompt.ask(question, console=console, default=800.0, show_default=False)
            limits["gap_ms"] = answer if 1 <= answer <= 60_000 else None
    library = Path("scenarios")
    own = library.is_dir() and any(library.glob("*.yaml"))
    named = {name: value for name, value in limits.items() if value is not None}
    return replace(chosen, scenarios=() if own else chosen.scenarios, **named)
