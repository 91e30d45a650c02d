"""A page as a browser would take it apart, for tests of the HTML reports."""

import base64
import hashlib
import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "input", "hr", "wbr"}


class Page(HTMLParser):
    """The parts of a page; unbalanced tags fail."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.style = ""
        self.script = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.style += data
        elif self.open and self.open[-1] == "script":
            self.script += data
        else:
            self.words.append(data)

    def all(self, tag: str, **having: str) -> list[dict[str, str | None]]:
        return [
            attrs
            for name, attrs in self.tags
            if name == tag and all(attrs.get(key) == value for key, value in having.items())
        ]

    @property
    def lines(self) -> list[str]:
        """The texts of the page, each in a line of its own."""
        return [text for word in self.words if (text := " ".join(word.split()))]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def assert_safe(self) -> None:
        """Nothing is fetched, and nothing is run but the one script that the policy names."""
        (policy,) = self.all("meta", **{"http-equiv": "Content-Security-Policy"})
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in (policy["content"] or "")
        assert self.all("script") == [{}]
        for tag, attrs in self.tags:
            assert tag not in {"link", "iframe", "object", "embed", "img", "base", "form"}
            for name, value in attrs.items():
                assert tag == "meta" or not re.search(r"(https?:)?//", value or ""), (tag, name)
                assert not name.startswith("on")
                if name in {"href", "fill"} and value and "#" not in value:
                    raise AssertionError((tag, name, value))
        assert "url(" not in self.style
        assert "@import" not in self.style

    def assert_accessible(self) -> None:
        """Drawings are told in words, tables have headers, references lead somewhere."""
        for svg in self.all("svg"):
            silent = {"aria-hidden", "viewbox"} & set(svg)  # an inner box of a labelled drawing
            assert silent or svg.get("aria-label")
        assert len(self.all("caption")) == len(self.all("table"))
        assert all(th.get("scope") in {"row", "col"} for th in self.all("th"))
        assert self.all("html", lang="en")
        ids = [attrs["id"] for _, attrs in self.tags if "id" in attrs]
        assert len(ids) == len(set(ids))
        for _, attrs in self.tags:
            for reference in (attrs.get("aria-labelledby"), (attrs.get("href") or "").lstrip("#")):
                assert not reference or reference in ids
