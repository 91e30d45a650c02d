"""A server on loopback that speaks enough of OpenAI's wire format, and does as a test says."""

import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Seen:
    """A request as it arrived; `connection` is the number of the one that it came on."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int


@dataclass
class FakeOpenAI:
    """The server's behaviour, and the requests that it saw.

    Attributes:
        words: a streamed reply, chunk by chunk; one that begins with "(" is told as a thought.
        thoughts: the field of a chunk in which thoughts are told.
        go: a chunk is sent for each release; None sends all at once.
        dies_after: the connection is dropped after so many chunks.
        dies_in_order: it is closed as if the reply had come to its end.
        finish_reason, done: how it says that a reply has come to its end; None, False: not so.
        stalls_at: nothing more comes from this chunk on (-1: not even headers) until `freed`.
        freed: set by a test that has seen enough; the server's end sets it, too.
        status: answered instead of a reply, where it is not 200.
        refuses: a key of the request that it does not understand.
        whole, whole_thought, whole_status: of a reply that is not streamed.
        shows: what it answers about a prompt, by path; nothing else is known there.
        calls: tools with their arguments, called where the last message is no tool's result.
        metrics: a page of them for each time it is asked, the last one from then on; None: no page.
        in_turn: other values of these from the turn on that has so many messages of the user.
    """

    models: Sequence[str] = ("m",)
    words: Sequence[str] = ("Two ", "pizzas.")
    thoughts: str = "reasoning_content"
    key: str | None = None
    go: threading.Semaphore | None = None
    dies_after: int | None = None
    dies_in_order: bool = False
    finish_reason: str | None = "stop"
    done: bool = True
    stalls_at: int | None = None
    freed: threading.Event = field(default_factory=threading.Event)
    status: int = 200
    refuses: str = ""
    whole: str = "x"
    whole_thought: str | None = None
    whole_status: int = 200
    shows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    metrics: list[str] | None = None
    in_turn: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    hung_up: threading.Event = field(default_factory=threading.Event)
    connections: Iterator[int] = field(default_factory=itertools.count)
    base_url: str = ""

    @property
    def chats(self) -> list[Seen]:
        """The streamed questions."""
        return [s for s in self.seen if s.body.get("stream")]


@contextmanager
def serving(fake: FakeOpenAI, handler: "type[OpenAIHandler] | None" = None) -> Iterator[FakeOpenAI]:
    """Serve until the end of the block; another `handler` speaks another protocol."""

    class Handler(handler or OpenAIHandler):  # pyright: ignore[reportGeneralTypeIssues]
        server_fake = fake

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        fake.freed.set()
        server.shutdown()
        thread.join()
        server.server_close()


class OpenAIHandler(BaseHTTPRequestHandler):
    server_fake: FakeOpenAI
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.connection_number = next(self.server_fake.connections)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._metrics(self.server_fake.metrics)
            return
        self._saw({})
        if self.path.partition("?")[0] != "/v1/models":
            self._json(404, {"error": "no such path"})
        elif self._admitted():
            models = [{"id": name, "object": "model"} for name in self.server_fake.models]
            self._json(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        fake = self.server_fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path in ("/tokenize", "/apply-template"):
            shown = fake.shows.get(self.path)
            self._json(404 if shown is None else 200, shown or {"error": "no such path"})
            return
        self._saw(body)
        if not self._admitted():
            return
        said = [m for m in body.get("messages", ()) if m.get("role") == "user"]
        fake = replace(fake, **fake.in_turn.get(len(said), {}))
        if body.get("messages") and body["messages"][-1].get("role") == "tool":
            fake = replace(fake, calls=())
        if fake.refuses in body:
            self._json(400, {"error": {"message": f"what is {fake.refuses}?"}})
        elif not body.get("stream"):
            self._whole(fake)
        elif fake.status != 200:
            self._json(fake.status, {"error": {"message": "as the test wants it"}})
        else:
            self._stream(fake)

    def _whole(self, fake: FakeOpenAI) -> None:
        if fake.whole_status != 200:
            self._json(fake.whole_status, {"error": {"message": "as the test wants it"}})
            return
        message = {"role": "assistant", "content": fake.whole, fake.thoughts: fake.whole_thought}
        self._json(200, {"choices": [{"message": message}]})

    def _saw(self, body: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_fake.seen.append(Seen(self.path, headers, body, self.connection_number))

    def _metrics(self, pages: list[str] | None) -> None:
        data = (pages.pop(0) if len(pages) > 1 else pages[0]).encode() if pages else b""
        self.send_response(200 if pages else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _admitted(self) -> bool:
        key = self.server_fake.key
        if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
            self._json(401, {"error": {"message": "wrong key"}})
            return False
        return True

    def _json(self, status: int, answer: Mapping[str, Any]) -> None:
        data = json.dumps(dict(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, fake: FakeOpenAI) -> None:
        if fake.stalls_at == -1:
            fake.freed.wait()
            return
        kept = self._begin_stream(fake)
        try:
            if fake.calls:
                self._call(fake.calls)
                self.close_connection = not kept
                return
            for count, word in enumerate(fake.words):
                if count == fake.dies_after:
                    return  # without the chunk that ends a reply
                if count == fake.stalls_at:
                    fake.freed.wait()
                if fake.go is not None:
                    fake.go.acquire()
                field = fake.thoughts if word.startswith("(") else "content"
                self._event({"choices": [{"index": 0, "delta": {field: word}}]})
            if fake.finish_reason is not None:
                last = {"index": 0, "delta": {}, "finish_reason": fake.finish_reason}
                self._event({"choices": [last]})
            usage = {"prompt_tokens": 7, "completion_tokens": len(fake.words), "total_tokens": 9}
            self._event({"choices": [], "usage": usage})
            if fake.done:
                self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
            self.close_connection = not kept
        except OSError:
            fake.hung_up.set()

    def _begin_stream(self, fake: FakeOpenAI) -> bool:
        """Send the head; whether the connection outlives the reply, once that has come to its end.

        Until then it does not: a reply that breaks off takes it along.
        """
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if fake.dies_in_order:
            self.send_header("Connection", "close")
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        kept = not self.close_connection
        self.close_connection = True
        return kept

    def _call(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Each call's arguments come in two pieces, as a model makes them."""
        for index, (name, arguments) in enumerate(calls):
            text = json.dumps(arguments)
            head = {"id": f"call_{index}", "type": "function"}
            pieces = [{**head, "function": {"name": name, "arguments": text[:5]}}]
            pieces.append({"function": {"arguments": text[5:]}})
            for piece in pieces:
                delta = {"tool_calls": [{"index": index, **piece}]}
                self._event({"choices": [{"index": 0, "delta": delta}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, chunk: dict[str, Any]) -> None:
        whole = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", **chunk}
        self._chunk(f"data: {json.dumps(whole)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        chunked = not self.server_fake.dies_in_order
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
        self.wfile.flush()
