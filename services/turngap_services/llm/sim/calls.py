"""What the simulated model knows of tools: which it may call, what they gave, how it says that."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage

if TYPE_CHECKING:
    from turngap.scenario.model import Call

_PLACE = re.compile(r"\{(\w+)\}")


def offers(context: LLMContext, calls: Iterable["Call"]) -> bool:
    """Whether the conversation has a tool for each of the calls."""
    tools = context.tools
    names = {tool.name for tool in tools.standard_tools} if isinstance(tools, ToolsSchema) else ()
    return all(call.name in names for call in calls)


def results_of(context: LLMContext) -> dict[str, Any] | None:
    """What the tools called since the person's last words gave, by key; None: none was called."""
    results: dict[str, Any] | None = None
    for message in context.get_messages():
        if isinstance(message, LLMSpecificMessage):
            continue
        if message["role"] == "user":
            results = None
        elif message["role"] == "tool":
            results = (results or {}) | _values(message.get("content"))
    return results


def _values(content: Any) -> dict[str, Any]:
    """A result's values; a tool that failed has none, only words about that."""
    try:
        result = json.loads(content)
    except (TypeError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def filled(reply: str, results: Mapping[str, Any]) -> str | None:
    """The reply with each `{key}` replaced by what the tools gave; None where they did not."""
    if not set(_PLACE.findall(reply)) <= results.keys():
        return None
    return _PLACE.sub(lambda place: str(results[place[1]]), reply)


def written(calls: Iterable["Call"]) -> str:
    """The calls as a model writes them, token by token."""
    return json.dumps([call.model_dump() for call in calls])


def requests(calls: Iterable["Call"], context: LLMContext) -> list[FunctionCallFromLLM]:
    """The calls as pipecat runs them."""
    return [
        FunctionCallFromLLM(
            function_name=call.name,
            tool_call_id=f"call_{uuid4().hex}",
            arguments=dict(call.arguments),
            context=context,
        )
        for call in calls
    ]
