"""The workflows call only commands that exist; tests/docs does the same for the pages."""

import re
from pathlib import Path
from typing import Any

import pytest
from action_job import Job
from command_lines import parse, turngap_commands
from fake_github import TOKEN
from gate.inputs import Inputs
from gate.measure import command_of
from gate.report import tell
from gate.versions import Version
from made_checks import make_check
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
OURS = ROOT / ".github/workflows/latency.yml"
EXAMPLE = ROOT / "docs/github-actions.yml"
PUBLISH = ROOT / ".github/workflows/publish.yml"
ACTION = ROOT / "action.yml"
SITE = ROOT / ".github/workflows/docs.yml"
GUIDE = ROOT / "docs/ci.md"
TEMPLATE = ROOT / "pipeline/turngap/setup/templates/turn-gap.yml"


def steps(file: Path) -> list[dict[str, Any]]:
    workflow = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def uses_of(file: Path, action: str) -> list[dict[str, Any]]:
    """What each use of an action is given."""
    return [step.get("with", {}) for step in steps(file) if step.get("uses") == action]


@pytest.mark.parametrize(("file", "action"), [(OURS, "./"), (EXAMPLE, "./.turngap-action")])
def test_a_workflow_gives_the_action_what_turngap_takes(file: Path, action: str) -> None:
    (given,) = uses_of(file, action)
    known = YAML(typ="safe").load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    assert set(given) <= set(known)
    environment = {f"GATE_{k.upper().replace('-', '_')}": str(v) for k, v in given.items()}
    inputs = Inputs.of({**environment, "GITHUB_WORKSPACE": str(ROOT)})
    version = Version(ROOT, inputs.url.replace("$PORT", "8765"), ROOT / "start")
    parse([*command_of(inputs, version, version, None, ROOT / "runs")])
    for command in turngap_commands(inputs.start.replace("$PORT", "8765")):
        parse(command)


def test_our_own_gate_compares_with_the_base_and_comments() -> None:
    (given,) = uses_of(OURS, "./")
    assert "base" not in given
    workflow = YAML(typ="safe").load(OURS.read_text(encoding="utf-8"))
    assert set(workflow["on"]) == {"pull_request", "push"}
    (job,) = [j for j in workflow["jobs"].values() if {"uses": "./", "with": given} in j["steps"]]
    assert job["permissions"] == {"contents": "read", "pull-requests": "write"}


# A workflow to copy is run with its reader's token: what it uses may not change under them either.
TO_COPY = [EXAMPLE, TEMPLATE, *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("file", [OURS, SITE, PUBLISH, ACTION, *TO_COPY], ids=lambda f: f.name)
def test_what_is_run_is_pinned_to_a_commit_and_its_version_is_told(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    used = re.findall(r"\buses: (?!\./)(.*)$", text, re.MULTILINE)
    assert used or (file.suffix == ".md" and file != GUIDE)
    pinned = re.compile(r"(actions|pypa)/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [each for each in used if not pinned.fullmatch(each)] == []
    fetched = re.findall(r"TURNGAP_REF: (\S+)", text)
    assert set(fetched) <= {"COMMIT-OF-TURNGAP"}  # no branch, which moves


def test_a_push_to_main_is_measured_to_its_end() -> None:
    together = YAML(typ="safe").load(OURS.read_text(encoding="utf-8"))["concurrency"]
    assert together["cancel-in-progress"] == "${{ github.event_name == 'pull_request' }}"
    assert "github.sha" in together["group"]


@pytest.mark.parametrize("file", [OURS, EXAMPLE, SITE], ids=lambda f: f.name)
def test_a_workflow_wants_no_secret_and_may_only_read(file: Path) -> None:
    used = [step["uses"] for step in steps(file) if not step.get("uses", "./").startswith("./")]
    assert {use.partition("/")[0] for use in used} == {"actions"}
    text = file.read_text(encoding="utf-8")
    assert "secrets." not in text
    assert YAML(typ="safe").load(text)["permissions"] == {"contents": "read"}


def test_the_workflow_to_copy_needs_no_released_package() -> None:
    scripts = [step.get("run", "") for step in steps(EXAMPLE)]
    (fetch,) = [text for text in scripts if '"$TURNGAP_URL" "$TURNGAP_REF"' in text]
    assert "git init --quiet .turngap-action" in fetch
    (given,) = uses_of(EXAMPLE, "./.turngap-action")
    assert "turngap" not in given


def test_the_guide_names_the_plugins_options_and_no_other(pytestconfig: pytest.Config) -> None:
    text = GUIDE.read_text(encoding="utf-8") + EXAMPLE.read_text(encoding="utf-8")
    named = {name.replace("-", "_") for name in re.findall(r"--(turngap-[\w-]+)", text)}
    known = {name for name in vars(pytestconfig.option) if name.startswith("turngap_")}
    assert named == known


def test_the_second_job_has_the_token_without_the_repositorys_code(job: Job) -> None:
    """The guide's job, run on what the first one leaves."""
    text = GUIDE.read_text(encoding="utf-8").partition("### A second job that comments")[2]
    (second,) = YAML(typ="safe").load(text.split("```")[1].removeprefix("yaml")).values()
    assert second["permissions"] == {"contents": "read", "pull-requests": "write"}
    uses = [step["uses"].partition("@")[0] for step in second["steps"] if "uses" in step]
    assert uses == ["actions/download-artifact"]
    (step,) = [s for s in second["steps"] if s.get("run", "").endswith("tools/action.py tell")]
    assert set(step["env"]) == {"GATE_OUT", "GATE_NAME", "GATE_TOKEN"}
    job.finds(make_check(), 0)
    measured = job.measure(GATE_COMMENT="false")["folder"]
    assert tell({**job.env, **step["env"], "GATE_OUT": measured, "GATE_TOKEN": TOKEN}) == 0
    assert "✓ PASS" in job.github.comments[0]["body"]
