"""What the repository's file adds to a command, where no flag and no variable says otherwise."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngap.cli.shared import say
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import shown
from turngap.defaults.keys import OF_THE_AGENT, REPLACED

if TYPE_CHECKING:
    from turngap.defaults.file import Defaults

# The commands that take all that they know; others take where runs and scenarios are.
CALLERS = ("replay", "check", "turns", "compare", "load", "talk", "serve")
_PLACES = ("out", "scenarios")
# These serve or compare an agent that turngap starts itself, so a URL is none for them.
_STACKS_ONLY = ("serve", "compare")
# An option's name in the file, where it is another one than its name in Python.
_NAMES = {"root": "out", "library": "scenarios"}

_COMMANDS = {"start": "the agent", "start_against": "the reference"}
# Where `${NAME}` stands for what an environment variable holds.
_EXPANDED = ("agent", "header", "against", "against_header")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class FromTheFile:
    """The default map of one command: click asks it for what nobody gave.

    The file is read when it is first asked, so that `--help` works beside a broken one.
    """

    def __init__(self, command: str, ctx: Any) -> None:
        self.command = command
        self._ctx = ctx
        self.defaults: Defaults | None = None
        self._values: dict[str, Any] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return what the file says of an option; `default` where it says nothing."""
        key = _NAMES.get(name, name)
        value = self._said().get(key)
        if value is None or self._left_out(key, value):
            return default
        if name == "library":  # of a command that plays none: the one folder, if there is one
            folders = [each for each in value if Path(each).is_dir()]
            return folders[0] if len(folders) == 1 else default
        return [f"{k}={v:g}" for k, v in value.items()] if isinstance(value, dict) else value

    def where(self, name: str) -> str:
        """Return the file and the line of a value that was taken."""
        key = _NAMES.get(name, name)
        return self.defaults.where(self.command, key) if self.defaults else ""

    def took(self, name: str) -> bool:
        """Return whether an option has its value from the file."""
        return self._source(name) == "DEFAULT_MAP"

    def tell(self) -> None:
        """Say on stderr what was added, as flags; a command and variables by themselves."""
        taken = {
            param: self._ctx.params[param.name]
            for param in self._ctx.command.params
            if self.took(param.name)
        }
        if not taken or self.defaults is None:
            return
        flags = " ".join(_flag(param, value) for param, value in taken.items())
        where = self.defaults.name
        say(f"{where} adds: {text_without_secrets(flags)}")
        for param, value in taken.items():
            if whose := _COMMANDS.get(param.name):
                say(f"{where} starts {whose} with this command: {text_without_secrets(value)}")
        opened = " ".join(_flag(p, value) for p, value in taken.items() if p.name in _EXPANDED)
        if sent := sorted(set(_VARIABLE.findall(opened))):
            say(f"{where} sends what these environment variables hold: {', '.join(sent)}")

    def _said(self) -> dict[str, Any]:
        if self._values is None:
            from turngap.defaults.file import read_defaults

            self.defaults = read_defaults()
            said = {} if self.defaults is None else self.defaults.of(self.command)
            known = _PLACES if self.command not in CALLERS else tuple(said)
            self._values = {name: said[name] for name in known if name in said}
            self._drop_url()
        return self._values

    def _drop_url(self) -> None:
        values = self._values or {}
        if self.command in _STACKS_ONLY and "://" in values.get("agent", ""):
            for name in ("agent", *OF_THE_AGENT):
                values.pop(name, None)

    def _left_out(self, name: str, value: Any) -> bool:
        """Return whether a given option replaces this setting."""
        if self._given("resume"):  # a run goes on as it began; the file may be another today
            return name != "out"
        if name == "baseline" and self._given("save"):
            return str(self._ctx.params["save"]) == value
        return any(name in others and self._given(by) for by, others in REPLACED.items())

    def _given(self, name: str) -> bool:
        return self._source(name) in ("COMMANDLINE", "ENVIRONMENT")

    def _source(self, name: str) -> str:
        """Return by name where a value came from: typer may bring a click of its own."""
        return str(getattr(self._ctx.get_parameter_source(name), "name", ""))


def refused(error: Any, ctx: Any) -> InputError | None:
    """Return the error for a value of the file that its option does not take; else None."""
    param = getattr(error, "param", None)
    if param is None or not isinstance(ctx.default_map, FromTheFile):
        return None
    if str(getattr(ctx.get_parameter_source(param.name), "name", "")) != "DEFAULT_MAP":
        return None
    where, option = ctx.default_map.where(param.name), _option(param).lstrip("-")
    said = _not_taken(error, ctx.default_map.get(param.name))
    return InputError("config.value", f"{where}: {option}: {said}")


def _not_taken(error: Any, value: Any) -> str:
    """Return what an option expected in place of a value of the file."""
    said = str(error.message).replace("Input should be", "expected")
    said = said.replace("expected less", "expected a number less")
    said = said.replace("expected greater", "expected a number greater")
    return f"{said}, found {shown(value)}" if isinstance(value, int | float) else said


def _option(param: Any) -> str:
    return max(param.opts, key=len)


def _flag(param: Any, value: Any) -> str:
    """Format an option as a user would type it."""
    values = value if isinstance(value, list | tuple) else [value]
    words = [f"{each:g}" if isinstance(each, float) else str(each) for each in values]
    if param.param_type_name == "argument":
        return shlex.join(words)
    if isinstance(value, bool):
        return _option(param) if value else max(param.secondary_opts, key=len)
    return " ".join(f"{_option(param)} {shlex.quote(word)}" for word in words)
