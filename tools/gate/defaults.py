"""What the repository's own file says, as the turngap that is installed reads it."""

import json
import subprocess
from collections.abc import Collection
from pathlib import Path

from gate.inputs import AGENT_FAILED, GateError, Inputs
from gate.runner import Environment

# What is played where neither the workflow nor the file says so.
SCENARIO = "quick-questions"
# Whoever gives one of these has chosen what is played.
_CHOOSE = ("scenarios", "tag", "library")
_CHOOSING_OPTIONS = ("--tag", "--scenarios")


def keys_in_file(program: Path, folder: Path, environment: Environment) -> frozenset[str]:
    """The keys that `turngap check` takes from the repository's file, in the bot's folder.

    Raises:
        GateError: the file cannot be used, or turngap cannot read one.
    """
    done = subprocess.run(
        [str(program), "config", "--json"],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    try:
        document = json.loads(done.stdout)
        if done.returncode == 0:
            found = document["defaults"]
            return frozenset(each["key"] for each in found if each["for"] in ("all", "check"))
        why = str(document["error"]["message"])
    except (ValueError, KeyError, TypeError) as e:
        raise GateError(
            f"turngap config --json ended with exit code {done.returncode} and says nothing that "
            "can be read",
            done.stderr.strip(),
            AGENT_FAILED,
        ) from e
    raise GateError(why)


def played(inputs: Inputs, keys: Collection[str]) -> tuple[str, ...]:
    """The names of what is played; empty where the file or an option chooses."""
    chosen = any(key in keys for key in _CHOOSE) or _has(inputs.options, _CHOOSING_OPTIONS)
    return inputs.scenarios or (() if chosen else (SCENARIO,))


def has_budget(inputs: Inputs, keys: Collection[str]) -> bool:
    """Whether a check without a reference would have something to say."""
    return bool(inputs.budgets) or "budget" in keys or _has(inputs.options, ("--budget",))


def names_a_reference(keys: Collection[str]) -> bool:
    """Whether the file says what to compare with."""
    return "against" in keys or "baseline" in keys


def _has(options: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return any(word.partition("=")[0] in names for word in options)
