"""The hub's own client, reduced to what fetching needs; its errors become ours.

Only `turngap.weights.fetch` imports this, and only if something has to be fetched: what is here
already is used without it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from huggingface_hub import HfApi, constants, get_hf_file_metadata
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,  # that of the HTTP client which it uses  # pyright: ignore[reportPrivateImportUsage]
)
from huggingface_hub.utils import build_hf_headers, get_session

from turngap.backends import WeightFile, Weights
from turngap.weights import problems
from turngap.weights.cache import is_commit, is_inside

if TYPE_CHECKING:
    from turngap.core.errors import AgentError

# What a file is checked against, and named after in the cache: its SHA-256, or git's SHA-1 of it.
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ELSEWHERE_HIDDEN = ("authorization", "cookie")


class BrokenOffError(Exception):
    """The connection broke off or stood still: another attempt may go on from there."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as the hub states it.

    Attributes:
        commit: that of the revision that was asked for.
        etag: its SHA-256 where it is kept by LFS, else git's SHA-1 of it.
        size: bytes; None where the hub does not say.
        url: where it is read from. It may carry a signature, so it is never shown.
    """

    commit: str
    etag: str
    size: int | None
    url: str
    asked: str


class Hub:
    """The hub that HF_ENDPOINT names, by default Hugging Face's."""

    @property
    def host(self) -> str:
        return urlsplit(constants.ENDPOINT).netloc

    @property
    def offline(self) -> bool:
        return constants.HF_HUB_OFFLINE

    @property
    def wait_s(self) -> float:
        """How long the hub may send nothing."""
        return constants.HF_HUB_DOWNLOAD_TIMEOUT

    def listed(self, weights: Weights) -> Weights:
        """The weights with the commit and the files that the hub lists for the revision.

        Raises:
            AgentError: it cannot be asked, or has none that match.
        """
        try:
            return self._listed(weights)
        except BrokenOffError as e:
            raise problems.not_reached(self.host, f"no answer ({e})") from e

    def _listed(self, weights: Weights) -> Weights:
        with self._translated(weights, "such file"):
            try:
                info = HfApi(constants.ENDPOINT).model_info(
                    weights.repository, revision=weights.revision, files_metadata=True,
                    timeout=self.wait_s,
                )  # fmt: skip
                siblings = info.siblings or []
            # What is no hub's answer fails in the client's own reading of it.
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                raise problems.not_a_hub(self.host) from e
        files = tuple(
            WeightFile(s.rfilename, s.size)
            for s in siblings
            if any(fnmatch(s.rfilename, pattern) for pattern in weights.patterns)
        )
        if not files:
            raise problems.unknown(weights, f"file like {' or '.join(weights.patterns)}")
        # Both become parts of paths.
        if info.sha is None or not is_commit(info.sha) or not all(is_inside(f.path) for f in files):
            raise problems.not_a_hub(self.host)
        return replace(weights, revision=info.sha, files=files)

    def remote(self, weights: Weights, file: WeightFile) -> Remote:
        """What the hub states of a file.

        Raises:
            AgentError: it cannot be asked, or has no such file.
            BrokenOffError: it did not answer in time.
        """
        at = f"{weights.repository}/resolve/{quote(weights.revision, safe='')}/{quote(file.path)}"
        url = f"{constants.ENDPOINT}/{at}"
        with self._translated(weights, file.path):
            stated = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        etag = stated.etag or ""
        if stated.commit_hash is None or _DIGEST.fullmatch(etag) is None:
            raise problems.not_a_hub(self.host)
        return Remote(stated.commit_hash, etag, stated.size, stated.location, url)

    @contextmanager
    def content(
        self, weights: Weights, file: WeightFile, remote: Remote, start: int
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """The file's bytes from `start` on, and where they begin: 0 if the hub sends all again.

        Raises:
            AgentError: the hub refuses, or sends something else.
            BrokenOffError: the connection broke off or stood still.
        """
        headers = build_hf_headers() | {"accept-encoding": "identity"}
        if urlsplit(remote.url).netloc != urlsplit(remote.asked).netloc:
            headers = {k: v for k, v in headers.items() if k.lower() not in _ELSEWHERE_HIDDEN}
        if start:
            headers["range"] = f"bytes={start}-"
        with (
            self._translated(weights, file.path),
            get_session().stream("GET", remote.url, headers=headers, timeout=self.wait_s) as answer,
        ):
            if answer.status_code >= 400:
                raise self._refused(weights, file.path, answer.status_code)
            kind = answer.headers.get("content-type", "")
            if kind.startswith("text/html") and not file.path.endswith(".html"):
                raise problems.not_a_hub(self.host)
            yield (start if answer.status_code == 206 else 0), answer.iter_bytes()

    def _refused(self, weights: Weights, what: str, status: int) -> "AgentError":
        if status in (401, 403):
            return problems.denied(weights, status)
        if status == 404:
            return problems.unknown(weights, what)
        return problems.hub_fails(self.host, status)

    @contextmanager
    def _translated(self, weights: Weights, what: str) -> Iterator[None]:
        """Turn the client's errors into ours. Its texts may hold signed URLs: none is repeated."""
        try:
            yield
        except HfHubHTTPError as e:
            raise self._refused(weights, what, e.response.status_code) from None
        except HTTPError as e:
            name = type(e).__name__
            if name == "ProxyError":
                raise problems.by_proxy(self.host, str(e)) from None
            if name == "ConnectError":
                raise problems.not_reached(self.host, str(e)) from None
            if name in ("UnsupportedProtocol", "TooManyRedirects", "DecodingError"):
                raise problems.not_a_hub(self.host) from None
            raise BrokenOffError(name) from None
