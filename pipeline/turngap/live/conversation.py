"""A live conversation: it builds records from the page's measurements and the agent's marks.

It does no I/O. The turn tracker that judges a replay judges these turns too.
"""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import soxr

from turngap.caller.ear import Heard
from turngap.caller.recording import agent_side
from turngap.caller.stream import RATE
from turngap.core.audio import Pcm
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import NS_PER_MS, NS_PER_S, ms_to_ns, samples_to_ns
from turngap.core.cue import Utterance
from turngap.core.errors import InputError
from turngap.core.events import (
    AgentSilence,
    AgentSpeech,
    Event,
    Fault,
    Flush,
    Marks,
    NoReply,
    ReplyText,
    TrackedTurn,
    Transcript,
    TurnEnded,
    UserSpeech,
    plain_event,
    stamped,
)
from turngap.core.results import Turn
from turngap.core.stages import Slack
from turngap.core.stored import AudioRecord, PacingRecord
from turngap.core.turns import TurnTracker
from turngap.live.wire import Played, TurnReport
from turngap.scenario.speech import find_speech

# More of what the agent sent is not kept; this is longer than the longest reply waited for.
SENT_S = 120.0
# A turn is rarely longer than this, and its end is what counts.
MIC_S = 180.0

# Pieces of played audio, 20 ms each, that are kept until a turn is made of them.
MOST_HEARD = round(MIC_S * 50)

# An agent reports its marks once it has noticed an interruption. The caller of a replay waits as
# long for them (turngap/caller/conversation.py).
SETTLE_MS = 500.0

Fact = Transcript | ReplyText | Marks | Fault | NoReply


@dataclass(frozen=True, slots=True)
class _Chunk:
    start: int
    pcm: Pcm
    rate: int
    mic_at: int


class Track:
    """A stream of `total` samples so far; samples that are no longer kept read as silence."""

    def __init__(self) -> None:
        self.total = 0
        self._chunks: deque[_Chunk] = deque()

    def append(self, pcm: Pcm, rate: int, mic_at: int = 0) -> None:
        """Add the next samples; `mic_at` is the microphone's position when they came."""
        self._chunks.append(_Chunk(self.total, pcm, rate, mic_at))
        self.total += len(pcm)

    def read(self, start: int, stop: int) -> Pcm:
        out = np.zeros(max(0, stop - start), dtype=np.int16)
        for chunk in self._since(start):
            low, high = max(start, chunk.start), min(stop, chunk.start + len(chunk.pcm))
            if low < high:
                out[low - start : high - start] = chunk.pcm[low - chunk.start : high - chunk.start]
        return out

    def played(self, start: int, samples: int, at_ns: int) -> list[Heard]:
        """Return the samples from `start` on as they sounded from `at_ns`, in pieces."""
        pieces: list[Heard] = []
        for chunk in self._since(start):
            low = max(start, chunk.start)
            high = min(start + samples, chunk.start + len(chunk.pcm))
            if low < high:
                begun_ns = at_ns + samples_to_ns(low - start, chunk.rate)
                pcm = chunk.pcm[low - chunk.start : high - chunk.start]
                pieces.append(Heard(begun_ns, pcm, chunk.rate))
        return pieces

    def as_sent(self, since_mic: int, mic_rate: int) -> list[Heard]:
        """Return the samples after the microphone's sample `since_mic`, as if they sounded then."""
        pieces: list[Heard] = []
        free_ns = 0
        for chunk in self._chunks:
            if chunk.mic_at >= since_mic:
                at_ns = max(free_ns, samples_to_ns(chunk.mic_at, mic_rate))
                pieces.append(Heard(at_ns, chunk.pcm, chunk.rate))
                free_ns = at_ns + samples_to_ns(len(chunk.pcm), chunk.rate)
        return pieces

    def _since(self, sample: int) -> list[_Chunk]:
        """Return the chunks from the one with `sample` on; it is usually a recent one."""
        found: list[_Chunk] = []
        for chunk in reversed(self._chunks):
            if chunk.start + len(chunk.pcm) <= sample:
                break
            found.append(chunk)
        return found[::-1]

    def forget_before(self, sample: int) -> None:
        while self._chunks and self._chunks[0].start + len(self._chunks[0].pcm) <= sample:
            self._chunks.popleft()


@dataclass(slots=True)
class Connection:
    """The part of a conversation on one WebSocket, on its own page clock.

    Attributes:
        in_rate: rate of the microphone's audio, Hz.
        offset_ns: the agent's clock minus the page clock, as last reported; None until then.
        ended_ns: the end of the last turn that was kept, on the page clock.
        llm_of: the LLM that answered in each of the agent's own turns.
        switched_ns: when the LLM was changed, on the agent's clock.
        llms: the LLMs that were in charge, each with its start on that clock.
    """

    in_rate: int
    mic: Track = field(default_factory=Track)
    sent: Track = field(default_factory=Track)
    tracker: TurnTracker = field(default_factory=TurnTracker)
    offset_ns: int | None = None
    ended_ns: int = 0
    llm_of: dict[int, str] = field(default_factory=dict[int, str])
    switched_ns: list[int] = field(default_factory=list[int])
    llms: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    faults: list[str] = field(default_factory=list[str])
    _facts: list[tuple[int, Fact]] = field(default_factory=list[tuple[int, Fact]])
    _heard: deque[Heard] = field(default_factory=lambda: deque[Heard](maxlen=MOST_HEARD))
    _told: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def hear(self, pcm: Pcm) -> None:
        self.mic.append(pcm, self.in_rate)
        self.mic.forget_before(self.mic.total - round(MIC_S * self.in_rate))

    def send(self, pcm: Pcm, rate: int) -> None:
        self.sent.append(pcm, rate, self.mic.total)
        self.sent.forget_before(self.sent.total - round(SENT_S * rate))

    def note(self, at_ns: int, fact: Fact) -> None:
        """Note a report of the agent, at an instant of its clock.

        Marks are reported when their turn is over, but belong to its beginning.
        """
        if isinstance(fact, Fault):
            self.faults.append(fact.error)
            if fact.refuses:
                return
        if isinstance(fact, Marks):
            at_ns = min(fact.marks.values(), default=at_ns)
        self._facts.append((at_ns, fact))

    def sounded(self, sample: int, samples: int, at_ns: int) -> None:
        """Note that the agent's samples from `sample` on sounded at the page from `at_ns`."""
        self._heard.extend(self.sent.played(sample, samples, at_ns))

    def heard_in(self, window: tuple[int, int]) -> list[Heard]:
        """Return the audio that sounded in a stretch of the page clock; forget all audio before."""
        kept = [
            h for h in self._heard if h.start_ns + samples_to_ns(len(h.pcm), h.rate) > window[0]
        ]
        self._heard = deque(kept, maxlen=MOST_HEARD)
        return [h for h in self._heard if h.start_ns < window[1]]

    def sample_at(self, at_ns: int) -> int:
        return at_ns * self.in_rate // NS_PER_S

    def events_of(self, report: TurnReport) -> list[Event]:
        """Return the new events of a reported turn, on the page clock."""
        events: list[Event] = []
        for stretch in report.agent:
            if self._is_new("onset", stretch.onset_ns):
                events.append(AgentSpeech(stretch.onset_ns, stretch.received_ns, stretch.lead_ns))
            if stretch.end_ns is not None and self._is_new("end", stretch.end_ns):
                events.append(AgentSilence(stretch.end_ns))
        events += [Flush(at_ns=ns) for ns in report.flushed_ns if self._is_new("flush", ns)]
        self.offset_ns = report.offset.offset_ns
        # The page keeps comparing the clocks, so that they cannot have drifted far.
        self.tracker.slack = Slack(report.offset.bound_ns, compared_ns=report.ended_ns)
        upto_ns = report.ended_ns + self.offset_ns + self.tracker.slack.at(report.ended_ns)
        events += [self._placed(at_ns, fact) for at_ns, fact in self.take_facts(upto_ns)]
        return events

    def take_facts(self, upto_ns: int | None = None) -> list[tuple[int, Fact]]:
        """Take out the agent's reports up to an instant of its clock (None: all of them)."""
        taken = [f for f in self._facts if upto_ns is None or f[0] <= upto_ns]
        self._facts = [] if upto_ns is None else [f for f in self._facts if f[0] > upto_ns]
        return taken

    def switched_between(self, start_ns: int, end_ns: int) -> bool:
        offset_ns = self.offset_ns or 0
        upto_ns = end_ns + self.tracker.slack.at(end_ns)
        return any(start_ns < ns - offset_ns <= upto_ns for ns in self.switched_ns)

    @property
    def llm(self) -> str | None:
        """Return the LLM in charge now; None if the agent names none."""
        return self.llms[-1][1] if self.llms else None

    def llm_at(self, at_ns: int) -> str | None:
        """Return the LLM in charge at an instant of the page clock; None if none is named."""
        agent_ns = at_ns + (self.offset_ns or 0)
        before = [name for since_ns, name in self.llms if since_ns <= agent_ns]
        return before[-1] if before else next((name for _, name in self.llms), None)

    def _is_new(self, kind: str, ns: int) -> bool:
        key = (kind, ns)
        if key in self._told:
            return False
        self._told.add(key)
        return True

    def _placed(self, at_ns: int, fact: Fact) -> Event:
        offset_ns = self.offset_ns or 0
        if isinstance(fact, Marks):
            return fact.placed(offset_ns, at_ns - offset_ns)
        return stamped(fact, at_ns - offset_ns)


# A browser's audio device was seen to stand still. If the audio clock falls behind the wall clock
# by more than this within a turn, the gap is not the agent's alone.
STALL_MS = 8.0

# A turn's recording begins this much earlier, for a soft first consonant and for the listener.
ROOM_NS = ms_to_ns(500)

TYPED = "typed"
STALLED = "device stall"
SWITCHED = "LLM switched"

# A page may have begun this many turns before it reports the next one.
MOST_AHEAD = 20

# A lost turn that the agent has not mentioned counts only if this much of it was audible.
LEAST_SPEECH_MS = 200.0


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A turn to store: its record without the name of its audio file, and its audio.

    Attributes:
        user: the user's side, 16 kHz.
        pieces: audio that sounded at the page, partly in `window` (page clock, ns).
    """

    record: Turn
    user: Pcm
    pieces: tuple[Heard, ...]
    window: tuple[int, int]

    def heard(self) -> Pcm:
        """Return the agent's side, 16 kHz. This takes milliseconds: keep it off the event loop."""
        return agent_side(self.pieces, self.window, RATE)


class LiveConversation:
    """Collector of a connection's data, which makes a `KeptTurn` of each report.

    Attributes:
        name: used as the scenario's name.
        turns: the number of the last turn that was kept.
    """

    def __init__(self, name: str, in_rate: int) -> None:
        self.name = name
        self.turns = 0
        self.connection = Connection(in_rate)
        self._texts: dict[int, str] = {}

    def typed(self, turn: int, text: str) -> None:
        """Note typed text as a turn, unless the turn lies far ahead."""
        if self.turns < turn <= self.turns + MOST_AHEAD:
            self._texts[turn] = text

    def sounded(self, message: Played) -> None:
        """Note which of the agent's audio sounded at the page."""
        for sample, samples, at_ns in message.played:
            self.connection.sounded(sample, samples, at_ns)

    def report(self, report: TurnReport) -> KeptTurn:
        """Make a record of a turn that the page measured.

        Raises:
            InputError: the turn is already known.
        """
        if report.turn <= self.turns:
            raise InputError(
                "live.turn_known", f"turn {report.turn} was reported after turn {self.turns}"
            )
        kept = self._kept(report)
        self.turns = report.turn
        return kept

    def lost(self) -> list[KeptTurn]:
        """Make a record of the turn that was in progress when the line was lost, if any."""
        connection = self.connection
        facts = [fact for _, fact in connection.take_facts()]
        window = (connection.ended_ns, samples_to_ns(connection.mic.total, connection.in_rate))
        user = self._user_side(window)
        transcript = _joined(facts, Transcript)
        found = find_speech(user, RATE) if transcript else None
        bounds = found and found.bounds
        text = self._texts.pop(self.turns + 1, "")
        spoke = bounds is not None and bounds.ms >= LEAST_SPEECH_MS
        if not text and not spoke:
            return []
        self.turns += 1
        connection.ended_ns = window[1]
        sent = connection.sent.as_sent(connection.sample_at(window[0]), connection.in_rate)
        llms = [connection.llm_of.get(f.agent_turn) for f in facts if isinstance(f, Marks)]
        record = Turn(
            scenario=self.name,
            turn=self.turns,
            repeat=1,
            say=text or transcript,
            outcome="error",
            ended="line_lost",
            budget_ms=DEFAULT_BUDGET_MS,
            gap_ns=None,
            gap_ms=None,
            why_no_gap="the line was lost before the page had measured this turn",
            stages=(),
            transcript=transcript,
            reply=_joined(facts, ReplyText),
            lead_ms=None,
            yield_ms=None,
            marks=(),
            pacing=_pacing(0, None),
            audio=AudioRecord(
                file="",
                user_start_ms=bounds.start_ms if bounds else 0.0,
                user_end_ms=bounds.end_ms if bounds else 0.0,
                onset_ms=None,
            ),
            faults=(
                *_take(connection.faults),
                "the agent's side is as it was sent, not as it was played",
            ),
            llm=llms[-1] if llms else connection.llm,
            left_out=TYPED if text else None,
        )
        return [KeptTurn(record, user, tuple(sent), window)]

    def _kept(self, report: TurnReport) -> KeptTurn:
        connection = self.connection
        turn, events = _judged(connection, report)
        window = (max(0, report.start_ns - ROOM_NS), max(report.ended_ns, report.start_ns + 1))
        user = self._user_side(window)
        pieces = tuple(connection.heard_in(window))
        connection.ended_ns = report.ended_ns
        text = self._texts.pop(report.turn, report.text)
        packets = connection.sample_at(report.end_ns) - connection.sample_at(report.start_ns)
        turn, left_out = _with_exceptions(connection, report, turn)
        record = Turn.of(
            turn,
            Utterance(scenario=self.name, say=text if report.typed else turn.transcript),
            pacing=_pacing(packets * 50 // connection.in_rate, report.stall_ms),
            audio=AudioRecord(
                file="",
                user_start_ms=(report.start_ns - window[0]) / NS_PER_MS,
                user_end_ms=(report.end_ns - window[0]) / NS_PER_MS,
                onset_ms=None if turn.onset_ns is None else (turn.onset_ns - window[0]) / NS_PER_MS,
            ),
            faults=_take(connection.faults),
            llm=_llm(connection, turn),
            left_out=left_out,
            events=(*map(plain_event, events), {"event": "View", **report.view}),
        )
        return KeptTurn(record, user, pieces, window)

    def _user_side(self, window: tuple[int, int]) -> Pcm:
        connection = self.connection
        first, last = connection.sample_at(window[0]), connection.sample_at(window[1])
        pcm = connection.mic.read(first, last)
        return pcm if connection.in_rate == RATE else soxr.resample(pcm, connection.in_rate, RATE)


def _judged(connection: Connection, report: TurnReport) -> tuple[TrackedTurn, list[Event]]:
    """Let the tracker judge the turn, and return its events too."""
    speech = UserSpeech(
        report.turn, report.start_ns, report.end_ns, report.over_reply, DEFAULT_BUDGET_MS
    )
    ended = TurnEnded(report.turn, report.ended_ns, report.ended)
    events = [speech, *connection.events_of(report), ended]
    turns = [turn for event in events for turn in connection.tracker.feed(event)]
    return turns[0], events


def _with_exceptions(
    connection: Connection, report: TurnReport, turn: TrackedTurn
) -> tuple[TrackedTurn, str | None]:
    """Return the turn with its differences from a replay's, and why no figure counts it."""
    if report.typed:
        heard = turn.onset_ns is not None and turn.outcome != "error"
        return replace(
            turn,
            outcome="answered" if heard else turn.outcome,
            gap_ns=None,
            why_no_gap="typed: no one spoke, so there is no user end to count from",
            stages=(),
            lead_ns=None,
            first_sound_ns=None,
        ), TYPED
    if turn.outcome == "abandoned" and connection.switched_between(
        turn.user_start_ns, turn.ended_ns
    ):
        return replace(turn, why_no_gap="the LLM was switched before any reply"), SWITCHED
    stalled = report.stall_ms is not None and report.stall_ms > STALL_MS
    return turn, STALLED if stalled else None


def _llm(connection: Connection, turn: TrackedTurn) -> str | None:
    """Return the LLM whose reply was heard, or else the last one that should have answered."""
    heard = turn.heard_agent_turn or (turn.agent_turns[-1] if turn.agent_turns else None)
    named = connection.llm_of.get(heard.agent_turn) if heard else None
    return named or connection.llm_at(turn.user_start_ns)


def _pacing(packets: int, stall_ms: float | None) -> PacingRecord:
    starved = stall_ms is not None and stall_ms > STALL_MS
    return PacingRecord(
        packets=packets,
        late_ms_p50=None,
        late_ms_max=None,
        loop_lag_ms_max=stall_ms,
        starved=starved,
    )


def _joined(facts: list[Fact], kind: type[Transcript] | type[ReplyText]) -> str:
    texts = [f.text for f in facts if isinstance(f, kind)]
    return (" " if kind is Transcript else "").join(texts).strip()


def _take(faults: list[str]) -> tuple[str, ...]:
    taken = tuple(faults)
    faults.clear()
    return taken
