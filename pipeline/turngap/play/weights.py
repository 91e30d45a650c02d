"""Which published weights stacks and engines load."""

from collections.abc import Sequence
from pathlib import Path

from turngap.agent.stack import load_stack, override, resolved, stack_files
from turngap.backends import BackendChoice, Weights, specs
from turngap.core.errors import InputError, known_names


def wanted_by(name: str, sets: Sequence[str] = ()) -> list[Weights]:
    """The weights of a stack, a stack file or an engine, `BACKEND[,KEY=VALUE…]`.

    An engine need not run here: weights can be fetched for another machine.

    Raises:
        InputError: there is no such stack, engine or setting.
    """
    if name in stack_files() or Path(name).suffix == ".toml":
        stack = override(load_stack(name), {}, sets)
        engines = resolved(stack, None, required=False)
        return [each for spec, settings in engines for each in spec.downloads(settings)]
    choice = BackendChoice.parse(name)
    for spec in specs():
        if spec.name == choice.backend:
            return spec.downloads(spec.settings(choice.values()))
    known = [*stack_files(), *(spec.name for spec in specs() if spec.weights)]
    raise InputError(
        "fetch.unknown",
        f"{name!r} is neither a stack nor an engine",
        hint=known_names(name, known),
    )
