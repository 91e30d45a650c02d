"""RTVI, the messages of pipecat's clients, carried by protobuf frames or JSON.

Their names are those of pipecat's own models and observer, from 0.0.108 (RTVI 1.2.0) to 1.14
(2.2.0). turngap's own messages are RTVI client and server messages with the key `turngap`.

The same text may come under several names: `user-input` and `stt-raw-text` replace
`user-transcription` since 1.13, `llm-raw-text` replaces `bot-llm-text`, which 2.0 removes, and
`bot-output` has the reply once more, by the sentence. Old and new names come together if both are
on, so each text is taken under one name only.
"""

from collections.abc import Mapping
from typing import Any

from turngap.caller.said import (
    Fault,
    Flush,
    Incoming,
    Marks,
    NoReply,
    Pong,
    Ready,
    ReplyDone,
    ReplyDue,
    ReplyText,
    Transcript,
    TurnOver,
)
from turngap.core.events import ToolCall
from turngap.core.untrusted import printable, shown, whole
from turngap.core.wire import PING

RTVI_LABEL = "rtvi-ai"
# The version that pipecat 1.14 serves, and from which on it sends its raw texts. A bot with an
# older major version objects in an error-response and continues.
RTVI_VERSION = "2.2.0"

# The names of what the person said and of the reply, best first. Where pipecat sends the same text
# by two of them, the better one comes first, so that the other is known to be a repetition.
_TRANSCRIPTS = ("user-input", "stt-raw-text", "user-transcription")
_REPLIES = ("llm-raw-text", "bot-llm-text", "bot-output")


def rtvi(kind: str, data: Any = None, number: int = 0) -> dict[str, Any]:
    """Make an RTVI message."""
    return {"label": RTVI_LABEL, "type": kind, "id": str(number), "data": data}


def client_ready() -> dict[str, Any]:
    """Make the message that opens a conversation."""
    return rtvi("client-ready", {"version": RTVI_VERSION, "about": {"library": "turngap"}})


def ping(number: int) -> dict[str, Any]:
    """Make a client message that only an agent with turngap's observer answers."""
    return rtvi("client-message", {"t": PING, "d": {"ping": number}}, number)


class RtviReader:
    """Reads one conversation's RTVI messages.

    Attributes:
        flush_told: whether the agent has reported that it was interrupted, by any message.
    """

    def __init__(self) -> None:
        self.flush_told = False
        self._transcripts, self._replies = _Best(_TRANSCRIPTS), _Best(_REPLIES)
        self._segment = -1  # the latest of `bot-output`; they are numbered upwards
        self._tells_interruptions = True
        self._user_speaks = False
        self._due = self._answered = False  # the LLM or a tool is at work; the LLM has said a text

    def read(self, payload: Mapping[str, Any]) -> list[Incoming]:
        """Return the events in a message, in order.

        Raises:
            ValueError: a part that it needs is missing or of another kind.
        """
        if payload.get("label") != RTVI_LABEL:
            return []  # a bot may send other messages to its own client
        data = payload.get("data")
        match payload.get("type"):
            case "bot-ready":
                version = data.get("version") if isinstance(data, dict) else None
                self._tells_interruptions = not str(version).startswith("1.")
                return [Ready()]
            case "user-started-speaking":
                self._user_speaks, self._due, self._answered = True, False, False
                return []
            case "user-stopped-speaking":  # by its turn-taking; a VAD's stop has another name
                self._user_speaks = False
                return [TurnOver()]
            case "bot-stopped-speaking":
                return self._stopped()
            case str(kind) if kind.startswith(("bot-llm-st", "llm-function-call")):
                return self._at_work(kind)
            case str(kind) if isinstance(data, dict):
                return self._read_data(kind, data)
            case _:
                return []

    def _at_work(self, kind: str) -> list[Incoming]:
        """Note that the LLM begins or ends a reply, or calls a tool, whose result it answers."""
        if kind == "bot-llm-stopped":
            self._due = not self._answered  # without a text, it has called a tool
            return [ReplyText(" ")]  # what follows is another reply
        self._due, self._answered = True, False
        return [ReplyDue()]

    def _stopped(self) -> list[Incoming]:
        """Note that the bot has ended its speech.

        RTVI 1 has no message for an interruption, nor has the protobuf of pipecat up to 1.0: a bot
        that stops while the person speaks has dropped what it had not sent.
        """
        interrupted = self._user_speaks and not (self.flush_told or self._tells_interruptions)
        done: list[Incoming] = [] if self._due else [ReplyDone(whole=self._answered)]
        return [Flush(guessed=True), *done] if interrupted else done

    def _read_data(self, kind: str, data: dict[str, Any]) -> list[Incoming]:
        if kind in _TRANSCRIPTS:
            spoken = data.get("input_type", "transcription") == "transcription"
            taken = spoken and data.get("final") and self._transcripts.takes(kind)
            return [Transcript(data.get("text", ""))] if taken else []
        if kind in _REPLIES:
            return self._read_reply(kind, data)
        if kind == "server-message":
            told = _read_own(data)
            return [] if told is None else [told]
        if kind in ("error", "error-response"):
            text = data.get("error") or data.get("message") or "unspecified"
            words = text if isinstance(text, str) else shown(text)
            return [Fault(words, data.get("fatal") is True, refuses=kind == "error-response")]
        return []

    def _read_reply(self, kind: str, data: dict[str, Any]) -> list[Incoming]:
        if kind != "bot-output":
            self._answered = True
            return [ReplyText(data.get("text", ""))] if self._replies.takes(kind) else []
        # It comes again whenever a word of it has been spoken. RTVI 1 does not number it.
        segment = data.get("segment_id")
        if segment is None or whole(segment) <= self._segment or not self._replies.takes(kind):
            return []
        self._segment = whole(segment)
        return [ReplyText(data.get("text", "")), ReplyText(" ")]


class _Best:
    """A choice among the names under which a text comes: the best name so far."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._best = len(names)

    def takes(self, name: str) -> bool:
        rank = self._names.index(name)
        self._best = min(self._best, rank)
        return rank == self._best


def _read_own(data: dict[str, Any]) -> Incoming | None:
    try:
        match data.get("turngap"):
            case "marks":
                calls = data.get("calls")
                told = None if calls is None else tuple(_call(call) for call in calls)
                about = (data.get("counts") or {}, data.get("why"), data.get("error"), told)
                marks, why = Marks(data["turn"], data["marks"], *about), data.get("no_reply")
                return marks if marks.marks or not why else NoReply(why)
            case "pong":
                return Pong(data["ping"], data["agent_ns"])
            case _:
                return None
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        said = str(e) if isinstance(e, ValueError) else repr(e)
        raise ValueError(f"a malformed turngap message: {printable(said, 200)}") from e


def _call(call: dict[str, Any]) -> ToolCall:
    about = (call.get("ms"), call.get("result"), call.get("error"))
    return ToolCall(call["name"], call.get("arguments") or {}, *about)
