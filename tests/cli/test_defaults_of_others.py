"""A repository's file that another user left where it is found."""

import os
from pathlib import Path

import pytest
from commandline import turngap_here

from turngap.core.errors import InputError
from turngap.play import defaults as owner
from turngap.play.defaults import read_defaults

ME, SOMEBODY, MALLORY = 1000, 1001, 1002


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Set up folders like `/tmp`, which belongs to mallory, and the folder `mine` below it, to
    me."""
    monkeypatch.delenv("TURNGAP_CONFIG", raising=False)
    (tmp_path / ".git").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "turngap.toml").write_text('start = "sh planted"\n')
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    whose = {tmp_path: 0, tmp_path / "mine": ME}
    monkeypatch.setattr(
        owner, "owners", lambda path: {whose.get(path.absolute().resolve(), MALLORY)}
    )
    return whose


@pytest.mark.parametrize("user", [ME, 0])
def test_a_planted_file_is_refused(
    shared: dict[Path, int], user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(InputError, match="belongs to another user") as refused:
        read_defaults()
    assert "TURNGAP_CONFIG=../turngap.toml" in refused.value.hint
    monkeypatch.setenv("TURNGAP_CONFIG", "../turngap.toml")
    assert read_defaults() is not None


def test_a_file_of_mine_of_root_or_of_the_folders_owner_is_taken(
    shared: dict[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in (ME, 0):
        shared[tmp_path / "turngap.toml"] = user
        assert read_defaults() is not None
    # A container: root in the checkout of another user.
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    shared[tmp_path / "turngap.toml"] = shared[tmp_path / "mine"] = SOMEBODY
    assert read_defaults() is not None


def test_a_file_that_says_nothing_of_turngap_is_nobodys_business(
    shared: dict[Path, int], tmp_path: Path
) -> None:
    (tmp_path / "turngap.toml").rename(tmp_path / "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "turngap"\n')
    assert read_defaults() is None


def test_a_link_is_its_owners_too(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/")
    assert owner.owners(tmp_path / "link") == {Path("/").stat().st_uid, os.geteuid()}


def test_init_leaves_a_planted_repository_alone(
    shared: dict[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "turngap.toml").unlink()
    done = turngap_here(capsys, "init", "--agent", "stock")
    assert done.code == 0, done.err
    assert (tmp_path / "mine/.github").exists()
    assert not (tmp_path / ".github").exists()
