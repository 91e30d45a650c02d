"""`turngap init`: search for the bot, call it, and write what a repository needs.

The bot is searched in files that import pipecat and at usual ports.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from turngap.caller.dialects.registry import find_dialect, transport_of
from turngap.caller.endpoint import NO_TRANSPORT, Endpoint
from turngap.caller.identify import identify
from turngap.caller.starting import place_of
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import REMOVED, header_without_secret, text_without_secrets
from turngap.play.defaults import FILE
from turngap.play.process import served_by, started
from turngap.store.documents import write_atomically, writing
from turngap.store.files import read_text

# --- the bot --------------------------------------------------------------------------------------

# pipecat's development runner, pipecat's WebSocket server, and what people give uvicorn.
RUNNER_PORT = 7860
USUAL_PORTS = (RUNNER_PORT, 8765, 8000, 8080)
# FastAPI's examples, the runner, websockets'.
USUAL_PATHS = ("/ws", "/ws-client", "/")
# As deep, and as many, as a bot's repository has; a whole disk takes a second.
MAX_DEPTH = 3
MAX_FILES = 2_000
CONNECT_TIMEOUT_S = 0.2
PYTHON_TIMEOUT_S = 20.0

_PIPECAT = re.compile(r"^[ \t]*(?:from|import)[ \t]+pipecat\b", re.MULTILINE)
_PROGRAM = re.compile(r"^if[ \t]+__name__[ \t]*==", re.MULTILINE)
_ROUTE = re.compile(
    r"""\.(?:websocket|websocket_route|add_api_websocket_route)\(\s*["'](/[^"'{}\s]*)["']"""
)
_IN_URL = re.compile(r"""\bwss?://[^\s"'/]{1,200}(/[\w./-]*)""")
_ELSEWHERE = {"site-packages", "node_modules", "venv", "env", "build", "dist", "tests", "test"}
# What an agent's URL looks like.
URLS = "ws://HOST:PORT/PATH (over WebRTC: http://HOST:PORT)"
_BY_HAND = (
    f"start it by hand, then: turngap init --agent {URLS}. If its packages are in an "
    "environment of its own: turngap init --start '/PATH/TO/ITS/.venv/bin/python bot.py'"
)


@dataclass(frozen=True, slots=True)
class Bot:
    """An agent to call.

    Attributes:
        url: where it serves; empty: wherever the command listens.
        start: the command that starts it; None if it runs already.
        paths: paths to try if the URL has none, the likeliest first.
        takes_port: whether the command has an option `--port`.
        is_called: whether it takes calls over WebRTC, as pipecat's development runner does.
    """

    url: str = ""
    start: str | None = None
    paths: Sequence[str] = USUAL_PATHS
    takes_port: bool = False
    is_called: bool = False


def bots(folder: Path) -> dict[str, Bot]:
    """Return the programs that import pipecat, by their path: by depth, then by name."""
    files = sorted(_programs(folder), key=lambda each: (len(each[0].parts), str(each[0])))
    python = python_of(folder) if files else ""
    return {
        str(file): replace(bot, start=f"{python} {shlex.quote(str(file))}") for file, bot in files
    }


def bot_of(url: str, start: str, folder: Path) -> Bot:
    """Return the bot of a URL or a command that the user gave, with facts from its file here."""
    if not start:
        return Bot(url)
    with suppress(InputError, ValueError):
        for word in shlex.split(start):
            if word.endswith(".py") and (folder / word).is_file():
                found = _bot(read_text(folder / word, "init"))
                takes_port = found.takes_port or "--port" in start
                return replace(found, url=url, start=start, takes_port=takes_port)
    return Bot(url, start, takes_port="--port" in start)


def servers() -> list[int]:
    """Return the usual ports at which a server listens on this machine."""
    return [port for port in USUAL_PORTS if _serves(port)]


def python_of(folder: Path) -> str:
    """Return the command of the Python that has pipecat, as typed in the folder.

    The folder's own environment comes first, then `python` and `python3` on the PATH, then the
    Python that runs turngap. If none has pipecat, `python`.
    """
    usual = [each for each in (".venv/bin/python", "venv/bin/python") if (folder / each).is_file()]
    usual += [name for name in ("python", "python3") if shutil.which(name)]
    for python in (*usual, sys.executable):
        if _has_pipecat(folder, python):
            return shlex.quote(python)
    return "python"


async def reached(
    bot: Bot, dialect: str, headers: tuple[str, ...], clock: Clock, on_step: Callable[[str], None]
) -> Endpoint:
    """Return where the agent answers, with its dialect named.

    Raises:
        InputError: the URL or the command cannot be used.
        AgentError: the agent does not start, is not there, or speaks no known dialect.
    """
    Endpoint(bot.url or "ws://127.0.0.1", dialect, headers).check()
    async with AsyncExitStack() as stack:
        urls = [bot.url]
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="turngap-init-"))
        log = Path(folder) / "agent.log"
        try:
            if bot.start is not None and bot.url:
                await stack.enter_async_context(started(bot.start, bot.url, log, on_step))
            elif bot.start is not None:
                on_step(f"starting {text_without_secrets(bot.start)}")
                ports = await stack.enter_async_context(served_by(bot.start, log))
                urls = [f"ws://127.0.0.1:{port}" for port in ports]
        except AgentError as e:
            # The log is gone when the error is read; its end is in the message.
            hint = _BY_HAND if str(log) in e.hint or "No module named" in e.message else e.hint
            raise AgentError(e.kind, e.message, hint=hint) from e
        errors: list[AgentError] = []
        tried = [each for one in urls for each in _with_paths(one, bot)]
        for url in tried:
            on_step(f"trying {url}")
            try:
                endpoint = await identify(Endpoint(url, dialect, headers), clock)
                # A dialect that was given is tried too, so that CI does not find it wrong.
                async with endpoint.open(clock) as line:
                    return replace(endpoint, dialect=endpoint.dialect or line.dialect)
            except AgentError as e:
                if e.kind == NO_TRANSPORT and transport_of(url) == "websocket":
                    raise
                errors.append(e)
    if len(errors) == 1:
        raise errors[0]
    raise AgentError(
        "init.no_agent",
        f"no agent answered at {', '.join(tried)}: {errors[0].message}",
        hint=errors[0].hint or f"give its whole URL: turngap init --agent {URLS}",
    )


def _with_paths(url: str, bot: Bot) -> list[str]:
    """Return the URL where it has a path, else the URLs at which the bot may be."""
    parts = urlsplit(url)
    if parts.path not in ("", "/") or parts.query or transport_of(url) == "webrtc":
        return [url]
    is_free = not bot.url or bot.start is None  # to choose what it is called by
    called = bot.is_called and is_free and not find_dialect("webrtc").missing()
    calls = [urlunsplit(parts._replace(scheme="http"))] if called else []
    return [*calls, *(urlunsplit(parts._replace(path=path)) for path in bot.paths)]


def _programs(folder: Path) -> Iterator[tuple[Path, Bot]]:
    """Yield programs that import pipecat, in no hidden folder and no environment."""
    left = MAX_FILES
    for at, folders, files in os.walk(folder):
        here = Path(at)
        inner = [name for name in sorted(folders) if name not in _ELSEWHERE and name[0] != "."]
        folders[:] = inner if len(here.relative_to(folder).parts) < MAX_DEPTH else []
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("test_") and left > 0:
                left -= 1
                # A link to nowhere, a pipe, another encoding: no bot that can be read.
                with suppress(InputError):
                    text = read_text(here / name, "init")
                    if _PIPECAT.search(text) and _PROGRAM.search(text):
                        yield (here / name).relative_to(folder), _bot(text)


def _bot(text: str) -> Bot:
    runner = ("/ws-client", "/ws") if "pipecat.runner.run" in text else ()
    paths = (*_ROUTE.findall(text), *_IN_URL.findall(text), *runner, *USUAL_PATHS)
    takes_port, called = "--port" in text or bool(runner), bool(runner)
    return Bot(paths=tuple(dict.fromkeys(paths)), takes_port=takes_port, is_called=called)


def _serves(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S):
        return True
    return False


def _has_pipecat(folder: Path, python: str) -> bool:
    """Ask that Python whether it has pipecat, without the import, which takes seconds."""
    ask = "import importlib.util as u, sys; sys.exit(u.find_spec('pipecat') is None)"
    with suppress(OSError, subprocess.TimeoutExpired):
        # Isolated: nothing in the folder is imported.
        asked = subprocess.run(
            [python, "-I", "-c", ask],
            cwd=folder,
            capture_output=True,
            timeout=PYTHON_TIMEOUT_S,
            check=False,
        )
        return asked.returncode == 0
    return False


# --- the files ------------------------------------------------------------------------------------

TEST = "tests/test_turn_gap.py"
WORKFLOW = ".github/workflows/turn-gap.yml"
SCENARIO = "quick-questions"
# Stands for the port in the action's command and URL: two versions run side by side.
PORT = "$PORT"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The agent that the files are made for.

    Attributes:
        agent: its URL, or the name of a stack.
        start: the command that starts it; empty if it runs already or turngap starts it.
        dialect: the dialect of its URL; empty if not known.
        headers: the headers for its URL.
        scenarios: names to play; empty: all of the library.
        takes_port: whether `--port` can be added to the command.
    """

    agent: str
    start: str = ""
    dialect: str = ""
    headers: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = (SCENARIO,)
    takes_port: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the agent is on another machine, by its host's name alone."""
        host = urlsplit(place_of(self.agent)).hostname or ""
        try:
            address = ip_address(host)
        except ValueError:
            return "://" in self.agent and host != "localhost"
        return not (address.is_loopback or address.is_unspecified)


def require_no_secrets(chosen: Chosen) -> None:
    """Refuse to write a key or a password into files that are meant to be committed.

    Raises:
        InputError: a setting has a secret in it.
    """
    settings = {"--agent": chosen.agent, "--start": chosen.start, "--dialect": chosen.dialect}
    texts = [(name, text, text) for name, text in settings.items()]
    texts += [("--header", text, header_without_secret(text)) for text in chosen.headers]
    for name, text, masked in texts:
        clean = text_without_secrets(masked)
        if clean.count(REMOVED) > text.count(REMOVED):
            raise InputError(
                "init.secret",
                f"{name} {clean!r} had a secret in it, and the file is meant to be committed",
                hint="write ${NAME} instead, and set the environment variable NAME",
            )


def contents(chosen: Chosen, below: Path = Path()) -> dict[str, str]:
    """Return each file's text by its path from the folder `below` the repository's root.

    The workflow belongs at the root; there is none for an agent that the action cannot start.

    Raises:
        InputError: there is a secret in the texts.
    """
    require_no_secrets(chosen)
    words: dict[str, Any] = {"chosen": chosen, "below": "" if below == Path() else below.as_posix()}
    templates = {FILE: FILE, TEST: "test_turn_gap.py.txt"}
    if not chosen.is_elsewhere:
        templates[os.path.relpath(WORKFLOW, below)] = "turn-gap.yml"
        words |= _for_the_action(chosen)
    texts = _environment()
    return {
        file: texts.get_template(template).render(words) for file, template in templates.items()
    }


def write(
    folder: Path, files: Mapping[str, str], *, force: bool, root: Path | None = None
) -> list[str]:
    """Write files, each whole; return the paths of those written.

    Existing files stay, and are not in the list; `force` replaces the defaults, but no test and no
    workflow, which people adapt. `root` is the repository's, by default the folder.

    Raises:
        InputError: a file cannot be written, or a link in its path leads out of the repository.
    """
    written: list[str] = []
    for name, text in files.items():
        file = folder / name
        if (file.exists() or file.is_symlink()) and not (force and name == FILE):
            continue
        within = (root or folder).resolve()
        if not file.parent.resolve().is_relative_to(within):
            raise InputError("init.outside", f"{name}: a link in its path leads out of {within}")
        with writing(file, "init.unwritable"):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())
        written.append(name)
    return written


def from_here(command: str, here: Path) -> str:
    """Make the program's path relative to the folder `here`, for a file that others use too."""
    return re.sub(f"^(['\"]?){re.escape(str(here))}/", r"\1", command)


def _for_the_action(chosen: Chosen) -> dict[str, Any]:
    """Return the template values for the GitHub Action.

    `yours` says what the user must still put into `start`; empty if nothing.
    """
    words: dict[str, Any] = {"install": "", "options": "", "variables": (), "yours": ""}
    if "://" not in chosen.agent:
        extra = "embedded" if chosen.agent == "embedded" else "agent"
        return words | {
            "start": f'turngap serve --agent {shlex.quote(chosen.agent)} --port "{PORT}"',
            "url": f"ws://127.0.0.1:{PORT}/ws",
            "install": f'pip install --quiet "$GITHUB_WORKSPACE/.turngap-action[{extra}]"',
        }
    parts = urlsplit(place_of(chosen.agent))
    user, mark, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    start = re.sub(r"^\S*/python[\d.]*(?= )", "python", chosen.start)
    start = start or f'python bot.py --port "{PORT}"'
    yours = f"the command that starts your bot at the port in {PORT}."
    if chosen.takes_port and chosen.start:
        start, yours = re.sub(r"\s--port[ =]\S+", "", start) + f' --port "{PORT}"', ""
    named = re.findall(r"\$\{([A-Za-z_]\w*)\}", " ".join((chosen.agent, *chosen.headers)))
    return words | {
        "start": start,
        "url": chosen.agent.replace(parts.netloc, f"{user}{mark}{host}:{PORT}", 1),
        "options": " ".join(f"--header {shlex.quote(each)}" for each in chosen.headers),
        "variables": tuple(dict.fromkeys(named)),
        "yours": yours,
    }


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("turngap.setup"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        autoescape=False,
    )
    # A TOML text is one of JSON but for DEL. YAML's in double quotes takes what JSON escapes.
    as_json = partial(json.dumps, ensure_ascii=False)
    environment.filters["json"] = as_json
    environment.filters["toml"] = lambda value: as_json(value).replace("\x7f", "\\u007f")
    return environment
