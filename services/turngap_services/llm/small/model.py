"""A CTranslate2 model with its tokenizer and chat template: prompts in, pieces of text out."""

import json
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import ctranslate2
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.thoughts import ends_within_thought, is_of_marker
from turngap_services.llm.plain import InProcessLLMService, Reply
from turngap_services.llm.small import SmallSettings
from turngap_services.loading import Loaded, engine_trouble, first_line, place, require_files

_FILES = ("model.bin", "config.json", "tokenizer.json", "tokenizer_config.json")
_CONVERT = (
    "expected `teacher`, `student`, or a directory in CTranslate2's format with tokenizer.json and "
    "tokenizer_config.json: "
    "ct2-transformers-converter --model MODEL --quantization int8 --output_dir DIR "
    "--copy_files tokenizer.json tokenizer_config.json"
)

# System prompts whose state CTranslate2 keeps, so that no turn reads them again. It keeps each for
# good (15 MB for 300 tokens of a model of 0.5 B), so only the first few are: an agent has one.
_MOST_KEPT = 4
_LESS_MEMORY = "a smaller model (--set llm.model=DIR) or fewer llm.workers need less"


class SmallModel:
    """A loaded model. Any number of threads may ask it; it makes `workers` replies at a time.

    Attributes:
        name: the directory's name.
        limit: longest prompt and reply together, in tokens.
    """

    def __init__(self, settings: SmallSettings) -> None:
        directory = settings.directory
        self.name = directory.name
        self.executor = ThreadPoolExecutor(settings.workers, "turngap-small")
        self._settings = settings
        if not directory.is_dir():
            raise AgentError("model.missing", f"no model directory at {directory}", hint=_CONVERT)
        require_files(directory, _FILES, _CONVERT)
        where = place(settings.device, settings.compute_type, "llm")
        try:
            generator = ctranslate2.Generator(
                str(directory),
                device=where.device,
                compute_type=where.compute_type,
                inter_threads=settings.workers,
                intra_threads=settings.threads,
            )
            config = _json(directory / "tokenizer_config.json")
            self._tokenizer = _tokenizer(
                directory / "tokenizer.json", _mark(config.get("eos_token"))
            )
            self._template = _template(directory, config)
        # Each library has its own exceptions for a bad file, tokenizers a plain Exception.
        except Exception as e:
            if isinstance(e, AgentError):
                raise
            what = f"the model in {directory}"
            raise engine_trouble(e, what, "llm", _LESS_MEMORY) or AgentError(
                "model.damaged",
                f"the model in {directory} cannot be loaded: {first_line(e)}",
                hint=_CONVERT,
            ) from e
        # CTranslate2 4.8 aborts the process if its threads are left to Python's last garbage
        # collection ("terminate called without an active exception"): this comes before.
        self._held = [generator]
        weakref.finalize(self, self._held.clear)
        ctranslate2.set_random_seed(settings.seed)
        self.limit = int(min(config.get("model_max_length") or 512, 32_768))
        self._marks = {
            f"{kind}_token": _mark(config.get(f"{kind}_token")) for kind in ("bos", "eos", "unk")
        }
        self._end = self._marks["eos_token"] or None
        self._kept: list[list[str]] = []

    def prompt(self, messages: Sequence[dict[str, Any]]) -> list[str]:
        """Return the prompt's tokens.

        If the conversation is longer than the model can read, its oldest messages are left out; the
        system prompt stays.

        Raises:
            AgentError: the chat template does not take these messages.
        """
        room = self.limit - self._settings.max_tokens
        system = [m for m in messages if m["role"] in {"system", "developer"}]
        said = [m for m in messages if m["role"] not in {"system", "developer"}]
        self._keep(system)
        while True:
            tokens = self._tokens([*system, *said])
            if len(tokens) <= room or len(said) < 2:
                return tokens[-max(room, 1) :]
            said = said[1:]

    def _keep(self, system: list[dict[str, Any]]) -> None:
        """Remember these messages' tokens: prompts that begin with them are read from there on."""
        if not system or len(self._kept) == _MOST_KEPT:
            return
        # A template may refuse to begin without a user: then every turn reads all of its prompt.
        with suppress(AgentError):
            tokens = self._tokens(system, asks=False)
            if tokens and tokens not in self._kept:
                self._kept.append(tokens)

    @cached_property
    def begins_in_thought(self) -> bool:
        """Return whether the chat template begins the reply within a thought."""
        try:
            return ends_within_thought(self._text([{"role": "user", "content": "hello"}]))
        except AgentError:
            return False  # a conversation of its own kind may be to its liking

    def _tokens(self, messages: list[dict[str, Any]], *, asks: bool = True) -> list[str]:
        text = self._text(messages, asks=asks)
        return self._tokenizer.encode(text, add_special_tokens=False).tokens

    def _text(self, messages: list[dict[str, Any]], *, asks: bool = True) -> str:
        # Of templates that know it, the switch turns the model's reasoning off.
        switches: dict[str, Any] = {"add_generation_prompt": asks, "enable_thinking": False}
        try:
            return self._template.render(messages=messages, tools=None, **switches, **self._marks)
        except TemplateError as e:
            raise AgentError(
                "model.template",
                f"the chat template of {self.name} does not take this conversation: {e}",
                hint="expected a template for the roles system, user and assistant",
            ) from e

    def say(
        self,
        prompt: list[str],
        hear: Callable[[str], None],
        stop: threading.Event,
        *,
        least_tokens: int = 0,
    ) -> Reply:
        """Make a reply. Blocks until it has ended, without holding the GIL.

        Args:
            prompt: from `prompt`.
            hear: called with each piece of text as soon as it is there, in a thread of the engine.
            stop: once set, the reply ends with the next token.
            least_tokens: the least length of the reply; a load test's replies are then as long as
                those of a server that was asked for a number.

        Raises:
            AgentError: the engine failed.
        """
        # The engine's thread may be the last to hold `step`. If `step` held the engine by `self`,
        # that thread would destroy the engine, which aborts the process.
        tokenizer, pieces = self._tokenizer, DecodeStream(skip_special_tokens=True)
        count = 0

        def step(result: ctranslate2.GenerationStepResult) -> bool:
            nonlocal count
            count += 1
            piece = pieces.step(tokenizer, result.token_id)
            if piece and not stop.is_set():
                hear(piece)
            return stop.is_set()

        cold = self._settings.temperature > 0
        known = next((kept for kept in self._kept if prompt[: len(kept)] == kept != prompt), [])
        try:
            self._held[0].generate_batch(
                [prompt[len(known) :]],
                static_prompt=known or None,
                min_length=least_tokens,
                max_length=self._settings.max_tokens,
                end_token=self._end,
                include_prompt_in_result=False,
                sampling_topk=0 if cold else 1,
                sampling_temperature=self._settings.temperature if cold else 1.0,
                callback=step,
            )
        except (RuntimeError, MemoryError) as e:
            what = f"a reply of {self.name}"
            raise engine_trouble(e, what, "llm", _LESS_MEMORY) or AgentError(
                "model.failed",
                f"the model {self.name} failed in mid-reply: {first_line(e)}",
                hint="convert it again, or choose another: --set llm.model=DIR",
            ) from e
        return Reply(len(prompt), count, not stop.is_set())

    def reply(
        self,
        messages: Sequence[dict[str, Any]],
        hear: Callable[[str], None],
        stop: threading.Event,
    ) -> Reply:
        """Answer a conversation; arguments and errors are those of `prompt` and `say`."""
        return self.say(self.prompt(messages), hear, stop)

    def warm_up(self) -> None:
        """Make an unheard reply, because the first one is slow."""
        messages = [{"role": "system", "content": "hello"}, {"role": "user", "content": "hello"}]
        self.reply(messages, lambda _: None, threading.Event())


_LOADED = Loaded[SmallModel]()


def model_of(settings: SmallSettings) -> SmallModel:
    """Return the model of these settings, loaded once a process.

    Raises:
        AgentError: the model is not there, or cannot be read.
    """
    key = settings.model_dump_json(exclude={"library"})  # the model does not depend on the library
    return _LOADED.get(key, lambda: SmallModel(settings))


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _tokenizer(path: Path, end: str) -> Tokenizer:
    """Read a tokenizer. Marks of thoughts are shown, so that thoughts can be cut out."""
    file = _json(path)
    for token in file.get("added_tokens") or ():
        if token["content"] != end and is_of_marker(token["content"]):
            token["special"] = False
    return Tokenizer.from_str(json.dumps(file))


def _template(directory: Path, config: dict[str, Any]) -> Template:
    beside = directory / "chat_template.jinja"
    if beside.is_file():
        source = beside.read_text(encoding="utf-8")
    elif isinstance(config.get("chat_template"), str):
        source = config["chat_template"]
    else:
        raise AgentError(
            "model.template",
            f"{directory} has no chat template",
            hint="expected `chat_template` in tokenizer_config.json, or chat_template.jinja",
        )
    # As transformers sets it up, for which templates are written.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _refuse(why: str) -> None:
    raise TemplateError(why)


def _mark(value: Any) -> str:
    """Return a special token; the file has it as text, as an object, or not at all."""
    return value["content"] if isinstance(value, dict) else value or ""


def prepare(settings: SmallSettings) -> None:
    """Load and warm the model, so that no session pays for the first reply's extra work."""
    model_of(settings).warm_up()


def create(settings: SmallSettings, clock: Clock) -> InProcessLLMService:
    """Make the service of one session; sessions with the same settings share the model."""
    model = model_of(settings)
    return InProcessLLMService(
        model,
        begins_in_thought=model.begins_in_thought,
        system_prompt=settings.system_prompt,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        seed=settings.seed,
    )
