"""Provenance of a run: the machine and the commit."""

import hashlib
import os
import platform
import re
import subprocess
from pathlib import Path

import psutil

from turngap.core.run_record import MachineRecord


def this_machine() -> MachineRecord:
    """Describe this machine, without its host name.

    The fingerprint is made of what does not change from day to day.
    """
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
    """Find the CPU's name, or the architecture where cpuinfo has no name (most ARM machines)."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def git_commit(folder: Path | None = None) -> str | None:
    """Find the commit of the checkout around `folder` (default: the working directory).

    It ends in `-dirty` where tracked files differ; None outside a checkout or without git.
    """
    # No tag may replace the hash: tags move.
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
