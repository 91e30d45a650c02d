"""One scenario file: its text, checked against the model; what is wrong is told with its line."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from turngap.core.errors import InputError
from turngap.core.problems import problems, reason
from turngap.core.untrusted import harmless, shown
from turngap.scenario.model import AT, Scenario
from turngap.store.files import read_text
from turngap.store.yaml import load_yaml


def read_scenario(path: Path) -> Scenario:
    """Parse and check one file; recordings are not opened.

    Raises:
        InputError: with file, line, reason and the allowed keys.
    """
    return parse_scenario(path, text_of(path))


def parse_scenario(path: Path, text: str) -> Scenario:
    """`read_scenario` of text at hand; `path` is what errors name and what the name must match."""
    return parse_with_places(path, text)[0]


def text_of(path: Path) -> str:
    """Return a scenario file's text, with its line ends as they are; raises `InputError`."""
    return read_text(
        path, "scenario", hint="give a scenario's .yaml file, which names its recordings"
    )


# A command reads each scenario several times over: for its tags, to play it, and for each engine
# that is made from the library. Parsing the 23 that ship takes 0.15 s each time.
@lru_cache(maxsize=64)
def parse_with_places(path: Path, text: str) -> tuple[Scenario, CommentedMap]:
    """`parse_scenario`, with the tree that tells `line_of` each key's place.

    All who ask for the same text share both, so nobody may change them.
    """
    tree = load_yaml(text, path, "scenario")
    if not isinstance(tree, CommentedMap):
        raise InputError(
            "scenario.not_a_mapping",
            f"{path}:1: expected a mapping with the keys {_keys(Scenario)}",
        )
    try:
        scenario = Scenario.model_validate(_plain(tree))
    except ValidationError as e:
        found = problems(e)
        lines: list[str] = []
        for problem in found:
            loc = (*problem["loc"], *problem.get("ctx", {}).get(AT, ()))
            key = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc).lstrip(".")
            place = f"{path}:{line_of(tree, loc)}: {harmless(key, 200) or 'scenario'}"
            lines.append(f"{place}: {_reason(problem)}")
        kinds = {p["type"] for p in found}
        kind = "scenario.unknown_key" if "extra_forbidden" in kinds else "scenario.invalid"
        raise InputError(kind, "\n".join(lines), hint="docs/scenarios.md shows every key") from e
    if scenario.name != path.stem:
        raise InputError(
            "scenario.name",
            f"{path}:{line_of(tree, ('name',))}: name {scenario.name!r} must equal the file's name "
            f"{path.stem!r}, by which it is played",
        )
    return scenario, tree


def _plain(node: Any) -> Any:
    if isinstance(node, CommentedMap):
        return {str(k): _plain(v) for k, v in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(v) for v in node]
    return node


def line_of(tree: Any, loc: Sequence[str | int]) -> int:
    """Find the one-based line of the innermost part of `loc` that is in the file."""
    line, node = 1, tree
    for key in loc:
        try:
            position = node.lc.key(key) if isinstance(node, CommentedMap) else node.lc.item(key)
            line, node = position[0] + 1, node[key]
        except (KeyError, IndexError, AttributeError, TypeError):
            break
    return line


def _reason(problem: ErrorDetails) -> str:
    """Describe what is wrong and what is allowed, with a scenario's keys at this place."""
    loc = problem["loc"]
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key; allowed here: {_keys(_model_at(loc[:-1]))}"
        case "missing":
            return f"missing; keys here: {_keys(_model_at(loc[:-1]))}"
        case "model_type":
            return f"expected a mapping with the keys {_keys(_model_at(loc))}"
    said, found = reason(problem), problem["input"]
    return f"{said}, found {shown(found, 80)}" if isinstance(found, str | int | float) else said


def _model_at(loc: Sequence[str | int]) -> Any:
    """Find the model that the keys at `loc` belong to, by walking the annotations."""
    model: Any = Scenario
    for key in loc:
        if isinstance(key, int):
            continue
        annotation = model.model_fields[key].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next((c for c in candidates if hasattr(c, "model_fields")), model)
    return model


def _keys(model: Any) -> str:
    return ", ".join(model.model_fields)
