"""The ear against a playout worked out by hand: every sample's instant, then what is loud in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.ear import Ear, Speech
from turngap.core.audio import Pcm
from turngap.core.events import AgentSilence, AgentSpeech

RATES = (8_000, 16_000, 22_050, 24_000, 48_000)
# No sum of the lengths below: what happens at exactly the gap is the detector's to define.
GAP_MS = 60.3
MS = 1_000_000
T0 = 5_000 * MS


# --- what there is to hear --------------------------------------------------------------------


def tone(ms: float, rate: int) -> Pcm:
    """Loud from its very first sample to its last."""
    samples = max(1, round(ms * rate / 1000))
    signs = np.where(np.arange(samples) // 8 % 2 == 0, 1, -1)
    return (signs * 8000).astype(np.int16)


def zeros(ms: float, rate: int) -> Pcm:
    return np.zeros(round(ms * rate / 1000), dtype=np.int16)


def noise(ms: float, rate: int, dbfs: float = -55.0) -> Pcm:
    samples = round(ms * rate / 1000)
    amplitude = 32768 * 10 ** (dbfs / 20)
    return (np.random.default_rng(samples).standard_normal(samples) * amplitude).astype(np.int16)


@dataclass(frozen=True)
class Arrival:
    at_ns: int
    pcm: Pcm
    rate: int


@dataclass(frozen=True)
class Flush:
    at_ns: int


# --- the reference ----------------------------------------------------------------------------


@dataclass
class Stretch:
    """Audio played without a cut, at one rate: each sample with its instant in ns (exact)."""

    rate: int
    pcm: list[int]
    at_ns: list[float]
    received_ns: list[int | None]  # None: silence where nothing played


def playout(course: Sequence[Arrival | Flush]) -> list[Stretch]:
    """Every chunk when it arrives or after the one before, nothing after a flush, holes silent."""
    flushes = [f.at_ns for f in course if isinstance(f, Flush)]
    stretches: list[Stretch] = []
    free_ns = end_ns = 0.0
    for step in course:
        if isinstance(step, Flush):
            free_ns = min(free_ns, step.at_ns)
            continue
        start_ns = max(free_ns, step.at_ns)
        free_ns = start_ns + len(step.pcm) * 1e9 / step.rate
        cut_ns = min((f for f in flushes if f >= step.at_ns), default=float("inf"))
        # A sample that had not sounded to its end when the flush came was not played.
        whole = (cut_ns - start_ns) * step.rate / 1e9
        played = len(step.pcm) if whole > len(step.pcm) else max(0, int(whole + 1e-4))
        if not played:
            continue
        flushed_ns = next((f for f in flushes if end_ns - 50_000 <= f <= start_ns), None)
        if not stretches or flushed_ns is not None or stretches[-1].rate != step.rate:
            if stretches:
                be_silent(stretches[-1], end_ns, flushed_ns or start_ns)
            stretches.append(Stretch(step.rate, [], [], []))
        else:
            be_silent(stretches[-1], end_ns, start_ns)
        stretch = stretches[-1]
        stretch.pcm += step.pcm[:played].tolist()
        stretch.at_ns += [start_ns + i * 1e9 / step.rate for i in range(played)]
        stretch.received_ns += [step.at_ns] * played
        end_ns = start_ns + played * 1e9 / step.rate
    if stretches:
        flushed_ns = next((f for f in flushes if end_ns - 50_000 <= f), None)
        be_silent(stretches[-1], end_ns, flushed_ns or end_ns + 200 * MS)
    return stretches


def be_silent(stretch: Stretch, from_ns: float, to_ns: float) -> None:
    samples = max(0, int((to_ns - from_ns) * stretch.rate / 1e9 + 1e-4))
    stretch.pcm += [0] * samples
    stretch.at_ns += [from_ns + i * 1e9 / stretch.rate for i in range(samples)]
    stretch.received_ns += [None] * samples


def loud(pcm: Sequence[int], rate: int) -> list[int]:
    """Samples at or over -40 dBFS in some 10 ms that are as loud in the mean, clicks capped."""
    window, threshold = round(rate / 100), 32768 * 10 ** (-40 / 20)
    levels = [abs(v) for v in pcm]
    cap = int(threshold * 10 ** (12 / 20))
    sums = [0]
    for level in levels:
        sums.append(sums[-1] + min(level, cap) ** 2)
    wanted = threshold**2 * window
    good = {s for s in range(len(pcm) - window + 1) if sums[s + window] - sums[s] >= wanted}
    return [
        i
        for i, level in enumerate(levels)
        if level >= threshold and any(s in good for s in range(i - window + 1, i + 1))
    ]


def speech(stretch: Stretch) -> list[tuple[float, float, int | None]]:
    """(onset, last audible, arrival of the onset's chunk) of each speech in a stretch."""
    gap = round(stretch.rate * GAP_MS / 1000)
    audible = loud(stretch.pcm, stretch.rate)
    starts = [b for a, b in pairwise([-(10**9), *audible]) if b - a > gap]
    ends = [a for a, b in pairwise([*audible, 10**12]) if b - a > gap]
    return [
        (stretch.at_ns[s], stretch.at_ns[e], stretch.received_ns[s])
        for s, e in zip(starts, ends, strict=True)
    ]


# --- the ear, driven --------------------------------------------------------------------------


def hear(course: Sequence[Arrival | Flush], ticks: Sequence[int]) -> tuple[Ear, list[Speech]]:
    """Play a course, calling `advance` at every tick besides."""
    ear = Ear(GAP_MS, words=False)
    events: list[Speech] = []
    steps: list[tuple[int, Arrival | Flush | None]] = [(s.at_ns, s) for s in course]
    steps += [(t, None) for t in ticks]
    for at_ns, step in sorted(steps, key=lambda s: s[0]):
        match step:
            case Arrival():
                new = ear.receive(at_ns, step.pcm, step.rate)
            case Flush():
                new = ear.flush(at_ns)
            case None:
                new = ear.advance(at_ns)
        assert all(instant(e) <= at_ns for e in new), "heard before it sounded"
        events += new
    lengths = (len(s.pcm) / s.rate for s in course if isinstance(s, Arrival))
    over_ns = course[-1].at_ns + round(sum(lengths) * 1e9)
    return ear, events + ear.flush(over_ns + 1_000 * MS)


def instant(event: Speech) -> int:
    return event.onset_ns if isinstance(event, AgentSpeech) else event.at_ns


@st.composite
def courses(draw: st.DrawFn) -> list[Arrival | Flush]:
    """Audio of several kinds, cut into chunks, that arrives in bursts, in real time or late."""
    at_ns = T0 + draw(st.integers(0, 3 * MS))
    rate = draw(st.sampled_from(RATES[:4]))
    course: list[Arrival | Flush] = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 4)) == 0:
            rate = draw(st.sampled_from(RATES))
        kinds = draw(st.lists(st.sampled_from((tone, zeros, noise)), min_size=1, max_size=4))
        lengths = [draw(st.sampled_from((0.5, 4, 9, 11, 30, 61, 90))) for _ in kinds]
        audio = np.concatenate([k(ms, rate) for k, ms in zip(kinds, lengths, strict=True)])
        size = max(1, round(rate * draw(st.sampled_from((1, 3.3, 10, 20, 40, 1000))) / 1000))
        pace = draw(st.sampled_from((0.0, 0.5, 1.0, 1.3)))
        for first in range(0, len(audio), size):
            course.append(Arrival(at_ns, audio[first : first + size], rate))
            at_ns += int(pace * size * 1e9 / rate)
        at_ns += draw(st.sampled_from((0, 1, 5, 55, 75, 200))) * MS + draw(st.integers(0, 999_999))
        if draw(st.integers(0, 4)) == 0:
            # Never between two samples, where a nanosecond decides.
            course.append(Flush(at_ns // 1_000 * 1_000 + 1_137))
            at_ns = course[-1].at_ns + draw(st.sampled_from((863, 3 * MS, 100 * MS)))
    return course


TICKS = st.one_of(
    st.just([]),
    st.integers(1, 30).map(lambda ms: list(range(T0, T0 + 1_200 * MS, ms * MS))),
    st.lists(st.integers(T0, T0 + 1_200 * MS), max_size=30),
)


@given(courses(), TICKS)
def test_every_speech_begins_and_ends_at_its_sample(
    course: list[Arrival | Flush], ticks: list[int]
) -> None:
    _, events = hear(course, ticks)
    expected = [s for stretch in playout(course) for s in speech(stretch)]
    onsets = [e for e in events if isinstance(e, AgentSpeech)]
    ends = [e for e in events if isinstance(e, AgentSilence)]
    assert [type(e) for e in events] == [AgentSpeech, AgentSilence] * len(expected)
    # A fifth of the shortest sample (4 µs): what whole nanoseconds add up to is far below it.
    assert [e.onset_ns for e in onsets] == pytest.approx([s for s, _, _ in expected], abs=4_000)
    assert [e.at_ns for e in ends] == pytest.approx([e for _, e, _ in expected], abs=4_000)
    assert [e.received_ns for e in onsets] == [r for _, _, r in expected]


@given(courses(), TICKS)
def test_what_is_heard_is_what_was_played(course: list[Arrival | Flush], ticks: list[int]) -> None:
    ear, _ = hear(course, ticks)
    by_rate: dict[int, list[tuple[float, int]]] = {}
    for stretch in playout(course):
        samples = zip(stretch.at_ns, stretch.pcm, stretch.received_ns, strict=True)
        by_rate.setdefault(stretch.rate, []).extend((a, v) for a, v, r in samples if r is not None)
    for rate, expected in by_rate.items():
        pieces = [h for h in ear.heard if h.rate == rate]
        assert [v for h in pieces for v in h.pcm.tolist()] == [v for _, v in expected]
        at_ns = [h.start_ns + i * 1e9 / rate for h in pieces for i in range(len(h.pcm))]
        assert at_ns == pytest.approx([a for a, _ in expected], abs=4_000)
    assert {h.rate for h in ear.heard} == set(by_rate)


@given(courses(), TICKS, TICKS)
def test_when_it_is_advanced_changes_nothing(
    course: list[Arrival | Flush], ticks: list[int], others: list[int]
) -> None:
    _, events = hear(course, ticks)
    _, same = hear(course, others)
    assert [type(e) for e in events] == [type(e) for e in same]
    assert [instant(e) for e in events] == pytest.approx([instant(e) for e in same], abs=2_000)


# --- single cases -----------------------------------------------------------------------------


def one(pcm: Pcm, rate: int, chunk_ms: float = 20, *, paced: bool = True) -> list[Arrival]:
    size = round(rate * chunk_ms / 1000)
    step_ns = round(size * 1e9 / rate) if paced else 0
    return [
        Arrival(T0 + i // size * step_ns, pcm[i : i + size], rate) for i in range(0, len(pcm), size)
    ]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("pad", [zeros, noise])
@pytest.mark.parametrize("paced", [True, False])
def test_a_leading_pad_is_lead_and_not_speech(rate: int, pad: object, paced: bool) -> None:
    quiet = zeros(150, rate) if pad is zeros else noise(150, rate)
    course = one(np.concatenate((quiet, tone(100, rate))), rate, paced=paced)
    _, (begun, ended) = hear(course, [])
    assert isinstance(begun, AgentSpeech)
    assert begun.onset_ns == pytest.approx(T0 + len(quiet) * 1e9 / rate, abs=4_000)
    assert begun.lead_ns == begun.onset_ns - T0
    assert isinstance(ended, AgentSilence)


def test_speech_without_a_pad_has_no_lead() -> None:
    _, (begun, _) = hear(one(tone(100, 16_000), 16_000), [])
    assert isinstance(begun, AgentSpeech)
    assert (begun.onset_ns, begun.lead_ns) == (T0, 0)


def test_the_lead_is_what_was_played_since_the_speech_before() -> None:
    rate = 16_000
    audio = np.concatenate((tone(50, rate), zeros(100, rate), tone(50, rate)))
    _, events = hear(one(audio, rate), [])
    first, _, second, _ = events
    assert isinstance(first, AgentSpeech)
    assert isinstance(second, AgentSpeech)
    assert second.lead_ns == pytest.approx(100 * MS, abs=100_000)


@pytest.mark.parametrize(("hole_ms", "lead_ms"), [(5, 35), (19, 49), (21, 20), (400, 20)])
def test_a_hole_that_jitter_made_is_lead_and_a_pause_of_the_line_is_not(
    hole_ms: int, lead_ms: int
) -> None:
    rate = 16_000
    after_ns = T0 + (10 + hole_ms) * MS
    course = [
        Arrival(T0, zeros(10, rate), rate),
        Arrival(after_ns, np.concatenate((zeros(20, rate), tone(50, rate))), rate),
    ]
    _, (begun, _) = hear(course, [])
    assert isinstance(begun, AgentSpeech)
    assert begun.lead_ns == lead_ms * MS


def test_old_speech_is_no_lead_of_the_next_however_short_the_pause() -> None:
    # A pause just longer than the gap, and no tick in it.
    rate = 16_000
    course = [
        Arrival(T0, tone(40, rate), rate),
        Arrival(T0 + (40 + 65) * MS, np.concatenate((zeros(10, rate), tone(40, rate))), rate),
    ]
    _, events = hear(course, [])
    second = events[2]
    assert isinstance(second, AgentSpeech)
    assert second.lead_ns == 10 * MS


def test_what_was_flushed_was_never_heard() -> None:
    rate = 24_000
    audio = np.concatenate((zeros(100, rate), tone(100, rate)))
    ear, events = hear([Arrival(T0, audio, rate), Flush(T0 + 90 * MS)], [])
    assert events == []
    assert sum(len(h.pcm) for h in ear.heard) == 90 * rate // 1000


def test_a_flush_in_mid_speech_ends_it_where_it_was_cut() -> None:
    rate = 16_000
    _, (begun, ended) = hear([Arrival(T0, tone(500, rate), rate), Flush(T0 + 200 * MS)], [])
    assert instant(begun) == T0
    # The last sample that sounded in full began one sample before the cut.
    assert instant(ended) == T0 + 200 * MS - 62_500


def test_after_a_flush_the_next_chunk_plays_at_once() -> None:
    rate = 16_000
    course = [
        Arrival(T0, tone(500, rate), rate),
        Flush(T0 + 100 * MS),
        Arrival(T0 + 130 * MS, tone(50, rate), rate),
    ]
    _, events = hear(course, [])
    assert instant(events[2]) == T0 + 130 * MS


def test_audio_still_queued_at_a_change_of_rate_plays_at_its_own() -> None:
    burst = np.concatenate((zeros(100, 8_000), tone(100, 8_000)))
    course = [Arrival(T0, burst, 8_000), Arrival(T0 + MS, tone(100, 48_000), 48_000)]
    ear, events = hear(course, [])
    assert [instant(e) for e in events] == [
        T0 + 100 * MS,
        T0 + 200 * MS - 125_000,
        T0 + 200 * MS,
        T0 + 300 * MS - 20_833,
    ]
    played = {r: sum(len(h.pcm) for h in ear.heard if h.rate == r) for r in (8_000, 48_000)}
    assert played == {8_000: 1_600, 48_000: 4_800}


def test_whether_it_speaks_is_known_while_it_does() -> None:
    rate = 16_000
    ear = Ear(GAP_MS, words=False)
    ear.receive(T0, np.concatenate((tone(100, rate), zeros(100, rate))), rate)
    said = []
    for ms in (0, 15, 100, 155, 185):
        ear.advance(T0 + ms * MS)
        said.append(ear.speaking)
    assert said == [False, True, True, True, False]


def test_whether_speech_is_still_to_be_played() -> None:
    rate = 16_000
    ear = Ear(GAP_MS, words=False)
    ear.receive(T0, np.concatenate((noise(40, rate), -tone(20, rate), noise(20, rate))), rate)
    ear.receive(T0, noise(200, rate), rate)
    said = []
    for ms in (0, 30, 61, 150, 400):
        ear.advance(T0 + ms * MS)
        said.append(ear.speech_ahead)
    assert said == [True, True, False, False, False]
    ear.receive(T0 + 400 * MS, tone(100, rate), rate)
    assert ear.speech_ahead
    ear.flush(T0 + 400 * MS)
    assert not ear.speech_ahead


def test_speech_ends_though_nothing_more_arrives() -> None:
    rate = 16_000
    ear = Ear(GAP_MS, words=False)
    ear.receive(T0, tone(100, rate), rate)
    events: list[Speech] = []
    for ms in range(0, 300, 20):
        events += ear.advance(T0 + ms * MS)
    assert [type(e) for e in events] == [AgentSpeech, AgentSilence]


def test_a_long_call_in_tiny_chunks_loses_no_place() -> None:
    # More chunks within one pause than any fixed number of them would hold.
    rate = 48_000
    audio = np.concatenate((tone(20, rate), zeros(250, rate), tone(20, rate)))
    ear = Ear(300.0, words=False)
    events: list[Speech] = []
    for i, sample in enumerate(audio):
        events += ear.receive(T0 + i * 1_000_000_000 // rate, np.array([sample], np.int16), rate)
    events += ear.flush(T0 + 2_000 * MS)
    assert [type(e) for e in events] == [AgentSpeech, AgentSilence]
    assert instant(events[1]) - T0 == pytest.approx(290 * MS, abs=200_000)


def test_an_empty_chunk_is_nothing() -> None:
    ear = Ear(GAP_MS, words=False)
    assert ear.receive(T0, zeros(0, 16_000), 16_000) == []
    assert (ear.heard, ear.speaking, ear.speech_ahead) == ([], False, False)


def test_a_message_that_arrived_before_the_latest_tick_plays_nothing_twice() -> None:
    """The kernel stamps a message; the ear may have been advanced beyond it before it is read."""
    ear, pcm = Ear(words=False), tone(20, 8_000)
    ear.receive(T0, pcm, 8_000)
    ear.advance(T0 + 10 * MS)
    ear.receive(T0 + 8 * MS, pcm, 8_000)
    ear.advance(T0 + 40 * MS)
    assert (ear.played, sum(len(heard.pcm) for heard in ear.heard)) == (320, 320)
    assert all(one.end_ns == next_.start_ns for one, next_ in pairwise(ear.heard))
