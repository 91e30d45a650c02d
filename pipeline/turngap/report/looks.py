"""How outcomes and stages are drawn: one symbol, one colour and one meaning in all reports."""

from dataclasses import dataclass
from typing import Literal

from turngap.core.budget import Outcome

# Beside the word, never instead of it: a report must be readable without colour.
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
    """The look of a stage, and its explanation.

    `pattern` is a character that no other stage has: bars are readable in black and white.
    """

    pattern: str
    group: Group
    means: str


STAGES: dict[str, StageLook] = {
    "endpoint": StageLook("░", "listen", "until the agent decided that the turn was over"),
    "transcript": StageLook("▒", "listen", "until the final transcript was there"),
    "llm_request": StageLook("╱", "think", "until the language model was asked"),
    "tool_call": StageLook("╲", "think", "until it called a tool"),
    "tool_result": StageLook("┼", "think", "until the last of its tools had answered"),
    "llm_first_token": StageLook("█", "think", "until its first token"),
    "tts_request": StageLook("▚", "speak", "until the first words went to the voice"),
    "tts_first_audio": StageLook("▓", "speak", "until the voice gave its first audio"),
    "tts_first_audible": StageLook("·", "speak", "silence at the head of that audio"),
    "sent": StageLook("=", "line", "until that audio was written to the line"),
    "received": StageLook("»", "line", "until it reached the caller"),
    "agent_onset": StageLook(":", "line", "in the caller's playout, until it was heard"),
}
UNKNOWN_STAGE = StageLook("?", "unknown", "not explained by any mark that the agent reported")


def look_of(stage: str) -> StageLook:
    """Return how to draw a stage; unattributed time and unknown names look unexplained."""
    return STAGES.get(stage, UNKNOWN_STAGE)
