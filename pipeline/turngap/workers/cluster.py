"""A Ray cluster: how it is named, seen to answer, and kept quiet."""

import asyncio
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from turngap.core.errors import AgentError, InputError

# A process that imports Ray takes two seconds where nothing else runs, and twenty where much does.
CONNECT_TIMEOUT_S = 120.0

# A path to a socket has at most 107 bytes, of which Ray's own part takes about 65.
_LONGEST_FOLDER = 40


def prepare(*, alone: bool) -> None:
    """Set what Ray reads when it is imported, where the user has not.

    It sends no statistics to its makers and makes no environments by itself. A cluster that is
    `alone` on this machine opens its ports on loopback only.
    """
    wanted = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    wanted["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    if alone:
        wanted["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's name for it, on Linux too
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


def print_nothing() -> None:
    """Keep Ray from printing on stdout what befalls its nodes: what matters comes as `Lost`."""
    import ray._private.worker as driver

    driver.print_to_stdstream = lambda *_, **__: None


def checked(address: str | None) -> str | None:
    """Return the address as Ray takes it; None for a cluster of this machine's own.

    Raises:
        InputError: it is none that can be used.
    """
    if address is None or address == "auto":
        return address
    if address == "local":
        return None
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(
            "workers.address",
            f"Ray's address {address!r}: expected HOST:PORT or auto",
            hint="run turngap on a machine of the cluster (ray job submit -- turngap …), with "
            "--ray-address auto",
        )
    return address


async def reach(address: str) -> None:
    """See in a process of its own whether a cluster answers, because `ray.init` tries for ever.

    Raises:
        AgentError: none does, or another version of Ray.
    """
    argv = ["-m", "ray.scripts.scripts", "health-check"]
    argv += [] if address == "auto" else ["--address", address]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            said, _ = await process.communicate()
    except TimeoutError as e:
        silent = f"it did not answer within {CONNECT_TIMEOUT_S:g} s"
        raise not_connected(address, silent) from e
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        raise not_connected(address, lines[-1] if lines else f"exit code {process.returncode}")


def not_connected(address: str | None, reason: str) -> AgentError:
    """Build the error for a cluster that cannot be used, with what to do next."""
    what = "a Ray cluster of this machine" if address is None else f"the Ray cluster at {address}"
    text = " ".join(reason.split())[:300]
    kind, hint = "workers.no_cluster", "see whether it runs, from this machine: ray status"
    if "ersion mismatch" in text:
        kind = "workers.version"
        hint = "use the same versions of Ray and Python here as on the cluster"
    elif address is None:
        hint = "--on local does without Ray"
    return AgentError(kind, f"{what} cannot be used: {text}", hint=hint)


def session_folder() -> Path:
    """Create a folder for Ray's logs and sockets, which is removed afterwards."""
    wanted = tempfile.gettempdir()
    parent = wanted if len(wanted) <= _LONGEST_FOLDER - 20 else "/tmp"
    return Path(tempfile.mkdtemp(prefix="turngap-ray-", dir=parent))


def by_value(function: Any) -> Any:
    """Copy a function so that its code is sent, not the name of its module."""
    import types

    copy = types.FunctionType(function.__code__, {}, function.__name__)
    copy.__module__ = "__main__"
    return copy
