"""The workflows, README.md and docs/ call only commands that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
from command_lines import parse, turngap_commands
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
OURS = ROOT / ".github/workflows/latency.yml"
EXAMPLE = ROOT / "docs/github-actions.yml"
GUIDE = ROOT / "docs/ci.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def steps(file: Path) -> list[dict[str, Any]]:
    workflow = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", [OURS, EXAMPLE], ids=lambda f: f.name)
def test_a_workflows_commands_are_turngaps(file: Path) -> None:
    commands = [c for step in steps(file) for c in turngap_commands(step.get("run", ""))]
    assert [c[0] for c in commands] == ["check"]
    for command in commands:
        parse(command)


@pytest.mark.parametrize("file", [OURS, EXAMPLE], ids=lambda f: f.name)
def test_a_workflow_pins_its_actions_and_wants_no_secret(file: Path) -> None:
    used = [step["uses"] for step in steps(file) if "uses" in step]
    assert used
    assert [u for u in used if not re.fullmatch(r"actions/[\w-]+@v\d+", u)] == []
    text = file.read_text(encoding="utf-8")
    assert "secrets." not in text
    assert YAML(typ="safe").load(text)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("file", [OURS, EXAMPLE], ids=lambda f: f.name)
def test_a_workflow_keeps_the_runs_and_shows_the_summary_of_a_failure_too(file: Path) -> None:
    always = [step for step in steps(file) if step.get("if") == "always()"]
    assert any("summary.md" in step.get("run", "") for step in always)
    assert any(step.get("uses", "").startswith("actions/upload-artifact@") for step in always)


def test_the_workflow_to_copy_needs_no_released_package() -> None:
    scripts = [step.get("run", "") for step in steps(EXAMPLE)]
    installs = [line for text in scripts for line in text.splitlines() if "pip install" in line]
    named = [word for line in installs for word in line.split() if "turngap" in word]
    assert named == ["./turngap"]
    fetch, install = (
        next(n for n, text in enumerate(scripts) if what in text)
        for what in ('"$TURNGAP_URL" "$TURNGAP_REF"', "./turngap")
    )
    assert fetch < install


@pytest.mark.parametrize("page", PAGES, ids=lambda f: f.name)
def test_what_a_page_shows_can_be_called(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    for command in (c for block in blocks for c in turngap_commands(block)):
        parse(command)
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        compile(block, str(page), "exec")


def test_the_pages_show_commands() -> None:
    for page in (ROOT / "README.md", GUIDE):
        blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert [c for block in blocks for c in turngap_commands(block)]


def test_the_guide_names_the_plugins_options_and_no_other(pytestconfig: pytest.Config) -> None:
    text = GUIDE.read_text(encoding="utf-8") + EXAMPLE.read_text(encoding="utf-8")
    named = {name.replace("-", "_") for name in re.findall(r"--(turngap-[\w-]+)", text)}
    known = {name for name in vars(pytestconfig.option) if name.startswith("turngap_")}
    assert named == known
