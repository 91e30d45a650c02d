"""Which of turngap's extras the agent of a command needs and this environment lacks.

    python -P -m turngap.cli.extras talk --agent local

prints their names with commas between them, and in a second line what they take on disk; nothing
where nothing is lacking. `./run` installs them.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from turngap.agent.stack import Engine, Stack, load_stack, override
from turngap.backends import KINDS, BackendChoice, Kind, find
from turngap.core.errors import TurngapError


def lacking(arguments: Sequence[str]) -> dict[str, int]:
    """Return the extras that an agent lacks here with their MB, in the order of its engines.

    Raises:
        TurngapError: there is no such agent or backend; the command itself says so better.
    """
    stack, choices = _read(arguments)
    return {
        need.extra: need.extra_mb
        for kind, engine in _engines(stack, choices)
        for need in find(kind, engine.backend).missing(engine.settings.get("device"))
        if need.extra
    }


def _read(arguments: Sequence[str]) -> tuple[Stack | None, dict[Kind, list[BackendChoice]]]:
    """Read what says which engines a command uses; it may say nothing of an agent."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--agent")
    parser.add_argument("--set", action="append", default=[])
    for kind in KINDS:
        parser.add_argument(f"--{kind}", action="append", default=[])
    given, _ = parser.parse_known_args(list(arguments))
    choices: dict[Kind, list[BackendChoice]] = {
        kind: [BackendChoice.parse(text) for text in getattr(given, kind)] for kind in KINDS
    }
    if given.agent is None:
        return None, choices
    chosen: dict[Kind, str | None] = {k: all_[-1].backend for k, all_ in choices.items() if all_}
    return override(load_stack(given.agent), chosen, given.set), choices


def _engines(
    stack: Stack | None, choices: dict[Kind, list[BackendChoice]]
) -> Iterator[tuple[Kind, Engine]]:
    for kind in KINDS:
        if stack is not None:
            yield kind, stack.engine(kind)
        for choice in choices[kind]:
            yield kind, Engine(backend=choice.backend, settings=choice.values())


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    try:
        extras = lacking(arguments)
    except (TurngapError, SystemExit):
        return  # of argparse, for an option without its value
    if extras:
        sys.stdout.write(f"{','.join(extras)}\nabout {sum(extras.values())} MB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
