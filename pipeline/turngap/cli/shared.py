"""Options, output and progress that all commands share."""

import asyncio
import codecs
import json
import os
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import typer

from turngap.core.clock import NS_PER_S
from turngap.core.errors import ExitCode, InputError, TurngapError
from turngap.core.secrets import shown_without_secrets, without_known_secrets
from turngap.core.untrusted import harmless, inert
from turngap.core.wording import minutes_words, seconds_left

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from turngap.core.clock import Clock
    from turngap.core.results import Turn
    from turngap.play.plan import PlayPlan, Progress
    from turngap.telemetry import Telemetry

# What stands for a glyph that an encoding lacks: as wide, and another one for each stage of a turn.
# Where there is none, it is a `?`.
_GLYPHS = "…·–—−━─╌│┴¦’“”×✗✓≠±≤∅»→▶▸«←◀◂↓╱╲┼▚█▇▆▅▄▃▂▁▓▒░"
_INSTEAD = dict(zip(_GLYPHS, r"""..------|^:'""xxv!+<0)>>><<<<v/\+%##==--__@~,""", strict=True))


def take_any_encoding() -> None:
    """Make stdout and stderr replace characters that their encoding lacks, instead of failing."""
    codecs.register_error("turngap", _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="turngap")


def _replaced(e: UnicodeError) -> tuple[str, int]:
    if not isinstance(e, UnicodeEncodeError):
        raise e
    return "".join(_INSTEAD.get(c, "?") for c in e.object[e.start : e.end]), e.end


def show_error(error: TurngapError) -> None:
    """Show an error that ended the command; with `--json`, as the document."""
    if "--json" in sys.argv:
        print_json({"error": {"kind": error.kind, "message": error.message, "hint": error.hint}})
    show_failure(error)


def show_failure(error: TurngapError) -> None:
    """Write the error and its hint to stderr."""
    say(f"error: {error.message}")
    if error.hint:
        say(f"  {error.hint}")


def leave(failure: TurngapError | None, code: ExitCode) -> NoReturn:
    """End the command: with the failure and its exit code, or else with this one."""
    if failure is not None:
        show_failure(failure)
    raise typer.Exit(code if failure is None else failure.exit_code)


def say(text: str) -> None:
    """Print a line or a few for people on stderr, so that stdout can be piped.

    They may quote an agent's words, which the terminal must not obey.
    """
    lines = map(harmless, without_known_secrets(text).split("\n"))
    sys.stderr.write(inert("\n".join(lines)) + "\n")
    sys.stderr.flush()


def telemetry_of(ctx: typer.Context, otlp: str | None) -> "Telemetry":
    """Return telemetry that is sent and reported when the command is over.

    Raises:
        InputError: the URL is not one of a collector.
    """
    from turngap.telemetry import telemetry_to

    telemetry = telemetry_to(otlp)

    def close() -> None:
        if words := telemetry.close():
            say(words)

    ctx.call_on_close(close)
    return telemetry


def print_json(document: Any) -> None:
    """Write the document to stdout; escape unprintable characters and commands to a CI server."""
    document = shown_without_secrets(document)
    whole = (sys.stdout.encoding or "").lower().startswith("utf")  # others lack characters
    text = json.dumps(document, indent=2, ensure_ascii=not whole).replace("##", "#\\u0023")
    escaped = {c: json.dumps(c)[1:-1] for c in {*text} - {"\n"} if not c.isprintable()}
    _write(text.translate(str.maketrans(escaped)))


def print_text(text: str) -> None:
    """Write lines to stdout; none of them is a command to a CI server."""
    _write(inert(without_known_secrets(text)))


def _write(text: str) -> None:
    with _stdout():
        sys.stdout.write(text + "\n")


def print_block(block: "Callable[[int], RenderableType]") -> None:
    """Print the output of `block` for the terminal's width."""
    from rich.console import Console

    console = Console(highlight=False)
    with _stdout():
        console.print(block(console.width))


@contextmanager
def _stdout() -> Iterator[None]:
    """Write to stdout; drop the text if the reader has gone.

    Raises:
        InputError: stdout leads to a disk that is full or fails.
    """
    try:
        yield
        sys.stdout.flush()
    except (OSError, SystemExit) as e:  # rich's word for a closed pipe is to exit with 1
        _write_to_nobody()
        if isinstance(e, OSError) and not isinstance(e, BrokenPipeError):
            message = f"stdout cannot be written to: {e.strerror or e}"
            raise InputError("stdout.unwritable", message, hint="write to a file") from e


def _write_to_nobody() -> None:
    """Send the rest of stdout nowhere: Python flushes it when it exits, and would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def table(rows: Sequence[dict[str, Any]]) -> "Table":
    """Build a table of rows with equal keys; leave out empty columns."""
    from rich.markup import escape
    from rich.table import Table

    out = Table(box=None, header_style="bold", pad_edge=False)
    keys = [k for k in rows[0] if any(r[k] not in ([], "") for r in rows)] if rows else []
    for key in keys:
        out.add_column(key, overflow="fold")  # a path that is cut short cannot be used
    for row in rows:
        # Whatever a cell says in brackets, as `turngap[piper]`, is no markup.
        out.add_row(*(escape(_cell(row[k])) for k in keys))
    return out


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# How often a line is written where there is no terminal, so that a log stays short.
LINE_EVERY_S = 30.0

T = TypeVar("T")
Plan = TypeVar("Plan", bound="PlayPlan")


def played(
    plan: "Plan",
    what: str,
    player: "Callable[[Plan, Progress], Coroutine[Any, Any, T]]",
    *,
    quiet: bool,
    most_minutes: float | None = None,
) -> T:
    """Announce the number of turns and the time, play them, and show the progress."""
    announce(plan, what, quiet=quiet)
    with Display(plan.turns, "turns", plan.minutes, most_minutes=most_minutes) as shown:
        return asyncio.run(player(plan, shown.playing()))


def announce(plan: "PlayPlan", what: str, *, quiet: bool) -> None:
    """Announce how many turns are played, and about how long that takes."""
    if not quiet:
        say(f"{plan.turns} turns {what}, in real time: {minutes_words(plan.minutes)}")


class Display:
    """Progress on stderr while it is used as a context.

    Args:
        total: how many steps there are.
        unit: the name of a step, in the plural.
        minutes: how long all steps are expected to take, if known.
        most_minutes: the longest total time of work that may continue while it is undecided.
    """

    def __init__(
        self,
        total: float,
        unit: str,
        minutes: float | None = None,
        clock: "Clock | None" = None,
        most_minutes: float | None = None,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        from turngap.clocks import MonotonicClock

        clock = clock or MonotonicClock()
        self.console = Console(stderr=True, highlight=False)
        self._unit = unit
        self._planned_s = None if minutes is None else minutes * 60
        self._planned, self._most_minutes = total, most_minutes
        self._folders: list[Path] | None = None
        # Twice a second: a drawing takes a millisecond of the interpreter, which the caller shares.
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            refresh_per_second=2,
            transient=True,
            disable=not self.console.is_terminal,
            get_time=lambda: clock.now_ns() / NS_PER_S,
        )
        self._id = self._bar.add_task("", total=total, left="")
        self._task = self._bar.tasks[0]
        self._line_s = self._bar.get_time()
        self.reach(0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        self._bar.stop()
        if kind is KeyboardInterrupt and self._folders is not None:
            say(_kept(self._folders))

    def step(self, what: str, total: float | None = None) -> None:
        """Name the present work; with `total`, a new count begins."""
        if total is not None:
            self._planned_s = None
            self._bar.reset(self._id, total=total, left="")
        self._bar.update(self._id, description=what)
        self._say(what)

    def advance(self, _: object = None) -> None:
        self.reach(self._task.completed + 1)

    def reach(self, done: float) -> None:
        """Set the number of finished steps. It may exceed the total."""
        if done > self._planned and self._most_minutes is not None:
            self._reach_open(done, self._most_minutes)
            return
        total = max(done, self._task.total or 0)
        self._bar.update(self._id, completed=done, total=total)
        self._bar.update(self._id, left=self.left_words())
        self._say(f"{done:g} of {total:g} {self._unit}, {self.left_words()}".rstrip(", "))

    def _say(self, text: str) -> None:
        """Write a line now and then, if there is no terminal."""
        now_s = self._bar.get_time()
        if not self.console.is_terminal and now_s - self._line_s >= LINE_EVERY_S:
            self._line_s = now_s
            say(text)

    def _reach_open(self, done: float, most_minutes: float) -> None:
        """Set the number of finished steps, when the total is not known."""
        left = max(0.0, most_minutes - (self._task.elapsed or 0.0) / 60)
        words = f"still undecided, up to {minutes_words(left).removeprefix('about ')} more"
        self._task.total = None  # a bar without an end; a whole one would say that it has ended
        self._bar.update(self._id, completed=done, left=words)
        self._say(f"{done:g} {self._unit}, {words}")

    def tell(self, what: str, done: float, left_s: float | None) -> None:
        """Name the present work, and its progress in seconds if the rest is known."""
        left = "" if left_s is None else minutes_words(left_s / 60) + " left"
        total = max(self._task.total or 0, done) if left_s is None else done + left_s
        self._bar.update(
            self._id, description=what, completed=round(done), total=round(total), left=left
        )
        self._say(f"{what}, {left}".rstrip(", "))

    def left_words(self) -> str:
        """Say how long the rest takes; empty if that is not known yet."""
        done, total = self._task.completed, self._task.total
        if not total or done >= total:
            return ""
        left_s = seconds_left(done / total, self._task.elapsed or 0.0, self._planned_s)
        return "" if left_s is None else minutes_words(left_s / 60) + " left"

    def playing(self, on_turn: "Callable[[Turn], None]" = lambda _: None) -> "Progress":
        """Show a player's progress; an interruption then says what is kept."""
        from turngap.play.plan import Progress

        self._folders = folders = []

        def count(turn: "Turn") -> None:
            self.advance()
            on_turn(turn)

        return Progress(self.step, count, folders.append)


def _kept(folders: list[Path]) -> str:
    """Say what remains after an interruption: a whole comparison, or runs one by one."""
    from turngap.store.comparisons import COMPARISON_FILE
    from turngap.store.folders import run_folders, turns_in

    found = [run for folder in folders for run in (folder, *run_folders(folder))]
    runs = [run for run in found if turns_in(run)]
    if not runs:
        return "interrupted before the first turn: there is nothing to show"
    shown = [folder for folder in folders if (folder / COMPARISON_FILE).exists()] or runs
    lines = "".join(f"\n  turngap report {shlex.quote(str(path))}" for path in shown)
    kept = f"interrupted: the turns that were played are stored{lines}"
    return "\n".join((kept, *map(_to_go_on, folders))).rstrip("\n")


def _to_go_on(folder: Path) -> str:
    """Return how to play the missing part of a `replay` run; empty if it cannot be continued."""
    from turngap.core.errors import InputError
    from turngap.play.resume import command_to_resume
    from turngap.store.runs import read_run

    with suppress(InputError):
        run = read_run(folder)
        if run.record.plan is not None and not run.complete:
            return f"play what is missing: {command_to_resume(run)}"
    return ""
