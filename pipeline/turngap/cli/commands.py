"""Commands: their help, and the options that they take from the repository's file.

If no flag and no variable sets an option, a command takes its value from `turngap.toml`.
"""

import re
import shlex
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from turngap.cli.options import CALLERS, TABLE
from turngap.cli.shared import say
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import shown
from turngap.play.options import BUILT_IN, OUTPUT, options_of

if TYPE_CHECKING:
    from turngap.play.defaults import Defaults


class _PlainHelp:
    """Help that is easy to read: examples below the usage, and no names of Python's types.

    Each paragraph is one line, which wraps at the terminal's width. `--help` itself is listed with
    the other options on output, not in a group of one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        paragraphs = [" ".join(p.split("\n")) for p in cleandoc(self.help or "").split("\n\n")]
        examples = kwargs.pop("epilog", None)
        self.epilog = None
        self.help = "\n\n".join([paragraphs[0], *([examples] if examples else []), *paragraphs[1:]])

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""  # typer would write <bool>, as if the flag took a value
            if param.param_type_name == "argument":
                param.display_type = lambda _: ""  # its name and its text say enough
        return params

    def get_help_option(self, ctx: Any) -> Any:
        option: Any = super().get_help_option(ctx)  # type: ignore[misc]
        option.rich_help_panel = OUTPUT
        return option


class Group(_PlainHelp, TyperGroup):
    """A command with commands below it."""


class Command(_PlainHelp, TyperCommand):
    """A command that takes options without a flag from the repository's file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the flags; the repository's file may set the options that they leave open.

        Raises:
            InputError: the file cannot be used, or holds a value that its option does not take.
        """
        name = ctx.command_path.split(" ", 1)[-1]
        ctx.default_map = FromTheFile(name, ctx)
        if "--help-all" in args:
            ctx.meta["turngap.all"], args = True, ["--help"]
        old = {f"--{a}": f"--{o.key}" for o in options_of(name, TABLE).values() for a in o.aliases}
        words = [word.partition("=") for word in args]
        args = [old.get(flag, flag) + mark + value for flag, mark, value in words]
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as e:
            raise _refused(e, ctx) or e from e

    def invoke(self, ctx: Any) -> Any:
        if isinstance(ctx.default_map, FromTheFile):
            ctx.default_map.tell()
        try:
            return super().invoke(ctx)
        except InputError as e:
            raise _out_of_range(e, ctx) or e from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the options that most people use, with turngap's own defaults.

        `--help-all` shows all. If the built-in agent's engines are not installed, only `--help-all`
        shows their options. A broken file changes nothing here.
        """
        from turngap.backends import AGENT

        ctx.default_map = None
        name = ctx.command_path.split(" ", 1)[-1]
        options, left_out = options_of(name, TABLE), 0
        params: list[Any] = self.params
        for param in params:
            option = options.get(param.name)
            engine = option and option.group == BUILT_IN and name != "compare"
            if option and (option.rare or (engine and not AGENT.met())):
                param.hidden = not ctx.meta.get("turngap.all")
                left_out += param.hidden
        more = f"{left_out} more options: turngap {name} --help-all"
        self.epilog = more if left_out else None
        super().format_help(ctx, formatter)


_COMMANDS = {"start": "the agent", "start_against": "the reference"}
# Where `${NAME}` stands for the value of an environment variable.
_EXPANDED = ("agent", "headers", "against", "against_headers")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class FromTheFile:
    """The default map of one command: click asks it for options that were not given.

    The file is read when it is first needed, so `--help` works with a broken one.
    """

    def __init__(self, command: str, ctx: Any) -> None:
        self.command = command
        self._ctx = ctx
        self.defaults: Defaults | None = None
        self._values: dict[str, Any] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the file's value of an option; `default` if it has none."""
        key = _IN_THE_FILE.get(name, name)
        value = self._read().get(key)
        if value is None or self._is_replaced(key, value):
            return default
        if name == "library":  # of a command that plays none: the one folder, if there is one
            folders = [each for each in value if Path(each).is_dir()]
            return folders[0] if len(folders) == 1 else default
        return [f"{k}={v:g}" for k, v in value.items()] if isinstance(value, dict) else value

    def where(self, name: str) -> str:
        """Return the file and the line of a value that was taken."""
        key = _IN_THE_FILE.get(name, name)
        return self.defaults.where(self.command, key) if self.defaults else ""

    def took(self, name: str) -> bool:
        """Return whether an option has its value from the file."""
        return _source(self._ctx, name) == "DEFAULT_MAP"

    def tell(self) -> None:
        """Report the added options on stderr as flags; a command and variables by themselves."""
        params = {param: self._ctx.params[param.name] for param in self._ctx.command.params}
        taken = {param: value for param, value in params.items() if self.took(param.name)}
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

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            from turngap.play.defaults import OF_THE_AGENT, read_defaults

            self.defaults = read_defaults()
            values = {} if self.defaults is None else self.defaults.of(self.command)
            if self.command not in CALLERS:
                values = {name: values[name] for name in ("out", "scenarios") if name in values}
            # These serve or compare an agent that turngap starts itself, which is at no URL.
            if self.command in ("serve", "compare") and "://" in values.get("agent", ""):
                left_out = ("agent", *OF_THE_AGENT)
                values = {name: value for name, value in values.items() if name not in left_out}
            self._values = values
        return self._values

    def _is_replaced(self, name: str, value: Any) -> bool:
        """Return whether a given option replaces this setting."""
        from turngap.play.defaults import REPLACED

        # A run is continued as it began; an agent that a parent process starts is its parent's.
        if self._is_given("resume") or self._is_given("document"):
            return name != "out"
        if name == "baseline" and self._is_given("save"):
            return str(self._ctx.params["save"]) == value
        return any(name in others and self._is_given(by) for by, others in REPLACED.items())

    def _is_given(self, name: str) -> bool:
        return _source(self._ctx, name) in ("COMMANDLINE", "ENVIRONMENT")


# An option's name in the file, where it is another one than its name in Python.
_IN_THE_FILE = {"root": "out", "library": "scenarios"}


def _source(ctx: Any, name: str) -> str:
    """Return by name the source of a value: typer may bring a click of its own."""
    return str(getattr(ctx.get_parameter_source(name), "name", ""))


def given_options(ctx: Any) -> dict[str, Any]:
    """Return the options that were typed, or are in the environment."""
    typed = ("COMMANDLINE", "ENVIRONMENT")
    return {name: value for name, value in ctx.params.items() if _source(ctx, name) in typed}


def _refused(error: Any, ctx: Any) -> InputError | None:
    """Return the error for a value of the file that its option does not take; else None."""
    param = getattr(error, "param", None)
    if param is None or not isinstance(ctx.default_map, FromTheFile):
        return None
    if not ctx.default_map.took(param.name):
        return None
    where, option = ctx.default_map.where(param.name), _option(param).lstrip("-")
    expected = str(error.message).replace("Input should be", "expected")
    return InputError("config.value", f"{where}: {option}: {expected}")


def _out_of_range(error: InputError, ctx: Any) -> InputError | None:
    """Return the error for a number of the file out of its range, with its line; else None."""
    if error.kind != "argument.range" or not isinstance(ctx.default_map, FromTheFile):
        return None
    for param in ctx.command.params:
        if error.message.startswith(f"{_option(param)} ") and ctx.default_map.took(param.name):
            _, _, expected = error.message.partition(": ")
            value = shown(ctx.params[param.name])
            where = f"{ctx.default_map.where(param.name)}: {_option(param).lstrip('-')}"
            return InputError("config.value", f"{where}: {expected}, found {value}")
    return None


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
