"""Instructions to install an extra, in the words of the tool that made this environment."""

import json
import os
import re
import shlex
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

# How every part of turngap names an extra (`turngap.backends.install`).
_INSTALL = re.compile(r"pip install 'turngap\[(?P<extras>[\w,-]+)\]'")


def for_this_environment(
    text: str, prefix: Path | None = None, origin: dict[str, Any] | None = None
) -> str:
    """Replace `pip install 'turngap[…]'` by what reaches this environment and finds turngap.

    pip does not reach one that pipx or `uv tool` made. What was installed from a folder or a
    repository need not be in an index. Anywhere else the text stays as it is.

    Args:
        text: a hint for a person.
        prefix: the environment's folder; by default that of this process.
        origin: what it was installed from, as in `direct_url.json` (PEP 610); by default what this
            environment says. Empty: an index.
    """
    if _INSTALL.search(text) is None:
        return text
    prefix = Path(sys.prefix) if prefix is None else prefix
    if (prefix / "uv-receipt.toml").is_file():
        return _said(text, f"uv pip install --python '{prefix}'")
    if (prefix / "pipx_metadata.json").is_file():
        if prefix.parent.name == "venvs":  # of `pipx install`; others are of `pipx run`, and go
            return _said(text, f"pipx runpip {prefix.name} install")
        return _INSTALL.sub(lambda hint: _run_again(prefix, hint["extras"]), text)
    origin = _origin() if origin is None else origin
    command = _installer(prefix)
    return _INSTALL.sub(lambda hint: f"{command} {_requirement(origin, hint['extras'])}", text)


def _said(text: str, command: str) -> str:
    return _INSTALL.sub(lambda hint: f"{command} 'turngap[{hint['extras']}]'", text)


def _run_again(prefix: Path, extras: str) -> str:
    """Return the `pipx run` of the same package with these extras beside those that it had."""
    spec, had = "turngap", ""
    try:
        metadata = json.loads((prefix / "pipx_metadata.json").read_text(encoding="utf-8"))
        spec, _, had = str(metadata["main_package"]["package_or_url"]).partition("[")
    except (OSError, ValueError, KeyError, TypeError):
        pass  # another pipx writes it differently: its name is what an index has
    every = dict.fromkeys([*filter(None, had.rstrip("]").split(",")), *extras.split(",")])
    return f"pipx run --spec '{spec}[{','.join(every)}]' turngap …"


def _installer(prefix: Path) -> str:
    """What installs into an environment: the one that `./run` makes has uv, and may lack pip."""
    if not (prefix / ".turngap-base").is_file():
        return "pip install"
    uv, python = (shlex.quote(_shortest(prefix / "bin" / name)) for name in ("uv", "python"))
    return f"{uv} pip install --python {python}"


def _origin() -> dict[str, Any]:
    """What turngap was installed from, as its installer wrote it down; empty for an index."""
    with suppress(PackageNotFoundError, OSError, ValueError):
        found = json.loads(distribution("turngap").read_text("direct_url.json") or "{}")
        if isinstance(found, dict):
            return found
    return {}


def _requirement(origin: dict[str, Any], extras: str) -> str:
    """What to install, quoted for a shell: from where turngap itself came."""
    by_name = shlex.quote(f"turngap[{extras}]")
    url, folder, vcs = (origin.get(key) for key in ("url", "dir_info", "vcs_info"))
    if not isinstance(url, str):
        return by_name
    if isinstance(vcs, dict):
        at = vcs.get("requested_revision") or vcs.get("commit_id")
        below = origin.get("subdirectory")
        source = f"{vcs.get('vcs', 'git')}+{url}" + (f"@{at}" if at else "")
        source += f"#subdirectory={below}" if below else ""
        return shlex.quote(f"turngap[{extras}] @ {source}")
    path = Path(url2pathname(urlsplit(url).path))
    if not isinstance(folder, dict) or not (path / "pyproject.toml").is_file():
        return by_name
    editable = "-e " if folder.get("editable") else ""
    return f"{editable}{shlex.quote(f'{_shortest(path)}[{extras}]')}"


def _shortest(path: Path) -> str:
    """A path, from the working directory where it lies in that; never a bare name."""
    with suppress(OSError, ValueError):  # the working directory is gone, or on another drive
        near = os.path.relpath(path)
        if Path(near).parts[:1] == (os.pardir,):
            return str(path)
        near = near if near.startswith(".") else f".{os.sep}{near}"
        return min(str(path), near, key=len)
    return str(path)
