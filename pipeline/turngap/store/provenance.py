"""Where a run's figures come from, and what of it may be stored: machine, commit, no secrets."""

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit, urlunsplit

import psutil

from turngap.core.results import MachineRecord

REMOVED = "(removed)"

# Words that make a key's name a secret's, whatever the value's type.
_SECRET_WORDS = {
    "apikey", "auth", "authorization", "bearer", "cookie", "credential", "credentials",
    "passphrase", "passwd", "password", "pwd", "secret", "secrets",
}  # fmt: skip
# In these a number is a setting (`first_token_ms`, `max_tokens`), a text may be a secret.
_MAYBE_SECRET_WORDS = {"key", "keys", "token"}
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)


def this_machine() -> MachineRecord:
    """This machine, with a fingerprint of what does not change from day to day; no host name."""
    cpu = _cpu_model()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory_gib = psutil.virtual_memory().total / 2**30
    # Neither kernel nor Python version: an update is not another machine. Whole GiB, since what the
    # kernel keeps for itself differs from boot to boot.
    stable = (platform.system(), platform.machine(), cpu, cores, round(memory_gib))
    return MachineRecord(
        system=platform.platform(),
        python=platform.python_version(),
        cpu=cpu,
        cores=cores or 1,
        memory_gib=round(memory_gib, 1),
        fingerprint=hashlib.sha256(repr(stable).encode()).hexdigest()[:12],
    )


def _cpu_model() -> str:
    """The CPU's name; on machines whose cpuinfo has none (most ARM), the architecture."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def git_commit(folder: Path | None = None) -> str | None:
    """The commit of the checkout around `folder` (default: the working directory).

    `-dirty` is added where tracked files differ from it; None outside a checkout or without git.
    """
    # No tag may stand in for the hash: tags move.
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` with the values of keys, tokens and passwords replaced, at any depth.

    A secret is told by its key's name (`api_key`, `Authorization`, `hfToken`); numbers under `key`
    and `token` are settings and stay. URLs lose their user part and the secrets of their query.
    Too much is removed rather than too little.
    """
    return {key: _without_secrets(key, value) for key, value in settings.items()}


def without_url_secrets(text: str) -> str:
    """`text` with every URL in it freed of user, password and secret query values."""
    return _URL.sub(lambda found: _clean_url(found.group()), text)


def _without_secrets(key: str, value: Any) -> Any:
    if value is not None and not isinstance(value, bool) and _is_secret(key, value):
        return REMOVED
    if isinstance(value, Mapping):
        return without_secrets(value)
    if isinstance(value, list | tuple):
        return [_without_secrets("", item) for item in value]
    return without_url_secrets(value) if isinstance(value, str) else value


def _is_secret(key: str, value: Any) -> bool:
    # Words of snake_case, kebab-case and camelCase alike.
    words = set(re.findall(r"[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", key).lower()))
    if words & _SECRET_WORDS:
        return True
    return bool(words & _MAYBE_SECRET_WORDS) and not isinstance(value, int | float)


def _clean_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return REMOVED
    host = parts.netloc.rpartition("@")[2]
    if host == parts.netloc and not any(_is_secret(key, value) for key, value in query):
        return url
    cleaned = "&".join(
        f"{quote(key)}={REMOVED if _is_secret(key, value) else quote(value)}"
        for key, value in query
    )
    return urlunsplit(parts._replace(netloc=host, query=cleaned))
