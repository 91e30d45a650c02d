"""The one comment on a pull request, by GitHub's REST API."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

TIMEOUT_S = 30.0
# A comment has at most 65,536 characters.
MOST_CHARACTERS = 60_000
PAGE = 100
# A pull request with more comments than these pages hold gets a second one of ours.
MOST_PAGES = 50


class CommentError(Exception):
    """Reason for a missing comment, in a sentence."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A token goes to the address that the runner named, and to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class PullRequest:
    """A pull request's comments.

    Attributes:
        api: the API's address, as `GITHUB_API_URL`.
        repository: `owner/name`.
    """

    def __init__(self, api: str, repository: str, number: int, token: str) -> None:
        self._api = api.rstrip("/")
        self._issues = f"{self._api}/repos/{repository}/issues"
        self._number = number
        self._token = token
        self._opener = urllib.request.build_opener(_NoRedirects)

    def comment(self, marker: str, body: str) -> str:
        """Write the comment, in place of the one that begins with `marker`; its address.

        Raises:
            CommentError: GitHub did not let us.
        """
        body = f"{marker}\n{_cut(body)}"
        for each in self._comments():
            if str(each.get("body", "")).startswith(marker) and self._is_ours(each):
                done = self._ask("PATCH", f"{self._issues}/comments/{int(each['id'])}", body)
                return str(done.get("html_url", ""))
        done = self._ask("POST", f"{self._issues}/{self._number}/comments", body)
        return str(done.get("html_url", ""))

    def _comments(self) -> Iterator[dict[str, Any]]:
        for page in range(1, MOST_PAGES + 1):
            query = f"per_page={PAGE}&page={page}"
            found = self._ask("GET", f"{self._issues}/{self._number}/comments?{query}")
            if not isinstance(found, list):
                raise CommentError("GitHub's list of comments is no list")
            yield from (each for each in found if isinstance(each, dict))
            if len(found) < PAGE:
                return

    def _is_ours(self, comment: dict[str, Any]) -> bool:
        """Return whether the comment is ours: its author can edit it, so a marker is not enough."""
        author = comment.get("user") or {}
        if author.get("type") == "Bot":
            return True
        try:  # with a person's token; a job's own has no user
            return self._ask("GET", f"{self._api}/user").get("login") == author.get("login")
        except CommentError:
            return False

    def _ask(self, method: str, url: str, body: str | None = None) -> Any:
        data = None if body is None else json.dumps({"body": body}).encode()
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "User-Agent": "turngap",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as e:
            with e:
                raise CommentError(_why(e.code)) from e
        except (OSError, ValueError) as e:
            raise CommentError(f"GitHub could not be asked: {e}") from e


def _why(status: int) -> str:
    if status in (401, 403, 404):
        return (
            f"GitHub does not let this job comment (status {status}). On a pull request from a "
            "fork the job's token may only read; elsewhere give the job `pull-requests: write`"
        )
    return f"GitHub answered with status {status}"


def _cut(body: str) -> str:
    """About as much as a comment holds, cut before a part that can be unfolded, or a line."""
    if len(body) <= MOST_CHARACTERS:
        return body
    kept = body[:MOST_CHARACTERS]
    end = next((at for each in ("\n<details", "\n") if (at := kept.rfind(each)) > 0), len(kept))
    return f"{kept[:end]}\n\nThe rest is in the job's summary.\n"
