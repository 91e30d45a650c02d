"""docker/: what can be known of the images and the services without an engine to run them."""

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import parse
from ruamel.yaml import YAML

from turngap.agent.stack import resolved
from turngap.backends import Kind
from turngap.play.target import AgentChoice
from turngap.scenario.model import library_dir

ROOT = Path(__file__).parents[2]
DOCKERFILE, COMPOSE = ROOT / "docker/Dockerfile", ROOT / "docker/compose.yaml"
GUIDE = ROOT / "docs/docker.md"
PROFILES = ("cpu", "gpu")
TOKEN = "0123456789abcdef"

SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")

TEXT = COMPOSE.read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = YAML(typ="safe").load(TEXT)["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]

every_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)


def filled_in(text: str) -> str:
    """`text` as compose fills it in where nothing but the token is set."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if name == "TURNGAP_TOKEN":
            return TOKEN
        assert kind == "-", f"{name} has no default"
        return rest

    return VARIABLE.sub(value, text)


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, **options
    )


def schema_check(file: Path) -> subprocess.CompletedProcess[str]:
    schema = ("--builtin-schema", "vendor.compose-spec")
    return run(sys.executable, "-m", "check_jsonschema", *schema, file)


def test_the_compose_file_is_as_the_specification_has_it(tmp_path: Path) -> None:
    done = schema_check(COMPOSE)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(TEXT.replace("cap_drop: [ALL]", "cap_dorp: [ALL]"), encoding="utf-8")
    assert schema_check(wrong).returncode == 1


def ends(service: dict[str, Any]) -> bool:
    """Return whether a service has ended when the others begin: it fetches weights."""
    return str(service["command"]).startswith("fetch ")


@every_service
def test_a_service_is_watched_and_has_no_rights_to_lose(service: dict[str, Any]) -> None:
    assert ends(service) or service["healthcheck"]["test"][0] == "CMD"
    assert int(service["user"].partition(":")[0]) > 0
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "ipc", "network_mode"} & set(service)
    assert len(service["profiles"]) == 1
    assert set(service["profiles"]) < set(PROFILES)


@every_service
def test_a_service_is_reached_from_this_machine_alone(service: dict[str, Any]) -> None:
    assert all(filled_in(port).startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_no_secret_stands_in_the_file_or_on_a_command_line() -> None:
    for service in SERVICES.values():
        for name, value in service["environment"].items():
            if SECRET.search(name):
                assert value is None or re.fullmatch(r"\$\{\w+:\?[^}]*\}", value), name
            elif value is not None and "token=" in value:
                assert re.search(r"token=\$\{TURNGAP_TOKEN:\?", value), name
        assert not SECRET.search(str(service.get("command", "")))


def test_every_extra_that_is_named_is_one_of_the_package() -> None:
    named = [extras_of(name) for name in OURS if name.startswith("agent-")]
    named += [
        set(found[1].split(","))
        for file in (DOCKERFILE, GUIDE)
        for found in re.finditer(r"EXTRAS=([\w,]+)", file.read_text(encoding="utf-8"))
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set().union(*named) <= set(project["optional-dependencies"])
    assert len(named) >= 4


def extras_of(name: str) -> set[str]:
    return set(SERVICES[name]["build"]["args"]["EXTRAS"].split(","))


def instructions(name: str) -> Iterator[tuple[str, str]]:
    """`FROM`'s images by stage, `ARG`'s defaults by name, or `COPY`'s sources by destination."""
    arguments: dict[str, str] = {}
    for line in DOCKERFILE.read_text(encoding="utf-8").splitlines():
        match line.split():
            case ["ARG", argument]:
                key, _, arguments[key] = argument.partition("=")
                if name == "ARG":
                    yield key, arguments[key]
            case ["FROM", image, "AS", stage] if name == "FROM":
                yield stage, re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], image)
            case ["COPY", *sources, to] if name == "COPY" and "--from" not in sources[0]:
                yield from ((to, source) for source in sources)


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_ours_is_a_stage_that_ends_without_root(name: str) -> None:
    build, stages = SERVICES[name]["build"], dict(instructions("FROM"))
    assert (COMPOSE.parent / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == DOCKERFILE
    assert stages[build["target"]] == "run"
    assert f"USER {SERVICES[name]['user']}" in DOCKERFILE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_ours_runs_a_command_that_there_is(name: str) -> None:
    arguments = shlex.split(filled_in(SERVICES[name]["command"]))
    parameters = parse(arguments)
    if arguments[0] == "fetch":
        assert parameters["what"] == [{"cpu": "local", "gpu": "gpu"}[SERVICES[name]["profiles"][0]]]
    if arguments[0] == "serve":
        engines: dict[Kind, str | None] = {"llm": parameters["llm"]}
        choice = AgentChoice(parameters["agent"], engines, tuple(parameters["sets"] or ()))
        specs = [spec for spec, _ in resolved(choice.stack(), library_dir())]
        assert len(specs) == 4
        # What the stack's engines are, is in the image.
        remedies = "\n".join(need.remedy for spec in specs for need in spec.requires)
        needed = set(re.findall(r"turngap\[(\w+)\]", remedies))
        assert needed
        assert needed <= extras_of(name)


def test_the_caller_takes_its_agent_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVICES["caller-cpu"]["environment"].items():
        monkeypatch.setenv(name, filled_in(value))
    assert parse(["replay"])["agent"] == f"ws://agent:7860/ws?token={TOKEN}"
    assert parse(["replay", "--agent", "stock"])["agent"] == "stock"


def sent(path: str) -> bool:
    """Return whether .dockerignore lets a file into the build: the last line that fits decides."""
    here = True
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern, lets_in = line.removeprefix("!"), line.startswith("!")
        parents = [path, *(p.as_posix() for p in Path(path).parents)]
        names = [pattern, pattern.removeprefix("**/")] if pattern.startswith("**/") else [pattern]
        if line and not line.startswith("#") and fits(parents, names):
            here = lets_in
    return here


def fits(paths: list[str], patterns: list[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(path, pattern) for path in paths for pattern in patterns if path != "."
    )


def test_what_is_copied_is_all_that_the_package_is_built_from(tmp_path: Path) -> None:
    context, out = tmp_path / "context", tmp_path / "out"
    for to, source in instructions("COPY"):
        files = [f for f in (ROOT / source, *(ROOT / source).rglob("*")) if f.is_file()]
        kept = [f for f in files if sent(f.relative_to(ROOT).as_posix())]
        assert kept, f"{source} is not there, or .dockerignore keeps it out"
        for file in kept:
            copy = context / to / file.relative_to(ROOT / source)
            copy = context / to / file.name if file == ROOT / source else copy
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    command = ("hatchling", "build", "--target", "wheel", "--directory", out)
    done = run(sys.executable, "-m", *command, cwd=context)
    assert done.returncode == 0, done.stderr
    (wheel,) = out.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for package in ("pipeline/turngap", "services/turngap_services"):
        parent = (ROOT / package).parent
        found = (f for f in (ROOT / package).rglob("*") if f.is_file())
        # What was compiled, by Python, lies beside its sources.
        files = {f for f in found if "__pycache__" not in f.parts}
        assert {f.relative_to(parent).as_posix() for f in files} - names == set()
    assert any(name.startswith("turngap/_scenarios/") for name in names)


@pytest.mark.parametrize(
    "path", [".git/config", ".venv/bin/python", "runs/a/run.json", "models/teacher/config.json",
             "services/training/make.py", "pipeline/turngap/__pycache__/x.pyc", ".env"]
)  # fmt: skip
def test_what_the_images_do_not_need_is_not_sent(path: str) -> None:
    assert not sent(path)
