"""The page as files: small, whole, and nothing in it that a strict policy would stop."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from page_browser import KINDS, PAGE

# Of all that the page loads, as it is served: codec, microphone, the figures of each turn, what can
# be said. It has no library, so that one can read in an evening what becomes of one's voice. This
# takes 60.5 kB; one kilobyte of room is left for mends.
MOST_BYTES = 61_500


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.script = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags() -> list[tuple[str, dict[str, str | None]]]:
    return Tags((PAGE / "index.html").read_text(encoding="utf-8")).found


def sources() -> Iterator[tuple[str, str]]:
    for file in sorted(PAGE.iterdir()):
        yield file.name, file.read_text(encoding="utf-8")


def test_it_is_small() -> None:
    sizes = {file.name: file.stat().st_size for file in PAGE.iterdir()}
    assert sum(sizes.values()) < MOST_BYTES, sizes


def test_it_is_made_of_what_a_server_knows() -> None:
    assert {file.suffix for file in PAGE.iterdir()} == set(KINDS)


def test_it_fetches_nothing_from_elsewhere() -> None:
    # XML namespaces are names; localhost is what the page tells people to open.
    allowed = re.compile(r"http://(www\.w3\.org/|localhost)")
    for name, text in sources():
        rest = re.sub(allowed, "", text)
        assert not re.search(r"https?://|\burl\(|@import", rest), name


def test_nothing_of_it_is_inline() -> None:
    for tag, attributes in tags():
        assert tag != "style"
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        if tag == "script":
            assert attributes["src"] == "page/main.js"
    for name, text in sources():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", text
        ), name


def test_every_module_that_is_imported_is_there() -> None:
    for name, text in sources():
        for module in re.findall(r'from "\./([\w.]+)"|"page/([\w.]+)"', text):
            assert (PAGE / "".join(module)).is_file(), (name, module)
