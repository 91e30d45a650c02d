"""Questions to a language model's server before a conversation depends on it."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turngap.core.errors import AgentError


def bearer(key: str | None) -> dict[str, str]:
    """The header that OpenAI's protocol has a key in."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def connection_headers(*, keep_alive: bool) -> dict[str, str]:
    """What a session's client sends with each request for the connection to be kept, or not.

    Told to close, the client does so itself when the reply has ended, whatever the server does.
    """
    return {} if keep_alive else {"Connection": "close"}


@dataclass(frozen=True, slots=True)
class Asking:
    """How a server is asked, and what is to be put right where it does not answer.

    Attributes:
        key_env: the environment variable that its key comes from.
        base_url: of the form that its `base_url` has.
    """

    headers: Mapping[str, str]
    timeout_s: float
    key_env: str
    base_url: str = "http://HOST:PORT/v1"

    @property
    def correct_address(self) -> str:
        """What to do about a wrong address, in the way that each command takes a right one."""
        return (
            f"correct the address: --set llm.base_url={self.base_url} "
            f"(compare and judge: --llm NAME,base_url={self.base_url})"
        )


def ask(url: str, asking: Asking, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object that `url` answers with; a POST where there is a `body`.

    Raises:
        AgentError: nobody answers, the key is refused, or it is another kind of server.
    """
    data = None if body is None else json.dumps(body).encode()
    every = {"Content-Type": "application/json", **asking.headers}
    request = urllib.request.Request(url, data=data, headers=every)
    try:
        with urllib.request.urlopen(request, timeout=asking.timeout_s) as response:
            answer = json.loads(response.read())
    except urllib.error.HTTPError as e:
        with e:
            raise _refused(url, asking, e) from e
    except json.JSONDecodeError as e:
        raise _other(url, asking, "its answer is no JSON") from e
    except (OSError, http.client.HTTPException) as e:
        reason = getattr(e, "reason", None) or e
        raise AgentError(
            "llm.unreachable",
            f"no language model answers at {url}: {reason or type(e).__name__}",
            hint=f"start the server or connect to its network, or {asking.correct_address}",
        ) from e
    if not isinstance(answer, dict):
        raise _other(url, asking, "its answer is no JSON object")
    return answer


def _refused(url: str, asking: Asking, error: urllib.error.HTTPError) -> AgentError:
    if error.code in {401, 403}:
        has = "the key" if os.environ.get(asking.key_env) else "a request without a key"
        return AgentError(
            "llm.key",
            f"the server at {url} does not accept {has}: {error.code} {error.reason}",
            hint=f"export {asking.key_env}=… (the right key)",
        )
    if error.code == 404:
        return _other(url, asking, "404 Not Found")
    said = " ".join(error.read(500).decode(errors="replace").split())
    return AgentError(
        "llm.refused",
        f"the server at {url} answered {error.code} {error.reason}: {said}",
        hint="its log says more",
    )


def _other(url: str, asking: Asking, why: str) -> AgentError:
    return AgentError(
        "llm.protocol",
        f"no server of this protocol at {url}: {why}",
        hint=asking.correct_address,
    )


def served_models(models_url: str, asking: Asking) -> list[str]:
    """The names of the models that a server has.

    Raises:
        AgentError: as `ask`.
    """
    models = ask(models_url, asking).get("data")
    if not isinstance(models, list):
        raise _other(models_url, asking, "it lists no models")
    return [str(m["id"]) for m in models if isinstance(m, dict) and "id" in m]
