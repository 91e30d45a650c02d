"""Plays `turngap check` with the version at hand against its base, and notes what came of it."""

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from gate.inputs import AGENT_FAILED, GateError, Inputs
from gate.runner import Environment, event_of, set_output, shown
from gate.versions import (
    Base,
    Repository,
    Version,
    base_of,
    free_ports,
    inside_of,
    made_venv,
    prepared,
)

# What `tell` reads, in the folder that is uploaded.
STATE_FILE = "gate.json"
BASELINE_FILE = "baseline.json"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class State:
    """What was measured, for the summary and the comment.

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
    """Measure, and leave the outcome to the steps after this one; 0 unless that is impossible."""
    name = environment.get("GATE_NAME", "").strip() or "turngap"
    temporary = Path(environment.get("RUNNER_TEMP") or "/tmp")
    out = temporary / "turngap" / "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
    if out.exists():
        print(f"{out} is there already: give each use of the action in a job its own name")
        return 2
    out.mkdir(parents=True)
    work = out.with_name(f"{out.name}-work")
    try:
        state = _measured(environment, out, work)
    except GateError as e:
        state = State("failed", e.exit_code, why=str(e))
        print(f"turngap: {e}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    (out / STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    set_output(environment, "verdict", state.verdict)
    set_output(environment, "exit-code", str(state.exit_code))
    set_output(environment, "folder", str(out))
    return 0


def _measured(environment: Environment, out: Path, work: Path) -> State:
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
    port, other = free_ports(2)
    with ExitStack() as stack:
        given = {"inputs": inputs, "work": work, "environment": environment}
        new = prepared("new", inputs.folder, port=port, **given)
        old = None
        if base is not None:
            files = stack.enter_context(repository.checked_out(base.commit, work / "base-files"))
            old = prepared("base", files, port=other, **given)
        command = [program, *command_of(inputs, new, old, stored, out)]
        inside = inside_of(program.parents[1], environment)
        code = shown("turngap check", command, cwd=inputs.folder, environment=inside)
    if is_push and inputs.baseline is not None:
        _keep(out / BASELINE_FILE, inputs.baseline)
    return _state(out, code, repository.head, base, stored)


def installed_turngap(inputs: Inputs, work: Path, environment: Environment) -> Path:
    """Install turngap in an environment of its own, apart from what any version of the bot needs.

    Raises:
        GateError: it cannot be installed.
    """
    venv = made_venv(work / "turngap")
    what = f"turngap=={inputs.turngap}" if inputs.turngap else str(ROOT)
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
    inputs: Inputs, new: Version, old: Version | None, stored: Path | None, out: Path
) -> Sequence[str]:
    """The arguments of turngap. With a stored baseline, a round plays each turn half as often."""
    words = ["check", *inputs.scenarios, "--agent", new.url, "--start", shlex.quote(str(new.start))]
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


def _keep(new: Path, baseline: Path) -> None:
    """Put what passed where later pull requests are compared with it; whole or not at all."""
    if not new.is_file():
        return
    baseline.parent.mkdir(parents=True, exist_ok=True)
    beside = baseline.with_name(f".{baseline.name}.{os.getpid()}")
    shutil.copyfile(new, beside)
    beside.replace(baseline)
    print(f"turngap: kept as the baseline {baseline}")


def _state(out: Path, code: int, head: str, base: Base | None, stored: Path | None) -> State:
    """What the check left behind; its exit code stays whatever is in the files."""
    name = str(stored.name) if stored else base.name if base else ""
    told = {"head": head, "base": base.commit if base else "", "base_name": name}
    for file in sorted(out.glob("*/check.json")):
        try:
            verdict = json.loads(file.read_text(encoding="utf-8"))["verdict"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return State(str(verdict), code, check=file.parent.name, **told)
    why = f"turngap check ended with exit code {code}; its output in the job's log says why."
    return State("failed", code or AGENT_FAILED, why=why, **told)
