"""Looking for somebody's bot, and the files that `turngap init` writes."""

import os
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from turngap.core.errors import InputError
from turngap.core.stats import n_without_a_miss
from turngap.load.plan import shape_of
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths, shipped_library
from turngap.setup import Chosen, _with_paths, bot_of, bots, contents, from_here, write


def test_no_link_leads_out_of_the_repository(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (tmp_path / "tests").symlink_to(elsewhere)
    with pytest.raises(InputError, match="leads out"):
        write(tmp_path, contents(Chosen("embedded")), force=True)
    assert not list(elsewhere.iterdir())


def test_bots_are_found_and_other_files_are_not(tmp_path: Path) -> None:
    program = 'if __name__ == "__main__":\n    pass\n'
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "agent.py").write_text(
        f'from pipecat.frames import x\n@app.websocket("/voice")\n# --port\n{program}'
    )
    (tmp_path / "parts.py").write_text("import pipecat\n")
    (tmp_path / "other.py").write_text(f"# import pipecat is not here\nimport os\n{program}")
    (tmp_path / "latin.py").write_bytes(b"import pipecat\n# \xe9\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bot.py").write_text(f"import pipecat\n{program}")
    (tmp_path / "gone.py").symlink_to("nowhere.py")
    os.mkfifo(tmp_path / "pipe.py")
    ((name, bot),) = bots(tmp_path).items()
    assert (name, bot.takes_port) == ("src/agent.py", True)
    assert (bot.start or "").endswith(" src/agent.py")
    assert bot.paths == ("/voice", "/ws", "/ws-client", "/")


def test_a_bot_of_pipecats_runner_gets_its_port_in_the_workflow(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("import pipecat\nfrom pipecat.runner.run import main\n")
    given = bot_of("", "/elsewhere/.venv/bin/python bot.py", tmp_path)
    assert (given.takes_port, given.paths[0]) == (True, "/ws-client")
    # As a browser reaches it, first; a URL that the user gave is tried as it is.
    assert _with_paths("ws://h:1", given)[:2] == ["http://h:1", "ws://h:1/ws-client"]
    assert _with_paths("http://h:1", bot_of("http://h:1", "", tmp_path)) == ["http://h:1"]
    assert given.start is not None
    chosen = Chosen("ws://127.0.0.1:7860/ws-client", given.start, takes_port=given.takes_port)
    files = contents(chosen)
    (job,) = YAML(typ="safe").load(files[".github/workflows/turn-gap.yml"])["jobs"].values()
    inputs = job["steps"][-1]["with"]
    assert inputs["start"] == 'python bot.py --port "$PORT"'
    assert inputs["url"] == "ws://127.0.0.1:$PORT/ws-client"
    assert "Its program is one of this machine" in files["turngap.toml"]


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_program_of_the_repository_is_named_from_there(tmp_path: Path, quote: str) -> None:
    command = f"{quote}{tmp_path}/.venv/bin/python{quote} bot.py"
    assert from_here(command, tmp_path) == f"{quote}.venv/bin/python{quote} bot.py"
    assert from_here(command, tmp_path / "other") == command
    chosen = Chosen("ws://127.0.0.1:8765", from_here(command, tmp_path))
    assert "of this machine" not in contents(chosen)["turngap.toml"]


@pytest.mark.parametrize(
    "chosen",
    [
        Chosen("embedded"),
        Chosen(
            "wss://a.example:9/x?y=\"'",
            "sh -c 'a \"b\" \\ {{ ${{ c }} }}' --port 8765",
            'twilio,parameters={lang="en"}',
            ('X: "${KEY}"',),
            (),
            True,
        ),
    ],
)
def test_what_is_written_can_be_read(chosen: Chosen) -> None:
    files = contents(chosen)
    said = tomllib.loads(files["turngap.toml"])
    assert said["agent"] == chosen.agent
    assert said.get("start", "") == chosen.start
    assert said.get("dialect", "") == chosen.dialect
    assert tuple(said.get("header", ())) == chosen.headers
    assert said["check"]["budget"] == {"gap": 800}
    compile(files["tests/test_turn_gap.py"], "test_turn_gap.py", "exec")


def test_as_many_rounds_as_a_pass_takes_fit_into_the_minutes() -> None:
    paths = scenario_paths(shipped_library(), ["quick-questions"])
    (shape,) = map(shape_of, load_scenarios(paths))
    file = tomllib.loads(contents(Chosen("embedded"))["turngap.toml"])["check"]
    assert file["rounds"] >= n_without_a_miss(file["target"])
    assert shape.length_s * file["rounds"] < 60 * file["max-minutes"]
    root, read = Path(__file__).parents[2], YAML(typ="safe").load
    inputs = read((root / "action.yml").read_text())["inputs"]
    rounds, minutes = (float(inputs[name]["default"]) for name in ("rounds", "max-minutes"))
    assert 2 * rounds >= n_without_a_miss(0.9)
    assert 4 * shape.length_s * rounds < 60 * minutes
    (job,) = read((root / "docs/github-actions.yml").read_text())["jobs"].values()
    assert minutes < job["timeout-minutes"]
