"""Plays `turngap check` with the version at hand against its base, and notes what came of it."""

import json
import os
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gate.defaults import has_budget, keys_in_file, names_a_reference, played
from gate.inputs import AGENT_FAILED, INCONCLUSIVE, GateError, Inputs
from gate.runner import Environment, annotate, event_of, set_output, shown
from gate.versions import (
    Base,
    Repository,
    Version,
    base_of,
    free_ports,
    inside_of,
    made_venv,
    prepared,
    refuse_event,
)

# What `tell` reads, in the folder that is uploaded.
STATE_FILE = "gate.json"
BASELINE_FILE = "baseline.json"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class State:
    """Measurement for the summary and the comment.

    Attributes:
        verdict: turngap's (`pass`, `regressed`, `undecided`, `cannot_compare`), or `failed`.
        check: the check's folder, in the one that is uploaded; empty where there is none.
        head, base: the commits; `base_name` is the branch's.
        why: what went wrong before anything could be measured.
    """

    verdict: str
    exit_code: int
    check: str = ""
    head: str = ""
    base: str = ""
    base_name: str = ""
    why: str = ""


def measure(environment: Environment) -> int:
    """Measure, and leave the outcome to the steps after this one; 0 unless that is impossible.

    The steps after this one get the folder first: whatever ends the measurement, they find
    what was left there.
    """
    name = environment.get("GATE_NAME", "").strip() or "turngap"
    temporary = Path(environment.get("RUNNER_TEMP") or "/tmp")
    out = temporary / "turngap" / "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
    if out.exists():
        print(f"{out} is there already: give each use of the action in a job its own name")
        return 2
    out.mkdir(parents=True)
    work = out.with_name(f"{out.name}-work")
    set_output(environment, "folder", str(out))
    _write(State("failed", AGENT_FAILED, why="The measurement was ended before it was done."), out)
    try:
        state = _measured(environment, out, work)
    except GateError as e:
        state = State("failed", e.exit_code, why=str(e))
        print(f"turngap: {e}")
    except OSError as e:
        state = State("failed", AGENT_FAILED, why=f"This machine could not continue: {e}.")
        print(f"turngap: {e}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _write(state, out)
    set_output(environment, "verdict", state.verdict)
    set_output(environment, "exit-code", str(state.exit_code))
    return 0


def _write(state: State, out: Path) -> None:
    (out / STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")


def _measured(environment: Environment, out: Path, work: Path) -> State:
    refuse_event(environment)
    inputs = Inputs.of(environment)
    repository = Repository(inputs.folder)
    event = event_of(environment)
    is_push = environment.get("GITHUB_EVENT_NAME") == "push"
    stored = inputs.baseline if inputs.baseline and not is_push else None
    if stored is not None and not stored.is_file():
        print(f"turngap: there is no baseline {stored} yet, so the base version is started")
        stored = None
    base = None if stored else base_of(inputs, repository, event, environment)
    work.mkdir(parents=True, exist_ok=True)
    program = installed_turngap(inputs, work, environment)
    inside = inside_of(program.parents[1], environment)
    keys = keys_in_file(program, inputs.folder, inside)
    if base is None and stored is None and not has_budget(inputs, keys):
        raise GateError("with base: none there is nothing to check", "give budgets")
    port, other = free_ports(2)
    with ExitStack() as stack:
        given = {"inputs": inputs, "work": work, "environment": environment}
        new = prepared("new", inputs.folder, port=port, **given)
        old = None
        if base is not None:
            files = stack.enter_context(repository.checked_out(base.commit, work / "base-files"))
            old = prepared("base", files, port=other, **given)
        command = [program, *command_of(inputs, new, old, stored, out, keys=keys)]
        code = shown("turngap check", command, cwd=inputs.folder, environment=inside)
    state = _state(out, code, repository.head, base, stored)
    if is_push and inputs.baseline is not None and state.exit_code == 0:
        _keep(out / BASELINE_FILE, inputs.baseline, event, environment)
    return state


def installed_turngap(inputs: Inputs, work: Path, environment: Environment) -> Path:
    """Install turngap in an environment of its own, apart from what any version of the bot needs.

    Raises:
        GateError: it cannot be installed.
    """
    venv = made_venv(work / "turngap")
    extra = "[webrtc]" if inputs.url.startswith(("http://", "https://")) else ""
    what = f"turngap{extra}=={inputs.turngap}" if inputs.turngap else f"{ROOT}{extra}"
    code = shown(
        f"Install turngap from {what}",
        [venv / "bin/python", "-m", "pip", "install", "--quiet", what],
        cwd=work,
        environment=inside_of(venv, environment),
    )
    if code:
        raise GateError(f"{what} could not be installed: exit code {code}", "", AGENT_FAILED)
    return venv / "bin/turngap"


def command_of(
    inputs: Inputs,
    new: Version,
    old: Version | None,
    stored: Path | None,
    out: Path,
    *,
    keys: Collection[str] = (),
) -> Sequence[str]:
    """Build the arguments of turngap; a stored baseline doubles the (half as long) rounds.

    `keys` are those of the repository's file, whose reference is never taken.
    """
    names = played(inputs, keys)
    words = ["check", *names, "--agent", new.url, "--start", shlex.quote(str(new.start))]
    if old is None and stored is None and names_a_reference(keys):
        words += ["--against", ""]
    if old is not None:
        words += ["--against", old.url, "--start-against", shlex.quote(str(old.start))]
    if stored is not None:
        words += ["--baseline", str(stored)]
    if inputs.dialect:
        words += ["--dialect", inputs.dialect]
    for budget in inputs.budgets:
        words += ["--budget", budget]
    words += ["--rounds", str(inputs.rounds if old is not None else 2 * inputs.rounds)]
    words += ["--until-decided", "--max-minutes", f"{inputs.max_minutes:g}"]
    return [*words, "--save", str(out / BASELINE_FILE), "--out", str(out), *inputs.options]


def _keep(new: Path, baseline: Path, event: Mapping[str, Any], environment: Environment) -> None:
    """Put what passed where later pull requests are compared with it; whole or not at all.

    Only what was pushed to the repository's main branch: another branch was merged by no one. That
    it cannot be kept is no reason to lose the measurement.
    """
    repository: Any = event.get("repository")
    main = repository.get("default_branch") if isinstance(repository, dict) else None
    if not main or environment.get("GITHUB_REF") != f"refs/heads/{main}":
        print(f"turngap: not kept as the baseline, since this is not {main or 'the main branch'}")
        return
    if not new.is_file():
        return
    try:
        baseline.parent.mkdir(parents=True, exist_ok=True)
        beside = baseline.with_name(f".{baseline.name}.{os.getpid()}")
        shutil.copyfile(new, beside)
        beside.replace(baseline)
    except OSError as e:
        annotate("warning", "turngap: the baseline could not be kept", str(e))
        return
    print(f"turngap: kept as the baseline {baseline}")


def _state(out: Path, code: int, head: str, base: Base | None, stored: Path | None) -> State:
    """Read the result of the check; its exit code stays, but 0 is only for a pass.

    turngap also ends with 0 where it compared nothing and was only to save.
    """
    name = str(stored.name) if stored else base.name if base else ""
    told = {"head": head, "base": base.commit if base else "", "base_name": name}
    for file in sorted(out.glob("*/check.json")):
        try:
            verdict = json.loads(file.read_text(encoding="utf-8"))["verdict"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        code = INCONCLUSIVE if code == 0 and verdict != "pass" else code
        return State(str(verdict), code, check=file.parent.name, **told)
    why = f"turngap check ended with exit code {code}; its output in the job's log says why."
    return State("failed", code or AGENT_FAILED, why=why, **told)
