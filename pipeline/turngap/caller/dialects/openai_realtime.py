"""The `openai-realtime` dialect: OpenAI's Realtime API over a WebSocket, and compatible servers.

Audio comes faster than it is played. When the server hears the person, the caller drops unplayed
audio and reports to the server how much was heard. Sent messages have the types of the `openai`
library; received ones are read leniently, as servers leave out different parts.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from pydantic import Field

from turngap.caller.dialects.encoding import (
    UNTOLD,
    Encoding,
    Kind,
    ToldFormat,
    event_of,
    inside,
    name_in,
    read_format,
)
from turngap.caller.dialects.registry import DialectSettings, DialectSpec, Key
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
    from openai.types.beta.realtime.session_update_event_param import Session as BetaSession
    from openai.types.realtime.conversation_item_truncate_event_param import (
        ConversationItemTruncateEventParam,
    )
    from openai.types.realtime.input_audio_buffer_append_event_param import (
        InputAudioBufferAppendEventParam,
    )
    from openai.types.realtime.realtime_audio_formats_param import RealtimeAudioFormatsParam
    from openai.types.realtime.realtime_session_create_request_param import (
        RealtimeSessionCreateRequestParam,
    )

# The session: the server's report of it, and the requested one

_BETA_NAMES: dict[Kind, Any] = {"pcmu": "g711_ulaw", "pcma": "g711_alaw"}


class OpenAISettings(DialectSettings):
    """The settings to send that do not depend on the transport."""

    model: str | None = None
    """Model to ask for in the session, where a server does not take it from the URL."""
    voice: str | None = None
    """Voice of the replies."""
    instructions: str | None = None
    """System instructions of the session."""
    transcription: str | None = None
    """Model that transcribes the person, where the server does not do it by itself."""
    beta: bool = False
    """Speak the API's beta form even if the server does not show that it speaks it."""
    commit_ms: float | None = Field(None, ge=0, le=60_000)
    """For a server that finds no turns itself: the caller commits the person's audio and asks for a
    reply this long after the person's last word."""
    threshold: float | None = None
    """Loudness from 0 to 1 that the server's VAD takes for speech."""
    prefix_padding_ms: int | None = None
    """Audio before speech that the server's VAD keeps."""
    silence_duration_ms: int | None = None
    """Silence after which the server's VAD takes the turn to be over."""


class OpenAIRealtimeSettings(OpenAISettings):
    """The settings to send; the server keeps its own values for the rest."""

    format: Kind = "pcm"
    """Audio in both directions: pcm, pcmu or pcma (the telephone's, at 8,000 Hz)."""
    reply_format: Kind | None = None
    """Audio of the replies, where it differs from the person's."""
    rate: int = Field(24_000, ge=8_000, le=48_000)
    """Rate of the person's PCM, Hz; a few servers take 16000."""
    reply_rate: int = Field(24_000, ge=8_000, le=48_000)
    """Rate of the replies' PCM where the server does not name it, Hz."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The contents of `session.created` or `session.updated`; servers may leave out any of it.

    Attributes:
        beta: whether it has the flat fields of the beta.
        voiced: whether voice and turn detection are in the session itself, as with xAI, whose first
            event is `conversation.created`.
        listens: whether the server finds the ends of turns by itself.
        manual: whether the server reports that it finds none.
        interrupts: whether the person's speech interrupts its replies.
        input: the format of the person's audio.
        output: the format of the replies' audio.
    """

    beta: bool = False
    voiced: bool = False
    listens: bool = False
    manual: bool = False
    interrupts: bool = True
    input: ToldFormat = UNTOLD
    output: ToldFormat = UNTOLD

    def update(
        self, settings: OpenAIRealtimeSettings, up: Encoding, down: Encoding
    ) -> Mapping[str, Any]:
        """Return the session to ask for, in the form that the server speaks."""
        detection = self._detection(settings)
        if self.beta or settings.beta:
            return _beta_update(settings, up, detection)
        session: Any = _update(settings, up, down)
        where = (session, session) if self.voiced else _audio_of(session)
        if detection != {}:
            where[0]["turn_detection"] = detection
        if settings.voice:
            where[1]["voice"] = settings.voice
        return session

    def _detection(self, settings: OpenAIRealtimeSettings) -> dict[str, Any] | None:
        """Return the turn detection to ask for; empty if the server's own may stay."""
        if settings.commit_ms is not None:
            return None
        given = {
            name: value
            for name in ("threshold", "prefix_padding_ms", "silence_duration_ms")
            if (value := getattr(settings, name)) is not None
        }
        return {"type": "server_vad", **given} if given or not self.listens else {}


def read_setup(event: Mapping[str, Any]) -> Setup:
    """Read the session in an event; leave out missing and malformed parts."""
    session = inside(event, "session")
    flat = "modalities" in session or "input_audio_format" in session
    beta = flat and "audio" not in session and session.get("type") != "realtime"
    source, audio = inside(session, "audio", "input"), inside(session, "audio")
    detection = inside(source, "turn_detection") or inside(session, "turn_detection")
    formats = (source.get("format"), inside(audio, "output").get("format"))
    if beta:
        formats = (session.get("input_audio_format"), session.get("output_audio_format"))
    return Setup(
        beta=beta,
        voiced=event.get("type") == "conversation.created",
        listens=bool(detection.get("type")),
        manual=any(place.get("turn_detection", ...) is None for place in (source, session)),
        interrupts=detection.get("interrupt_response") is not False,
        input=read_format(formats[0]),
        output=read_format(formats[1]),
    )


def _update(
    settings: OpenAIRealtimeSettings, up: Encoding, down: Encoding
) -> "RealtimeSessionCreateRequestParam":
    session: RealtimeSessionCreateRequestParam = {
        "type": "realtime",
        "audio": {"input": {"format": _format(up)}, "output": {"format": _format(down)}},
    }
    if settings.transcription:
        session["audio"]["input"]["transcription"] = {"model": settings.transcription}
    if settings.instructions:
        session["instructions"] = settings.instructions
    if settings.model:
        session["model"] = settings.model
    return session


def _audio_of(session: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of a session that describe the person's audio and the replies' audio."""
    return session["audio"]["input"], session["audio"]["output"]


def _beta_update(
    settings: OpenAIRealtimeSettings, up: Encoding, detection: dict[str, Any] | None
) -> Mapping[str, Any]:
    session: BetaSession = {}
    if up.kind != "pcm":  # the default of every such server, by one of two names
        session["input_audio_format"] = session["output_audio_format"] = _BETA_NAMES[up.kind]
    if detection != {}:
        session["turn_detection"] = cast("Any", detection)
    if settings.transcription:
        session["input_audio_transcription"] = {"model": settings.transcription}
    if settings.voice:
        session["voice"] = settings.voice
    if settings.instructions:
        session["instructions"] = settings.instructions
    if settings.model:
        session["model"] = cast("Any", settings.model)
    return session


def _format(encoding: Encoding) -> "RealtimeAudioFormatsParam":
    match encoding.kind:
        case "pcmu":
            return {"type": "audio/pcmu"}
        case "pcma":
            return {"type": "audio/pcma"}
        case _:
            return {"type": "audio/pcm", "rate": cast("Any", encoding.rate)}


# How much was heard of each item of a reply

# Items that wait to be played. A reply has one to three.
MOST_WAITING = 1_000


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of content of one item, which is one stretch of audio from its first sample on.

    `reply`: the reply that the item belongs to.
    """

    reply: str
    item: str
    content: int = 0


@dataclass(slots=True)
class _Run:
    """The place of a part's audio in the whole conversation's, in samples."""

    part: Part
    start: int
    end: int


class PlayedItems:
    """The places of parts in the audio that was handed on to be played.

    Samples are counted as `Session.audio_played` counts them: from the conversation's beginning,
    dropped ones included.
    """

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        self._end = self._played = 0

    def add(self, part: Part, samples: int) -> None:
        """Append audio of a part.

        Raises:
            ValueError: too many items wait to be played.
        """
        if samples == 0:
            return
        if not self._runs or self._runs[-1].part != part:
            if len(self._runs) == MOST_WAITING:
                raise ValueError(f"audio of more than {MOST_WAITING:,} items that wait")
            self._runs.append(_Run(part, self._end, self._end))
        self._end += samples
        self._runs[-1].end = self._end

    def played(self, samples: int) -> None:
        """Note how far the audio has been played."""
        self._played = samples
        # The newest may continue, and then counts from its first sample.
        while len(self._runs) > 1 and self._runs[0].end <= samples:
            self._runs.popleft()

    def waiting(self) -> list[Part]:
        """Return the parts that have not been played to their end."""
        return [run.part for run in self._runs if run.end > self._played]

    def dropped(self, samples: int) -> list[tuple[Part, int]]:
        """Note that the last `samples` will never sound; return how many of them each part had."""
        cut = self._end - samples
        lost = [run for run in self._runs if run.end > cut]
        self._runs = deque(run for run in self._runs if run.end <= cut)
        return [(run.part, max(0, cut - run.start)) for run in lost]


# The dialect

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
        update = self._update(told)
        self._send({"type": "session.update", "event_id": f"{OURS}update", "session": update})

    def _update(self, told: Setup) -> dict[str, Any]:
        return dict(told.update(self._settings, self._up, self._down))

    def _updated(self, told: Setup) -> list[Incoming]:
        if not self._asked:
            self._ask(told)
            return []
        self._interrupts = told.interrupts
        if self._ready:
            return []
        if told.manual and self._settings.commit_ms is None:
            return [Fault(NO_TURNS, fatal=True, error_kind="agent.no_turns")]
        if why := self._differs(told):
            return [Fault(why, fatal=True)]
        self._ready = True
        return [Ready()]

    def _differs(self, told: Setup) -> str:
        """Return in what the server's audio differs from ours; empty if it does not."""
        rate = told.output.rate  # of replies, which the server may choose for PCM
        if rate in RATES and told.output.kind == self._down.kind:
            self._down = replace(self._down, rate=rate)
        if why := told.input.differs(self._up):
            return f"it takes {why}"
        why = told.output.differs(self._down)
        return f"it sends {why}" if why else ""

    def _fault(self, error: Mapping[str, Any]) -> Fault:
        text = error.get("message") or error.get("code") or "unspecified"
        ours = name_in(error, "event_id").startswith(OURS)
        refuses = ours or error.get("type") == "invalid_request_error"
        return Fault(str(text), fatal=not self._ready, refuses=self._ready and refuses)

    # Replies

    def _reply(self, kind: str, event: Mapping[str, Any]) -> list[Incoming]:
        """Read an event of a reply; its kind is named as in the beta, without `output_`."""
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
            return self._audio_in(Part(reply, item, _index(event)), event)
        if kind == "audio_transcript.delta":
            self._texted = item
            return [ReplyText(event.get("delta", ""))]
        if kind == "audio_transcript.done" and self._texted != item:
            return [ReplyText(event.get("transcript", ""))]  # it sends no pieces
        return []

    def _audio_in(self, part: Part, event: Mapping[str, Any]) -> list[Incoming]:
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
        self._count(len(pcm) // 2)

    def _count(self, samples: int) -> None:
        """Count what was sent of the person, and end the turns that end in it."""
        self._heard += samples
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


SPEC = DialectSpec(
    name="openai-realtime",
    about="OpenAI's Realtime API over a WebSocket, in its present and its beta form",
    create=OpenAIRealtimeSession,
    settings_type=OpenAIRealtimeSettings,
    hosts=("api.openai.com",),
    key=Key("OPENAI_API_KEY", "header", "Authorization", "Bearer "),
    tried=2,
)
