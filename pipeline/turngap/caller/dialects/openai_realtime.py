"""The `openai-realtime` dialect: OpenAI's Realtime API over a WebSocket, and compatible servers.

Audio comes faster than it is played. When the server hears the person, the caller drops unplayed
audio and reports to the server how much was heard. Sent messages have the types of the `openai`
library; received ones are read leniently, as servers leave out different parts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from turngap.caller.dialects.encoding import Encoding
from turngap.caller.dialects.json_events import event_of, inside, name_in
from turngap.caller.dialects.played_items import Part, PlayedItems
from turngap.caller.dialects.realtime_setup import OpenAIRealtimeSettings, Setup, read_setup
from turngap.caller.dialects.registry import DialectSpec, Key
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import (
    RATES,
    Fault,
    Flush,
    Incoming,
    Message,
    Ready,
    ReplyDone,
    ReplyDue,
    ReplyText,
    Transcript,
    TurnOver,
)
from turngap.caller.wav import WavReader

if TYPE_CHECKING:  # the library takes over a second to import, and only its types are needed
    from openai.types.realtime.conversation_item_truncate_event_param import (
        ConversationItemTruncateEventParam,
    )
    from openai.types.realtime.input_audio_buffer_append_event_param import (
        InputAudioBufferAppendEventParam,
    )

# The caller's events carry ids that begin so; an error that names one refuses that event.
OURS = "turngap-"
NO_TURNS = (
    "the server finds no turns itself (its turn_detection is null, though asked for): let the "
    "caller end them, as an application would, for example half a second after the last word: "
    "--dialect openai-realtime,commit_ms=500"
)
# Replies that were interrupted and may still send audio. Few servers have two at once.
MOST_DEAD = 64


class OpenAIRealtimeSession(PlainSession):
    """Speaks to a server of OpenAI's Realtime API, in its present or its beta form.

    The server speaks first (`session.created`, or `conversation.created`). Its answer to our
    `session.update` says that it is ready.
    """

    name = "openai-realtime"

    def __init__(self, settings: OpenAIRealtimeSettings) -> None:
        super().__init__()
        self._settings = settings
        self._up = Encoding.of(settings.format, settings.rate)
        self._down = Encoding.of(settings.reply_format or settings.format, settings.reply_rate)
        self.rate = self._up.rate
        self._asked = self._ready = False
        self._interrupts = True  # its VAD interrupts replies
        self._told_over = False  # it has said that this turn is over
        self._open = ""  # the reply that is being made
        self._dead: dict[str, None] = {}  # interrupted replies, oldest first
        self._texted = ""  # the item whose text came last
        self._items = PlayedItems()
        self._wav = WavReader()
        self._sent = 0
        self._heard = 0  # samples of the person
        self._ends: list[int] = []  # after which of them the caller ends a turn

    # The agent's messages

    def open(self) -> list[Incoming]:
        """Wait for the server, whose first event shows which form of the API it speaks."""
        return []

    def receive_data(self, message: Message) -> list[Incoming]:
        event = event_of(message)
        match event["type"]:
            case "session.created" | "conversation.created" if not self._asked:
                self._ask(read_setup(event))
            case "session.updated":
                return self._updated(read_setup(event))
            case "error":
                return [self._fault(inside(event, "error"))]
            case str(kind) if kind.startswith("response."):
                return self._reply(kind.removeprefix("response.").replace("output_", ""), event)
            case "input_audio_buffer.speech_started":
                return self._heard_person()
            case "input_audio_buffer.speech_stopped":
                self._told_over = True
                return [TurnOver()]
            case "input_audio_buffer.committed" if not self._told_over:
                return [TurnOver()]
            case "conversation.item.input_audio_transcription.completed":
                return [Transcript(event.get("transcript", ""))]
            case _:
                pass
        return []

    def _ask(self, told: Setup) -> None:
        self._asked = True
        self._interrupts = told.interrupts
        update = told.update(self._settings, self._up, self._down)
        self._send({"type": "session.update", "event_id": f"{OURS}update", "session": update})

    def _updated(self, told: Setup) -> list[Incoming]:
        if not self._asked:
            self._ask(told)
            return []
        self._interrupts = told.interrupts
        if self._ready:
            return []
        if told.manual and self._settings.commit_ms is None:
            return [Fault(NO_TURNS, fatal=True, error_kind="agent.no_turns")]
        rate = told.output.rate  # of replies, which the server may choose for PCM
        if rate in RATES and told.output.kind == self._down.kind:
            self._down = replace(self._down, rate=rate)
        if why := told.input.differs(self._up):
            return [Fault(f"it takes {why}", fatal=True)]
        if why := told.output.differs(self._down):
            return [Fault(f"it sends {why}", fatal=True)]
        self._ready = True
        return [Ready()]

    def _fault(self, error: Mapping[str, Any]) -> Fault:
        text = error.get("message") or error.get("code") or "unspecified"
        ours = name_in(error, "event_id").startswith(OURS)
        refuses = ours or error.get("type") == "invalid_request_error"
        return Fault(str(text), fatal=not self._ready, refuses=self._ready and refuses)

    # Replies

    def _reply(self, kind: str, event: Mapping[str, Any]) -> list[Incoming]:
        """Read an event of a reply; its kind is as in the beta, which has no `output_`."""
        if kind == "created":
            self._open = name_in(inside(event, "response"), "id")
            self._dead.pop(self._open, None)
            if not self._open:  # without ids, only its beginning separates it from the last one
                self._dead.clear()
            return [ReplyDue()]
        if kind in ("done", "cancelled"):
            return self._reply_over(kind, inside(event, "response") or event)
        item = name_in(event, "item_id")
        reply = name_in(event, "response_id") or self._open or item
        if reply in self._dead:
            return []
        if kind == "audio.delta":
            return self._audio(Part(reply, item, _index(event)), event)
        if kind == "audio_transcript.delta":
            self._texted = item
            return [ReplyText(event.get("delta", ""))]
        if kind == "audio_transcript.done" and self._texted != item:
            return [ReplyText(event.get("transcript", ""))]  # it sends no pieces
        return []

    def _audio(self, part: Part, event: Mapping[str, Any]) -> list[Incoming]:
        chunk = self._wav.read(self._down.audio(event.get("delta")))
        self._items.add(part, len(chunk.pcm))
        return [chunk]

    def _reply_over(self, kind: str, response: Mapping[str, Any]) -> list[Incoming]:
        reply = name_in(response, "id") or name_in(response, "response_id") or self._open
        status = "cancelled" if kind == "cancelled" else response.get("status")
        interrupted = reply in self._dead
        self._open = "" if reply == self._open else self._open
        said: list[Incoming] = []
        waiting = self._items.waiting()
        if status == "cancelled" and not interrupted:
            # It has not said that it heard the person, or says so only now (speech-to-speech).
            only_this = all(part.reply == reply for part in waiting)
            said += self._interrupt([reply], flush=bool(waiting) and only_this)
        if status == "failed":
            error = inside(response, "status_details", "error")
            why = error.get("message") or error.get("code") or "the reply failed"
            said.append(Fault(str(why), fatal=False))
        if _calls_tools(response):
            return said  # the reply continues when they have answered
        return [*said, ReplyText(" "), ReplyDone()]  # what follows is another reply

    def _heard_person(self) -> list[Incoming]:
        self._told_over = False
        if not self._interrupts:
            return []
        waiting = [part.reply for part in self._items.waiting()]
        return self._interrupt([*waiting, self._open], flush=bool(waiting))

    def _interrupt(self, replies: list[str], *, flush: bool) -> list[Incoming]:
        """Ignore the rest of these replies, and drop the audio that waits to be played."""
        self._dead |= dict.fromkeys(filter(None, replies))
        while len(self._dead) > MOST_DEAD:
            self._dead.pop(next(iter(self._dead)))
        if not flush:
            return []
        self._wav.flush()
        return [Flush()]

    # The person

    def send_audio(self, pcm: bytes) -> None:
        append: InputAudioBufferAppendEventParam = {
            "type": "input_audio_buffer.append",
            "audio": self._up.encode(pcm),
        }
        self._send(append)
        self._heard += len(pcm) // 2
        while self._ends and self._heard >= self._ends[0]:
            self._ends.pop(0)
            self._send({"type": "input_audio_buffer.commit"})
            self._send({"type": "response.create"})

    def user_ends(self, sample: int) -> None:
        if self._settings.commit_ms is not None:
            self._ends.append(sample + round(self._settings.commit_ms * self.rate / 1000))

    # The loudspeaker

    def audio_played(self, samples: int) -> None:
        self._items.played(samples)

    def audio_dropped(self, samples: int) -> None:
        """Report the heard length of each item that was dropped, in whole milliseconds."""
        for part, heard in self._items.dropped(samples):
            if part.item:
                self._sent += 1
                truncate: ConversationItemTruncateEventParam = {
                    "type": "conversation.item.truncate",
                    "event_id": f"{OURS}truncate-{self._sent}",
                    "item_id": part.item,
                    "content_index": part.content,
                    # Rounded down: a server refuses what lies beyond an item's audio.
                    "audio_end_ms": heard * 1000 // self._down.rate,
                }
                self._send(truncate)


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("content_index")
    return index if isinstance(index, int) and 0 <= index < 1_000 else 0


def _calls_tools(response: Mapping[str, Any]) -> bool:
    items = response.get("output")
    told = items if isinstance(items, list) else []
    kinds = [inside({"item": item}, "item").get("type") for item in told]
    return any(kind in ("function_call", "mcp_call") for kind in kinds)


def _create(settings: OpenAIRealtimeSettings) -> OpenAIRealtimeSession:
    return OpenAIRealtimeSession(settings)


SPEC = DialectSpec(
    name="openai-realtime",
    about="OpenAI's Realtime API over a WebSocket, in its present and its beta form",
    create=_create,
    settings_type=OpenAIRealtimeSettings,
    hosts=("api.openai.com",),
    key=Key("OPENAI_API_KEY", "header", "Authorization", "Bearer "),
    tried=2,
)
