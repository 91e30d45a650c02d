"""Every command that the documentation shows is run, or is known to be one that cannot be here."""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_lines import parse
from commandline import turngap_here
from markdown_pages import PAGES, ROOT, blocks, name_of
from shown_commands import SHELL, Command, commands_of, shown_commands
from stage import furnish, name_runs, stand_ins

Capsys = pytest.CaptureFixture[str]
COMMANDS = shown_commands()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# Of these a verdict is an answer, too: the stand-ins' figures are not what a page is about.
JUDGING = {"verify", "check", "compare", "diff", "load", "simulate", "turns"}
ANSWERS, VERDICTS = {0}, {0, 1, 3}
# Where a page leaves something out for the reader to put in.
LEFT_OUT = "…"
# What is not run, by how it begins, and why. What turngap has to do with it is tested elsewhere.
NOT_RUN = {
    "docker": "it needs a Docker engine; tests/packaging/test_docker.py reads what it is given",
    "mmdebstrap": "it downloads a Debian",
    "tar": "it unpacks what docker wrote",
    "sha256sum": "tests/score/test_verify.py runs it",
    "kubectl": "it needs a cluster; tests/packaging/test_kuberay.py reads what it is given",
    "ray": "it starts a cluster; tests/workers plays on one in this process",
    "git": "it fetches a repository",
    "pip": "it installs; test_what_is_installed_exists checks what",
    "pipx": "it installs",
    "uv": "it installs",
    "uvx": "it installs",
    "python": "it plays for minutes; test_a_script_takes_what_a_page_gives_it checks how",
    "published-weights": "it downloads 390 MB; tests/play/test_real_published_weights.py uses them",
    "vllm-env": "it downloads 2 GB; tests/services/test_llm_vllm_real.py uses it",
    "pytest": "tests/pytest_plugin runs the plugin with these options",
    "ct2-transformers-converter": "it converts a model that is not here",
    "./run": "it sets up a checkout, or is the tests themselves",
    "export": "it sets a variable for what follows",
    "cd": "it changes the folder",
    "mv": "it moves what the command before it wrote",
    "sed": "tests/packaging tests what is released",
    "curl": "it asks a server that is running; tests/agent asks the same one",
    # What is left of a line of the shell's own.
    **dict.fromkeys(("{", "}", "[", "echo", "exit", "source", "."), "it is the shell's own"),
}


def program(command: Command) -> str:
    """The name of what is run, wherever it lies."""
    name = command.words[0]
    return name if name.startswith("./") else Path(name).name or name


def ours(page: Path) -> list[Command]:
    return [c for c in COMMANDS if c.page == name_of(page) and c.ours is not None and not c.within]


def answers(arguments: Sequence[str]) -> set[int]:
    """Return the possible exit codes of a command: 1 and 3 only where they are a verdict."""
    name = arguments[0] if arguments else ""
    if name == "history":
        name = "".join(arguments[1:2])
    limited = name in ("replay", "score") and any(a.startswith("--min-hit-rate") for a in arguments)
    return VERDICTS if name in JUDGING or limited else ANSWERS


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("furnished")
    with pytest.MonkeyPatch.context() as patch:
        furnish(folder)
        stand_ins(patch, folder)
        name_runs(folder)
    return folder


@pytest.mark.parametrize("page", [p for p in PAGES if ours(p)], ids=name_of)
def test_the_commands_of_a_page_work_in_their_order(
    page: Path,
    furnished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    here = tmp_path / "here"
    shutil.copytree(furnished, here, symlinks=True)
    stand_ins(monkeypatch, here)
    failed: list[str] = []
    left = ours(page)
    for block in blocks(page):
        first = block.text.splitlines()[0].removeprefix("# ")
        if first == "turngap.toml":
            (here / first).write_text(block.text, encoding="utf-8")
        script = block.text if block.language in SHELL else ""
        for command in commands_of(script, name_of(page)):
            if command not in left:
                continue
            left.remove(command)
            if LEFT_OUT in command.words:
                continue
            with monkeypatch.context() as patch:
                for name, value in command.settings:
                    patch.setenv(name, value)
                done = turngap_here(capsys, *(command.ours or ()))
            if done.code not in answers(command.ours or ()) or "Traceback" in done.err:
                failed.append(f"{command.text}: exit code {done.code}\n{done.err}")
    assert (failed, left) == ([], [])


def test_only_a_command_that_judges_may_exit_with_a_verdict() -> None:
    for judges in (["check"], ["history", "diff", "a", "b"], ["replay", "--min-hit-rate", "0.9"]):
        assert answers(judges) == {0, 1, 3}
    for other in ([], ["report"], ["history"], ["history", "trend"], ["init"], ["replay", "check"]):
        assert answers(other) == {0}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_command_within_a_sentence_names_what_there_is(page: Path) -> None:
    """It may be only the beginning of one, as in `turngap check --against`, but names no other."""
    for command in COMMANDS:
        if command.page != name_of(page) or command.ours is None:
            continue
        if command.within or LEFT_OUT in command.words:
            words = [word for word in command.ours if word != LEFT_OUT]
            if words != ["ANYTHING"]:  # stands for each of them
                known(words)


def known(words: list[str]) -> None:
    """Parse the arguments as far as they go."""
    try:
        parse(words)
    except Exception as e:
        assert re.search(r"requires an argument|Missing (argument|parameter)", str(e)), e


@pytest.mark.parametrize(
    "words", [["nothing"], ["replay", "--nothing"], ["replay", "--repeat", "x"]]
)
def test_what_does_not_exist_is_found_within_a_sentence(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        known(words)


def test_each_command_of_another_program_is_on_the_list() -> None:
    others = {program(c) for c in COMMANDS if c.ours is None}
    assert {name for name in others if name.removesuffix("3") not in NOT_RUN} == set()


def test_a_script_takes_what_a_page_gives_it() -> None:
    wrong: list[str] = []
    for command in COMMANDS:
        if program(command) not in {"python", "python3"} or command.words[1] == "-c":
            continue
        name, *given = (word.removeprefix("$TURNGAP/") for word in command.words[1:])
        if name == "-m":
            name, *given = given
            file = module_file(name)
        else:
            file = ROOT / name
        if file is None:  # pip, venv
            continue
        if not file.is_file() and name != "bot.py":
            wrong.append(f"{command.page}: {name} is not there")
            continue
        flags = {word.partition("=")[0] for word in given if word.startswith("--")}
        if unknown := flags - strings_of(file):
            wrong.append(f"{command.page}: {name} has no {', '.join(sorted(unknown))}")
    assert wrong == []


def module_file(name: str) -> Path | None:
    """Return the file of a module of the repository; None for Python's and others' modules."""
    if name.split(".", maxsplit=1)[0] not in {"training", "turngap"}:
        return None
    base = (
        ROOT / ("services" if name.startswith("training") else "pipeline") / name.replace(".", "/")
    )
    return base / "__main__.py" if base.is_dir() else base.with_suffix(".py")


def strings_of(file: Path) -> set[str]:
    """Return the strings that a script spells out, and those of the modules that it imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = {
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            beside = file.parent / f"{node.module.split('.')[-1]}.py"
            if beside.is_file() and beside != file:
                found |= strings_of(beside)
    return found


def test_what_is_installed_exists() -> None:
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    wrong: list[str] = []
    for command in COMMANDS:
        if program(command) != "pip":
            continue
        for word, following in zip(command.words, [*command.words[1:], ""], strict=True):
            asked = re.fullmatch(
                r"(?:\.|turngap|\./turngap|PATH_TO_THIS_CHECKOUT)\[([\w,-]+)\]", word
            )
            wrong += [e for e in (asked[1].split(",") if asked else ()) if e not in extras]
            wrong += [following] if word == "--group" and following not in groups else []
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_shell_and_python(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page}:{block.line}", "exec")
    script = "\n".join(block.text for block in blocks(page) if block.language == "sh")
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_are_told_apart() -> None:
    script = (
        "A=1 turngap x 'a # b' | tee y # why\nturngap z \\\n  --w && ./run test; $(x) || echo\n"
    )
    found = [(c.words, c.settings, c.ours) for c in commands_of(script, "page")]
    assert found == [
        (("turngap", "x", "a # b"), (("A", "1"),), ("x", "a # b")),
        (("tee", "y"), (), None),
        (("turngap", "z", "--w"), (), ("z", "--w")),
        (("./run", "test"), (), None),
        (("$(x)",), (), None),
        (("echo",), (), None),
    ]


def test_a_block_is_run_although_a_sentence_before_it_says_the_same() -> None:
    run = {command.words for command in COMMANDS if not command.within}
    assert {("turngap", "init"), ("turngap", "check")} <= run
