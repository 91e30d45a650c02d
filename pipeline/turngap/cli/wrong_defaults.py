"""What the commands would refuse of a repository's file, all at once: for `turngap config`."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from turngap.cli.repository import CALLERS, FromTheFile, from_the_file, not_taken
from turngap.core.errors import InputError, TurngapError

if TYPE_CHECKING:
    from turngap.defaults.file import Defaults
    from turngap.play.target import AgentChoice

# Between them they take every key that stands at the top of the file.
_FOR_ALL = ("replay", "check")
# These say something of the machine or the moment, and nothing of what the file says.
_OF_THE_MOMENT = ("endpoint.variable",)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value that a command would refuse.

    Attributes:
        key: as the file has it, with its table: `check.budget`.
        where: the file and the line.
        name: of the option, as Python has it.
    """

    key: str
    where: str
    message: str
    hint: str = ""
    name: str = ""


def wrong_values(defaults: "Defaults") -> list[Wrong]:
    """Return each value that a command refuses, once, in the order of the file."""
    commands = dict.fromkeys((*_FOR_ALL, *(name for name, said in defaults.tables.items() if said)))
    found = {
        (each.where, each.message): each for name in commands for each in _refused(defaults, name)
    }
    return sorted(found.values(), key=lambda each: int(each.where.rpartition(":")[2]))


def with_its_line(error: InputError, taken: "FromTheFile") -> InputError:
    """Return the error with the file and the line, if the file says what it is about.

    A value that came from a flag is not looked for in the file.
    """
    if taken.defaults is None or taken.command not in CALLERS:
        return error
    with suppress(TurngapError):  # of another value, and it is not the news
        for wrong in _refused(taken.defaults, taken.command):
            if wrong.message == error.message and taken.took(wrong.name):
                said = f"{wrong.where}: {wrong.key}: {error.message}"
                return InputError(error.kind, said, hint=error.hint)
    return error


def _refused(defaults: "Defaults", command: str) -> Iterator[Wrong]:
    """What one command refuses of what the file says to it."""
    said = defaults.of(command)
    failed: set[str] = set()

    def wrong(name: str, message: str, hint: str = "") -> Wrong:
        failed.add(name)
        table = f"{command}." if name in defaults.tables.get(command, {}) else ""
        key = table + name.rstrip("_").replace("_", "-")
        return Wrong(key, defaults.where(command, name), message, hint, name)

    for name, message in _of_a_wrong_type(command, said):
        yield wrong(name, message)
    for name, check in _checks(command, said):
        if name in failed:
            continue
        try:
            check()
        except InputError as e:
            if e.kind not in _OF_THE_MOMENT:
                yield wrong(name, e.message, e.hint)


def _of_a_wrong_type(command: str, said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The values that the command's options do not take, as 0 rounds."""
    from typer.main import get_command

    from turngap.cli import app

    options: Any = get_command(app).commands[command]  # pyright: ignore[reportAttributeAccessIssue]
    ctx = options.context_class(options, info_name=command)
    ctx.default_map = from_the_file(command, ctx)
    for param in options.params:
        if param.name in said:
            try:
                param.handle_parse_result(ctx, {}, [])
            except typer.BadParameter as e:
                yield param.name, not_taken(e, said[param.name])
            except InputError as e:
                yield param.name, e.message


_Checks = Iterator[tuple[str, Callable[[], object]]]


def _checks(command: str, said: dict[str, Any]) -> _Checks:
    """What the command looks at before it plays, by the key that it looks at."""
    yield from _of_what_is_played(said)
    if command == "check":
        yield from _of_a_check(said)
    elif command == "compare":
        yield from _of_a_comparison(said)
    elif command == "load":
        yield from _of_a_load_test(said)
    yield from _of_the_agent(said)


def _of_what_is_played(said: dict[str, Any]) -> _Checks:
    from turngap.scenario.library import library_dir, library_for, scenario_paths

    library = Path(said["library"]) if "library" in said else None
    names = said.get("scenarios", ())
    if library is not None:
        yield "library", lambda: library_dir(library)
        if not library.is_dir():
            return
    for name in names:
        yield "scenarios", lambda n=name: scenario_paths(library_for([n], library), [n])
    if "tag" in said:
        yield "tag", lambda: scenario_paths(library_for(names, library), names, said["tag"])


def _of_a_check(said: dict[str, Any]) -> _Checks:
    from turngap.check.plan import require_budget, require_target
    from turngap.play.target import AgentChoice

    for name, ms in said.get("budget", {}).items():
        yield "budget", lambda name=name, ms=ms: require_budget(name, ms)
    if "target" in said:
        yield "target", lambda: require_target(said["target"])
    if said.get("against"):
        yield "against", lambda: _require_agent(AgentChoice(said["against"]))


def _of_a_comparison(said: dict[str, Any]) -> _Checks:
    from turngap.backends import BackendChoice, find
    from turngap.compare.play import parse_price

    for llm in said.get("llm", ()):
        yield "llm", lambda llm=llm: find("llm", BackendChoice.parse(llm).backend)
    for price in said.get("price", ()):
        yield "price", lambda price=price: parse_price(price)


def _of_a_load_test(said: dict[str, Any]) -> _Checks:
    from turngap.load.asked import parse_rate, parse_sessions

    for name, parse in (("sessions", parse_sessions), ("rate", parse_rate)):
        if name in said:
            yield name, lambda name=name, parse=parse: parse(said[name])


def _of_the_agent(said: dict[str, Any]) -> _Checks:
    """How the agent is reached, or what it is made of."""
    from turngap.play.command import argv_of
    from turngap.play.target import AgentChoice

    agent, headers = said.get("agent", AgentChoice().agent), tuple(said.get("header", ()))
    if "agent" in said:
        yield "agent", lambda: _require_agent(AgentChoice(agent))
    if "://" in agent:
        for header in headers:
            choice = AgentChoice(agent, headers=(header,))
            yield "header", lambda choice=choice: choice.endpoint.opening()
        if "start" in said:
            yield "start", lambda: argv_of(said["start"])
        if "dialect" in said:
            endpoint = AgentChoice(agent, dialect=said["dialect"]).endpoint
            yield "dialect", lambda: endpoint.spec().session(endpoint.settings())
        return
    for name in said.keys() & {"start", "dialect", "header", "subprotocol"}:
        yield name, lambda: _refuse_for_a_stack(agent)
    for kind in ("llm", "stt", "tts"):
        if isinstance(said.get(kind), str):
            choice = AgentChoice(agent, {kind: said[kind]})
            yield kind, lambda choice=choice: choice.stack()
    if "set_" in said:
        yield "set_", lambda: AgentChoice(agent, sets=tuple(said["set_"])).stack()


def _require_agent(choice: "AgentChoice") -> None:
    if choice.is_url:
        choice.endpoint.check()
    elif choice.checkout is not None:
        choice.checkout.require()
    else:
        choice.stack()


def _refuse_for_a_stack(agent: str) -> None:
    raise InputError(
        "agent.endpoint",
        f"the agent {agent} is no URL, and this is for one",
        hint='name the URL: agent = "ws://127.0.0.1:8765/ws"',
    )
