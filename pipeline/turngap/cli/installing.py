"""Instructions to install an extra, in the words of the tool that made this environment."""

import json
import re
import sys
from pathlib import Path

# How every part of turngap names an extra (`turngap.backends.install`).
_INSTALL = re.compile(r"pip install 'turngap\[(?P<extras>[\w,-]+)\]'")


def for_this_environment(text: str, prefix: Path | None = None) -> str:
    """Replace `pip install 'turngap[…]'` by what reaches this environment.

    pip does not reach one that pipx or `uv tool` made. Anywhere else the text stays as it is.

    Args:
        text: a hint for a person.
        prefix: the environment's folder; by default that of this process.
    """
    prefix = Path(sys.prefix) if prefix is None else prefix
    if (prefix / "uv-receipt.toml").is_file():
        return _said(text, f"uv pip install --python '{prefix}'")
    if not (prefix / "pipx_metadata.json").is_file():
        return text
    if prefix.parent.name == "venvs":  # of `pipx install`; others are of `pipx run`, and go away
        return _said(text, f"pipx runpip {prefix.name} install")
    return _INSTALL.sub(lambda hint: _run_again(prefix, hint["extras"]), text)


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
