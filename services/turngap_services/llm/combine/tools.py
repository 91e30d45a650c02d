"""What a combined model knows of tools: which there are, what was called, who is to answer."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage

from turngap_services.llm.combine.difficulty import is_about
from turngap_services.llm.plain import plain_messages

# Of a parameter's JSON schema: what it is for, and what it may be.
_TELLING = ("description", "enum", "const")


def offered(context: LLMContext) -> Sequence[FunctionSchema]:
    """The tools that the conversation has."""
    tools = context.tools
    return tools.standard_tools if isinstance(tools, ToolsSchema) else ()


def texts_of(tools: Sequence[FunctionSchema]) -> list[str]:
    """What tools say of themselves: names, descriptions, parameters and their values."""
    texts: list[str] = []
    for tool in tools:
        texts += [tool.name, tool.description or "", *_names(tool.properties)]
        texts += _told(tool.properties)
    return texts


def is_for_tool(context: LLMContext) -> bool:
    """Whether the person's last words look like some for a tool of the conversation's."""
    messages = [m for m in plain_messages(context) if m["role"] != "system"]
    said = messages[-1]["content"] if messages else ""
    return is_about(said, texts_of(offered(context)))


def _names(properties: Any) -> list[str]:
    return [str(name) for name in properties] if isinstance(properties, dict) else []


def _told(schema: Any) -> Iterator[str]:
    """The texts anywhere in a schema that say what is meant; its keywords are not among them."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in _TELLING:
                yield from (str(v) for v in (value if isinstance(value, list) else [value]))
            else:
                yield from _told(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _told(value)


def follows_a_tool(context: LLMContext) -> bool:
    """Whether it is a tool's result that is to be answered, and not the person's words."""
    for message in reversed(context.get_messages()):
        if isinstance(message, LLMSpecificMessage):
            continue
        if message["role"] in ("user", "tool"):
            return message["role"] == "tool"
    return False


def written(call: FunctionCallFromLLM) -> str:
    """A call, as text: the same for the same tool and arguments."""
    arguments = json.dumps(dict(call.arguments), sort_keys=True, default=str)
    return f"{call.function_name}({arguments})"
