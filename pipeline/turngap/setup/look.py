"""Looks for what could be the bot: files that import pipecat, and servers on the usual ports."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turngap.core.errors import InputError
from turngap.store.files import read_text

# pipecat's development runner, pipecat's WebSocket server, and what people give uvicorn.
USUAL_PORTS = (7860, 8765, 8000, 8080)
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


@dataclass(frozen=True, slots=True)
class Bot:
    """A file that could be a bot.

    Attributes:
        file: relative to the folder that was looked in.
        program: whether it can be run.
        paths: of the URLs at which it may serve, the likeliest first.
        takes_port: whether it knows an option `--port`.
    """

    file: Path
    program: bool
    paths: tuple[str, ...]
    takes_port: bool


def bots(folder: Path) -> list[Bot]:
    """Return the files that import pipecat: programs first, then by depth and name."""
    found = [bot for file in _python_files(folder) if (bot := _bot(folder, file)) is not None]
    return sorted(found, key=lambda bot: (not bot.program, len(bot.file.parts), str(bot.file)))


def servers() -> list[int]:
    """Return the usual ports of this machine at which something serves."""
    return [port for port in USUAL_PORTS if _serves(port)]


def python_of(folder: Path) -> str:
    """Return the Python that has pipecat, as one would type it in the folder.

    The folder's own environment comes first, then `python` and `python3` on the PATH, then the
    Python that runs turngap. If none has pipecat, `python`.
    """
    usual = [each for each in (".venv/bin/python", "venv/bin/python") if (folder / each).is_file()]
    usual += [name for name in ("python", "python3") if shutil.which(name)]
    for python in (*usual, sys.executable):
        if _has_pipecat(folder, python):
            return shlex.quote(python)
    return "python"


def _python_files(folder: Path) -> Iterator[Path]:
    """At most `MAX_FILES` files; no hidden folders, no environments, and no links to folders."""
    left = MAX_FILES
    for at, folders, files in os.walk(folder):
        here = Path(at)
        depth = len(here.relative_to(folder).parts)
        inner = [name for name in sorted(folders) if name not in _ELSEWHERE and name[0] != "."]
        folders[:] = inner if depth < MAX_DEPTH else []
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("test_"):
                if left == 0:
                    return
                left -= 1
                yield here / name


def _bot(folder: Path, file: Path) -> Bot | None:
    try:
        text = read_text(file, "init")
    except InputError:  # a link to nowhere, a pipe, in another encoding: no bot that can be told
        return None
    if not _PIPECAT.search(text):
        return None
    runner = ("/ws-client", "/ws") if "pipecat.runner.run" in text else ()
    paths = (*_ROUTE.findall(text), *_IN_URL.findall(text), *runner, *USUAL_PATHS)
    return Bot(
        file.relative_to(folder),
        bool(_PROGRAM.search(text)),
        tuple(dict.fromkeys(paths)),
        "--port" in text or bool(runner),
    )


def _serves(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S):
        return True
    return False


def _has_pipecat(folder: Path, python: str) -> bool:
    """Ask that Python, without importing pipecat, which takes seconds."""
    ask = "import importlib.util as u, sys; sys.exit(u.find_spec('pipecat') is None)"
    try:
        # Isolated: whatever lies in the folder is not imported.
        asked = subprocess.run(
            [python, "-I", "-c", ask],
            cwd=folder,
            capture_output=True,
            timeout=PYTHON_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
