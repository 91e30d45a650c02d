"""The workflow of `turngap init`: what the action is given, and where there can be none."""

import re
import shlex
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

from turngap.setup.chosen import Chosen

# Stands for the port in the action's command and URL: two versions run side by side.
PORT = "$PORT"
_PORT_OPTION = re.compile(r"\s--port[ =]\S+")
_PYTHON = re.compile(r"^\S*/python[\d.]*(?= )")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
# A line that the reader has to adapt, as the templates mark it.
_YOURS = re.compile(r"# yours\b")
# The stack whose engines an extra of the same name installs.
_OWN_EXTRA = "embedded"


@dataclass(frozen=True, slots=True)
class InCi:
    """What the action is given.

    Attributes:
        start, url, dialect: of the version that it starts, with `$PORT`.
        install: the commands that install it; empty: the action's default.
        options: further ones of `turngap check`.
        variables: the environment variables that the URL and the headers name.
        yours: what is marked as the reader's in `start`; empty: it is known to be right.
    """

    start: str
    url: str
    dialect: str = ""
    install: str = ""
    options: str = ""
    variables: tuple[str, ...] = ()
    yours: str = ""


def in_ci(chosen: Chosen) -> InCi | None:
    """Return what the action is given; None for an agent elsewhere, which it cannot start."""
    if "://" not in chosen.agent:
        return _of_a_stack(chosen.agent)
    parts = urlsplit(chosen.agent)
    if not _is_here(parts.hostname or ""):
        return None
    user, mark, _ = parts.netloc.rpartition("@")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    url = urlunsplit(parts._replace(netloc=f"{user}{mark}{host}:{PORT}"))
    start = _PYTHON.sub("python", chosen.start or "python bot.py")
    yours = ""
    if chosen.takes_port:
        start = f'{_PORT_OPTION.sub("", start)} --port "{PORT}"'
    else:
        yours = f"two versions run side by side, so let yours serve at the port in {PORT}."
    if not chosen.start:
        yours = f"the command that starts your bot at the port in {PORT}."
    options = " ".join(f"--header {shlex.quote(each)}" for each in chosen.headers)
    named = _VARIABLE.findall(" ".join((chosen.agent, *chosen.headers)))
    return InCi(start, url, chosen.dialect, "", options, tuple(dict.fromkeys(named)), yours)


def why_none(chosen: Chosen) -> str:
    """Return why there is no workflow, where there is none."""
    host = urlsplit(chosen.agent).hostname
    return (
        f"no workflow was written: the agent is at {host}, and on a pull request the version to "
        "measure has to be started. If CI can start your bot, copy docs/github-actions.yml"
    )


def lines_to_adapt(text: str) -> list[int]:
    """Return the lines of a workflow that are marked "yours"."""
    return [n for n, line in enumerate(text.splitlines(), start=1) if _YOURS.search(line)]


def _of_a_stack(name: str) -> InCi:
    extra = _OWN_EXTRA if name == _OWN_EXTRA else "agent"
    return InCi(
        f'turngap serve --agent {shlex.quote(name)} --port "{PORT}"',
        f"ws://127.0.0.1:{PORT}/ws",
        install=f'pip install --quiet "$GITHUB_WORKSPACE/.turngap-action[{extra}]"',
    )


def _is_here(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
