"""Questions to an OpenAI-compatible server before a conversation depends on it."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

from turngap.core.errors import AgentError


def ask(
    url: str, *, key: str | None, timeout_s: float, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON object that `url` answers with; a POST where there is a `body`.

    Raises:
        AgentError: nobody answers, the key is refused, or it is another kind of server.
    """
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            answer = json.loads(response.read())
    except urllib.error.HTTPError as e:
        with e:
            raise _refused(url, e) from e
    except json.JSONDecodeError as e:
        raise _other(url, "its answer is no JSON") from e
    except (OSError, http.client.HTTPException) as e:
        reason = getattr(e, "reason", None) or e
        raise AgentError(
            "llm.unreachable",
            f"no language model answers at {url}: {reason or type(e).__name__}",
            hint="start the server, or correct the address: --set llm.base_url=http://HOST:PORT/v1",
        ) from e
    if not isinstance(answer, dict):
        raise _other(url, "its answer is no JSON object")
    return answer


def _refused(url: str, error: urllib.error.HTTPError) -> AgentError:
    if error.code in {401, 403}:
        return AgentError(
            "llm.key",
            f"the server at {url} does not accept the key: {error.code} {error.reason}",
            hint="set the environment variable that the setting `api_key_env` names",
        )
    if error.code == 404:
        return _other(url, "404 Not Found")
    said = " ".join(error.read(500).decode(errors="replace").split())
    return AgentError(
        "llm.refused",
        f"the server at {url} answered {error.code} {error.reason}: {said}",
        hint="its log says more",
    )


def _other(url: str, why: str) -> AgentError:
    return AgentError(
        "llm.protocol",
        f"no OpenAI-compatible server at {url}: {why}",
        hint="a base_url usually ends with /v1, as in http://127.0.0.1:8000/v1",
    )


def served_models(base_url: str, *, key: str | None, timeout_s: float) -> list[str]:
    """The names of the models that a server has.

    Raises:
        AgentError: as `ask`.
    """
    url = f"{base_url.rstrip('/')}/models"
    answer = ask(url, key=key, timeout_s=timeout_s)
    models = answer.get("data")
    if not isinstance(models, list):
        raise _other(url, "it lists no models")
    return [str(m["id"]) for m in models if isinstance(m, dict) and "id" in m]
