"""What a scripted agent is to do: `turngap.testing.agent` does it."""

import json
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Reply:
    """What the agent does after one utterance of the user.

    Attributes:
        delay_ms: from the user's last audible sample to the first sample sent. Must exceed the
            agent's `hold_ms`, by which it knows that the user has ended.
        pad_ms: inaudible audio before the speech; digital silence, or noise at `pad_dbfs`.
        chunk_ms: how much audio a message holds.
        paced: send in real time, one chunk ahead (as pipecat does), or all at once.
        action: what else may happen: no answer; the agent falls silent in the middle of its answer
            and reports nothing; the process dies instead of answering, or in the middle of it; or
            something unintelligible is sent.
    """

    delay_ms: float = 300.0
    pad_ms: float = 0.0
    pad_dbfs: float | None = None
    speech_ms: float = 400.0
    chunk_ms: float = 20.0
    paced: bool = True
    text: str = "scripted reply"
    action: Literal["answer", "silence", "break_off", "die", "die_midway", "garbage"] = "answer"


@dataclass(frozen=True, slots=True)
class Script:
    """The whole of a scripted agent. Replies are used in order and over again.

    Attributes:
        hold_ms: silence after which the user's speech counts as ended.
        yield_ms: how long after the user's first audible sample a reply, begun or about to, is
            flushed; None: it is not, and the next one follows on it. Less than a packet and a
            window of detection (30 ms) cannot be kept.
        rate: of the audio sent, Hz.
        marks: report the marks that a scripted agent has: endpoint, tts_first_audio, sent.
        clock_shift_ms: added to every instant that the agent reports, to test clock comparison.
        greets: answer RTVI's client-ready.
        welcome_ms: how long it speaks, unasked, `welcome_after_ms` after it is ready.
        idle_dbfs: level of the noise that it sends while it says nothing, as agents on telephone
            lines do; None: it sends nothing then.
    """

    replies: tuple[Reply, ...] = (Reply(),)
    hold_ms: float = 100.0
    yield_ms: float | None = 200.0
    rate: int = 24_000
    marks: bool = True
    clock_shift_ms: float = 0.0
    greets: bool = True
    welcome_ms: float = 0.0
    welcome_after_ms: float = 0.0
    idle_dbfs: float | None = None


def script_from_json(text: str) -> Script:
    """A script from its JSON form (`script_to_json`)."""
    values = json.loads(text)
    replies = tuple(Reply(**r) for r in values.pop("replies", [{}]))
    return Script(replies=replies, **values)


def script_to_json(script: Script) -> str:
    """A script as the JSON that `python -m turngap.testing.agent` takes."""
    return json.dumps(asdict(script))
