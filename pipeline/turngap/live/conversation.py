"""A live conversation: makes records of the turns that the page measured and the agent's marks.

It does no I/O. The turn tracker that judges a replay judges these turns too.
"""

from dataclasses import dataclass
from typing import Any

import soxr

from turngap.caller import said
from turngap.caller.ear import Heard
from turngap.caller.recording import agent_side
from turngap.caller.stream import RATE
from turngap.core.audio import Pcm
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import NS_PER_MS, ms_to_ns, samples_to_ns
from turngap.core.errors import InputError
from turngap.core.events import Event, TurnEnded, UserSpeech
from turngap.core.results import AudioRecord, PacingRecord, Turn
from turngap.core.tracked import TrackedTurn
from turngap.live.connection import Connection, Fact
from turngap.live.wire import Played, TurnReport
from turngap.scenario.speech import find_speech
from turngap.store.turns import heard_agent_turn, plain_event, stored_fields

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
        pieces: what sounded at the page, partly in `window` (page clock, ns).
    """

    record: Turn
    user: Pcm
    pieces: tuple[Heard, ...]
    window: tuple[int, int]

    def heard(self) -> Pcm:
        """Return the agent's side, 16 kHz. This takes milliseconds: keep it off the event loop."""
        return agent_side(self.pieces, self.window, RATE)


class LiveConversation:
    """Collects the data of a connection and makes a `KeptTurn` of each report.

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
        """Note what was typed as a turn, unless the turn lies far ahead."""
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
        kept = self._kept(self.connection, report)
        self.turns = report.turn
        return kept

    def lost(self) -> list[KeptTurn]:
        """Make a record of the turn that was in progress when the line was lost, if any."""
        connection = self.connection
        facts = [fact for _, fact in connection.take_facts()]
        window = (connection.ended_ns, samples_to_ns(connection.mic.total, connection.in_rate))
        user = self._user_side(connection, window)
        transcript = _joined(facts, said.Transcript)
        found = find_speech(user, RATE) if transcript else None
        bounds = found and found.bounds
        text = self._texts.pop(self.turns + 1, "")
        spoke = bounds is not None and bounds.ms >= LEAST_SPEECH_MS
        if not text and not spoke:
            return []
        self.turns += 1
        connection.ended_ns = window[1]
        sent = connection.sent.as_sent(connection.sample_at(window[0]), connection.in_rate)
        llms = [connection.llm_of.get(f.agent_turn) for f in facts if isinstance(f, said.Marks)]
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
            reply=_joined(facts, said.ReplyText),
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

    def _kept(self, connection: Connection, report: TurnReport) -> KeptTurn:
        turn, events = _judged(connection, report)
        window = (max(0, report.start_ns - ROOM_NS), max(report.ended_ns, report.start_ns + 1))
        user = self._user_side(connection, window)
        pieces = tuple(connection.heard_in(window))
        connection.ended_ns = report.ended_ns
        text = self._texts.pop(report.turn, report.text)
        packets = connection.sample_at(report.end_ns) - connection.sample_at(report.start_ns)
        fields = stored_fields(turn) | _exceptions(connection, report, turn)
        record = Turn(
            scenario=self.name,
            repeat=1,
            say=text if report.typed else turn.transcript,
            budget_ms=DEFAULT_BUDGET_MS,
            pacing=_pacing(packets * 50 // connection.in_rate, report.stall_ms),
            audio=AudioRecord(
                file="",
                user_start_ms=(report.start_ns - window[0]) / NS_PER_MS,
                user_end_ms=(report.end_ns - window[0]) / NS_PER_MS,
                onset_ms=None if turn.onset_ns is None else (turn.onset_ns - window[0]) / NS_PER_MS,
            ),
            faults=_take(connection.faults),
            llm=_llm(connection, turn),
            events=(*map(plain_event, events), {"event": "View", **report.view}),
            **fields,
        )
        return KeptTurn(record, user, pieces, window)

    def _user_side(self, connection: Connection, window: tuple[int, int]) -> Pcm:
        first, last = connection.sample_at(window[0]), connection.sample_at(window[1])
        pcm = connection.mic.read(first, last)
        return pcm if connection.in_rate == RATE else soxr.resample(pcm, connection.in_rate, RATE)


def _judged(connection: Connection, report: TurnReport) -> tuple[TrackedTurn, list[Event]]:
    """Have the tracker judge the turn, and return its events too."""
    speech = UserSpeech(
        report.turn, report.start_ns, report.end_ns, report.over_reply, DEFAULT_BUDGET_MS
    )
    ended = TurnEnded(report.turn, report.ended_ns, report.ended)
    events = [speech, *connection.events_of(report), ended]
    turns = [turn for event in events for turn in connection.tracker.feed(event)]
    return turns[0], events


def _exceptions(connection: Connection, report: TurnReport, turn: TrackedTurn) -> dict[str, Any]:
    """Return the fields that differ from a replay's, and why no figure counts the turn."""
    if report.typed:
        heard = turn.onset_ns is not None and turn.outcome != "error"
        return {
            "outcome": "answered" if heard else turn.outcome,
            "gap_ns": None,
            "gap_ms": None,
            "why_no_gap": "typed: nobody spoke, so there is no user end to count from",
            "stages": (),
            "lead_ms": None,
            "first_sound_ms": None,
            "left_out": TYPED,
        }
    if turn.outcome == "abandoned" and connection.switched_between(
        turn.user_start_ns, turn.ended_ns
    ):
        return {"why_no_gap": "the LLM was switched before any reply", "left_out": SWITCHED}
    stalled = report.stall_ms is not None and report.stall_ms > STALL_MS
    return {"left_out": STALLED if stalled else None}


def _llm(connection: Connection, turn: TrackedTurn) -> str | None:
    """Return the LLM whose reply was heard, or else the last one that should have answered."""
    heard = heard_agent_turn(turn) or (turn.agent_turns[-1] if turn.agent_turns else None)
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


def _joined(facts: list[Fact], kind: type[said.Transcript] | type[said.ReplyText]) -> str:
    texts = [f.text for f in facts if isinstance(f, kind)]
    return (" " if kind is said.Transcript else "").join(texts).strip()


def _take(faults: list[str]) -> tuple[str, ...]:
    taken = tuple(faults)
    faults.clear()
    return taken
