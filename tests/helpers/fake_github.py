"""GitHub's comments on loopback, as far as the action asks for them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token-of-the-job"
BOT = {"login": "github-actions[bot]", "type": "Bot"}


class FakeGitHub:
    """The comments of one pull request.

    Attributes:
        comments: all of them, the oldest first.
        refuses: the status of every answer to a request that would write; None: none is refused.
        asked: method and path of each request.
    """

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.refuses: int | None = None
        self.asked: list[str] = []
        self.url = ""

    def add(self, body: str, user: dict[str, str] | None = None) -> dict[str, Any]:
        number = len(self.comments) + 1
        comment = {"id": number, "body": body, "user": user or BOT, "html_url": f"comment-{number}"}
        self.comments.append(comment)
        return comment

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and document."""
        parts = urlsplit(path)
        if method != "GET" and self.refuses is not None:
            return self.refuses, {"message": "Resource not accessible by integration"}
        if parts.path == "/user":
            return 403, {"message": "Resource not accessible by integration"}
        if method == "GET" and parts.path == "/repos/you/bot/issues/12/comments":
            query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
            first = (query["page"] - 1) * query["per_page"]
            return 200, self.comments[first : first + query["per_page"]]
        if method == "POST" and parts.path == "/repos/you/bot/issues/12/comments":
            return 201, self.add(body["body"])
        if method == "PATCH" and parts.path.startswith("/repos/you/bot/issues/comments/"):
            comment = self.comments[int(parts.path.rpartition("/")[2]) - 1]
            comment["body"] = body["body"]
            return 200, comment
        return 404, {"message": "Not Found"}


@contextmanager
def served() -> Iterator[FakeGitHub]:
    """A pull request 12 of you/bot, on loopback."""
    github = FakeGitHub()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            github.asked.append(f"{self.command} {self.path}")
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            status, document = 401, {"message": "Bad credentials"}
            if self.headers["Authorization"] == f"Bearer {TOKEN}":
                status, document = github.answer(self.command, self.path, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = _any  # noqa: N815 (names of http.server)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        github.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield github
        finally:
            server.shutdown()
            thread.join()
