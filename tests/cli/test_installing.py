"""Hints to install an extra, in environments that pip does not reach."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from turngap.cli import app
from turngap.cli.installing import for_this_environment
from turngap.cli.shared import show_error
from turngap.core.errors import AgentError

HINT = "pip install 'turngap[embedded,piper]' (or `./run talk`)"


def made_by_pipx(prefix: Path, spec: object) -> Path:
    prefix.mkdir(parents=True)
    metadata = {"main_package": {"package": "turngap", "package_or_url": spec}}
    (prefix / "pipx_metadata.json").write_text(json.dumps(metadata))
    return prefix


def test_in_any_other_environment_it_is_pip(tmp_path: Path) -> None:
    assert for_this_environment(HINT, tmp_path) == HINT


def test_pipx_installs_into_the_environment_that_it_keeps(tmp_path: Path) -> None:
    prefix = made_by_pipx(tmp_path / "venvs/turngap-next", "turngap")
    said = "pipx runpip turngap-next install 'turngap[embedded,piper]' (or `./run talk`)"
    assert for_this_environment(HINT, prefix) == said


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("turngap", "pipx run --spec 'turngap[embedded,piper]' turngap …"),
        ("./turngap[voice]", "pipx run --spec './turngap[voice,embedded,piper]' turngap …"),
        ("turngap[piper]", "pipx run --spec 'turngap[piper,embedded]' turngap …"),
    ],
)
def test_what_pipx_runs_once_is_run_again_with_the_extra(
    tmp_path: Path, spec: str, said: str
) -> None:
    prefix = made_by_pipx(tmp_path / ".cache/1f2e", spec)
    assert for_this_environment(HINT, prefix).startswith(said)


@pytest.mark.parametrize("content", ["", "[]", '{"main_package": null}', "\udcff"])
def test_what_cannot_be_read_of_pipx_leaves_the_packages_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "pipx_metadata.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "--spec 'turngap[embedded,piper]'" in for_this_environment(HINT, tmp_path)


def test_uv_installs_into_the_environment_of_its_tool(tmp_path: Path) -> None:
    prefix = tmp_path / "tools/turngap"
    prefix.mkdir(parents=True)
    (prefix / "uv-receipt.toml").touch()
    said = for_this_environment(HINT, prefix)
    assert said.startswith(f"uv pip install --python '{prefix}' 'turngap[embedded,piper]'")


def test_errors_and_lists_speak_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "prefix", str(made_by_pipx(tmp_path / "venvs/turngap", "turngap")))
    show_error(AgentError("extra.missing", "it is missing", hint=HINT))
    assert "pipx runpip turngap install 'turngap[embedded,piper]'" in capsys.readouterr().err
    monkeypatch.setattr("turngap.backends.Need.met", lambda need: need.kind != "module")
    listed = CliRunner().invoke(app, ["backends", "pocketsphinx"]).stdout
    assert "pipx runpip turngap install 'turngap[embedded]'" in listed
