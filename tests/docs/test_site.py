"""The site of the documentation builds without a warning, and shows what the repository shows."""

import json
import os
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import docs_site
import docs_versions
import pytest
from markdown_pages import PAGES, ROOT, name_of


class Article(HTMLParser):
    """A parser of the addresses that a page loads."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in {"script", "img", "iframe"} and values.get("src"):
            self.loaded.append(values["src"] or "")
        if tag == "link" and values.get("rel") in {"stylesheet", "icon", "preconnect"}:
            self.loaded.append(values["href"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "tools/docs_site.py", "--out", out],
        cwd=ROOT,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "site"


def shown(site: Path, page: Path) -> Article:
    name = docs_site.pages()[name_of(page)].removesuffix(".md")
    file = site / ("index.html" if name == "index" else f"{name}/index.html")
    return Article(file.read_text(encoding="utf-8"))


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in PAGES:
        loaded = shown(site, page).loaded
        assert loaded
        assert [address for address in loaded if "://" in address] == []


def test_the_reference_has_each_argument_of_a_function(site: Path) -> None:
    text = (site / "python/index.html").read_text(encoding="utf-8")
    for what in ("turngap.replay", "turngap.Run.load", "turngap.testing.VirtualLoop.hold_up"):
        assert f'id="{what}"' in text
    assert "how late the caller may be before a turn counts as starved" in text


def test_a_site_joins_those_of_other_versions(tmp_path: Path) -> None:
    sites, site = tmp_path / "sites", tmp_path / "site"
    for folder in (sites, site):
        folder.mkdir()
    for version in ("dev", "0.9", "0.10", "0.9"):
        (site / "index.html").write_text(version, encoding="utf-8")
        docs_versions.add(sites, site, version)
    listed = json.loads((sites / "versions.json").read_text(encoding="utf-8"))
    assert [(each["version"], each["aliases"]) for each in listed] == [
        *(("dev", []), ("0.10", ["latest"]), ("0.9", []))
    ]
    assert (sites / "latest/index.html").read_text(encoding="utf-8") == "0.10"
    assert "url=latest/" in (sites / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", ["../up", "v0.1", "latest", ""])
def test_what_is_no_version_changes_nothing(version: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").touch()
    with pytest.raises(SystemExit, match="is neither dev nor a version"):
        docs_versions.add(tmp_path / "sites", tmp_path, version)
    with pytest.raises(SystemExit, match="holds no site"):
        docs_versions.add(tmp_path / "sites", tmp_path / "nothing", "0.1")
    assert not (tmp_path / "sites").exists()


def test_the_settings_of_a_published_site_are_read(tmp_path: Path) -> None:
    where = ("https://example.org/turngap/", "https://example.org/repository")
    file = docs_site.configure(tmp_path, *where, versions=True)
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    assert (project["site_url"], project["repo_url"]) == where
    assert project["extra"]["version"]["provider"] == "mike"
    plain = docs_site.configure(tmp_path, "", "", versions=False)
    assert "version" not in tomllib.loads(plain.read_text(encoding="utf-8"))["project"]["extra"]
