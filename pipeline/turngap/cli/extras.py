"""Name the extras that the agent of a command needs and this environment lacks.

    python -P -m turngap.cli.extras talk --agent local

prints their names with commas between them, and in a second line their size on disk; it prints
nothing if nothing is missing. `./run` installs them.
"""

import argparse
import sys
from collections.abc import Sequence

from turngap.agent.stack import Engine, load_stack, override
from turngap.backends import KINDS, BackendChoice, Kind, find
from turngap.caller.dialects.registry import find_dialect, transport_of
from turngap.core.errors import TurngapError

WEBRTC_MB = 131


def lacking(arguments: Sequence[str]) -> dict[str, int]:
    """Return the extras that an agent lacks here with their MB, in the order of its engines.

    Raises:
        TurngapError: there is no such agent or backend; the command itself reports it better.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--agent", default="embedded")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--llm", action="append", default=[])
    given, _ = parser.parse_known_args(list(arguments))
    if transport_of(given.agent) == "webrtc":
        return {"webrtc": WEBRTC_MB} if find_dialect("webrtc").missing() else {}
    others = [each for each in given.set if each.partition("=")[0].strip() not in ("seed", "marks")]
    stack = override(load_stack(given.agent), {}, others)
    kinds: list[Kind] = [kind for kind in KINDS if kind != "llm" or not given.llm]
    engines: list[tuple[Kind, Engine]] = [(kind, stack.engine(kind)) for kind in kinds]
    for choice in map(BackendChoice.parse, given.llm):
        engine: tuple[Kind, Engine] = (
            "llm",
            Engine(backend=choice.backend, settings=choice.values()),
        )
        engines.append(engine)
    return {
        need.extra: need.extra_mb
        for kind, engine in engines
        for need in find(kind, engine.backend).missing(engine.settings.get("device"))
        if need.extra
    }


def main(arguments: Sequence[str]) -> None:
    """Print the extras that these arguments of a command need."""
    try:
        extras = lacking(arguments)
    except (TurngapError, SystemExit):
        return  # of argparse, for an option without its value
    if extras:
        sys.stdout.write(f"{','.join(extras)}\nabout {sum(extras.values())} MB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
