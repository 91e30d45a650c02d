"""A live conversation made into records: the page's facts, the agent's own account, both sides."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.made_speech import spoken
from turngap.caller import said
from turngap.core.clock import ms_to_ns, samples_to_ns
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.live.conversation import LiveConversation, Track
from turngap.live.wire import Played, TurnReport, parsed

RATE = 16_000
OUT_RATE = 24_000
# The agent's clock minus the page's.
OFFSET_NS = 5_000_000_000_000


def at(ms: float) -> int:
    return ms_to_ns(ms)


def burst(ms: float, rate: int = RATE) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return (np.cos(np.arange(round(rate * ms / 1000)) / 9) * 8000).astype(np.int16)


SPOKEN_MS = spoken(before_ms=1000).end_ms


def stretch(onset_ms: float, end_ms: float | None) -> dict[str, Any]:
    end_ns = None if end_ms is None else at(end_ms)
    return {"onset_ns": at(onset_ms), "received_ns": at(onset_ms - 5), "end_ns": end_ns}


def report(
    turn: int,
    start_ms: float,
    end_ms: float,
    agent: list[dict[str, Any]],
    ended_ms: float,
    **more: Any,
) -> TurnReport:
    return parsed(
        TurnReport,
        {
            "turn": turn,
            "start_ns": at(start_ms),
            "end_ns": at(end_ms),
            "agent": agent,
            "ended_ns": at(ended_ms),
            "ended": "reply_done",
            "stall_ms": 0.0,
            "offset": {"offset_ns": OFFSET_NS, "bound_ns": 1000, "n": 9},
            **more,
        },
    )


class Talk:
    """A conversation with what a connection would bring, on the page's clock in ms."""

    def __init__(self) -> None:
        self.live = LiveConversation("made-up-live", RATE)
        self.connection = self.live.connection

    def mic(self, upto_ms: float, *spoken: tuple[float, float]) -> None:
        """Microphone audio up to an instant, loud in the stretches `spoken`."""
        track = self.connection.mic
        pcm = np.zeros(round(upto_ms * RATE / 1000) - track.total, np.int16)
        for start_ms, end_ms in spoken:
            first = round(start_ms * RATE / 1000) - track.total
            pcm[first : first + round((end_ms - start_ms) * RATE / 1000)] = burst(end_ms - start_ms)
        self.connection.hear(pcm)

    def note(self, ms: float, fact: Any) -> None:
        self.connection.note(at(ms) + OFFSET_NS, fact)

    def marks(self, agent_turn: int, llm: str = "sim", **marks_ms: float) -> None:
        self.connection.llm_of[agent_turn] = llm
        marks = {name: at(ms) + OFFSET_NS for name, ms in marks_ms.items()}
        self.note(
            max(marks_ms.values()), said.Marks(agent_turn, marks, {"hold_ms": 120.0}, "complete")
        )

    def kept(self, report: TurnReport) -> Turn:
        return self.live.report(report).record


def answered() -> Talk:
    """The user speaks from 1000 to SPOKEN_MS, the reply sounds from 2400 to 3000."""
    talk = Talk()
    talk.connection.hear(spoken(before_ms=1000, after_ms=3300 - SPOKEN_MS).pcm)
    talk.note(2210, said.Transcript("what time is it"))
    talk.note(2350, said.ReplyText("Ten past"))
    talk.note(2360, said.ReplyText(" four."))
    talk.marks(1, endpoint=2200, transcript=2205, llm_request=2206, llm_first_token=2340, sent=2390)
    return talk


def test_a_turn_is_judged_as_a_replay_judges_it() -> None:
    record = answered().kept(report(1, 1000, 2000, [stretch(2400, 3000)], 3200))
    assert (record.outcome, record.gap_ms) == ("answered", 400.0)
    assert (record.transcript, record.say, record.reply) == (
        "what time is it",
        "what time is it",
        "Ten past four.",
    )
    assert record.llm == "sim"
    assert (record.counts, record.endpoint_why) == ({"hold_ms": 120.0}, "complete")
    stages = {s.name: s.ms for s in record.stages}
    assert stages["endpoint"] == 200
    assert stages["llm_first_token"] == 134
    assert sum(s.ns for s in record.stages) == record.gap_ns
    assert {m.name: m.raw_ns for m in record.marks}["sent"] == at(2390) + OFFSET_NS
    assert record.left_out is None


def test_over_the_budget_is_late_and_silence_is_no_reply() -> None:
    talk = Talk()
    late = talk.kept(report(1, 0, 100, [stretch(901, 1000)], 1200))
    assert (late.outcome, late.gap_ms) == ("late", 801.0)
    silent = talk.kept(report(2, 2000, 2100, [], 8100, ended="timeout"))
    assert (silent.outcome, silent.gap_ms) == ("no_reply", None)
    assert silent.why_no_gap


def test_a_barge_in_has_its_yield_and_the_interrupted_reply_is_not_its_answer() -> None:
    talk = Talk()
    talk.kept(report(1, 0, 1000, [stretch(1400, None)], 2000, ended="interrupted"))
    playing, answer = stretch(1400, 2180), stretch(3300, 3900)
    second = talk.kept(
        report(2, 2000, 3000, [playing, answer], 4100, over_reply=True, flushed_ns=[at(2180)])
    )
    assert (second.gap_ms, second.yield_ms) == (300.0, 180.0)


def test_an_agent_that_cuts_in_has_a_negative_gap() -> None:
    record = answered().kept(report(1, 1000, 2500, [stretch(2400, 3000)], 3200))
    assert (record.outcome, record.gap_ms) == ("cut_in", -100.0)


def test_a_device_that_stood_still_takes_the_turn_out_of_the_figures() -> None:
    stalled = answered().kept(report(1, 1000, 2000, [stretch(2400, 3000)], 3200, stall_ms=8.1))
    assert (stalled.left_out, stalled.gap_ms) == ("device stall", 400.0)
    assert stalled.pacing.starved
    for fine in (8.0, None):
        kept = answered().kept(report(1, 1000, 2000, [stretch(2400, 3000)], 3200, stall_ms=fine))
        assert (kept.left_out, kept.pacing.starved) == (None, False)


@pytest.mark.parametrize(
    ("ended", "agent", "outcome"),
    [
        ("reply_done", [stretch(2900, 3000)], "answered"),
        ("timeout", [], "no_reply"),
        ("interrupted", [], "abandoned"),
        ("line_lost", [], "error"),
    ],
)
def test_a_typed_turn_has_no_gap_whatever_became_of_it(
    ended: str, agent: list[dict[str, Any]], outcome: str
) -> None:
    talk = answered()
    talk.live.typed(1, "what time is it?")
    record = talk.kept(report(1, 2000, 2000, agent, 3200, input="typed", ended=ended))
    assert (record.outcome, record.gap_ms, record.gap_ns) == (outcome, None, None)
    assert (record.left_out, record.stages) == ("typed", ())
    assert record.why_no_gap
    assert record.say == "what time is it?"
    # What was measured of it is still there.
    assert any(m.name == "user_end" for m in record.marks)


def test_a_switch_before_any_reply_is_the_users_own_doing() -> None:
    talk = answered()
    talk.connection.switched_ns.append(at(2300) + OFFSET_NS)
    record = talk.kept(report(1, 1000, 2000, [], 2310, ended="interrupted"))
    assert (record.outcome, record.left_out) == ("abandoned", "LLM switched")
    assert "switched" in (record.why_no_gap or "")


def test_a_switch_in_mid_reply_leaves_the_gap_that_was_measured() -> None:
    talk = answered()
    talk.connection.switched_ns.append(at(2600) + OFFSET_NS)
    record = talk.kept(report(1, 1000, 2000, [stretch(2400, 2620)], 2630, ended="interrupted"))
    assert (record.outcome, record.gap_ms, record.left_out) == ("answered", 400.0, None)


def test_a_turn_without_a_reply_counts_for_the_llm_that_owed_one() -> None:
    talk = Talk()
    talk.connection.llms += [(at(0) + OFFSET_NS, "old"), (at(5000) + OFFSET_NS, "new")]
    assert talk.kept(report(1, 1000, 2000, [], 8000, ended="timeout")).llm == "old"
    assert talk.kept(report(2, 9000, 9500, [], 16_000, ended="timeout")).llm == "new"


def test_a_reply_whose_end_is_told_with_the_next_turn_is_not_that_turns_own() -> None:
    talk = Talk()
    talk.kept(report(1, 1000, 2000, [stretch(2400, None)], 3000, ended="interrupted"))
    both = [stretch(2400, 2950), stretch(4300, 5000)]
    record = talk.kept(report(2, 3000, 4000, both, 5500, over_reply=True))
    assert (record.outcome, record.gap_ms, record.yield_ms) == ("answered", 300.0, None)


def test_text_of_a_turn_far_ahead_is_not_kept() -> None:
    talk = Talk()
    talk.live.typed(9999, "x")
    talk.live.typed(1, "hello")
    first = talk.kept(report(1, 100, 100, [], 7000, input="typed", ended="timeout"))
    assert first.say == "hello"
    late = talk.kept(report(9999, 8000, 8000, [], 15_000, input="typed", ended="timeout"))
    assert late.say == ""


def test_the_llm_whose_reply_was_heard_is_named() -> None:
    talk = Talk()
    talk.marks(1, "old", llm_request=1100, sent=1200)
    talk.marks(2, "new", llm_request=1500, sent=1700)
    record = talk.kept(report(1, 0, 1000, [stretch(1710, 2000)], 2300))
    assert record.llm == "new"
    assert len(record.agent_turns) == 2


def test_what_comes_after_a_turn_belongs_to_the_next() -> None:
    talk = answered()
    talk.note(4100, said.Transcript("and now"))
    first = talk.kept(report(1, 1000, 2000, [stretch(2400, 3000)], 3200))
    second = talk.kept(report(2, 3500, 4000, [stretch(4500, 5000)], 5200))
    assert (first.transcript, second.transcript) == ("what time is it", "and now")


def test_both_sides_are_recorded_where_they_sounded() -> None:
    talk = answered()
    talk.connection.send(np.zeros(OUT_RATE // 10, np.int16), OUT_RATE)  # 100 ms of lead-in
    talk.connection.send(burst(600, OUT_RATE), OUT_RATE)
    # Played from 2300 ms on, and stopped after 400 ms of it.
    talk.live.sounded(parsed(Played, {"played": [[0, round(OUT_RATE * 0.4), at(2300)]]}))
    kept = talk.live.report(report(1, 1000, 2000, [stretch(2400, 2700)], 3200))
    begun_ms = 500.0  # of the window: half a second before the user
    assert kept.record.audio is not None
    assert kept.record.audio.user_start_ms == 1000 - begun_ms
    assert kept.record.audio.onset_ms == 2400 - begun_ms
    for side, (start_ms, end_ms) in (
        (kept.user, (1000, SPOKEN_MS)),
        (kept.heard(), (2400, 2700)),
    ):
        loud = np.flatnonzero(np.abs(side.astype(int)) > 300)
        assert abs(loud[0] * 1000 / RATE - (start_ms - begun_ms)) < 3
        assert abs(loud[-1] * 1000 / RATE - (end_ms - begun_ms)) < 3


def test_a_page_without_a_microphone_is_recorded_as_silence() -> None:
    kept = Talk().live.report(report(1, 1000, 1000, [], 9000, input="typed", ended="timeout"))
    assert not kept.user.any()
    assert len(kept.heard()) == len(kept.user) == round(8.5 * RATE)


def test_a_turn_that_is_known_is_refused() -> None:
    talk = answered()
    talk.kept(report(1, 1000, 2000, [], 3200))
    with pytest.raises(InputError):
        talk.live.report(report(1, 4000, 4100, [], 5000))
    assert talk.live.turns == 1


def test_a_turn_nobody_reported_is_kept_as_lost() -> None:
    talk = answered()
    talk.connection.send(burst(600, OUT_RATE), OUT_RATE)
    (kept,) = talk.live.lost()
    record = kept.record
    assert (record.outcome, record.ended, record.gap_ms) == ("error", "line_lost", None)
    assert (record.transcript, record.reply, record.llm) == (
        "what time is it",
        "Ten past four.",
        "sim",
    )
    assert record.audio is not None
    assert abs(record.audio.user_start_ms - 1000) < 15
    assert abs(record.audio.user_end_ms - SPOKEN_MS) < 15
    assert talk.live.lost() == []


def test_where_nobody_spoke_nothing_was_lost() -> None:
    talk = Talk()
    talk.mic(5000)
    assert talk.live.lost() == []
    talk.note(1, said.Transcript("a ghost"))  # transcribed out of silence
    assert talk.live.lost() == []


def test_a_typed_turn_that_was_lost_is_one_too() -> None:
    talk = Talk()
    talk.live.typed(1, "are you there?")
    (kept,) = talk.live.lost()
    assert (kept.record.say, kept.record.left_out) == ("are you there?", "typed")


@pytest.mark.parametrize(("bound_ms", "explained"), [(1, False), (80, True)])
def test_marks_may_be_off_by_as_much_as_the_pages_comparison(
    bound_ms: int, explained: bool
) -> None:
    talk = Talk()
    talk.marks(1, endpoint=2200, sent=2510)
    offset = {"offset_ns": OFFSET_NS, "bound_ns": at(bound_ms), "n": 9}
    record = talk.kept(report(1, 1000, 2000, [stretch(2400, 3000)], 3200, offset=offset))
    assert ("sent" in {m.name for m in record.marks}) == explained


SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=20)


def ramp(n: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return (np.arange(n) % 30_000 + 1).astype(np.int16)


def track_of(sizes: list[int], rate: int = 16_000) -> Track:
    track, whole = Track(), ramp(sum(sizes))
    for size in sizes:
        track.append(whole[track.total : track.total + size], rate, mic_at=track.total)
    return track


@given(sizes=SIZES, start=st.integers(-50, 5000), length=st.integers(0, 6000))
def test_what_is_read_does_not_depend_on_the_pieces(
    sizes: list[int], start: int, length: int
) -> None:
    whole = ramp(sum(sizes))
    wanted = np.zeros(length, np.int16)
    low, high = max(0, start), min(len(whole), start + length)
    if low < high:
        wanted[low - start : high - start] = whole[low:high]
    assert np.array_equal(track_of(sizes).read(start, start + length), wanted)


@given(sizes=SIZES, start=st.integers(0, 3000), samples=st.integers(1, 3000))
def test_what_was_played_keeps_its_place_in_time(
    sizes: list[int], start: int, samples: int
) -> None:
    rate, at_ns = 24_000, 7_000_000_000
    for piece in track_of(sizes, rate).played(start, samples, at_ns):
        offset = int(piece.pcm[0]) - 1 - start  # the ramp's own position
        assert piece.start_ns == at_ns + samples_to_ns(offset, rate)
        assert piece.rate == rate
    total = sum(len(p.pcm) for p in track_of(sizes, rate).played(start, samples, at_ns))
    assert total == max(0, min(sum(sizes), start + samples) - start)


@given(sizes=SIZES, before=st.integers(0, 5000))
def test_what_is_forgotten_reads_as_silence_and_the_rest_stays(
    sizes: list[int], before: int
) -> None:
    track, total = track_of(sizes), sum(sizes)
    track.forget_before(before)
    kept = track.read(0, total)
    assert np.array_equal(kept[min(before, total) :], ramp(total)[min(before, total) :])
    assert track.total == total


def test_as_sent_never_overlaps() -> None:
    track = Track()
    for mic_at in (0, 0, 320, 16_000):
        track.append(ramp(2400), 24_000, mic_at)  # 100 ms each, faster than they sound
    pieces = track.as_sent(0, 16_000)
    starts_ms = [p.start_ns / 1e6 for p in pieces]
    assert starts_ms == [0, 100, 200, 1000]
    assert len(track.as_sent(1000, 16_000)) == 1
