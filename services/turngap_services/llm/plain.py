"""A conversation as roles and texts, for models that know no provider's message format."""

import json
from typing import Any, TypedDict

from pipecat.adapters.llm.base_llm_adapter import BaseLLMAdapter
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.services.settings import LLMSettings


class PlainParams(TypedDict):
    """What such a model is asked with."""

    messages: list[dict[str, Any]]


class PlainAdapter(BaseLLMAdapter[PlainParams]):
    """Plain messages. The default adapter would import the OpenAI SDK: a second, for nothing."""

    @property
    def id_for_llm_specific_messages(self) -> str:
        """No provider writes messages for it."""
        return "plain"

    async def get_llm_invocation_params(self, context: LLMContext, **kwargs: Any) -> PlainParams:
        """The conversation as roles and texts."""
        return {"messages": plain_messages(context)}

    def to_provider_tools_format(self, tools_schema: ToolsSchema) -> list[Any]:
        """It calls no tools."""
        return []

    def get_messages_for_logging(self, context: LLMContext) -> list[dict[str, Any]]:
        """The conversation as roles and texts."""
        return plain_messages(context)


def plain_settings(
    model: str,
    *,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
) -> LLMSettings:
    """Pipecat's settings of such a model: it wants every one of them named."""
    return LLMSettings(
        model=model,
        system_instruction=None,
        temperature=temperature,
        max_tokens=max_tokens,
        top_p=None,
        top_k=None,
        frequency_penalty=None,
        presence_penalty=None,
        seed=seed,
        filter_incomplete_user_turns=False,
        user_turn_completion_config=None,
    )


def plain_messages(context: LLMContext, *, tools: bool = False) -> list[dict[str, Any]]:
    """Role and text of each message of the conversation.

    Calls of tools and their results are left out, as these models know none of either; with `tools`
    they are told as text, in the role `tool`.
    """
    plain: list[dict[str, Any]] = []
    for message in context.get_messages():
        if isinstance(message, LLMSpecificMessage):
            continue
        calls = message.get("tool_calls")
        if calls or message["role"] == "tool":
            if tools:
                text = json.dumps(calls) if calls else _text(message.get("content"))
                plain.append({"role": "tool", "content": text})
        else:
            plain.append({"role": message["role"], "content": _text(message.get("content"))})
    return plain


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(p["text"] for p in parts if isinstance(p, dict) and p.get("type") == "text")
