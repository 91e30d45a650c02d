"""What a combined model reads from a conversation: its tools, and how hard a turn looks."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage

from turngap_services.llm.plain import offered, plain_messages

LONG = 12
VERY_LONG = 25

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_NUMBERS = """
    zero oh one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
    ninety hundred thousand half quarter first second third fourth fifth twelfth
"""
_TAKEN_BACK = """
    no not never none nor without sorry actually instead rather except don't doesn't didn't can't
    cannot won't isn't wasn't aren't unless wait
"""
# Words that say nothing about the topic.
_COMMON = """
    a an the i i'd i'll i'm you we it it's that that's this these those is are was be been do does
    did have has had can could will would should may might my your our me us and or but so if of
    to in on at for from with by as up out about what which who when where why how many much some
    any please thanks thank okay yes well just like get make want need let all there here its now
    only
"""
NUMBERS, TAKEN_BACK, COMMON = (frozenset(t.split()) for t in (_NUMBERS, _TAKEN_BACK, _COMMON))

# Keys of a parameter's JSON schema that say what the parameter is for, and what it may be.
_TELLING = ("description", "enum", "const")


def difficulty(said: str, before: Sequence[str] = (), *, tools: bool = False) -> tuple[str, ...]:
    """Return why the turn `said` looks hard, a point each; empty if it looks easy.

    Args:
        said: what the person says now.
        before: what anybody said in the conversation until then.
        tools: whether the turn looks like one for a tool (`is_about`).

    `long` (over 12 words) and `very_long` (over 25): more is asked for. `tools`: the answer has
    to be looked up. `numbers`: digits or number words, where small models go wrong first.
    `negation`: a word that denies or takes something back. `new_topic`: none of the turn's content
    words was said before.
    """
    words = _words(said)
    content = set(words) - COMMON
    is_new = bool(before and content) and content.isdisjoint(w for t in before for w in _words(t))
    reasons = {
        "long": len(words) > LONG,
        "very_long": len(words) > VERY_LONG,
        "tools": tools,
        "numbers": any(c.isdigit() for c in said) or not NUMBERS.isdisjoint(words),
        "negation": not TAKEN_BACK.isdisjoint(words),
        "new_topic": is_new,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def is_about(said: str, tools: Iterable[str]) -> bool:
    """Return whether the turn `said` has a content word of the tools' texts."""
    return not _content(said).isdisjoint(word for text in tools for word in _content(text))


def _words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


def _content(text: str) -> set[str]:
    """Return the content words; "today's" and "tomorrow's" give today and tomorrow."""
    return {word.removesuffix("'s") for word in _words(text)} - COMMON


def texts_of(tools: Sequence[FunctionSchema]) -> list[str]:
    """Return the tools' names and descriptions, and their parameters' names and values."""
    texts: list[str] = []
    for tool in tools:
        texts += [tool.name, tool.description or ""]
        texts += map(str, tool.properties) if isinstance(tool.properties, dict) else ()
        texts += _told(tool.properties)
    return texts


def _told(schema: Any) -> Iterator[str]:
    """Yield the telling texts anywhere in a schema, without the schema's keywords."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in _TELLING:
                yield from (str(v) for v in (value if isinstance(value, list) else [value]))
            else:
                yield from _told(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _told(value)


def last_words(context: LLMContext) -> tuple[str, list[str]]:
    """Return the conversation's last message, and the messages before it."""
    said = [m["content"] for m in plain_messages(context) if m["role"] != "system"]
    return (said[-1], said[:-1]) if said else ("", [])


def is_for_tool(context: LLMContext) -> bool:
    """Return whether the person's last words look like a request for one of the tools."""
    return is_about(last_words(context)[0], texts_of(offered(context)))


def follows_a_tool(context: LLMContext) -> bool:
    """Return whether the reply is to answer a tool's result instead of the person's words."""
    for message in reversed(context.get_messages()):
        if isinstance(message, LLMSpecificMessage):
            continue
        if message["role"] in ("user", "tool"):
            return message["role"] == "tool"
    return False


def written(call: FunctionCallFromLLM) -> str:
    """Return a call as text, the same for the same tool and arguments."""
    arguments = json.dumps(dict(call.arguments), sort_keys=True, default=str)
    return f"{call.function_name}({arguments})"
