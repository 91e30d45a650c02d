"""Read the repository's own file as the installed turngap does."""

import json
import subprocess
from collections.abc import Collection
from pathlib import Path

from gate.inputs import AGENT_FAILED, GateError, Inputs
from gate.runner import Environment

# Run by the Python of the turngap that is installed.
_SHOW = """
import json
from turngap.core.errors import InputError
from turngap.play.defaults import read_defaults
try:
    defaults = read_defaults()
    print(json.dumps({"keys": defaults.keys("check") if defaults else []}))
except InputError as e:
    print(json.dumps({"error": e.message}))
"""
# What is played where neither the workflow nor the file says so.
SCENARIO = "quick-questions"
# Each of these chooses what is played.
_CHOOSE = ("scenarios", "tag")
_CHOOSING_OPTIONS = ("--tag",)


def keys_in_file(program: Path, folder: Path, environment: Environment) -> frozenset[str]:
    """Return the keys that `turngap check` takes from the repository's file, in the bot's folder.

    Raises:
        GateError: the file cannot be used, or turngap cannot read one.
    """
    done = subprocess.run(
        [str(program.with_name("python")), "-c", _SHOW],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    try:
        document = json.loads(done.stdout)
        if error := document.get("error"):
            raise GateError(error)
        return frozenset(document["keys"])
    except (ValueError, KeyError) as e:
        raise GateError(
            f"the installed turngap cannot read turngap.toml (exit code {done.returncode})",
            done.stderr.strip(),
            AGENT_FAILED,
        ) from e


def played(inputs: Inputs, keys: Collection[str]) -> tuple[str, ...]:
    """Return the names of the scenarios to play; empty if the file or an option chooses."""
    chosen = any(key in keys for key in _CHOOSE) or _has(inputs.options, _CHOOSING_OPTIONS)
    return inputs.scenarios or (() if chosen else (SCENARIO,))


def has_budget(inputs: Inputs, keys: Collection[str]) -> bool:
    """Return whether a check without a reference has budgets to check."""
    return bool(inputs.budgets) or "budget" in keys or _has(inputs.options, ("--budget",))


def names_a_reference(keys: Collection[str]) -> bool:
    """Return whether the file says what to compare with."""
    return "against" in keys or "baseline" in keys


def _has(options: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return any(word.partition("=")[0] in names for word in options)
