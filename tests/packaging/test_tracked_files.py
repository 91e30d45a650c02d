"""No tracked file names one machine, or one place to download from."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written in two halves, so that this file does not hold what it forbids.
REGISTRIES = [
    "pypi." + "org",
    "pythonhosted." + "org",
    "registry.npmjs." + "org",
    "deb.debian." + "org",
    "archive.ubuntu." + "com",
]
HOME_PATHS = re.compile(r"(?<![\w.~:/-])/(?:home|root|Users|work|workspace|mnt|opt)/\w")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def tracked_texts() -> Iterator[tuple[str, str]]:
    # The checkout may belong to another user; this command reads it all the same.
    listing = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    for name in listing.stdout.split("\0"):
        file = ROOT / name
        if not name or not file.is_file():
            continue
        try:
            yield name, file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in tracked_texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_registrys_host_name() -> None:
    assert lines_with(re.compile("|".join(map(re.escape, REGISTRIES)))) == []


def test_no_path_of_one_machine() -> None:
    assert lines_with(HOME_PATHS) == []


def test_nothing_marked_as_unfinished() -> None:
    assert lines_with(UNFINISHED) == []


def test_no_lock_file() -> None:
    locks = {"uv.lock", "poetry.lock", "Pipfile.lock", "package-lock.json"}
    assert [name for name, _ in tracked_texts() if Path(name).name in locks] == []
