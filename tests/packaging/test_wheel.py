"""The wheel of this checkout, built as an installer would, with the same backend."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from release import RefusedError, install, tried

import turngap

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Built:
    wheel: Path
    sdist: Path

    @property
    def in_wheel(self) -> list[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    @property
    def in_sdist(self) -> list[str]:
        """Paths below the archive's one folder."""
        with tarfile.open(self.sdist) as archive:
            return ["/".join(PurePosixPath(n).parts[1:]) for n in archive.getnames()]


def build(source: Path, out: Path, *targets: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out), *targets]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def unpack(sdist: Path, to: Path) -> None:
    # By hand: extractall's `filter` came with Python 3.11.4, and later ones want it given.
    with tarfile.open(sdist) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                file = to.joinpath(*PurePosixPath(member.name).parts[1:])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    return Built(next(out.glob("*.whl")), next(out.glob("*.tar.gz")))


def tops(names: Sequence[str]) -> set[str]:
    return {PurePosixPath(name).parts[0] for name in names}


def test_the_wheel_installs_two_packages_and_nothing_else(built: Built) -> None:
    dist_info = {top for top in tops(built.in_wheel) if top.endswith(".dist-info")}
    assert len(dist_info) == 1
    # Not `pipeline`, `services` or `tests`: they would stand in for somebody's own.
    assert tops(built.in_wheel) - dist_info == {"turngap", "turngap_services"}


def test_the_wheel_holds_every_module(built: Built) -> None:
    for folder in ("pipeline/turngap", "services/turngap_services"):
        parent = (ROOT / folder).parent
        modules = {f.relative_to(parent).as_posix() for f in (ROOT / folder).rglob("*.py")}
        assert modules - set(built.in_wheel) == set()


def test_the_wheel_holds_what_is_not_code(built: Built) -> None:
    names = set(built.in_wheel)
    scenarios = ROOT / "scenarios"
    recordings = [f for f in scenarios.rglob("*") if f.suffix in (".yaml", ".flac", ".wav")]
    assert len(recordings) > 8
    wanted = {f"turngap/_scenarios/{f.relative_to(scenarios).as_posix()}" for f in recordings}
    stacks = list((ROOT / "services/turngap_services/stacks").glob("*.toml"))
    wanted |= {f"turngap_services/stacks/{f.name}" for f in stacks}
    templates = list((ROOT / "pipeline/turngap/report/templates").iterdir())
    assert templates
    wanted |= {f"turngap/report/templates/{f.name}" for f in templates}
    for model in ("teacher", "student"):
        folder = ROOT / "services/turngap_services/llm/small" / model
        files = {f.name for f in folder.iterdir()}
        assert {"model.bin", "held_out.json"} <= files
        wanted |= {f"turngap_services/llm/small/{model}/{name}" for name in files}
    page = list((ROOT / "pipeline/turngap/live/page").iterdir())
    assert page
    wanted |= {f"turngap/live/page/{f.name}" for f in page}
    wanted |= {"turngap/py.typed", "turngap_services/py.typed"}
    assert wanted - names == set()
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_wheel_holds_no_tests_no_caches_no_runs(built: Built) -> None:
    parts = {part for name in built.in_wheel for part in PurePosixPath(name).parts}
    assert parts & {"tests", "__pycache__", "runs", "training", "benchmarks", ".venv"} == set()


def test_the_sdist_makes_the_same_wheel_to_the_byte(built: Built, tmp_path: Path) -> None:
    # In another folder, with other times and modes of the files.
    source, out = tmp_path / "source", tmp_path / "dist"
    unpack(built.sdist, source)
    for file in source.rglob("*.py"):
        file.chmod(0o600)
    build(source, out, "--target", "wheel")
    again = Built(next(out.glob("*.whl")), built.sdist)
    assert sorted(again.in_wheel) == sorted(built.in_wheel)
    assert again.wheel.read_bytes() == built.wheel.read_bytes()


def test_the_sdist_holds_sources_only(built: Built) -> None:
    parts = {part for name in built.in_sdist for part in PurePosixPath(name).parts}
    assert parts & {".venv", ".git", "__pycache__", "runs", "dist", "uv.lock"} == set()
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= set(built.in_sdist)


def test_the_wheel_works_away_from_the_checkout(built: Built, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(site)
    program = """
from pathlib import Path
import turngap
from turngap.backends import specs
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import library_dir, library_paths
library = library_dir()
loaded = load_scenarios(library_paths(library))
print(Path(turngap.__file__).parent, library, len(loaded), len(specs()), sep="\\n")
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    package, library, scenarios, backends = done.stdout.split()
    assert Path(package) == site / "turngap"
    assert Path(library) == site / "turngap/_scenarios"
    assert int(scenarios) == len(list((ROOT / "scenarios").glob("*.yaml")))
    assert int(backends) >= 4


def test_the_wheel_installs_into_an_empty_environment_and_works_there(
    built: Built, tmp_path: Path
) -> None:
    environment, elsewhere = tmp_path / "environment", tmp_path / "elsewhere"
    elsewhere.mkdir()
    try:
        install(built.wheel, environment)
    except RefusedError as e:
        if "error sending request" in str(e):
            pytest.skip("no package registry can be reached")
        raise
    wanted = ("--version",), ("scenarios", "--json"), ("backends", "--json")
    version, scenarios, backends = tried(environment, wanted, elsewhere)
    assert version == f"turngap {turngap.__version__}\n"
    assert len(json.loads(scenarios)) == len(list((ROOT / "scenarios").glob("*.yaml")))
    assert all("pipecat" in backend["missing"] for backend in json.loads(backends))
