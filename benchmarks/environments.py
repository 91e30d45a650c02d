"""Environments of their own for other people's packages, kept in the user's cache."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turngap"


def uv() -> str:
    """Find uv: on the path, or next to this interpreter."""
    return shutil.which("uv") or str(Path(sys.executable).with_name("uv"))


def environment(folder: Path, *requirements: str) -> Path:
    """Make the environment of `folder`, or take the one there is; returns its interpreter.

    Raises:
        subprocess.CalledProcessError: a package could not be installed.
        FileNotFoundError: there is no uv.
    """
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        create = [uv(), "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)]
        subprocess.run(create, check=True)
        install = [uv(), "pip", "install", "--quiet", "--python", str(python)]
        subprocess.run([*install, *requirements], check=True)
        (folder / "made").touch()
    return python
