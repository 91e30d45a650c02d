"""A llama.cpp model in this process: conversations in, pieces of text out.

llama.cpp keeps what it has read of each conversation, so a turn reads only what is new. The stack's
`warm.prefix` makes it read the conversation while the person speaks.
"""

import asyncio
import json
import math
import re
import secrets
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loguru import logger
from pipecat.processors.aggregators.llm_context import LLMContext
from xllamacpp import CommonParams, Server  # pyright: ignore[reportAttributeAccessIssue]

from turngap.backends.weights import at_home, folder_of
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap_services.llm.llama import LlamaSettings, weights_of
from turngap_services.llm.plain import InProcessLLMService, Reply
from turngap_services.loading import Loaded, first_line

# A request that is given up, because the person speaks on, ends at the next batch of its prompt.
_BATCH = 64
# What llama.cpp keeps of conversations that another one has taken the place of.
_CACHE_MIB = 256
# When a conversation is too long, this many of its oldest messages are left out at a time, so that
# its beginning, which llama.cpp has read, stays the same for some turns.
_LEAVE_OUT = 8
# Tokens that may be repeated; with llama.cpp's own 2, "I need a" could not be said twice in a call.
_DRY_LENGTH = 3
# The end of a sentence that another one follows; not that of a title.
_END = re.compile(r"(?<!\bMr)(?<!\bMs)(?<!\bMrs)(?<!\bDr)(?<!\bSt)[.!?]+[\"'”’)\]]*\s+(?=\S)")

# Stands for the user's words in a prompt: of Unicode's private use, so no one says it.
_PLACE = "\ue000"
_LIKELIEST = 200
_TOO_LONG = "exceed_context_size_error"
_ENDS = {".", "?", "!", "…", "..."}
_TIMEOUT_S = 10.0
# A proxy of the company's has no business with this process's own server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class LlamaModel:
    """A loaded model. Any number of threads may ask it; it makes `workers` replies at a time.

    Attributes:
        name: the name in the settings, or the file's name.

    Raises:
        InputError: an unknown name.
        AgentError: it is not there, cannot be downloaded, or cannot be loaded.
    """

    def __init__(self, settings: LlamaSettings) -> None:
        weights = weights_of(settings)
        path = at_home(settings.model)
        if weights is not None:
            path = folder_of(weights) / weights.files[0].path
        self.name = settings.model if weights is not None else path.stem
        self.executor = ThreadPoolExecutor(settings.workers, "turngap-llama")
        self._settings = settings
        if not path.is_file():
            raise AgentError(
                "model.missing", f"no model at {path}", hint="give the path of a .gguf file"
            )
        params = CommonParams()
        params.model.path = str(path)
        params.n_ctx = settings.context * settings.workers  # shared out among the workers
        params.n_parallel = settings.workers
        params.n_batch = params.n_ubatch = _BATCH
        params.cache_ram_mib = _CACHE_MIB
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
        params.verbosity = -1
        # llama.cpp also listens on a port of 127.0.0.1; no one else is to use it.
        self._key = secrets.token_hex(16)
        params.api_keys = [self._key]
        try:
            self._server = Server(params)
        except RuntimeError as e:
            raise AgentError(
                "model.damaged",
                f"llama.cpp cannot load the model {path}",
                hint="fetch it again, choose another with --set llm.model=FILE.gguf, or lower "
                "llm.context if memory is short",
            ) from e

    def reply(
        self,
        messages: Sequence[dict[str, Any]],
        hear: Callable[[str], None],
        stop: threading.Event,
        max_tokens: int | None = None,
    ) -> Reply:
        """Answer a conversation; see `InProcessModel`. With `max_tokens` 0 it is only read."""
        limit = self._settings.max_tokens if max_tokens is None else max_tokens
        room = self._settings.context - limit
        for part in _shortened(messages):
            attempt = Attempt(hear, stop, self._settings.max_sentences, room)
            body = {
                "messages": part,
                "stream": True,
                "max_tokens": limit,
                "temperature": self._settings.temperature,
                "dry_multiplier": self._settings.dry_multiplier,
                "dry_allowed_length": _DRY_LENGTH,
                # llama.cpp looks for each in all tokens: with its own four, that takes 15 ms.
                "dry_sequence_breakers": ["\n"],
                "seed": self._settings.seed,
                "cache_prompt": True,
                "return_progress": True,
                "timings_per_token": True,
                "chat_template_kwargs": {"enable_thinking": False},
            }
            self._ask(lambda b=body, a=attempt: self._server.handle_chat_completions(b, a.on_chunk))
            if (error := attempt.error) is None:
                break
            if error.get("type") != _TOO_LONG:
                raise self._failed(error.get("message"))
        else:
            raise self._failed("the conversation exceeds the available context size")
        return Reply(attempt.prompt_tokens, attempt.tokens, not stop.is_set())

    def _ask(self, ask: Callable[[], Any]) -> Any:
        """Call the library; turn its exceptions, also a chat template's, into AgentError."""
        try:
            return ask()
        except (RuntimeError, ValueError, LookupError) as e:
            raise self._failed(first_line(e)) from e

    def _failed(self, why: object) -> AgentError:
        return AgentError(
            "model.failed",
            f"the model {self.name} failed: {why}",
            hint="a longer llm.context, or another model with --set llm.model=FILE.gguf, may do",
        )

    def whole(self, messages: Sequence[dict[str, Any]], text: str) -> float:
        """Return the probability that `text` is the user's whole next message.

        It is the one that the model gives to the message's end, or to a mark that ends a sentence,
        after the words. It reads the words, so a reply to them begins sooner.

        Raises:
            AgentError: the engine failed.
        """
        answer: dict[str, Any] = {}
        error: dict[str, Any] = {}
        end = -1
        for part in _shortened(messages):
            before, end = self._around(part)
            body = {
                "prompt": before + text.rstrip(" .?!…"),
                "n_predict": 1,
                "n_probs": _LIKELIEST,
                "cache_prompt": True,
            }
            answer = self._ask(lambda b=body: self._server.handle_completions(b))
            error = answer.get("error") or {}
            if error.get("type") != _TOO_LONG:
                break
        try:
            likeliest = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        except LookupError as e:
            raise self._failed(error.get("message", "it gave no probabilities")) from e
        return sum(
            math.exp(each["logprob"])
            for each in likeliest
            if each["id"] == end or each["token"].strip() in _ENDS
        )

    def _around(self, messages: Sequence[dict[str, Any]]) -> tuple[str, int]:
        """Return the prompt up to the user's next message, and the token that ends the message."""
        asked = {"messages": [*messages, {"role": "user", "content": _PLACE}]}
        before, _, after = self._post("apply-template", asked)["prompt"].partition(_PLACE)
        tokens = self._post("tokenize", {"content": after, "parse_special": True})["tokens"]
        return before, tokens[0]

    def _post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the server what the library has no function for."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        url = f"{self._server.listening_address}/{route}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)

    def warm_up(self) -> None:
        """Make an unheard reply, because the first one is slow."""
        self.reply([{"role": "user", "content": "hello"}], lambda _: None, threading.Event())


def _shortened(messages: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the conversation, and then ever less of it; the system prompt stays.

    Chat templates want user and assistant to alternate: neighbours of one role become one message.
    """
    system = [m for m in messages if m["role"] in {"system", "developer"}]
    said: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] in {"system", "developer"}:
            continue
        if said and said[-1]["role"] == message["role"]:
            said[-1] = {**message, "content": f"{said[-1]['content']} {message['content']}"}
        else:
            said.append(message)
    yield [*system, *said]
    while len(said) > 1:
        said = said[min(_LEAVE_OUT, len(said) - 1) :]
        yield [*system, *said]


class Attempt:
    """One request's answer, as its chunks come in.

    Args:
        hear: called with each piece of the reply.
        stop: once set, llama.cpp is told to stop.
        max_sentences: the longest reply; None for any.
        room: the longest prompt, in tokens.
    """

    def __init__(
        self,
        hear: Callable[[str], None],
        stop: threading.Event,
        max_sentences: int | None,
        room: int,
    ) -> None:
        self._room = room
        self._hear = hear
        self._stop = stop
        self._max_sentences = max_sentences
        self._text = ""
        self.error: dict[str, Any] | None = None
        self.prompt_tokens = self.tokens = 0

    def on_chunk(self, chunk: dict[str, Any]) -> bool:
        """Take a chunk. Returns whether llama.cpp is to stop."""
        if "error" in chunk:
            self.error = chunk["error"]
            return True
        if chunk.get("prompt_progress", {}).get("total", 0) > self._room:
            self.error = {"type": _TOO_LONG}
            return True
        if timings := chunk.get("timings"):
            self.prompt_tokens = timings["cache_n"] + timings["prompt_n"]
            self.tokens = timings["predicted_n"]
        choices = chunk.get("choices") or [{}]
        piece = choices[0].get("delta", {}).get("content")
        if not piece or self._stop.is_set():
            return self._stop.is_set()
        begun, self._text = len(self._text), self._text + piece
        ends = [m.end() for m in _END.finditer(self._text)][: self._max_sentences]
        is_full = len(ends) == self._max_sentences
        if rest := self._text[begun : ends[-1] if is_full else None]:
            self._hear(rest)
        return is_full


_LOADED = Loaded[LlamaModel]()


def model_of(settings: LlamaSettings) -> LlamaModel:
    """Return the model of these settings, loaded once a process; raises as `LlamaModel` does."""
    key = settings.model_dump_json(exclude={"library"})  # the model does not depend on the library
    return _LOADED.get(key, lambda: LlamaModel(settings))


class LlamaLLMService(InProcessLLMService):
    """An in-process service that can read a conversation before it is to be answered."""

    def __init__(self, settings: LlamaSettings, model: LlamaModel) -> None:
        super().__init__(
            model,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
        )
        self._llama = model

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Return the reply to a conversation, for requests outside of the pipeline."""
        messages = self.messages_of(context)
        if system_instruction is not None:
            messages.insert(0, {"role": "system", "content": system_instruction})
        pieces: list[str] = []
        stop = threading.Event()
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._llama.executor, self._llama.reply, messages, pieces.append, stop, max_tokens
            )
        finally:
            stop.set()  # also when this is cancelled
        return "".join(pieces)

    async def whole(self, context: LLMContext, text: str) -> float | None:
        """Return the probability that `text` is the person's whole next message, or None."""
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._llama.executor, self._llama.whole, self.messages_of(context), text
            )
        except (AgentError, OSError, LookupError, ValueError) as e:
            logger.warning(f"{self._llama.name} does not say whether the person has finished: {e}")
            return None


def prepare(settings: LlamaSettings) -> None:
    """Load and warm the model, so that no session pays for the first reply's extra work."""
    model_of(settings).warm_up()


def create(settings: LlamaSettings, clock: Clock) -> LlamaLLMService:
    """Make the service of one session; sessions with the same settings share the model."""
    return LlamaLLMService(settings, model_of(settings))
