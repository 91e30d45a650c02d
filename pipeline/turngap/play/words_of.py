"""The words of a command that starts an agent, and what a shell would have to do with it."""

import re
import shlex
import shutil
from pathlib import Path

from turngap.core.errors import InputError

# What a shell would make of these is not what the command gets. Quotes take it from all of them,
# but double ones not from a variable.
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
_EXPANDED = re.compile(r"\$[A-Za-z_{(]|`")
_OF_A_SHELL = re.compile(rf"(?:^|\s)(?:[&|;<]|[0-9]?>)|;(?:\s|$)|{_EXPANDED.pattern}")


def argv_of(command: str) -> list[str]:
    """The words of a command, as a shell would part them.

    Raises:
        InputError: there are none, they are meant for a shell, or the program is not here.
    """
    try:
        argv = shlex.split(command)
    except ValueError as e:
        raise InputError("start.unreadable", f"--start {command!r}: {e}") from e
    if not argv:
        raise InputError(
            "start.empty", "--start names no command", hint='for example: --start "python bot.py"'
        )
    in_a_shell = f"--start {shlex.quote(f'sh -c {shlex.quote(command)}')}"
    if _OF_A_SHELL.search(_QUOTED.sub(_unquoted, command)):
        raise InputError(
            "start.shell",
            f"--start {command!r} is meant for a shell, and is run without one",
            hint=in_a_shell,
        )
    if "=" in argv[0]:
        raise InputError(
            "start.environment",
            f"--start {command!r} begins with a variable, which only a shell knows how to set",
            hint=f"--start {shlex.quote(f'env {command}')}",
        )
    if shutil.which(argv[0]) is None:
        raise InputError(
            "start.not_found",
            f"--start {command!r}: there is no program {argv[0]!r} on your PATH, or it may not be "
            "run",
            hint="activate the bot's environment, or give the program's whole path",
        )
    return argv


def _unquoted(match: re.Match[str]) -> str:
    """What is left of a quoted text for a shell to do something with."""
    return "$x" if match[0][0] == '"' and _EXPANDED.search(match[0].replace("\\$", "")) else "x"


def require_script(argv: list[str]) -> None:
    """Refuse a command whose Python has no such script to run.

    Raises:
        InputError: it is not there: in this folder, or in that of the file that has the command.
    """
    folder = Path()
    # So a file's command is run in its folder (`turngap.defaults.file`).
    if argv[0] == "sh" and len(argv) > 4 and argv[2].startswith("CDPATH="):
        folder, argv = Path(argv[3]), argv[4:]
    python = Path(argv[0]).name.startswith("python")
    if python and len(argv) > 1 and argv[1].endswith(".py") and not (folder / argv[1]).is_file():
        raise InputError(
            "start.no_script",
            f"`{shlex.join(argv)}`: there is no file {argv[1]!r}",
            hint="correct its name, or its folder",
        )
