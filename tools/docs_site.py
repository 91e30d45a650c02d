"""Builds the site of the documentation: `python tools/docs_site.py [--out DIR] [--serve]`.

The site has the pages of `docs/`, and README.md, CONTRIBUTING.md and CHANGELOG.md; `docs/site.toml`
has its navigation and settings. It comes to DIR/site (`build/site`); `pip install --group docs`
installs what builds it. Any warning fails the build.

Links are written for the repository's own view. Here they are turned into links between pages of
the site: a link to any other file of the repository leads to a page that shows the file.
`<!-- reference: NAME -->` in a page becomes what the sources say about a public name.
"""

import argparse
import os.path
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SETTINGS = DOCS / "site.toml"
# Pages in the root of the repository, and what they are called on the site.
FROM_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# What a browser shows by itself.
PICTURES = {".svg", ".png", ".jpg"}
LANGUAGES = {".py": "python", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", ".json": "json"}
VERSIONS = 'version = { provider = "mike", default = "latest" }'
# The target of a link within the repository, and its anchor.
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
# A block or a span of code, in which nothing is a link; or a place for the reference.
CODE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$|(`+)[^`](?:(?!\n\n).)*?\3", re.DOTALL | re.MULTILINE)
REFERENCE = re.compile(r"^<!-- reference: ([\w.]+) -->$", re.MULTILINE)


class PageError(Exception):
    """A page links to what is not there, or the navigation does not have each page once."""


def gather(out: Path) -> None:
    """Write into `out` what the site is built from: settings, pages, and shown files.

    Raises:
        PageError: a link or the navigation is wrong.
    """
    check_navigation(list(navigation()), list(pages().values()))
    folder = out / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    linked: set[str] = set()
    for place, page in pages().items():
        text = (ROOT / place).read_text(encoding="utf-8")
        linked.update(targets(place, text))
        _write(folder / page, on_the_site(place, text))
    for target in sorted(linked):
        page = page_of(target)
        if Path(target).suffix in PICTURES:
            (folder / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / target, folder / page)
        elif page.startswith("source/"):
            _write(folder / page, _shown(target))
    pipeline = out / "pipeline"
    pipeline.unlink(missing_ok=True)
    pipeline.symlink_to(ROOT / "pipeline")


def pages() -> dict[str, str]:
    """Map each page's place in the repository to its name on the site."""
    return FROM_ROOT | {f"docs/{page.name}": page.name for page in sorted(DOCS.glob("*.md"))}


def navigation() -> Iterator[str]:
    """Yield the pages that the navigation names."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    yield from _named(settings["project"]["nav"])


def _named(entries: list[dict[str, Any]]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from _named(value)


def check_navigation(named: list[str], there: list[str]) -> None:
    """Check that each page is in the navigation once.

    Raises:
        PageError: with all that is wrong.
    """
    wrong = [f"nav has no line for {page}" for page in there if page not in named]
    wrong += [f"nav names {page}, which is no page" for page in named if page not in there]
    wrong += [f"nav names {page} twice" for page in sorted(set(named)) if named.count(page) > 1]
    if wrong:
        raise PageError("docs/site.toml: " + "; ".join(wrong))


def targets(place: str, text: str) -> Iterator[str]:
    """Yield the files of the repository that a page links to.

    Raises:
        PageError: one of them is not there.
    """
    for link in LINK.finditer(CODE.sub("", text)):
        target = _target(place, link[1])
        if not (ROOT / target).is_file():
            raise PageError(f"{place} links to {link[1]}, which is no file of the repository")
        yield target


def on_the_site(place: str, text: str) -> str:
    """Return a page as the site has it, where all pages lie in one folder."""

    def moved(link: re.Match[str]) -> str:
        return page_of(_target(place, link[1])) + (link[2] or "")

    parts: list[str] = []
    end = 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(moved, text[end : code.start()]), code[0]]
        end = code.end()
    parts.append(LINK.sub(moved, text[end:]))
    return REFERENCE.sub(r"::: \1", "".join(parts))


def page_of(target: str) -> str:
    """Return where a file of the repository is on the site."""
    if target in FROM_ROOT:
        return FROM_ROOT[target]
    if target.startswith("docs/") and Path(target).suffix in {".md", *PICTURES}:
        return target.removeprefix("docs/")
    return f"source/{target}.md"


def _target(place: str, link: str) -> str:
    """Return what a link leads to, from the repository's root."""
    return os.path.normpath(Path(place).parent / link)


def _shown(target: str) -> str:
    """Return a page that shows a file of the repository."""
    language = LANGUAGES.get(Path(target).suffix, "text")
    text = (ROOT / target).read_text(encoding="utf-8")
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {Path(target).name}\n\n`{target}`"
    return f"{head}\n\n``````{language}\n{text}\n``````\n"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def configure(out: Path, site_url: str, repo_url: str, *, versions: bool) -> Path:
    """Write the settings into `out`, with those of this build; returns their file."""
    text = SETTINGS.read_text(encoding="utf-8")
    for key, url in (("site_url", site_url), ("repo_url", repo_url)):
        if url:
            text = text.replace("[project]\n", f"[project]\n{key} = {_quoted(url)}\n", 1)
    if versions:
        # Its menu reads what tools/docs_versions.py writes.
        text = text.replace("[project.extra]\n", f"[project.extra]\n{VERSIONS}\n", 1)
    _write(file := out / "zensical.toml", text)
    return file


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main() -> int:
    """Build or serve the site."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="where DIR/site comes to")
    parser.add_argument("--serve", action="store_true", help="show it at a port of this machine")
    parser.add_argument("--site-url", default="", help="where it will be published")
    parser.add_argument("--repo-url", default="", help="the repository that it links to")
    parser.add_argument("--versions", action="store_true", help="give it a menu of versions")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        gather(asked.out)
    except PageError as e:
        sys.stderr.write(f"site: {e}\n")
        return 1
    settings = configure(asked.out, asked.site_url, asked.repo_url, versions=asked.versions)
    how = ["serve"] if asked.serve else ["build", "--clean", "--strict"]
    zensical = [sys.executable, "-m", "zensical", *how, "--config-file", str(settings)]
    return subprocess.run(zensical, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
