"""tools/release.py and what it needs: a release is refused until all of it says the same."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import release
from release import unprepared, version
from ruamel.yaml import YAML

import turngap

ROOT = Path(__file__).parents[2]
PUBLISH = ROOT / ".github/workflows/publish.yml"
GUIDE = ROOT / "docs/releasing.md"
HERE = turngap.__version__
TEMPLATES = "pipeline/turngap/setup/templates"
REPOSITORY = "https://example.com/somebody/turngap"


def jobs() -> dict[str, Any]:
    return YAML(typ="safe").load(PUBLISH.read_text(encoding="utf-8"))["jobs"]


# --- one version ------------------------------------------------------------------------------


def test_the_version_has_one_place_and_the_citation_repeats_it() -> None:
    assert version(ROOT) == HERE
    assert unprepared(ROOT, None) == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Sources that were prepared as docs/releasing.md says."""
    (tmp_path / "pipeline/turngap/core").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "pipeline/turngap/core/__init__.py").write_text(f'__version__ = "{HERE}"\n')
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (tmp_path / "CITATION.cff").write_text(f"{citation}date-released: 2027-01-31\n")
    (tmp_path / "CHANGELOG.md").write_text(f"## [Unreleased]\n\n## [{HERE}] - 2027-01-31\n")
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"))
    (tmp_path / "docs/deep").mkdir()
    (tmp_path / "docs/deep/page.md").write_text("A page.\n")
    (tmp_path / TEMPLATES).mkdir(parents=True)
    (tmp_path / TEMPLATES / "turn-gap.yml").write_text("name: turn gap\n")
    edit = re.search(r"^ *(sed -i .*)$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert edit is not None
    subprocess.run(shlex.split(edit[1]), cwd=tmp_path, check=True)
    return tmp_path


def test_what_was_prepared_as_the_guide_says_may_be_released(prepared: Path) -> None:
    assert unprepared(prepared, f"v{HERE}") == []
    readme = (prepared / "README.md").read_text(encoding="utf-8")
    assert 'pip install "turngap[webrtc]" ' in readme
    assert "URL-OF-THIS-REPOSITORY" not in readme
    assert "./turngap" not in readme


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("pipeline/turngap/core/__init__.py", HERE, "9.9.9", "CITATION.cff has version"),
        ("CHANGELOG.md", f"[{HERE}] - 2027-01-31", f"[{HERE}]", "CHANGELOG.md has no section"),
        ("CITATION.cff", "2027-01-31", "2027-01-30", "date-released 2027-01-30"),
        ("README.md", "# turngap", "# turngap is not on\nPyPI yet", "README.md still says"),
        (f"{TEMPLATES}/turn-gap.yml", "name:", "# not on\n# PyPI yet\nname:", "turn-gap.yml still"),
        ("docs/deep/page.md", "A", "URL-OF-THE-TURNGAP-REPOSITORY", "docs/deep/page.md still says"),
    ],
)
def test_each_thing_that_was_forgotten_is_named(
    prepared: Path, file: str, before: str, after: str, said: str
) -> None:
    path = prepared / file
    path.write_text(path.read_text(encoding="utf-8").replace(before, after, 1))
    assert any(said in problem for problem in unprepared(prepared, f"v{HERE}"))


def test_what_is_asked_for_is_the_commit_and_not_what_lies_in_the_checkout(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = ["-c", "user.name=you", "-c", "user.email=you@example.invalid", "-c", "commit.gpgsign=0"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "prepared"]):
        subprocess.run(["git", *words], cwd=prepared, check=True)
    monkeypatch.setattr(release, "ROOT", prepared)
    (prepared / "CHANGELOG.md").write_text("")
    assert release.prepared_version("HEAD", f"v{HERE}") == HERE
    subprocess.run(["git", *who, "commit", "-q", "-a", "-m", "forgotten"], cwd=prepared, check=True)
    (prepared / "CHANGELOG.md").write_text(f"## [{HERE}] - 2027-01-31\n")
    with pytest.raises(release.RefusedError, match=r"CHANGELOG\.md has no section"):
        release.prepared_version("HEAD", f"v{HERE}")


def test_a_tag_of_another_version_is_refused(prepared: Path) -> None:
    (problem,) = unprepared(prepared, "v9.9.9")
    assert problem == f"the tag is v9.9.9, and __version__ is {HERE}: expected v{HERE}"


def test_an_unprepared_release_ends_the_command_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(release, "build_twice", lambda *_: pytest.fail("it was built"))
    with pytest.raises(SystemExit, match="the tag is v9"):
        release.main(["--tag", "v9.9.9", "--out", str(tmp_path)])


def test_the_citation_has_the_form_that_others_read() -> None:
    schema = ("--builtin-schema", "vendor.citation-file-format")
    command = [sys.executable, "-m", "check_jsonschema", *schema, ROOT / "CITATION.cff"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# --- the same bytes ---------------------------------------------------------------------------


def test_two_builds_that_differ_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def odd(source: Path, out: Path, *_: object) -> dict[str, str]:
        return {"a.whl": out.name, "a.tar.gz": "the same"}

    monkeypatch.setattr(release, "export", lambda _, to, __: to.mkdir())
    monkeypatch.setattr(release, "build", odd)
    with pytest.raises(release.RefusedError, match="differ"):
        release.build_twice("HEAD", tmp_path, None)
    assert list(tmp_path.iterdir()) == []


# --- links ------------------------------------------------------------------------------------


# --- who may publish --------------------------------------------------------------------------
