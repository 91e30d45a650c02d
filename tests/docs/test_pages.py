"""The pages of the documentation, as they are read in the repository and as the site has them."""

import re
from pathlib import Path
from urllib.parse import unquote

import docs_site
import pytest
from markdown_pages import PAGES, ROOT, anchors, blocks, links, name_of, tokens

import turngap
import turngap.testing

PAGE = pytest.mark.parametrize("page", PAGES, ids=name_of)
PYTHON = ROOT / "docs/python.md"


def test_each_page_is_in_the_navigation_once() -> None:
    docs_site.check_navigation(list(docs_site.navigation()), list(docs_site.pages().values()))
    assert {ROOT / place for place in docs_site.pages()} == set(PAGES)


@pytest.mark.parametrize(
    ("named", "says"),
    [
        (["a.md"], "nav has no line for b.md"),
        (["a.md", "b.md", "c.md"], "nav names c.md, which is no page"),
        (["a.md", "b.md", "a.md"], "nav names a.md twice"),
    ],
)
def test_a_wrong_navigation_is_said(named: list[str], says: str) -> None:
    with pytest.raises(docs_site.PageError, match=re.escape(says)):
        docs_site.check_navigation(named, ["a.md", "b.md"])


@PAGE
def test_a_page_opens_with_words(page: Path) -> None:
    """Check that it says what the reader wants to do, before any command or table."""
    kinds = [token.type for token in tokens(page)[:4]]
    assert kinds == ["heading_open", "inline", "heading_close", "paragraph_open"]


@PAGE
def test_a_block_of_code_names_its_language(page: Path) -> None:
    assert [f"line {block.line}" for block in blocks(page) if not block.language] == []


@PAGE
def test_links_lead_somewhere_in_the_repositorys_own_view(page: Path) -> None:
    broken: list[str] = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        there = target.is_file() and target.is_relative_to(ROOT)
        if not there or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_links_between_files_become_links_between_pages_and_code_stays() -> None:
    text = (
        "[a](docs/ci.md#baselines) ![b](docs/turns.svg) [c](examples/fleet.toml) [d](#x)\n"
        "[e](https://example.org/f.md) `[g](docs/ci.md)`\n\n```text\n[h](docs/ci.md)\n```\n"
    )
    there = docs_site.on_the_site("README.md", text)
    assert there.splitlines() == [
        "[a](ci.md#baselines) ![b](turns.svg) [c](source/examples/fleet.toml.md) [d](#x)",
        "[e](https://example.org/f.md) `[g](docs/ci.md)`",
        *("", "```text", "[h](docs/ci.md)", "```"),
    ]
    back = docs_site.on_the_site("docs/ci.md", "[a](../README.md#install) [b](load.md)")
    assert back == "[a](index.md#install) [b](load.md)"
    assert list(docs_site.targets("README.md", text)) == [
        *("docs/ci.md", "docs/turns.svg", "examples/fleet.toml")
    ]
    with pytest.raises(docs_site.PageError, match=r"README.md links to docs/nothing.md"):
        list(docs_site.targets("README.md", "[a](docs/nothing.md)"))


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\n## Two *words*: `x_y`\n\n## Two\n\n## Two\n", encoding="utf-8")
    assert anchors(page) == {"one", "two-words-x_y", "two", "two-1"}


def test_the_page_about_python_has_every_public_name() -> None:
    shown = set(docs_site.REFERENCE.findall(PYTHON.read_text(encoding="utf-8")))
    twins = {name for name in turngap.__all__ if name.endswith("_async")}
    expected = {f"turngap.{name}" for name in turngap.__all__ if name not in twins}
    expected |= {f"turngap.testing.{name}" for name in turngap.testing.__all__}
    assert {name for name in shown if "backends" not in name} == expected - {"turngap.__version__"}
    text = PYTHON.read_text(encoding="utf-8")
    assert [name for name in twins if f"`{name}`" not in text] == []
