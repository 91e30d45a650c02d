"""The workflow that `turngap init` writes: that to copy, and one that the action takes."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_lines import parse, turngap_commands
from gate.inputs import Inputs
from gate.measure import command_of
from gate.versions import Version
from ruamel.yaml import YAML
from test_action import AUDITS, ROOT, run

from turngap.setup.chosen import Chosen
from turngap.setup.files import WORKFLOW, contents

EXAMPLE = ROOT / "docs/github-actions.yml"
CHOSEN = {
    "stack": Chosen("embedded"),
    "file": Chosen("stacks/my stack.toml"),
    "port": Chosen("ws://127.0.0.1:8765/ws", ".venv/bin/python bot.py --port 1", takes_port=True),
    "no-port": Chosen("ws://localhost/ws", "python bot.py", "pipecat", scenarios=()),
    "runs-already": Chosen("ws://[::1]:9/?a=${TOKEN}"),
    "quoted": Chosen(
        "wss://127.0.0.1:9/x?y=\"'",
        "sh -c 'a \"b\" \\ {{ c }}' --port 8765",
        'twilio,parameters={lang="en"}',
        ('X: "${KEY}"', "Authorization: Bearer ${TOKEN}"),
        (),
        812.5,
        0.95,
        True,
    ),
}  # fmt: skip


def workflow(text: str) -> dict[str, Any]:
    return YAML(typ="safe").load(text)


def given(chosen: Chosen) -> dict[str, Any]:
    """What it gives the action."""
    (job,) = workflow(contents(chosen)[WORKFLOW])["jobs"].values()
    return job["steps"][-1]["with"]


def test_it_is_the_workflow_to_copy() -> None:
    """But for its name: what holds for the one in docs/ holds for the other."""
    chosen = Chosen("ws://127.0.0.1:8765/ws", "python bot.py", takes_port=True)
    ours, copied = workflow(contents(chosen)[WORKFLOW]), workflow(EXAMPLE.read_text("utf-8"))
    for each in (ours, copied):
        del each["name"], each["concurrency"]["group"]
        (job,) = each["jobs"].values()
        job["steps"][-1]["with"].pop("install", None)  # the example's is the action's default
    assert ours == copied


@pytest.mark.parametrize("name", CHOSEN)
def test_the_action_takes_what_it_is_given(name: str) -> None:
    inputs_of = workflow((ROOT / "action.yml").read_text("utf-8"))["inputs"]
    said = given(CHOSEN[name])
    assert said.keys() <= inputs_of.keys()
    environment = {f"GATE_{k.upper().replace('-', '_')}": str(v) for k, v in said.items()}
    inputs = Inputs.of({**environment, "GITHUB_WORKSPACE": str(ROOT)})
    version = Version(ROOT, inputs.url.replace("$PORT", "8765"), ROOT / "start")
    parse([*command_of(inputs, version, version, None, ROOT / "runs")])
    for command in turngap_commands(inputs.start.replace("$PORT", "8765")):
        parse(command)


@pytest.mark.parametrize(
    ("name", "start", "url"),
    [
        ("stack", 'turngap serve --agent embedded --port "$PORT"', "ws://127.0.0.1:$PORT/ws"),
        ("port", 'python bot.py --port "$PORT"', "ws://127.0.0.1:$PORT/ws"),
        ("no-port", "python bot.py", "ws://localhost:$PORT/ws"),
        ("runs-already", "python bot.py", "ws://[::1]:$PORT/?a=${TOKEN}"),
    ],
)
def test_it_starts_each_version_at_its_port(name: str, start: str, url: str) -> None:
    assert (given(CHOSEN[name])["start"], given(CHOSEN[name])["url"]) == (start, url)


def test_an_agent_elsewhere_has_none() -> None:
    for url in ("wss://prod.example/ws", "wss://prod.example:9/ws", "ws://10.0.0.1:8765/"):
        assert WORKFLOW not in contents(Chosen(url, "python bot.py"))


def test_it_has_githubs_form_and_lets_no_text_become_a_command(tmp_path: Path) -> None:
    for name, chosen in CHOSEN.items():
        (tmp_path / f"{name}.yml").write_text(contents(chosen)[WORKFLOW], encoding="utf-8")
    files = [EXAMPLE, *sorted(tmp_path.glob("*.yml"))]
    done = run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    assert done.returncode == 0, done.stdout
    done = run("zizmor", "--offline", "--no-progress", "--format", "json", *files)
    found = [f for f in json.loads(done.stdout) if f["ident"] in AUDITS]
    assert [(f["ident"], f["locations"][0]["symbolic"]) for f in found] == []
