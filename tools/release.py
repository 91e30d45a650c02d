"""Build what is released, and try it: python tools/release.py [--tag v1.2.3] [--repository URL].

It builds wheel and sdist twice from the commit that is checked out, at different times of different
machines as far as a build can see them, and refuses them unless both are the same to the byte. Then
it installs the wheel into an empty environment, away from the checkout, and runs commands of it.
With --tag it first checks that the commit was prepared (docs/releasing.md). With --repository the
links of the README are made absolute, so that they work on a package's page, too.

It takes hatchling, and uv on the path or next to this interpreter. Exit: 0 all is well, 1 something
is not.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What a build might take from its machine and must not: time zone, order of sets, umask, language.
MACHINES: tuple[tuple[dict[str, str], int], ...] = (
    ({"TZ": "UTC", "PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8"}, 0o022),
    ({"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "LC_ALL": "C"}, 0o077),
)
# What no released page or file that turngap writes may say.
UNRELEASED = ("not on PyPI yet", "URL-OF-THE-TURNGAP-REPOSITORY")
# Where people read: pages, and what turngap writes into their repositories. The page on releases
# tells of these words.
READ = ("README.md", "action.yml", "docs/**/*", "pipeline/turngap/setup/templates/**/*")
TEXTS = {".md", ".yml", ".toml", ".txt"}
# Links and pictures of Markdown and of HTML that lead into the repository: no scheme, no anchor
# alone.
LINK = re.compile(
    r"""(?P<before>(?P<picture>!)?\[[^\]]*\]\(|<(?:a|(?P<html>img))\b[^>]*?\s(?:href|src)=["'])"""
    r"""(?P<path>(?!\w+:|#|/)[^)\s"']+)"""
)
WITHOUT_AN_AGENT = (
    ("--version",),
    ("--help",),
    ("doctor", "--json"),
    ("scenarios", "--json"),
    ("dialects", "--json"),
    ("backends", "--json"),
)


class RefusedError(Exception):
    """Something is not as a release has to be; the message is one line or several for a person."""


def version(source: Path) -> str:
    """Read the version from the one place that has it."""
    module = ast.parse((source / "pipeline/turngap/core/__init__.py").read_text(encoding="utf-8"))
    for node in module.body:
        match node:
            case ast.Assign([ast.Name("__version__")], ast.Constant(str(value))):
                return value
            case _:
                continue
    raise RefusedError("pipeline/turngap/core/__init__.py has no __version__")


def unprepared(source: Path, tag: str | None) -> list[str]:
    """List what prevents a release of these sources; with a tag, as that version."""
    here = version(source)
    cited = dict(
        re.findall(r"^([\w-]+): (\S+)$", _text(source, "CITATION.cff"), flags=re.MULTILINE)
    )
    found: list[str] = []
    if cited.get("version") != here:
        found.append(f"CITATION.cff has version {cited.get('version')}, __version__ is {here}")
    if tag is None:
        return found
    if tag != f"v{here}":
        found.append(f"the tag is {tag}, and __version__ is {here}: expected v{here}")
    changes = _text(source, "CHANGELOG.md")
    dated = re.search(
        rf"^## \[{re.escape(here)}\] - (\d{{4}}-\d\d-\d\d)$", changes, flags=re.MULTILINE
    )
    if dated is None:
        found.append(f"CHANGELOG.md has no section '## [{here}] - YYYY-MM-DD'")
    elif cited.get("date-released") != dated[1]:
        found.append(
            f"CITATION.cff has date-released {cited.get('date-released')}, "
            f"and the changelog has {dated[1]}"
        )
    pages = [page for where in READ for page in sorted(source.glob(where))]
    return found + [
        f"{page.relative_to(source)} still says {words!r}"
        for page in pages
        if page.suffix in TEXTS and page.name != "releasing.md"
        for words in _unreleased_words(page)
    ]


def _unreleased_words(page: Path) -> list[str]:
    """Those words that the page has, also over the end of a line or of a comment's line."""
    text = " ".join(re.sub(r"^\s*#", "", page.read_text("utf-8"), flags=re.MULTILINE).split())
    return [words for words in UNRELEASED if words in text]


def _text(source: Path, name: str) -> str:
    return (source / name).read_text(encoding="utf-8")


def addressed(readme: str, repository: str, tag: str) -> str:
    """Replace the README's links by absolute ones, as it was at a tag."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] or link["html"] else "blob"
        return f"{link['before']}{repository}/{kind}/{tag}/{link['path']}"

    return LINK.sub(absolute, readme).replace("URL-OF-THIS-REPOSITORY", repository)


def prepared_version(commit: str, tag: str | None) -> str:
    """Return the version of a commit if all its files are prepared; ignore the checkout.

    Raises:
        RefusedError: something was forgotten.
    """
    with tempfile.TemporaryDirectory() as scratch:
        export(commit, source := Path(scratch, "source"), None)
        if found := unprepared(source, tag):
            raise RefusedError("\n".join(found))
        return version(source)


def export(commit: str, to: Path, repository: str | None) -> None:
    """Put the tracked files of a commit into an empty folder, and nothing else."""
    to.mkdir()
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                file = to / member.name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content.read())
                file.chmod(member.mode)
    if repository:
        readme, project = to / "README.md", to / "pyproject.toml"
        text = addressed(readme.read_text(encoding="utf-8"), repository, f"v{version(to)}")
        readme.write_text(text, encoding="utf-8")
        with project.open("a", encoding="utf-8") as file:
            changes = f"{repository}/blob/v{version(to)}/CHANGELOG.md"
            file.write(f'\n[project.urls]\nRepository = "{repository}"\nChangelog = "{changes}"\n')


def build(source: Path, out: Path, environment: Mapping[str, str], umask: int) -> dict[str, str]:
    """Build wheel and sdist of a folder; returns the SHA-256 of each file by its name."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out)]
    done = subprocess.run(
        command,
        cwd=source,
        env={**os.environ, **environment},
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RefusedError(f"hatchling could not build: {done.stderr}")
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in out.iterdir()}


def build_twice(commit: str, out: Path, repository: str | None) -> dict[str, str]:
    """Build a commit as two machines would, and keep what is the same to the byte.

    Raises:
        RefusedError: it is not the same.
    """
    with tempfile.TemporaryDirectory() as scratch:
        built: list[dict[str, str]] = []
        for number, (environment, umask) in enumerate(MACHINES):
            # Another path each, and of other lengths.
            source = Path(scratch, f"source{'-' * number}")
            export(commit, source, repository)
            for file in source.rglob("*"):
                os.utime(file, (moment := 1e9 * number + 1e8, moment))
            built.append(build(source, Path(scratch, f"dist{number}"), environment, umask))
        first, second = built
        if first != second or len(first) != 2:
            raise RefusedError(f"two builds of {commit} differ: {json.dumps(built, indent=2)}")
        out.mkdir(parents=True, exist_ok=True)
        for name in first:
            shutil.copyfile(Path(scratch, "dist0", name), out / name)
    return first


def install(wheel: Path, environment: Path) -> None:
    """Make an empty environment with the wheel and what it needs, without an extra."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    uv = shutil.which("uv", path=beside)
    if uv is None:
        raise RefusedError("there is no uv: pip install uv")
    create = [uv, "venv", "--quiet", "--python", sys.executable, str(environment)]
    python = environment / "bin/python"
    for command in (create, [uv, "pip", "install", "--quiet", "--python", str(python), str(wheel)]):
        _ran(command, environment.parent)
    _ran([uv, "pip", "check", "--quiet", "--python", str(python)], environment.parent)


def tried(environment: Path, commands: Sequence[tuple[str, ...]], folder: Path) -> list[str]:
    """Run commands of an installed turngap in an empty folder; returns what each printed.

    Raises:
        RefusedError: one failed, or left something in the folder.
    """
    printed = [_ran([str(environment / "bin/turngap"), *each], folder) for each in commands]
    if left := [each.name for each in folder.iterdir()]:
        raise RefusedError(f"the commands left files where they ran: {left}")
    return printed


def _ran(command: list[str], folder: Path) -> str:
    # Nothing of the checkout: neither its packages nor what was said of where they are.
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=folder, env=outside, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RefusedError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the steps, and say what came of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where both files go")
    parser.add_argument("--tag", help="the tag that is released, such as v1.2.3")
    parser.add_argument("--repository", help="its address, for links on a package's page")
    asked = parser.parse_args(arguments)
    try:
        here = prepared_version("HEAD", asked.tag)
        repository = asked.repository.rstrip("/") if asked.repository else None
        for name, digest in build_twice("HEAD", asked.out, repository).items():
            print(f"{digest}  {asked.out / name}")
        wheel = (asked.out / f"turngap-{here}-py3-none-any.whl").resolve()
        with tempfile.TemporaryDirectory() as scratch:
            environment, folder = Path(scratch, "environment"), Path(scratch, "empty")
            folder.mkdir()
            install(wheel, environment)
            # The last one measures: known gaps of an agent of turngap's own, over a real socket.
            measure = ("calibrate", "--turns", "5", "--json")
            *_, measured = tried(environment, (*WITHOUT_AN_AGENT, measure), folder)
        print(f"installed without an extra; calibrate: {json.loads(measured)['error_ms']}")
    except RefusedError as e:
        sys.exit(f"release: {e}")


if __name__ == "__main__":
    main()
