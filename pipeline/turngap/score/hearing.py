"""Find the turns of a recorded call: the person's speech, the agent's, and what answers what.

The agent is heard by the live ear's detector, the person by the rules that label recordings. The
turns are made by the live turn tracker, on a clock that begins with the recording.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from math import inf

import numpy as np

from turngap.caller.ear import SPEECH_GAP_MS
from turngap.caller.words import Bed, Found, Sound, Word, WordFinder
from turngap.core.audio import Pcm, SpeechEnd
from turngap.core.budget import DEFAULT_BUDGET_MS, NO_REPLY_MS, QUIET_MS, TurnEnd
from turngap.core.clock import NS_PER_MS, ms_to_ns, ns_to_ms, samples_to_ns
from turngap.core.counts import CLAIMED_GAP
from turngap.core.credits import HOLD_PHRASE_MS, PAUSE_MS, HeardSpeech
from turngap.core.cue import Utterance
from turngap.core.events import (
    AgentBed,
    AgentSilence,
    AgentSound,
    AgentSpeech,
    Event,
    Flush,
    TrackedTurn,
    TurnEnded,
    UserBackchannel,
    UserSpeech,
    plain_event,
)
from turngap.core.results import Turn
from turngap.core.stored import (
    AudioRecord,
    BackchannelRecord,
    HoleRecord,
    PacingRecord,
    PauseRecord,
)
from turngap.core.turns import YIELDS_MS, TurnTracker
from turngap.scenario.speech import DOUBTFUL_MS, SpeechStretch, find_stretches
from turngap.score.claims import Claims
from turngap.score.recording import Recording

# A person who pauses for longer has waited for an answer; from half of it on, maybe.
WAITED_MS = 2000.0
# No one hears an agent and answers it in less: a person who goes on sooner had not finished.
REACTION_MS = 400.0
# A sound of assent is no longer, where the agent goes on for this long after it.
ASSENT_MS, GOES_ON_MS = 600.0, 300.0
# An agent that yields to a short sound does so within this time, and answers it after a longer
# silence than there is between two sentences.
YIELDED_MS, ANSWERS_MS = 1000.0, 700.0
# An interrupted agent is silent this long after the person's words, or else it took the floor.
DIES_AWAY_MS = 1000.0
# No agent hears an interruption and stops in less: it had finished by itself.
LEAST_YIELD_MS = 100.0
# Who begins this soon after the other does not know of it, and no one says "mm-hm" in so short a
# time: such a start is torn off, and was on its way for this long at most.
UNAWARE_MS, TORN_OFF_MS, STARTS_MS = 150.0, 250.0, 500.0
# Both sides are silent for so long: the air is dead.
DEAD_AIR_MS = 2000.0
# A hole torn into a reply: digital silence, with sound up to its edges.
TORN_MS, TORN_EDGE_MS, TORN_BELOW_DB = 150.0, 5.0, 26.0
# A turn's recording begins this long before the person does, a call's first with a greeting; what
# lies far behind a turn, such as a voicemail's silence, is in none.
LEAD_MS, GREETING_MS, LONGEST_MS = 300.0, 30_000.0, 480_000.0
# Transcripts are this early at most.
EARLY_WORDS_MS = 1000.0

Spans = Sequence[tuple[float, float]]  # start and end, in ms

_UNSENT = PacingRecord(packets=0, late_ms_p50=None, late_ms_max=None, starved=False)
RESUMED = (
    "the person went on as soon as the agent had begun, too soon to answer it: taken for one turn "
    "with a cut-in"
)
DOUBTFUL = f"the person's end may be over {DOUBTFUL_MS:.0f} ms off, and with it the gap"
BY_ERROR = "the overlap is smaller than its possible error: this may be no cut-in"
UNDER_ECHO = "the agent's echo may hide the person's last words, which end as it speaks"
BROKEN_OFF = (
    "the agent began in a pause and stopped when the person went on: taken for a cut-in, though it "
    "may have been assent"
)
UNDER_AGENT = (
    "over half of the person's speech lies under the agent's: its voice may be in their channel"
)
MAY_HAVE_WAITED = "the person paused for over 1 s and went on: they may have waited for an answer"
MAY_BE_ASSENT = "a short sound of the person over the reply was taken for assent"
SOFT = (
    "speech in the person's channel that is far softer than the rest was left out as another's "
    "({n} times)"
)
MAY_HAVE_FINISHED = "a recording does not tell whether the agent yielded or had finished"


@dataclass(frozen=True, slots=True)
class HeardCall:
    """The turns of a recorded call, and the samples of the recording that belong to each.

    `greeting_ms` is the time from the recording's start to the agent's first word, if that came
    before the person's.
    """

    turns: tuple[Turn, ...]
    windows: tuple[tuple[int, int], ...]
    greeting_ms: float | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Turn:
    """A turn of the person: its stretches of speech in order, and what a recording guesses."""

    stretches: list[SpeechStretch]
    over_reply: bool = False
    backchannels: list[SpeechStretch] = field(default_factory=list[SpeechStretch])
    notes: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def start_ms(self) -> float:
        return self.stretches[0].start_ms

    @property
    def end_ms(self) -> float:
        return self.stretches[-1].end_ms


def hear_call(
    recording: Recording,
    name: str,
    *,
    budget_ms: float = DEFAULT_BUDGET_MS,
    no_reply_ms: float = NO_REPLY_MS,
    claims: Claims | None = None,
) -> HeardCall:
    """Return the turns of a recorded call, which is called `name` as a scenario is.

    Turns without `audio.file` are not stored yet: the windows say which samples each needs.
    """
    every = find_stretches(recording.person, recording.rate)
    person = [stretch for stretch in every if not stretch.is_soft]
    events = _agent_events(recording.agent, recording.rate)
    ends_ms = len(recording.agent) * 1000 / recording.rate
    agent = _agent_spans(events, ends_ms)
    turns = part_turns(person, agent)
    greeting_ms = agent[0][0] if agent and (not turns or agent[0][0] < turns[0].start_ms) else None
    tracked = _track(turns, events, agent, ends_ms, budget_ms=budget_ms, no_reply_ms=no_reply_ms)
    windows = _windows(turns, recording.rate, len(recording.person))
    untils = [*(turn.start_ms for turn in turns[1:]), ends_ms][: len(turns)]
    claimed = _claimed(claims, tracked)
    maker = _Maker(recording, name, person, agent, ends_ms, budget_ms, no_reply_ms, claims, claimed)
    made = [
        maker.record(turn, one, window, until_ms)
        for turn, one, window, until_ms in zip(turns, tracked, windows, untils, strict=True)
    ]
    if made:
        made[0] = made[0].model_copy(update={"greeting_ms": greeting_ms})
    left_out = len(every) - len(person)
    notes = (SOFT.format(n=left_out),) if left_out else ()
    spoken = [(s.start_ms, s.end_ms) for s in person]
    if 2 * _together_ms(spoken, agent) > sum(b - a for a, b in spoken):
        notes = (*notes, UNDER_AGENT)
    return HeardCall(tuple(made), windows, greeting_ms, notes)


def _agent_spans(events: Sequence[Event], ends_ms: float) -> list[tuple[float, float]]:
    """Return the start and end of each stretch of the agent's speech, in ms."""
    heard = HeardSpeech()
    for event in events:
        if isinstance(event, AgentSpeech | AgentSilence):
            heard.add(event)
    return [
        (ns_to_ms(s.start_ns), ends_ms if s.end_ns is None else ns_to_ms(s.end_ns))
        for s in heard.stretches()
    ]


def _agent_events(pcm: Pcm, rate: int) -> list[Event]:
    """Hear the agent's side as the live ear does, on a clock that begins with the recording."""
    finder = WordFinder(rate, gap_ms=SPEECH_GAP_MS, in_numpy=True)
    found: list[Found] = []
    for first in range(0, len(pcm), rate):
        found += finder.feed(pcm[first : first + rate], inf)
    found += finder.cut()
    return [_event(each, rate) for each in found]


def _event(found: Found, rate: int) -> Event:
    at_ns = samples_to_ns(found.sample, rate)
    match found:
        case SpeechEnd(_, dbfs):
            return AgentSilence(at_ns, dbfs)
        case Sound(_, dbfs):
            return AgentSound(at_ns, dbfs)
        case Bed(_, dbfs):
            return AgentBed(at_ns, dbfs)
        case Word(_, spread, before, dbfs):
            spread_ns = None if spread is None else samples_to_ns(spread, rate)
            before_ns = None if before is None else samples_to_ns(before, rate)
            return AgentSpeech(at_ns, at_ns, 0, spread_ns, before_ns, dbfs)


def part_turns(person: Sequence[SpeechStretch], agent: Spans) -> list[_Turn]:
    """Part the person's speech into turns, by where the agent took the floor."""
    turns: list[_Turn] = []
    starts, ends = [a for a, _ in agent], [b for _, b in agent]
    utterances = _utterances(person)
    for words, following in zip_longest(utterances, utterances[1:]):
        next_ms = following[0].start_ms if following else inf
        start_ms, end_ms = words[0].start_ms, words[-1].end_ms
        turn = turns[-1] if turns else None
        before = agent[: bisect_left(starts, start_ms)]
        over = before[-1] if before and before[-1][1] > start_ms else None
        heard = agent[: len(before) + 1]
        short = end_ms - start_ms < ASSENT_MS and _is_assent(start_ms, end_ms, heard)
        if short and not _is_answer_to(end_ms, heard[-2:], next_ms):
            if turn is not None:  # over a greeting it belongs to no turn
                turn.backchannels.append(words[0])
                turn.notes[MAY_BE_ASSENT] = 1
            continue
        if turn is None or _is_answered(turn, start_ms, before[bisect_right(ends, turn.end_ms) :]):
            turns.append(_Turn(words, over is not None))
            continue
        if before and before[-1][0] > turn.start_ms and before[-1][1] > turn.end_ms:
            turn.notes[RESUMED] = 1
        elif start_ms - turn.end_ms > WAITED_MS / 2:
            turn.notes[MAY_HAVE_WAITED] = 1
        turn.stretches += words
    return turns


def _is_assent(start_ms: float, end_ms: float, agent: Spans) -> bool:
    """Return whether the agent goes on over a short sound of the person, or after its own pause.

    `agent`: the agent's speech up to the first that begins after the sound does.
    """
    return any(
        b - end_ms > GOES_ON_MS
        and (
            a < start_ms - REACTION_MS
            or (n > 0 and start_ms <= a < end_ms and a - agent[n - 1][1] < QUIET_MS)
        )
        for n, (a, b) in list(enumerate(agent))[-2:]
    )


def _is_answer_to(end_ms: float, agent: Spans, next_ms: float) -> bool:
    """Return whether the agent stopped for a short sound, and then spoke before the person did.

    `agent`: the agent's speech over the sound, and its next.
    """
    return any(
        end_ms < b < end_ms + YIELDED_MS and b + ANSWERS_MS <= a < next_ms
        for (_, b), (a, _) in pairwise(agent)
    )


def _utterances(person: Sequence[SpeechStretch]) -> list[list[SpeechStretch]]:
    """Join stretches of speech that only the pauses between words part."""
    found: list[list[SpeechStretch]] = []
    for stretch in person:
        if found and stretch.start_ms - found[-1][-1].end_ms < SPEECH_GAP_MS:
            found[-1].append(stretch)
        else:
            found.append([stretch])
    return found


def _is_answered(turn: _Turn, start_ms: float, agent: Spans) -> bool:
    """Return whether a turn was over before the person spoke again at `start_ms`.

    `agent`: the agent's speech before that, as far as it goes beyond the turn's end.
    """
    if start_ms - turn.end_ms > WAITED_MS:
        return True
    return any(
        a < start_ms - REACTION_MS
        and (a > turn.start_ms or min(b, start_ms) > turn.end_ms + DIES_AWAY_MS)
        for a, b in agent
    )


def _track(
    turns: Sequence[_Turn],
    events: Sequence[Event],
    agent: Spans,
    ends_ms: float,
    *,
    budget_ms: float,
    no_reply_ms: float,
) -> list[TrackedTurn]:
    """Return each turn as the live tracker makes it."""
    tracker = TurnTracker(tells_flushes=False)
    for number, turn in enumerate(turns, 1):
        bounds = ms_to_ns(turn.start_ms), ms_to_ns(turn.end_ms)
        tracker.feed(UserSpeech(number, *bounds, turn.over_reply, budget_ms))
        for hum in turn.backchannels:
            tracker.feed(UserBackchannel(ms_to_ns(hum.start_ms)))
        for end_ms in _broken_off(turn, agent):
            turn.notes[BROKEN_OFF] = 1
            tracker.feed(Flush(at_ns=ms_to_ns(end_ms) + 1))
    for event in events:
        tracker.feed(event)
    tracked: list[TrackedTurn] = []
    for number, turn in enumerate(turns, 1):
        following = turns[number] if number < len(turns) else None
        onset_ns = tracker.onset_of(number)
        upto_ms = following.start_ms if following else ends_ms
        at_ns, due_ns = ms_to_ns(upto_ms), ms_to_ns(turn.end_ms + no_reply_ms)
        reason: TurnEnd = "reply_done"
        if onset_ns is None or onset_ns > due_ns:
            reason = "timeout" if at_ns >= due_ns or following is None else "interrupted"
        else:
            over_ms = _reply_over_ms(ns_to_ms(onset_ns), agent, upto_ms)
            if following and following.over_reply and over_ms == upto_ms:
                reason = "interrupted"
            at_ns = max(ms_to_ns(over_ms), ms_to_ns(turn.end_ms) + 1)
        (one,) = tracker.feed(TurnEnded(number, at_ns - 1, reason))
        too_short = one.yield_ns is not None and one.yield_ns < ms_to_ns(LEAST_YIELD_MS)
        # How much silence was sent before the first word, a recording does not tell.
        tracked.append(replace(one, lead_ns=None, yield_ns=None if too_short else one.yield_ns))
    return tracked


def _broken_off(turn: _Turn, agent: Spans) -> Iterator[float]:
    """Yield when the agent stopped what it had begun in a pause of a person who then went on."""
    for before, after in pairwise(turn.stretches):
        for start_ms, end_ms in agent:
            late_ms, torn = start_ms - after.start_ms, end_ms - start_ms < TORN_OFF_MS
            begins = start_ms > before.end_ms and late_ms < (STARTS_MS if torn else UNAWARE_MS)
            stops = after.start_ms + LEAST_YIELD_MS < end_ms < after.start_ms + YIELDS_MS
            if begins and stops and end_ms < turn.end_ms:
                yield end_ms


def _reply_over_ms(onset_ms: float, agent: Spans, upto_ms: float) -> float:
    """Return when a reply is over: as live, once silence follows more than a hold phrase."""
    reply = [a for a in agent if onset_ms <= a[0] < upto_ms]
    since_ms = onset_ms
    for (_, end_ms), (next_ms, _) in pairwise([*reply, (upto_ms, upto_ms)]):
        if next_ms - end_ms >= QUIET_MS:
            if end_ms - since_ms >= HOLD_PHRASE_MS:
                return end_ms + QUIET_MS
            since_ms = next_ms
    return upto_ms


def _claimed(claims: Claims | None, tracked: Sequence[TrackedTurn]) -> dict[int, float]:
    """Return the platform's own figure of each turn, if it has one of every turn or reply."""
    figures = claims.latency_ms if claims and claims.per_turn else ()
    every, replied = ([t.turn for t in tracked if t.onset_ns or not r] for r in (False, True))
    for numbers in (every, replied):
        if len(figures) == len(numbers):
            return dict(zip(numbers, figures, strict=True))
    return {}


def _windows(turns: Sequence[_Turn], rate: int, samples: int) -> tuple[tuple[int, int], ...]:
    """Return the first and last sample of each turn's part of the recording."""
    firsts = [round(max(0.0, turn.start_ms - GREETING_MS) * rate / 1000) for turn in turns[:1]]
    for before, turn in pairwise(turns):
        firsts.append(round(max(before.end_ms, turn.start_ms - LEAD_MS) * rate / 1000))
    longest = round(LONGEST_MS * rate / 1000)
    return tuple(
        (first, min(last, first + longest))
        for first, last in zip(firsts, [*firsts[1:], samples], strict=False)
    )


@dataclass(frozen=True, slots=True)
class _Maker:
    """Maker of a call's records, from what was heard on both sides."""

    recording: Recording
    name: str
    person: Sequence[SpeechStretch]
    agent: Spans
    ends_ms: float
    budget_ms: float
    no_reply_ms: float
    claims: Claims | None
    claimed: Mapping[int, float]

    def record(
        self, turn: _Turn, tracked: TrackedTurn, window: tuple[int, int], until_ms: float
    ) -> Turn:
        """Build the record of a turn, whose part of the recording is `window`.

        The next turn begins at `until_ms`, or the recording ends.
        """
        first_ms, last_ms = (sample * 1000 / self.recording.rate for sample in window)
        said = self._words("person", turn.start_ms, turn.end_ms)
        pauses = tuple(
            PauseRecord(start_ms=a.end_ms - turn.start_ms, end_ms=b.start_ms - turn.start_ms)
            for a, b in pairwise(turn.stretches)
        )
        record = Turn.of(
            tracked,
            Utterance(scenario=self.name, say=said, budget_ms=self.budget_ms, pauses=pauses),
            pacing=_UNSENT,
            audio=AudioRecord(
                file="",
                user_start_ms=turn.start_ms - first_ms,
                user_end_ms=turn.end_ms - first_ms,
                onset_ms=None
                if tracked.onset_ns is None
                else tracked.onset_ns / NS_PER_MS - first_ms,
                label_error_ms=turn.stretches[-1].end_error_ms,
            ),
            holes=self._holes(tracked),
            backchannels=tuple(
                BackchannelRecord(say="", start_ms=hum.start_ms - first_ms, reply_stopped=False)
                for hum in turn.backchannels
            ),
            notes=self._notes(turn, tracked),
            left_out=self._why_left_out(turn, tracked),
            events=tuple(map(plain_event, self._events(tracked, first_ms, last_ms))),
        )
        everything = [(s.start_ms, s.end_ms) for s in self.person]
        spoken, agent = (_within(s, turn.start_ms, until_ms) for s in (everything, self.agent))
        last = [(until_ms, until_ms)] if until_ms < self.ends_ms else []  # the person speaks again
        update: dict[str, object] = {
            "transcript": said,
            "reply": self._words("agent", turn.end_ms, last_ms),
            "talk_over_ms": _together_ms(spoken, agent),
            "dead_air_ms": _dead_air_ms([*spoken, *agent, *last]),
        }
        if (claimed := self.claimed.get(tracked.turn)) is not None:
            update["counts"] = {**record.counts, CLAIMED_GAP: claimed}
        return record.model_copy(update=update)

    def _notes(self, turn: _Turn, tracked: TrackedTurn) -> dict[str, int]:
        """Say what of a turn a recording only guesses."""
        notes, error_ms = dict(turn.notes), turn.stretches[-1].end_error_ms
        if error_ms > DOUBTFUL_MS:
            notes[DOUBTFUL] = 1
        if tracked.outcome == "cut_in" and -ns_to_ms(tracked.gap_ns or 0) < error_ms:
            notes[BY_ERROR] = 1
        near_ms = turn.end_ms - DOUBTFUL_MS, turn.end_ms + SPEECH_GAP_MS
        if self.recording.echo_db is not None and _within(self.agent, *near_ms):
            notes[UNDER_ECHO] = 1
        if tracked.yield_ns is not None:
            notes[MAY_HAVE_FINISHED] = 1
        return notes

    def _why_left_out(self, turn: _Turn, tracked: TrackedTurn) -> str | None:
        silent_ms = self.ends_ms - turn.end_ms
        if tracked.onset_ns is None and tracked.ended == "timeout" and silent_ms < self.no_reply_ms:
            return f"the recording ends {silent_ms:.0f} ms after the person"
        return None

    def _events(self, tracked: TrackedTurn, first_ms: float, last_ms: float) -> Iterator[Event]:
        """Yield the person's and the agent's speech in a turn's part of the recording."""
        yield UserSpeech(tracked.turn, tracked.user_start_ns, tracked.user_end_ns)
        for start_ms, end_ms in self.agent:
            if first_ms <= start_ms < last_ms:
                yield AgentSpeech(ms_to_ns(start_ms), ms_to_ns(start_ms))
            if first_ms <= end_ms < last_ms:
                yield AgentSilence(ms_to_ns(end_ms))

    def _words(self, side: str, start_ms: float, end_ms: float) -> str:
        """Return what the platform's transcript says of one side in a part of the call."""
        said = self.claims.said if self.claims else ()
        return " ".join(
            s.text
            for s in said
            if s.side == side and start_ms - EARLY_WORDS_MS <= s.start_ms < end_ms
        )

    def _holes(self, tracked: TrackedTurn) -> tuple[HoleRecord, ...]:
        """List the silences in a reply: long ones, and short ones torn into its sound."""
        if not tracked.parts_ns:
            return ()
        pcm, rate = self.recording.agent, self.recording.rate
        parts = [(a, ms_to_ns(self.ends_ms) if b is None else b) for a, b in tracked.parts_ns]
        spans = [(ns_to_ms(a), ns_to_ms(b)) for a, b in parts]
        found = [(a, b - a) for (_, a), (b, _) in pairwise(spans) if b - a >= PAUSE_MS]
        for start_ms, end_ms in spans:
            first, last = (round(ms * rate / 1000) for ms in (start_ms, end_ms))
            torn = _torn(pcm[first:last], rate)
            found += [((first + a) * 1000 / rate, (b - a) * 1000 / rate) for a, b in torn]
        onset_ms = spans[0][0]
        return tuple(HoleRecord(at_ms=at - onset_ms, ms=ms) for at, ms in sorted(found))


def _torn(pcm: Pcm, rate: int) -> list[tuple[int, int]]:
    """Return the stretches of digital silence, in samples, with sound up to both edges."""
    still = np.concatenate(([False], np.abs(pcm) <= 1, [False]))
    edges = np.flatnonzero(np.diff(still)).reshape(-1, 2)
    long = edges[edges[:, 1] - edges[:, 0] >= rate * TORN_MS / 1000]
    if not len(long):
        return []
    near = round(rate * TORN_EDGE_MS / 1000)
    loud = float(np.percentile(np.abs(pcm.astype(np.int32)), 95)) * 10 ** (-TORN_BELOW_DB / 20)
    return [
        (int(a), int(b))
        for a, b in long
        if all(len(side) and np.abs(side.astype(np.int32)).max() > loud
               for side in (pcm[max(0, a - near) : a], pcm[b : b + near]))
    ]  # fmt: skip


def _within(spans: Spans, first_ms: float, last_ms: float) -> list[tuple[float, float]]:
    """Return what of the spans lies between two instants."""
    return [(max(a, first_ms), min(b, last_ms)) for a, b in spans if b > first_ms and a < last_ms]


def _together_ms(one: Spans, other: Spans) -> float:
    """Return how long both sides speak at the same time."""
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in one for c, d in other)


def _dead_air_ms(spoken: Spans) -> float:
    """Return the sum of the long silences between those who speak."""
    total, upto = 0.0, inf
    for a, b in sorted(spoken):
        if a - upto >= DEAD_AIR_MS:
            total += a - upto
        upto = b if upto == inf else max(upto, b)
    return total
