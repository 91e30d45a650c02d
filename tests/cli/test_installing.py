"""Hints to install an extra, in environments that pip does not reach."""

import json
import sys
from pathlib import Path
from typing import Any

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


def checkout(folder: Path) -> dict[str, Any]:
    """What pip stores of an installation from a folder."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    return {"url": folder.as_uri(), "dir_info": {}}


def test_from_an_index_it_is_pip_and_the_name(tmp_path: Path) -> None:
    assert for_this_environment(HINT, tmp_path, {}) == HINT


def test_from_a_folder_it_is_that_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = checkout(tmp_path / "my turngap")
    monkeypatch.chdir("/")
    said = for_this_environment(HINT, tmp_path, origin)
    assert said == f"pip install '{tmp_path}/my turngap[embedded,piper]' (or `./run talk`)"
    monkeypatch.chdir(tmp_path)
    said = for_this_environment(HINT, tmp_path, origin | {"dir_info": {"editable": True}})
    assert said == "pip install -e './my turngap[embedded,piper]' (or `./run talk`)"
    monkeypatch.chdir(tmp_path / "my turngap")
    assert for_this_environment(HINT, tmp_path, origin).startswith("pip install '.[embedded,")
    beside = tmp_path / "b"
    beside.mkdir()
    monkeypatch.chdir(beside)
    assert for_this_environment(HINT, tmp_path, origin) == said.replace("-e './", f"'{tmp_path}/")


def test_a_folder_that_is_gone_leaves_the_name(tmp_path: Path) -> None:
    origin = {"url": (tmp_path / "gone").as_uri(), "dir_info": {"editable": True}}
    assert for_this_environment(HINT, tmp_path, origin) == HINT


@pytest.mark.parametrize(
    ("about", "source"),
    [
        ({"vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "7ae7"}}, "@v1"),
        ({"vcs_info": {"vcs": "git", "commit_id": "7ae7"}}, "@7ae7"),
        ({"vcs_info": {"vcs": "git"}, "subdirectory": "a"}, "#subdirectory=a"),
    ],
)
def test_from_git_it_is_the_repository(tmp_path: Path, about: dict[str, Any], source: str) -> None:
    origin = {"url": "https://example.org/turngap.git", **about}
    said = for_this_environment(HINT, tmp_path, origin)
    url = "git+https://example.org/turngap.git"
    assert said.startswith(f"pip install 'turngap[embedded,piper] @ {url}{source}' (or")


@pytest.mark.parametrize(
    "origin", [{"url": 3}, {"url": "https://example.org/t.whl", "archive_info": {}}]
)
def test_what_else_it_came_from_leaves_the_name(tmp_path: Path, origin: dict[str, Any]) -> None:
    assert for_this_environment(HINT, tmp_path, origin) == HINT


@pytest.mark.parametrize("stored", [None, "", "{", "[]", '{"url": null}'])
def test_what_the_installer_wrote_is_read_if_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str | None
) -> None:
    info = tmp_path / "turngap-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: turngap\nVersion: 1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    if stored is not None:
        (info / "direct_url.json").write_text(stored)
    assert for_this_environment(HINT, tmp_path) == HINT
    origin = checkout(tmp_path / "from")
    (info / "direct_url.json").write_text(json.dumps(origin))
    assert "from[embedded,piper]'" in for_this_environment(HINT, tmp_path)


def test_in_the_environment_of_run_it_is_the_uv_that_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, origin = tmp_path / "turngap/.venv", checkout(tmp_path / "turngap")
    origin["dir_info"]["editable"] = True
    prefix.mkdir()
    (prefix / ".turngap-base").touch()
    monkeypatch.chdir(tmp_path / "turngap")
    said = for_this_environment(HINT, prefix, origin)
    command = ".venv/bin/uv pip install --python .venv/bin/python -e '.[embedded,piper]'"
    assert said.startswith(f"{command} (or")


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
