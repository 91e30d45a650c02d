"""Symbols and colours of outcomes and stages, the same in all reports."""

from dataclasses import dataclass
from typing import Literal

from turngap.core.budget import Outcome
from turngap.core.untrusted import printable

# With the word, never instead of it: a report must be readable without colour.
SYMBOLS: dict[Outcome, str] = {
    "answered": "✓",
    "late": "!",
    "no_reply": "∅",
    "cut_in": "«",
    "abandoned": "–",
    "error": "✗",
}
OUTCOME_MEANS: dict[Outcome, str] = {
    "answered": "the reply began within the budget",
    "late": "the reply began, but over the budget",
    "no_reply": "the caller waited and heard nothing",
    "cut_in": "the agent began before the person had finished",
    "abandoned": "the person spoke again before any reply",
    "error": "the line or the agent failed",
}

# What a colour means, the same in each table and drawing; the second five are groups of stages.
Group = Literal["listen", "think", "speak", "line", "unknown"]
Style = Literal["", "strong", "dim", "good", "bad", "odd", "unsure"] | Group
OUTCOME_STYLES: dict[Outcome, Style] = {
    "answered": "good",
    "late": "bad",
    "no_reply": "bad",
    "cut_in": "odd",
    "abandoned": "",
    "error": "bad",
}


@dataclass(frozen=True, slots=True)
class StageLook:
    """The look of a stage, its name in reports, and its explanation.

    `pattern` is a character that no other stage has: bars are readable in black and white. `owner`:
    the setting or part of the agent that decides how long the stage takes.
    """

    pattern: str
    group: Group
    name: str
    means: str
    owner: str


# fmt: off
STAGES: dict[str, StageLook] = {
    "line_up": StageLook(
        "→", "line", "line, up", "until the person's last word had crossed the line",
        "the network: compare other lines with --line",
    ),
    "endpoint": StageLook(
        "░", "listen", "end of turn decided", "until the agent decided that the turn was over",
        "`stop_secs` of the VAD and `user_speech_timeout` of the turn strategy; watch the cut-ins",
    ),
    "transcript": StageLook(
        "▒", "listen", "transcript final", "until the final transcript was there",
        "the recogniser: a smaller model, or one that streams",
    ),
    "llm_request": StageLook(
        "╱", "think", "LLM asked", "until the language model was asked",
        "what it does between transcript and LLM: retrieval, filters, context",
    ),
    "tool_call": StageLook(
        "╲", "think", "tool called", "until it called a tool",
        "the LLM: a faster model, or a shorter prompt",
    ),
    "tool_result": StageLook(
        "┼", "think", "tool answered", "until the last of its tools had answered",
        "the tools, or a phrase that is spoken while they work",
    ),
    "llm_first_token": StageLook(
        "█", "think", "first token", "until its first token",
        "the LLM: a faster model, a nearer server, or a shorter prompt",
    ),
    "tts_request": StageLook(
        "▚", "speak", "first sentence", "until the LLM had written the first sentence",
        "the LLM's tokens per second, and how long its first sentence is",
    ),
    "tts_first_audio": StageLook(
        "▓", "speak", "first audio", "until the voice gave its first audio",
        "the voice: a faster or a streaming one",
    ),
    "tts_first_audible": StageLook(
        "·", "speak", "silence before speech", "silence at the head of that audio",
        "the voice, whose audio begins with silence",
    ),
    "sent": StageLook(
        "=", "line", "audio sent", "until that audio was written to the line",
        "the output transport: how much audio it holds back",
    ),
    "received": StageLook(
        "»", "line", "audio received", "until it reached the caller",
        "the network, or an agent that sends audio in bursts",
    ),
    "line_down": StageLook(
        "←", "line", "line, down", "until that audio had crossed the line",
        "the network: compare other lines with --line",
    ),
    "agent_onset": StageLook(
        "¦", "line", "first word played", "in the caller's playout, until it was heard",
        "sound that is no speech before the first word, or audio that arrives late",
    ),
}
# fmt: on
UNKNOWN_STAGE = StageLook(
    "?", "unknown", "unattributed", "not explained by any mark that the agent reported", ""
)


def look_of(stage: str) -> StageLook:
    """Return how to draw a stage; unattributed time and unknown names look unexplained."""
    return STAGES.get(stage, UNKNOWN_STAGE)


def short_name(stage: str) -> str:
    """Name a stage in a reader's words: `first sentence`; an unknown one by its own name."""
    return STAGES[stage].name if stage in STAGES else printable(stage)


def full_name(stage: str) -> str:
    """Name a stage in a reader's words and as budgets do: `first sentence (tts_request)`."""
    return f"{STAGES[stage].name} ({stage})" if stage in STAGES else printable(stage)
