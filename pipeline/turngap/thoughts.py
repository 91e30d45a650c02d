"""Cut a model's thoughts out of its reply as it streams: they are not spoken, timed or judged.

Models that reason write their thoughts into the reply, between markers of their own, unless their
server takes them out. A marker may come in any number of pieces. Only text that may still become a
marker is held back: of "a < b", the "<" until the next character arrives.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from pipecat.frames.frames import (
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService

# Published models use these names: think (DeepSeek R1, Qwen3, GLM, Nemotron, Hunyuan, also with a
# suffix), thought (EXAONE), seed:think (Seed-OSS), mm:think (MiniMax), ifm|think (K2); thinking,
# reasoning and reason come from fine-tuned models and from prompts that ask for them.
_TAGS = (
    *("think", "thinking", "thought", "reasoning", "reason", "think:opensource"),
    *("seed:think", "mm:think", "ifm|think", "ifm|think_fast", "ifm|think_faster"),
)
# What ends a message of gpt-oss, whose channels are messages of their own.
_FINAL = "<|channel|>final<|message|>"

# Each marker that begins a thought, with those that end it.
_OPENS: dict[str, tuple[str, ...]] = {
    **{f"<{name}>": (f"</{name}>",) for name in _TAGS},
    "[THINK]": ("[/THINK]",),  # Magistral
    "◁think▷": ("◁/think▷",),  # Kimi
    "<|open|>think<|sep|>": ("<|close|>think<|sep|>",),  # Kimi K3
    "<|begin_of_thought|>": ("<|end_of_thought|>",),  # OpenThinker
    "<|START_THINKING|>": ("<|END_THINKING|>",),  # Command A
    "<|channel>thought": ("<channel|>",),  # Gemma 4
    "<|channel|>analysis": ("<|end|>", _FINAL),  # gpt-oss
    "<|channel|>commentary": ("<|end|>", "<|call|>", _FINAL),  # its calls of tools
}
# Around an answer. They are no words either.
_FRAMES = (
    *("<answer>", "</answer>", "<|start|>assistant", _FINAL, "<|end|>", "<|return|>", "<|call|>"),
    *("<|begin_of_solution|>", "<|end_of_solution|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
)


class _Markers:
    """Markers that count at the same time. No marker is the beginning of another."""

    def __init__(self, *markers: str) -> None:
        every = "|".join(re.escape(marker) for marker in dict.fromkeys(markers))
        self._pattern = re.compile(every, re.IGNORECASE | re.ASCII)
        self._begun = frozenset(m[:n].lower() for m in markers for n in range(1, len(m)))
        self._longest = max(len(marker) for marker in markers) - 1

    def next(self, text: str) -> tuple[str, str, str] | None:
        """Return the text before the first marker, the marker in lower case, and the rest."""
        found = self._pattern.search(text)
        return found and (text[: found.start()], found[0].lower(), text[found.end() :])

    def split(self, text: str) -> tuple[str, str]:
        """Return the text, and separately its end if that may be the beginning of a marker."""
        for at in range(max(0, len(text) - self._longest), len(text)):
            if text[at:].lower() in self._begun:
                return text[:at], text[at:]
        return text, ""


_CLOSES = {close.lower() for closes in _OPENS.values() for close in closes} - {
    frame.lower() for frame in _FRAMES
}
_OUTSIDE = _Markers(*_OPENS, *_CLOSES, *_FRAMES)
# Only tags nest: a message of a channel ends before the next one begins.
_INSIDE = {
    start.lower(): _Markers(*ends, *([start] if ends[0].startswith("</") else []))
    for start, ends in _OPENS.items()
}
# Of a thought that the prompt began: the model may begin it once more.
_BEGUN = _Markers(*_OPENS, *_CLOSES, _FINAL)


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a reply that may be spoken, and the part that was thought."""

    spoken: str
    thought: str


class ThoughtCut:
    """Cutter of thoughts from one reply: call `feed` with each piece, and `finish` at its end.

    The outcome does not depend on how the reply is cut into pieces. A thought within a thought
    belongs to it. Nothing is spoken after a thought that does not end. White space at the beginning
    of the reply is removed; around a thought, it becomes one space between words.

    Args:
        begun: whether the reply begins within a thought, as some chat templates begin one.

    Attributes:
        leaked: whether a thought ended that had not begun, after words that were already spoken.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self._held = ""
        self._markers = _BEGUN if begun else _OUTSIDE
        self._depth = 0  # of thoughts within one another
        self._fresh = True  # nothing was spoken since the beginning or the last thought
        self._last = ""  # the last character that was spoken
        self.leaked = False

    def feed(self, text: str) -> Cut:
        """Take the next piece."""
        text, spoken, thought = self._held + text, "", ""
        while True:
            found = self._markers.next(text)
            passed, self._held = (found[0], "") if found else self._markers.split(text)
            if self._markers is _OUTSIDE:
                spoken += self._said(passed)
            else:
                thought += passed
            if not found:
                return Cut(spoken, thought)
            _, marker, text = found
            self._pass(marker)

    def told_apart(self) -> None:
        """Note that the server removes the thoughts, including one that the prompt began."""
        if self._markers is _BEGUN:
            self._markers = _OUTSIDE

    def finish(self) -> Cut:
        """Take the end. Text held back is half a marker, or one character after words."""
        held, self._held = self._held, ""
        if self._markers is _OUTSIDE and len(held) == 1 and not self._fresh:
            return Cut(self._said(held), "")
        return Cut("", held)

    def _pass(self, marker: str) -> None:
        opens = marker in _INSIDE
        if self._markers is _OUTSIDE:
            if opens:
                self._markers, self._depth = _INSIDE[marker], 1
            self.leaked = self.leaked or (marker in _CLOSES and self._last != "")
        elif opens:
            # The prompt had begun it already, so it is the same one.
            self._markers, self._depth = _INSIDE[marker], self._depth + 1
        else:
            self._depth -= 1
            if self._depth <= 0:
                self._markers, self._depth = _OUTSIDE, 0
        self._fresh = True

    def _said(self, text: str) -> str:
        if self._fresh:
            text = text.lstrip()
            if text and self._last and not self._last.isspace():
                text = f" {text}"
        if text:
            self._fresh, self._last = False, text[-1]
        return text


def is_of_marker(token: str) -> bool:
    """Return whether a special token of a tokenizer is a marker, or a part of one."""
    return any(token.lower() in each.lower() for each in (*_OPENS, *_CLOSES, *_FRAMES) if token)


def ends_within_thought(prompt: str) -> bool:
    """Return whether a prompt begins a thought at its end, so the reply begins within it."""
    return prompt.rstrip().lower().endswith(tuple(_INSIDE))


def without_thoughts(text: str) -> str:
    """Return the spoken part of a whole reply, also of one that begins within a thought."""
    for begun in (False, True):
        cut = ThoughtCut(begun=begun)
        spoken = cut.feed(text).spoken + cut.finish().spoken
        if not cut.leaked:
            break
    return spoken


# --- the guard of an LLM service ------------------------------------------------------------------

# Set on a service whose chat template begins the reply within a thought.
BEGINS_IN_THOUGHT = "begins_in_thought"


def guard_thoughts(llm: FrameProcessor) -> None:
    """Cut thoughts out of what a service says, and push them as `LLMThoughtTextFrame`s.

    Each thought is framed by a start and an end, or pipecat's aggregator would collect the thoughts
    of a whole session.
    All of pipecat's services say text by `_push_llm_text`, which also ends their time to the first
    token of the answer. Any other processor stays as it is.
    """
    if isinstance(llm, LLMService):
        _Guard(llm)


class _Guard:
    """Guarded versions of an LLM service's methods."""

    def __init__(self, llm: LLMService[Any]) -> None:
        self._llm = llm
        self._cut = ThoughtCut()
        self._cut_out: Frame | None = None  # the latest thought that was cut out here
        self._thinks = False  # a thought was begun downstream
        self._say, self._push, self._infer = llm._push_llm_text, llm.push_frame, llm.run_inference
        llm._push_llm_text, llm.push_frame = self._push_llm_text, self.push_frame
        llm.run_inference = self.run_inference

    async def _push_llm_text(self, text: str) -> None:
        await self._tell(self._cut.feed(text))

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        match frame:
            case LLMFullResponseStartFrame():
                self._cut = ThoughtCut(begun=getattr(self._llm, BEGINS_IN_THOUGHT, False))
                self._thinks = False
            case LLMFullResponseEndFrame():
                if not _cancelled():
                    await self._finish()
                await self._end_thought()
            case LLMThoughtStartFrame() | LLMThoughtEndFrame():
                self._thinks = isinstance(frame, LLMThoughtStartFrame)
            case LLMThoughtTextFrame():
                if frame is not self._cut_out:
                    self._cut.told_apart()
                if not self._thinks:
                    await self._llm.push_frame(LLMThoughtStartFrame())
            case LLMTextFrame():
                await self._end_thought()
            case _:
                pass
        await self._push(frame, direction)

    async def _finish(self) -> None:
        await self._tell(self._cut.finish())
        if self._cut.leaked:
            await self._llm.push_error(
                "the reply began with a thought that nothing announced, and was spoken; start "
                "the server with its reasoning parser, or choose a model that does not think"
            )

    async def _end_thought(self) -> None:
        if self._thinks:
            await self._llm.push_frame(LLMThoughtEndFrame())

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        answer = await self._infer(*args, **kwargs)
        return answer and without_thoughts(answer)

    async def _tell(self, cut: Cut) -> None:
        if cut.thought:
            self._cut_out = LLMThoughtTextFrame(text=cut.thought)
            await self._llm.push_frame(self._cut_out)
        if cut.spoken:
            await self._say(cut.spoken)


def _cancelled() -> bool:
    """Return whether the reply is being interrupted."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
