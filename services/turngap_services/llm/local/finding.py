"""Looks for servers of language models on this machine: only on loopback, and for half a second."""

import json
import queue
import re
import threading
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from turngap_services.llm.local import PORTS

WAIT_S = 0.5
# A list of models is a few KB; what answers with more is no such server.
_MOST_BYTES = 2**20

# Parts of the names of models that answer no chat, as the servers list them beside those that do:
# they make embeddings, rank texts, hear, speak, draw or judge what is unsafe.
_NO_TALK = re.compile(
    r"embed|rerank|minilm|paraphrase|whisper|parakeet|kokoro|piper|moderation|stable-diffusion"
    r"|(?:^|[/\-_])(?:bge|gte|e5|tts|stt|asr|clip|flux)(?:$|[\-_:.])"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A server that lists its models.

    Attributes:
        name: what usually listens on its port, or vLLM where it says that it is one.
    """

    port: int
    name: str
    models: tuple[str, ...]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def servers(ports: Sequence[int], wait_s: float = WAIT_S) -> list[Found]:
    """Return the servers that list a model at `/v1/models`, in the order of `ports`.

    All are asked at the same time. One that has not answered after `wait_s` is not waited for.
    """
    answers: queue.SimpleQueue[Found | None] = queue.SimpleQueue()
    for port in ports:
        threading.Thread(target=lambda p=port: answers.put(_asked(p, wait_s)), daemon=True).start()
    found: list[Found] = []
    due = monotonic() + wait_s
    for _ in ports:
        try:
            answer = answers.get(timeout=max(0.0, due - monotonic()))
        except queue.Empty:
            break
        if answer is not None:
            found.append(answer)
    return sorted(found, key=lambda server: ports.index(server.port))


def _asked(port: int, wait_s: float) -> Found | None:
    # A proxy of the company's has no business with this machine's own servers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/v1/models", timeout=wait_s) as response:
            listed = json.loads(response.read(_MOST_BYTES))["data"]
        models = tuple(str(model["id"]) for model in listed)
        owners = {model.get("owned_by") for model in listed}
    except Exception:  # whatever else listens there may answer anything
        return None
    name = "vLLM" if "vllm" in owners else PORTS.get(port, "a server")
    return Found(port, name, models) if models else None


def model_of(models: Sequence[str]) -> str | None:
    """Return the first model whose name is not that of one for another task; None without one."""
    return next((name for name in models if not _NO_TALK.search(name.lower())), None)
