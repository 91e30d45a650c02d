"""What is told of a conversation, a turn and a stage, by the names in `turngap.telemetry.names`."""

import os
from collections.abc import Mapping
from typing import Any

from turngap.core.counts import claimed_gap
from turngap.core.errors import TurngapError
from turngap.core.results import Turn
from turngap.core.secrets import texts_without_secrets
from turngap.core.stages import Stage
from turngap.telemetry.names import INVOKE_AGENT

Attributes = dict[str, Any]

# Outcomes in which the agent failed the person altogether.
FAILED = ("error", "no_reply")


def conversation_attributes(about: Mapping[str, Any], agent: str) -> Attributes:
    """Build a conversation's attributes before it begins; `about` has turngap's own names."""
    told = {"gen_ai.operation.name": INVOKE_AGENT, "gen_ai.agent.name": agent}
    return known(told | dict(about))


def turn_attributes(turn: Turn, conversation: str, *, contents: bool) -> Attributes:
    """Build the attributes of a turn's span; `contents` adds what was said, in words."""
    claim, source = claimed_ms(turn)
    told: Attributes = {
        "gen_ai.conversation.id": conversation,
        "error.type": turn.outcome if turn.outcome in FAILED else None,
        "turngap.turn": turn.turn,
        "turngap.llm": turn.llm,
        "turngap.outcome": turn.outcome,
        "turngap.gap_ms": turn.gap_ms,
        "turngap.why_no_gap": turn.why_no_gap,
        "turngap.cut_in": turn.outcome == "cut_in",
        "turngap.budget_ms": turn.budget_ms,
        "turngap.within_budget": turn.outcome == "answered",
        "turngap.agent.gap_ms": claim,
        "turngap.agent.gap_source": source,
        "turngap.gap_difference_ms": difference_ms(turn),
        "turngap.lead_ms": turn.lead_ms,
        "turngap.yield_ms": turn.yield_ms,
        "turngap.right": turn.right,
        "turngap.tools": [call.name for call in turn.calls or ()] or None,
        "turngap.error": turn.error,
        "turngap.left_out": turn.left_out,
        "turngap.starved": turn.pacing.starved,
        "turngap.late_ms": turn.pacing.late_ms_max,
    }
    if contents:
        spoken = {"say": turn.say, "transcript": turn.transcript, "reply": turn.reply}
        told |= {f"turngap.{name}": text for name, text in spoken.items()}
    return known(told)


def stage_attributes(stage: Stage) -> Attributes:
    """Build the attributes of a stage's span, which no tool may mistake for an LLM call."""
    return {"turngap.stage": stage.name, "turngap.stage_ms": stage.ms}


def error_type(error: BaseException) -> str:
    """Return the kind of the error, of which there are few."""
    return error.kind if isinstance(error, TurngapError) else type(error).__name__


def claimed_ms(turn: Turn) -> tuple[float | None, str | None]:
    """Return the gap that the agent claims, and its source; None if it claims none."""
    return claimed_gap(turn.counts)


def difference_ms(turn: Turn) -> float | None:
    """Subtract the claimed gap from the heard one; None if either is not known."""
    claim, _ = claimed_ms(turn)
    return None if claim is None or turn.gap_ms is None else turn.gap_ms - claim


def contents_wanted() -> bool:
    """Return whether to send what was said: by the conventions, only on request."""
    name = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
    return os.environ.get(name, "").strip().lower() in ("true", "1", "span_only", "span_and_event")


def known(told: Mapping[str, Any]) -> Attributes:
    """Leave out what is not known, and every secret."""
    return texts_without_secrets({name: v for name, v in told.items() if v is not None and v != ""})
