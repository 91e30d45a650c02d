"""action.yml: its form, what reaches the script, and what cannot reach a shell."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from gate.inputs import Inputs
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"
WORKFLOWS = [*sorted((ROOT / ".github/workflows").glob("*.yml")), ROOT / "docs/github-actions.yml"]
# Of the audits, those that say whether somebody else's text or code can reach more than it should,
# such as a tag that may point to other code tomorrow.
AUDITS = {
    "template-injection", "dangerous-triggers", "excessive-permissions", "github-env",
    "insecure-commands", "bot-conditions", "overprovisioned-secrets", "secrets-inherit",
    "artipacked", "unpinned-uses",
}  # fmt: skip


def action() -> dict[str, Any]:
    return YAML(typ="safe").load(ACTION.read_text(encoding="utf-8"))


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name(str(command[0]))), *map(str, command[1:])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_action_and_the_workflows_have_githubs_form() -> None:
    done = run("check-jsonschema", "--builtin-schema", "vendor.github-actions", ACTION)
    assert done.returncode == 0, done.stdout
    done = run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_no_text_of_a_pull_request_can_become_a_command() -> None:
    done = run("zizmor", "--offline", "--no-progress", "--format", "json", ACTION, *WORKFLOWS)
    found = [f for f in json.loads(done.stdout) if f["ident"] in AUDITS]
    assert [(f["ident"], f["locations"][0]["symbolic"]) for f in found] == []
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_every_input_reaches_a_step_and_every_step_is_given_inputs_that_exist() -> None:
    text = ACTION.read_text(encoding="utf-8")
    used = set(re.findall(r"inputs\.([\w-]+)", text))
    assert used == set(action()["inputs"])
    code = "".join(f.read_text("utf-8") for f in (ROOT / "tools/gate").glob("*.py"))
    for step in action()["runs"]["steps"]:
        for name in step.get("env", {}):
            short = name.removeprefix("GATE_")
            assert f'"{name}"' in code or f'given("{short}"' in code, name


def test_only_the_step_that_comments_gets_the_token() -> None:
    holders = [s for s in action()["runs"]["steps"] if "token" in json.dumps(s.get("env", {}))]
    assert [step["run"].split()[-1] for step in holders] == ["tell"]


def test_what_the_action_says_is_the_default_is_the_scripts_default(tmp_path: Path) -> None:
    inputs = action()["inputs"]
    assert [name for name, given in inputs.items() if given.get("required")] == ["start"]
    said = {f"GATE_{n.upper().replace('-', '_')}": i.get("default", "") for n, i in inputs.items()}
    said |= {"GATE_FOLDER": said.pop("GATE_WORKING_DIRECTORY")}
    given = {"GATE_START": "python bot.py", "GITHUB_WORKSPACE": str(tmp_path)}
    assert Inputs.of(said | given) == Inputs.of(given)
