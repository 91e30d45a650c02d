"""Both versions of a bot: which commit is compared with, its files, and what each needs."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate.inputs import AGENT_FAILED, PORT, GateError, Inputs
from gate.runner import Environment, shown

# What each kind of project is installed by, where the workflow says nothing.
INSTALLS = {
    "requirements.txt": "pip install --quiet -r requirements.txt",
    "pyproject.toml": "pip install --quiet .",
}
# A branch that was made just now had no commit before.
NO_COMMIT = "0" * 40
FIRST_PORT = 8765
# What leads Python elsewhere, and the files by which a step hands values to later steps.
NOT_FOR_BOTS = {
    *("PYTHONHOME", "PYTHONPATH"),
    *("GITHUB_ENV", "GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STATE", "GITHUB_STEP_SUMMARY"),
}


@dataclass(frozen=True)
class Base:
    """The commit that is compared with, and what people call it."""

    commit: str
    name: str


@dataclass(frozen=True)
class Version:
    """A version that can be started.

    Attributes:
        folder: where its files are and its command runs.
        url: where it listens once it is started.
        start: a script that starts it.
    """

    folder: Path
    url: str
    start: Path


class Repository:
    """The checkout that a folder belongs to, by git's own commands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        top = self._git("rev-parse", "--show-toplevel")
        if top is None:
            raise GateError(f"{folder} is not in a git checkout", "use actions/checkout first")
        self.prefix = self._git("rev-parse", "--show-prefix") or ""
        self._folder = Path(top)

    def _git(self, *arguments: str) -> str | None:
        """Run git and return its output; None if it fails. The checkout may be another user's."""
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=self._folder,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else None

    @property
    def head(self) -> str:
        return self._git("rev-parse", "HEAD") or ""

    @property
    def parents(self) -> list[str]:
        """Return the parents of HEAD, even if only its own commit was fetched."""
        commit = self._git("cat-file", "-p", "HEAD") or ""
        return re.findall(r"^parent ([0-9a-f]{40,64})$", commit.partition("\n\n")[0], re.MULTILINE)

    def commit_of(self, name: str) -> str | None:
        """Find the commit of a branch, tag or commit; fetch it if it is not here. None: unknown."""
        is_commit = re.fullmatch(r"[0-9a-f]{40,64}", name) is not None
        if is_commit and self._git("cat-file", "-e", f"{name}^{{commit}}") is not None:
            return name
        few = ["--depth=1"] if self._git("rev-parse", "--is-shallow-repository") == "true" else []
        fetched = self._git("fetch", "--quiet", "--no-tags", *few, "origin", name)
        for each in ("FETCH_HEAD",) if fetched is not None else (name, f"origin/{name}"):
            there = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{each}^{{commit}}")
            if (commit := self._git(*there)) is not None:
                if fetched is None:
                    print(f"turngap: {name} cannot be fetched; {each} is {commit[:12]} here")
                return commit
        return None

    def tree_of(self, commit: str) -> str | None:
        """Return the hash that names all files of a commit."""
        return self._git("rev-parse", f"{commit}^{{tree}}")

    @property
    def is_changed(self) -> bool:
        """Return whether a tracked file differs from HEAD's."""
        return self._git("diff", "--quiet", "HEAD") is None

    @contextmanager
    def checked_out(self, commit: str, folder: Path) -> Iterator[Path]:
        """Check out the files of another commit in `folder` for as long as they are needed."""
        if self._git("worktree", "add", "--detach", "--force", str(folder), commit) is None:
            raise GateError(f"git could not check {commit[:7]} out into {folder}")
        try:
            yield folder / self.prefix
        finally:
            self._git("worktree", "remove", "--force", str(folder))
            self._git("worktree", "prune")


def refuse_event(environment: Environment) -> None:
    """Refuse the events on which a fork's code would run with the repository's secrets.

    Raises:
        GateError: this is one of them.
    """
    kind = environment.get("GITHUB_EVENT_NAME", "")
    if kind in ("pull_request_target", "workflow_run"):
        raise GateError(
            f"this action does not run on {kind}, where the code of a fork would get your secrets",
            "use pull_request",
        )


def base_of(
    inputs: Inputs, repository: Repository, event: Mapping[str, Any], environment: Environment
) -> Base | None:
    """Find the version to compare with; None if the workflow wants budgets only.

    On a pull request HEAD merges it into its base, so the first parent is the base as it was
    merged, and everything in between is what the pull request changes.

    Raises:
        GateError: it is not known, or cannot be fetched.
    """
    if inputs.base == "none":
        return None
    name, commit = inputs.base, inputs.base
    kind = environment.get("GITHUB_EVENT_NAME", "")
    parents = repository.parents
    if not name and kind == "pull_request":
        base = event.get("pull_request", {}).get("base", {})
        merged = len(parents) == 2 and repository.head == environment.get("GITHUB_SHA")
        name, commit = base.get("ref", ""), parents[0] if merged else base.get("sha", "")
    elif not name and kind == "push":
        before = event.get("before") or NO_COMMIT
        name = "the commit before"
        commit = before if before != NO_COMMIT else next(iter(parents), "")
    elif not name and kind == "merge_group":
        group = event.get("merge_group", {})
        name = str(group.get("base_ref", "")).removeprefix("refs/heads/")
        commit = group.get("base_sha", "")
    if not commit:
        raise GateError(
            f"on {kind or 'no event of GitHub'} there is nothing to compare with",
            "give base: a branch, a tag, a commit, or none",
        )
    found = repository.commit_of(commit)
    if found is None:
        raise GateError(
            f"the base version {commit} is neither here nor can it be fetched",
            "does it exist? With `persist-credentials: false` also give `fetch-depth: 0` to "
            "actions/checkout",
        )
    changed_here = repository.is_changed and environment.get("GITHUB_ACTIONS") != "true"
    if repository.tree_of(found) == repository.tree_of("HEAD") and not changed_here:
        raise GateError(
            f"the base version {name} ({found[:7]}) is the same as the version at hand",
            "give another base, and check out the version that is to be measured",
        )
    return Base(found, name or found[:7])


def prepared(
    side: str, folder: Path, *, port: int, inputs: Inputs, work: Path, environment: Environment
) -> Version:
    """Install a version into its own virtual environment, ready to be started.

    Raises:
        GateError: it cannot be installed.
    """
    if not folder.is_dir():
        raise GateError(f"the {side} version has no folder {inputs.folder.name}", "", AGENT_FAILED)
    venv = made_venv(work / side / "venv")
    inside = inside_of(venv, environment)
    install = inputs.install or _install_of(folder)
    title = f"Install the {side} version"
    bash = ["bash", "-euo", "pipefail", "-c"]
    if install and (code := shown(title, [*bash, install], cwd=folder, environment=inside)):
        raise GateError(
            f"the {side} version could not be installed: exit code {code}", "", AGENT_FAILED
        )
    start = work / side / "start"
    start.write_text(
        "#!/usr/bin/env bash\n"
        f"cd -- {shlex.quote(str(folder))} || exit 1\n"
        f"export PORT={port} VIRTUAL_ENV={shlex.quote(str(venv))}\n"
        f'export PATH={shlex.quote(str(venv / "bin"))}:"$PATH"\n'
        f"exec bash -euo pipefail -c {shlex.quote(inputs.start)}\n",
        encoding="utf-8",
    )
    start.chmod(0o755)
    return Version(folder, inputs.url.replace(PORT, str(port)), start)


def _install_of(folder: Path) -> str:
    return next((how for file, how in INSTALLS.items() if (folder / file).is_file()), "")


def made_venv(folder: Path) -> Path:
    """Create a new virtual environment with pip.

    Raises:
        GateError: this Python can make none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "venv", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise GateError(
            f"{sys.executable} could not make a virtual environment: {''.join(last)}",
            "use actions/setup-python first",
            AGENT_FAILED,
        )
    return folder


def inside_of(venv: Path, environment: Environment) -> dict[str, str]:
    """Build the environment of a shell in which `venv` is active."""
    path = f"{venv / 'bin'}{os.pathsep}{environment.get('PATH', os.defpath)}"
    kept = {k: v for k, v in environment.items() if k not in NOT_FOR_BOTS}
    return {**kept, "VIRTUAL_ENV": str(venv), "PATH": path}


def free_ports(n: int) -> list[int]:
    """`n` ports that no one listens at, the usual ones first."""
    found: list[int] = []
    for port in range(FIRST_PORT, FIRST_PORT + 1_000):
        with socket.socket() as taken:
            if len(found) < n and taken.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == n:
            return found
    raise GateError(f"no free port from {FIRST_PORT} on")
