"""Every package that the sources import is declared, and none is declared for nothing."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"turngap", "turngap_services"}


def declared(*requirements: str) -> set[str]:
    """Names of distributions, normalised as indexes do."""
    return {_normal(re.split(r"[\s\[<>=!~;]", r, maxsplit=1)[0]) for r in requirements}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(folder: Path) -> Iterator[tuple[str, str]]:
    """Top-level packages of others that the sources in `folder` import, and where."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case _:
                    continue
            for module in modules:
                top = module.split(".")[0]
                if top not in sys.stdlib_module_names and top not in OURS:
                    yield module, f"{file.relative_to(ROOT)}:{node.lineno}"


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BASE = declared(*PROJECT["dependencies"])
EXTRA = PROJECT["optional-dependencies"]
# What the rooms of the package import where they are used (tests/packaging/test_base.py).
AGENT = declared(*EXTRA["agent"])
# Workers on a cluster, imported where they are asked for (turngap/workers/ray.py).
RAY = declared(*EXTRA["ray"])
# What writes files of turns for other programs, imported where it is asked for.
EXPORTS = declared(*EXTRA["parquet"])
# What `--otlp` sends with (turngap/telemetry/exporter.py).
OTLP = declared(*EXTRA["otlp"])
# Calls over WebRTC, imported where one is made (turngap/caller/rtc).
WEBRTC = declared(*EXTRA["webrtc"])
# Libraries that are opened, not imported (turngap_services/cuda.py), or used through another.
OPENED = {"nvidia-cublas-cu12", "aioice"}
# An extra names turngap itself for what another extra brings.
EXTRAS = declared(*(r for extra in EXTRA.values() for r in extra)) - {"turngap"}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("pipeline", BASE | AGENT | RAY | EXPORTS | OTLP | WEBRTC),
        ("services/turngap_services", BASE | EXTRAS),
    ],
)
def test_every_import_is_declared(folder: str, allowed: set[str]) -> None:
    distributions = packages_distributions()
    undeclared: list[str] = []
    for module, where in imports(ROOT / folder):
        # `google.protobuf` comes of one of several distributions that share the package `google`.
        names = {_normal(d) for d in distributions.get(module.split(".")[0], [])}
        # pytest is what loads the plugin, so it is there whenever that is.
        if module == "pytest" and "pytest_plugin" in where:
            continue
        # pydantic pins pydantic-core, which is its other half.
        if not names & (allowed | {"pydantic-core"}):
            undeclared.append(f"{where}: {module}")
    assert undeclared == []


def test_every_declared_package_is_imported() -> None:
    distributions = packages_distributions()
    used: set[str] = set()
    for folder in ("pipeline", "services/turngap_services"):
        for module, _ in imports(ROOT / folder):
            used |= {_normal(d) for d in distributions.get(module.split(".")[0], [])}
    assert (BASE | EXTRAS) - used == OPENED
