"""The files that `turngap init` writes: the defaults, a test, and a workflow."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined

from turngap.caller.starting import place_of
from turngap.core.errors import InputError
from turngap.core.secrets import REMOVED, header_without_secret, text_without_secrets
from turngap.play.defaults import FILE
from turngap.store.documents import write_atomically, writing

TEST = "tests/test_turn_gap.py"
WORKFLOW = ".github/workflows/turn-gap.yml"
SCENARIO = "quick-questions"
# Stands for the port in the action's command and URL: two versions run side by side.
PORT = "$PORT"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The agent that the files are made for.

    Attributes:
        agent: its URL, or the name of a stack.
        start: the command that starts it; empty if it runs already or turngap starts it.
        dialect: the dialect of its URL; empty if not known.
        headers: the headers for its URL.
        scenarios: names to play; empty: all of the library.
        takes_port: whether `--port` can be added to the command.
    """

    agent: str
    start: str = ""
    dialect: str = ""
    headers: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = (SCENARIO,)
    takes_port: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Return whether the agent is on another machine, by its host's name alone."""
        host = urlsplit(place_of(self.agent)).hostname or ""
        try:
            address = ip_address(host)
        except ValueError:
            return "://" in self.agent and host != "localhost"
        return not (address.is_loopback or address.is_unspecified)


def require_no_secrets(chosen: Chosen) -> None:
    """Refuse to write a key or a password into files that are meant to be committed.

    Raises:
        InputError: a setting has a secret in it.
    """
    settings = {"--agent": chosen.agent, "--start": chosen.start, "--dialect": chosen.dialect}
    texts = [(name, text, text) for name, text in settings.items()]
    texts += [("--header", text, header_without_secret(text)) for text in chosen.headers]
    for name, text, masked in texts:
        clean = text_without_secrets(masked)
        if clean.count(REMOVED) > text.count(REMOVED):
            raise InputError(
                "init.secret",
                f"{name} {clean!r} had a secret in it, and the file is meant to be committed",
                hint="write ${NAME} instead, and set the environment variable NAME",
            )


def contents(chosen: Chosen, below: Path = Path()) -> dict[str, str]:
    """Return each file's text by its path from the folder `below` the repository's root.

    The workflow belongs at the root; there is none for an agent that the action cannot start.

    Raises:
        InputError: there is a secret in the texts.
    """
    require_no_secrets(chosen)
    words: dict[str, Any] = {"chosen": chosen, "below": "" if below == Path() else below.as_posix()}
    templates = {FILE: FILE, TEST: "test_turn_gap.py.txt"}
    if not chosen.is_elsewhere:
        templates[os.path.relpath(WORKFLOW, below)] = "turn-gap.yml"
        words |= _for_the_action(chosen)
    texts = _environment()
    return {
        file: texts.get_template(template).render(words) for file, template in templates.items()
    }


def write(
    folder: Path, files: Mapping[str, str], *, force: bool, root: Path | None = None
) -> list[str]:
    """Write files, each whole; return the paths of those written.

    Existing files stay, and are not in the list; `force` replaces the defaults, but no test and no
    workflow, which people adapt. `root` is the repository's, by default the folder.

    Raises:
        InputError: a file cannot be written, or a link in its path leads out of the repository.
    """
    written: list[str] = []
    for name, text in files.items():
        file = folder / name
        if (file.exists() or file.is_symlink()) and not (force and name == FILE):
            continue
        within = (root or folder).resolve()
        if not file.parent.resolve().is_relative_to(within):
            raise InputError("init.outside", f"{name}: a link in its path leads out of {within}")
        with writing(file, "init.unwritable"):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())
        written.append(name)
    return written


def from_here(command: str, here: Path) -> str:
    """Name a program that lies in the folder from there, for a file that others use as well."""
    return re.sub(f"^(['\"]?){re.escape(str(here))}/", r"\1", command)


def _for_the_action(chosen: Chosen) -> dict[str, Any]:
    """Return the inputs of the action, and how the reader has to adapt `start` (`yours`)."""
    words: dict[str, Any] = {"install": "", "options": "", "variables": (), "yours": ""}
    if "://" not in chosen.agent:
        extra = "embedded" if chosen.agent == "embedded" else "agent"
        return words | {
            "start": f'turngap serve --agent {shlex.quote(chosen.agent)} --port "{PORT}"',
            "url": f"ws://127.0.0.1:{PORT}/ws",
            "install": f'pip install --quiet "$GITHUB_WORKSPACE/.turngap-action[{extra}]"',
        }
    parts = urlsplit(place_of(chosen.agent))
    user, mark, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    start = re.sub(r"^\S*/python[\d.]*(?= )", "python", chosen.start)
    start = start or f'python bot.py --port "{PORT}"'
    yours = f"the command that starts your bot at the port in {PORT}."
    if chosen.takes_port and chosen.start:
        start, yours = re.sub(r"\s--port[ =]\S+", "", start) + f' --port "{PORT}"', ""
    named = re.findall(r"\$\{([A-Za-z_]\w*)\}", " ".join((chosen.agent, *chosen.headers)))
    return words | {
        "start": start,
        "url": chosen.agent.replace(parts.netloc, f"{user}{mark}{host}:{PORT}", 1),
        "options": " ".join(f"--header {shlex.quote(each)}" for each in chosen.headers),
        "variables": tuple(dict.fromkeys(named)),
        "yours": yours,
    }


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("turngap.setup"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        autoescape=False,
    )
    # A TOML text is one of JSON but for DEL. YAML's in double quotes takes what JSON escapes.
    as_json = partial(json.dumps, ensure_ascii=False)
    environment.filters["json"] = as_json
    environment.filters["toml"] = lambda value: as_json(value).replace("\x7f", "\\u007f")
    return environment
