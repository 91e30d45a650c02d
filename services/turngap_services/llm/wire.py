"""Checks of a language model's server before a conversation needs it, and whole replies."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.frames.frames import LLMThoughtTextFrame

from turngap.core.errors import AgentError
from turngap.core.secrets import remember
from turngap.thoughts import ends_within_thought
from turngap_services.loading import Loaded


def bearer(key: str | None) -> dict[str, str]:
    """Return the header that carries a key in OpenAI's protocol."""
    remember(key or "")
    return {"Authorization": f"Bearer {key}"} if key else {}


def connection_headers(*, keep_alive: bool) -> dict[str, str]:
    """Return headers that make the client keep its connection, or close it after each reply."""
    return {} if keep_alive else {"Connection": "close"}


@dataclass(frozen=True, slots=True)
class Asking:
    """The way to ask a server, and the corrections to suggest if it does not answer.

    Attributes:
        key_env: environment variable that holds the server's key.
        base_url: the form of the server's `base_url`.
    """

    headers: Mapping[str, str]
    timeout_s: float
    key_env: str
    base_url: str = "http://HOST:PORT/v1"

    @property
    def correct_address(self) -> str:
        """Say how each command takes the correct address."""
        return (
            f"correct the address: --set llm.base_url={self.base_url} "
            f"(compare and judge: --llm NAME,base_url={self.base_url})"
        )


def ask(url: str, asking: Asking, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON object with which `url` answers; a `body` is sent as a POST.

    Raises:
        AgentError: there is no answer, the key is refused, or another kind of server answers.
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
        raise _other(url, asking, "its answer is not JSON") from e
    except (OSError, http.client.HTTPException) as e:
        reason = getattr(e, "reason", None) or e
        raise AgentError(
            "llm.unreachable",
            f"no language model answers at {url}: {reason or type(e).__name__}",
            hint=f"start the server or connect to its network, or {asking.correct_address}",
        ) from e
    if not isinstance(answer, dict):
        raise _other(url, asking, "its answer is not a JSON object")
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
        f"the server at {url} does not speak this protocol: {why}",
        hint=asking.correct_address,
    )


# A conversation has no time for thoughts. The template's switch is known to vLLM, SGLang and
# llama.cpp, `reasoning_effort` to Ollama and vLLM; gpt-oss takes `low`, not `none`. What a server
# refuses is left out.
_NO_TEMPLATE = {"chat_template_kwargs": {"enable_thinking": False}}
REASONING_OFF: tuple[dict[str, Any], ...] = (
    {**_NO_TEMPLATE, "reasoning_effort": "none"},
    {**_NO_TEMPLATE, "reasoning_effort": "low"},
    {},
)


# Fields besides the content of a message: llama.cpp, SGLang and DeepSeek have the first, vLLM,
# Ollama and Groq the second.
THOUGHTS = ("reasoning_content", "reasoning")


def without_reasoning(
    base_url: str, model: str, asking: Asking, extra: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    """Request an unheard reply, to let the server do its one-time work now.

    The prompt is as long as a conversation's first: after a prompt of two tokens, vLLM 0.32 on a
    CPU took 474 ms to the first token of the first turn, and about 50 ms from then on.

    Returns:
        The further keys of each request: `extra`, and the switch for the model's reasoning, if the
        server accepts it and `extra` has none itself. And whether the server separated the model's
        thoughts from its answer.

    Raises:
        AgentError: as `ask`.
    """
    refused: AgentError | None = None
    chosen = any(key in extra for key in REASONING_OFF[0])
    for off in [{}] if chosen else REASONING_OFF:
        body = {**off, **extra}
        messages = [
            {"role": "system", "content": "hello " * 150},
            {"role": "user", "content": "hello"},
        ]
        question = {"model": model, "messages": messages, "max_tokens": 8, **body}
        try:
            answer = ask(f"{base_url.rstrip('/')}/chat/completions", asking, question)
        except AgentError as e:
            refused = e
            if getattr(e.__cause__, "code", None) not in (400, 422):
                break
        else:
            return body, _tells_thoughts_apart(answer)
    assert refused is not None
    raise refused


def _tells_thoughts_apart(answer: dict[str, Any]) -> bool:
    match answer.get("choices"):
        case [{"message": {**message}}, *_]:
            return any(message.get(field) for field in THOUGHTS)
        case _:
            return False


def begins_in_thought(base_url: str, model: str, asking: Asking, body: dict[str, Any]) -> bool:
    """Ask a server whether its chat template begins the reply within a thought.

    vLLM shows a prompt's tokens, llama.cpp its text; other servers do not show it.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    question = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    question |= {key: body[key] for key in ("chat_template_kwargs",) if key in body}
    for path, more in (("tokenize", {"return_token_strs": True}), ("apply-template", {})):
        try:
            answer = ask(f"{root}/{path}", asking, {**question, **more})
        except AgentError:
            continue
        tokens = answer.get("token_strs")
        prompt = "".join(map(str, tokens)) if isinstance(tokens, list) else answer.get("prompt")
        if isinstance(prompt, str):
            return ends_within_thought(prompt.rstrip("ĊĠ▁ \n\t"))  # white space as tokens show it
    return False


def served_models(models_url: str, asking: Asking) -> list[str]:
    """Return the names of the models that a server has.

    Raises:
        AgentError: as `ask`.
    """
    models = ask(models_url, asking).get("data")
    if not isinstance(models, list):
        raise _other(models_url, asking, "it lists no models")
    return [str(m["id"]) for m in models if isinstance(m, dict) and "id" in m]


_CHECKED = Loaded[None]()


def check_model(
    provider: str, model: str, models_url: str, asking: Asking, *, dated: bool = False
) -> None:
    """Ask a provider, once a process, whether it accepts the key and has the model.

    Args:
        provider: name of the backend.
        model: the provider's name for the model.
        models_url: lists the models.
        asking: see `Asking`.
        dated: accept the name of a family whose snapshots are listed by their dates.

    Raises:
        AgentError: the provider cannot be reached, refuses the key, or has no such model.
    """

    def check() -> None:
        models = served_models(models_url, asking)
        if not any(name == model or (dated and name.startswith(model)) for name in models):
            raise AgentError(
                "llm.model",
                f"{provider} has no model {model!r} for this key",
                hint=f"--set llm.model=NAME, one of: {', '.join(sorted(models)) or 'none'}",
            )

    _CHECKED.get((provider, model, models_url, *sorted(asking.headers.items())), check)


if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk
    from pipecat.services.openai.llm import OpenAILLMService as _Base
    from pipecat.utils.errors import ErrorCategory
else:
    _Base = object


class WholeReply:
    """A streamed reply that fails if it stops before its end.

    A server that dies may still close its connection in order, which the client takes for the end
    of the reply.

    Args:
        stream: the stream of OpenAI's or Anthropic's client.
        ends: returns whether a chunk says that the reply is finished.
        over: returns, after the last chunk, whether the server said so in another way.
        note: called with each chunk first.
    """

    def __init__(
        self,
        stream: Any,
        ends: Callable[[Any], bool],
        over: Callable[[], bool] = lambda: False,
        note: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._stream = stream
        self._ends = ends
        self._over = over
        self._note = note

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the chunks.

        Raises:
            ConnectionError: the reply stopped before any sign of its end.
        """
        finished = False
        chunks = aiter(self._stream)
        try:
            async for chunk in chunks:
                finished = finished or self._ends(chunk)
                if self._note is not None:
                    await self._note(chunk)
                yield chunk
        finally:
            if isinstance(chunks, AsyncGenerator):  # the garbage collector would close it too late
                await chunks.aclose()
        if not (finished or self._over()):
            raise ConnectionError("the server ended its reply in the middle")

    async def close(self) -> None:
        await self._stream.close()


class _Done:
    """A note of `data: [DONE]`, with which many servers end a stream without `finish_reason`.

    OpenAI's client drops it, so this replaces the stream's decoder, which is private. If a client
    has no such decoder, a reply that ended in order counts as whole, and a warning says so: another
    version of a library must not make replies count as broken.
    """

    def __init__(self, stream: Any) -> None:
        self._decoder: Any = getattr(stream, "_decoder", None)
        self.seen = not hasattr(self._decoder, "aiter_bytes")
        if self.seen:
            logger.warning("this version of openai does not show whether a reply broke off")
        else:
            stream._decoder = self

    async def aiter_bytes(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for event in self._decoder.aiter_bytes(chunks):
            self.seen = self.seen or event.data.startswith("[DONE]")
            yield event


def _finished(chunk: "ChatCompletionChunk") -> bool:
    """Return whether this is a choice's last chunk, which gives the reason for the end."""
    return any(choice.finish_reason for choice in chunk.choices or ())


class AskedOnce(_Base):
    """A mixin that sends each request once; put it before a service that derives from OpenAI's.

    The client's two silent retries would hide that a server refuses or drops requests: it would
    only seem slow.
    """

    async def get_chat_completions(self, context: Any) -> Any:
        stream = await super().get_chat_completions(context)
        done = _Done(stream)
        return WholeReply(stream, _finished, lambda: done.seen, self._note_thoughts)

    async def _note_thoughts(self, chunk: "ChatCompletionChunk") -> None:
        """Push the model's thoughts, if the server separates them from the answer."""
        for choice in chunk.choices or ():
            thoughts = (getattr(choice.delta, field, None) for field in THOUGHTS)
            if thought := next(filter(None, thoughts), None):
                await self.push_frame(LLMThoughtTextFrame(text=str(thought)))

    def create_client(self, *args: Any, **kwargs: Any) -> Any:
        return super().create_client(*args, **kwargs).with_options(max_retries=0)

    def _classify_error(self, exception: Exception) -> "ErrorCategory | None":
        # pipecat 1.14 does not know a broken connection by the client's class for it.
        from openai import APIConnectionError
        from pipecat.utils.errors import ErrorCategory

        if isinstance(exception, APIConnectionError):
            return ErrorCategory.CONNECTIVITY
        return super()._classify_error(exception)

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()  # pipecat 1.14 leaves the session's connections open
