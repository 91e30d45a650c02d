"""What one connection of a live conversation brought: both sides' audio, and facts about them."""

from collections import deque
from dataclasses import dataclass, field

from turngap.caller import dialect as said
from turngap.caller.ear import Heard
from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_S
from turngap.core.events import (
    AgentMarks,
    AgentSilence,
    AgentSpeech,
    AgentText,
    Event,
    PlayoutFlushed,
    UserTranscript,
)
from turngap.core.turns import TurnTracker
from turngap.live.tracks import Track
from turngap.live.wire import TurnReport

# Longer than the longest reply that is waited for; more of what was sent is not kept in memory.
SENT_S = 120.0
# The start of a turn is known once it is over; a turn is rarely longer, and its end is what counts.
MIC_S = 180.0

# Pieces of audio that sounded, until a turn is made of them: 20 ms each for as long.
MOST_HEARD = round(MIC_S * 50)

# What the agent said of a turn may lie a little after the turn's end on another clock.
SLACK_NS = 50_000_000

# An agent reports its marks once it has noticed an interruption; a caller of recordings waits as
# long for them (turngap/caller/conversation.py).
SETTLE_MS = 500.0

Fact = said.Transcript | said.ReplyText | said.Marks


@dataclass(slots=True)
class Connection:
    """One WebSocket's worth of a conversation, on its own page clock.

    Attributes:
        number: counts from 1.
        in_rate: of the microphone's audio, Hz.
        offset_ns: agent's clock minus page clock, as last reported; None until then.
        ended_ns: the end of the last turn that was kept, on the page clock.
        llm_of: which LLM answered in each of the agent's own turns.
        switched_ns: when the LLM was changed, on the agent's clock.
        llms: which LLM was in charge from when on, on that clock.
    """

    number: int
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
        """Take the microphone's next samples."""
        self.mic.append(pcm, self.in_rate)
        self.mic.forget_before(self.mic.total - round(MIC_S * self.in_rate))

    def send(self, pcm: Pcm, rate: int) -> None:
        """Take the next samples that the agent sent."""
        self.sent.append(pcm, rate, self.mic.total)
        self.sent.forget_before(self.sent.total - round(SENT_S * rate))

    def note(self, at_ns: int, fact: Fact) -> None:
        """Take what the agent said of itself, at an instant of the agent's clock.

        Marks are told when their turn is over, and belong to when it began.
        """
        if isinstance(fact, said.Marks):
            at_ns = min(fact.marks.values(), default=at_ns)
        self._facts.append((at_ns, fact))

    def sounded(self, sample: int, samples: int, at_ns: int) -> None:
        """The agent's samples from `sample` on sounded at the page from `at_ns`."""
        self._heard.extend(self.sent.played(sample, samples, at_ns))

    def heard_in(self, window: tuple[int, int]) -> list[Heard]:
        """What sounded at the page in a stretch of the page clock, and forget what lies before."""
        kept = [h for h in self._heard if h.start_ns + _lasts_ns(h) > window[0]]
        self._heard = deque(kept, maxlen=MOST_HEARD)
        return [h for h in self._heard if h.start_ns < window[1]]

    def sample_at(self, at_ns: int) -> int:
        """The microphone's sample that sounded at an instant of the page clock."""
        return at_ns * self.in_rate // NS_PER_S

    def events_of(self, report: TurnReport) -> list[Event]:
        """All that happened in a reported turn and was not told before, on the page clock."""
        events: list[Event] = []
        for stretch in report.agent:
            if self._is_new("onset", stretch.onset_ns):
                events.append(AgentSpeech(stretch.onset_ns, stretch.received_ns, stretch.lead_ns))
            if stretch.end_ns is not None and self._is_new("end", stretch.end_ns):
                events.append(AgentSilence(stretch.end_ns))
        events += [PlayoutFlushed(ns) for ns in report.flushed_ns if self._is_new("flush", ns)]
        self.offset_ns = report.offset.offset_ns
        upto_ns = report.ended_ns + self.offset_ns + SLACK_NS
        events += [self._placed(at_ns, fact) for at_ns, fact in self.take_facts(upto_ns)]
        return events

    def take_facts(self, upto_ns: int | None = None) -> list[tuple[int, Fact]]:
        """What the agent said up to an instant of its clock (None: all), taken out of the queue."""
        taken = [f for f in self._facts if upto_ns is None or f[0] <= upto_ns]
        self._facts = [] if upto_ns is None else [f for f in self._facts if f[0] > upto_ns]
        return taken

    def switched_between(self, start_ns: int, end_ns: int) -> bool:
        """Whether the LLM was changed in a stretch of the page clock."""
        offset_ns = self.offset_ns or 0
        return any(start_ns < ns - offset_ns <= end_ns + SLACK_NS for ns in self.switched_ns)

    @property
    def llm(self) -> str | None:
        """The LLM in charge now; None where the agent names none."""
        return self.llms[-1][1] if self.llms else None

    def llm_at(self, at_ns: int) -> str | None:
        """The LLM in charge at an instant of the page clock; None where the agent names none."""
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
        match fact:
            case said.Transcript(text):
                return UserTranscript(at_ns - offset_ns, text)
            case said.ReplyText(text):
                return AgentText(at_ns - offset_ns, text)
            case said.Marks(turn, raw):
                marks = {name: ns - offset_ns for name, ns in raw.items()}
                about = (fact.counts, fact.why, fact.error, fact.calls)
                return AgentMarks(turn, marks, dict(raw), *about)


def _lasts_ns(heard: Heard) -> int:
    return len(heard.pcm) * NS_PER_S // heard.rate
