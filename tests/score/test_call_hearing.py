"""Turns found in a recorded call, made here of a shipped voice with known places."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from helpers.made_speech import RATE, room, spoken
from turngap.core.audio import Pcm
from turngap.core.counts import claimed_gap
from turngap.scenario.speech import SpeechStretch, find_stretches
from turngap.score.claims import Claims
from turngap.score.hearing import (
    BROKEN_OFF,
    MAY_HAVE_FINISHED,
    RESUMED,
    HeardCall,
    hear_call,
    part_turns,
)
from turngap.score.recording import Recording
from turngap.testing.agent import voice

NEAR_MS = 20.0
_WORDS = spoken(before_ms=50, after_ms=50)
SAID = _WORDS.end_ms - _WORDS.start_ms  # how long the voice speaks


def long(start_ms: float, times: int) -> list[float]:
    """Where the words start that are said without a pause."""
    return [start_ms + n * (SAID + 100) for n in range(times)]


def side(starts: Sequence[float], length_ms: float) -> Pcm:
    """One side of a call: the same words at each start."""
    pcm, clip = room(length_ms), _WORDS.pcm
    for start in starts:
        first = round((start - _WORDS.start_ms) * RATE / 1000)
        pcm[first : first + len(clip)] = clip[: len(pcm) - first]
    return pcm


def heard(person: Pcm, agent: Pcm, claims: Claims | None = None) -> HeardCall:
    recording = Recording(Path("call.wav"), RATE, person, agent, "left", "given")
    return hear_call(recording, "call", no_reply_ms=6000, claims=claims)


def only(person: Sequence[float], agent: Sequence[float], length_ms: float) -> HeardCall:
    return heard(side(person, length_ms), side(agent, length_ms))


def stretches(*spans: tuple[float, float]) -> list[SpeechStretch]:
    return [SpeechStretch(a, b, 30.0, 30.0) for a, b in spans]


def test_turns_gaps_and_greeting() -> None:
    ask, next_ask = 1000 + SAID + 700, 0.0
    reply = ask + SAID + 500
    next_ask = reply + SAID + 900
    late = next_ask + SAID + 1200
    call = only([ask, next_ask], [1000, reply, late], late + SAID + 1000)
    assert [turn.outcome for turn in call.turns] == ["answered", "late"]
    assert [turn.turn for turn in call.turns] == [1, 2]
    assert [turn.gap_ms for turn in call.turns] == pytest.approx([500, 1200], abs=NEAR_MS)
    assert call.greeting_ms == pytest.approx(1000, abs=NEAR_MS)
    first, second = call.turns
    assert first.greeting_ms == call.greeting_ms and second.greeting_ms is None
    assert first.talk_over_ms == 0 and first.dead_air_ms == 0
    assert first.lead_ms is None and not first.notes
    assert set(first.stage_ms) == {"unattributed", "agent_onset"}
    assert first.audio is not None and first.audio.label_error_ms
    (first_at, last_at), (second_at, end) = call.windows
    assert last_at == second_at and end == round((late + SAID + 1000) * RATE / 1000)
    place_ms = first_at * 1000 / RATE + first.audio.user_end_ms
    assert place_ms == pytest.approx(ask + SAID, abs=NEAR_MS)


def test_an_agent_that_starts_while_the_person_speaks_cuts_in() -> None:
    call = only([1000], [1000 + SAID - 600], 1000 + 2 * SAID + 3000)
    (turn,) = call.turns
    assert turn.outcome == "cut_in" and turn.gap_ms == pytest.approx(-600, abs=NEAR_MS)
    assert turn.talk_over_ms == pytest.approx(600, abs=60)


def test_an_overlap_within_the_labels_error_is_no_cut_in() -> None:
    call = only([1000], [1000 + SAID - 30], 1000 + 2 * SAID + 3000)
    assert [turn.outcome for turn in call.turns] == ["answered"]


def test_a_barge_in_has_a_yield() -> None:
    reply = 1000 + SAID + 400
    barge_in = reply + 2 * SAID + 100 - 300
    agent = [*long(reply, 2), barge_in + SAID + 500]
    call = only([1000, barge_in], agent, barge_in + 2 * SAID + 3000)
    first, second = call.turns
    assert first.outcome == "answered" and first.ended == "interrupted"
    assert second.outcome == "answered" and second.gap_ms == pytest.approx(500, abs=30)
    assert second.yield_ms == pytest.approx(300, abs=80)
    assert MAY_HAVE_FINISHED in second.notes


def test_a_call_that_ends_leaves_a_last_turn_out() -> None:
    call = only([1000], [], 1000 + SAID + 2000)
    (turn,) = call.turns
    assert turn.left_out is not None and "the recording ends 2" in turn.left_out
    assert (turn.outcome, turn.gap_ms) == ("no_reply", None)


def test_a_long_silence_is_no_reply() -> None:
    (turn,) = only([1000], [], 1000 + SAID + 7000).turns
    assert (turn.outcome, turn.left_out) == ("no_reply", None)


def test_an_abandoned_turn() -> None:
    again = 1000 + SAID + 4000
    reply = again + SAID + 300
    first, second = only([1000, again], [reply], reply + SAID + 500).turns
    assert (first.outcome, second.outcome) == ("abandoned", "answered")
    assert first.waited_ms == pytest.approx(4000, abs=NEAR_MS)
    assert first.dead_air_ms == pytest.approx(4000, abs=NEAR_MS)


def test_a_pause_parts_no_turn() -> None:
    again = 1000 + SAID + 1500
    reply = again + SAID + 300
    (turn,) = only([1000, again], [reply], reply + SAID + 500).turns
    assert turn.gap_ms == pytest.approx(300, abs=NEAR_MS)
    assert turn.pauses is not None
    assert max(pause.ms for pause in turn.pauses) == pytest.approx(1500, abs=2 * NEAR_MS)


def test_a_hole_in_a_reply() -> None:
    reply = 1000 + SAID + 300
    agent = side([reply], reply + SAID + 500)
    torn = round((reply + 350) * RATE / 1000)
    agent[torn : torn + round(0.2 * RATE)] = 0
    (turn,) = heard(side([1000], reply + SAID + 500), agent).turns
    (hole,) = turn.holes
    assert (hole.at_ms, hole.ms) == (pytest.approx(350, abs=30), pytest.approx(200, abs=5))


def test_a_question_long_after_a_reply_is_no_part_of_it() -> None:
    reply = 1000 + SAID + 300
    starts = long(reply, 6)
    ask = starts[-1] + SAID + 5000
    (turn,) = only([1000], [*starts, ask], ask + SAID + 500).turns
    assert turn.outcome == "answered"
    assert all(hole.ms < 2000 for hole in turn.holes)


def test_a_hold_phrase_comes_before_the_answer() -> None:
    reply = 1000 + SAID + 300
    answer = reply + SAID + 2500
    (turn,) = only([1000], [reply, answer], answer + SAID + 500).turns
    assert turn.gap_ms == pytest.approx(300, abs=NEAR_MS)
    assert turn.first_answer_ms == pytest.approx(SAID + 2800, abs=NEAR_MS)
    assert turn.dead_air_ms == pytest.approx(2500, abs=2 * NEAR_MS)


@pytest.mark.parametrize("length_ms", [0.0, 50.0, 3000.0])
def test_an_empty_call_has_no_turn(length_ms: float) -> None:
    assert heard(room(length_ms), room(length_ms)) == HeardCall((), (), None)


def test_one_side_alone() -> None:
    call = only([], [1000], 3000 + SAID)
    assert call.turns == () and call.greeting_ms == pytest.approx(1000, abs=NEAR_MS)


def test_the_platforms_claim_of_each_turn() -> None:
    next_ask = 1000 + 2 * SAID + 1500
    length = next_ask + 2 * SAID + 2000
    person, agent = (side([at, next_ask + at - 1000], length) for at in (1000.0, 1000 + SAID + 500))

    def claimed(*figures: float) -> list[tuple[float | None, str | None]]:
        claims = Claims(platform="vapi", latency_ms=figures, per_turn=True)
        return [claimed_gap(turn.counts) for turn in heard(person, agent, claims).turns]

    assert claimed(420, 900) == [(420, "platform"), (900, "platform")]
    assert claimed(600) == claimed(420, 900, 300) == [(None, None)] * 2


# --- who has the floor ----------------------------------------------------------------------------


def parted(
    person: Sequence[tuple[float, float]], agent: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    return [(turn.start_ms, turn.end_ms) for turn in part_turns(stretches(*person), agent)]


def test_a_person_who_goes_on_at_once_had_not_finished() -> None:
    (turn,) = part_turns(stretches((0, 1000), (1700, 3000)), [(1500, 4000)])
    assert (turn.start_ms, turn.end_ms) == (0, 3000)
    assert list(turn.notes) == [RESUMED.format(ms=200)]
    assert parted([(0, 1000), (2500, 4000)], [(1500, 2400)]) == [(0, 1000), (2500, 4000)]


def test_words_of_one_sentence_stay_together_over_the_agent() -> None:
    # The second stretch is 250 ms after the first, while the agent has spoken for 700 ms.
    assert parted([(0, 2000), (2250, 3000)], [(1550, 5000)]) == [(0, 3000)]


def test_assent_of_the_agent_takes_no_floor() -> None:
    assert parted([(0, 2000), (2700, 4000)], [(1500, 1900)]) == [(0, 4000)]
    assert parted([(0, 2000), (2700, 4000)], [(2400, 2650)]) == [(0, 4000)]


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "outcome"),
    [
        (-300.0, 300.0, "cut_in"),  # began in the pause, stopped for the person
        (100.0, 700.0, "cut_in"),  # began before it could know
        (300.0, 500.0, "cut_in"),  # torn off
        (300.0, 900.0, "answered"),  # assent
        (-350.0, -100.0, "answered"),  # assent in the pause
    ],
)
def test_an_agent_that_stops_for_a_person_who_goes_on_cut_in(
    from_ms: float, to_ms: float, outcome: str
) -> None:
    on_ms = 1000 + SAID + 700
    person = side([1000, *long(on_ms, 2)], 9000)
    agent = side([on_ms + 2 * SAID + 600], 9000)
    first, last = (round((on_ms + ms) * RATE / 1000) for ms in (from_ms, to_ms))
    agent[first:last] = voice(to_ms - from_ms, RATE)[: last - first]

    (turn,) = heard(person, agent).turns

    assert turn.outcome == outcome
    assert (BROKEN_OFF in turn.notes) == (outcome == "cut_in")


def test_assent_of_the_person() -> None:
    (turn,) = part_turns(stretches((0, 1000), (3000, 3400)), [(1500, 6000)])
    assert [hum.start_ms for hum in turn.backchannels] == [3000]
    # Over the end of the reply it is a turn, and so is more than a sound.
    assert len(parted([(0, 1000), (3000, 3400)], [(1500, 3600)])) == 2
    assert len(parted([(0, 1000), (3000, 3800)], [(1500, 6000)])) == 2
    # The agent stops for it, and answers.
    stop = parted([(0, 1000), (8000, 8400)], [(1500, 8900), (9700, 12_000)])
    assert stop == [(0, 1000), (8000, 8400)]
    # In the agent's own pause, which ends too soon to answer.
    assert len(parted([(0, 1000), (3000, 3400)], [(1500, 2500), (3100, 5000)])) == 1
    assert len(parted([(0, 1000), (3000, 3400)], [(1500, 2500), (3500, 5000)])) == 2
    # Over a greeting it belongs to no turn.
    assert parted([(1000, 1300), (5000, 6000)], [(500, 4000)]) == [(5000, 6000)]


def test_an_interrupted_reply_that_dies_away_answers_nothing() -> None:
    agent = [(1500.0, 3600.0)]
    assert parted([(0, 1000), (3000, 3500), (4200, 5000)], agent) == [(0, 1000), (3000, 5000)]
    # One that goes on has taken the floor again.
    agent = [(1500.0, 6000.0)]
    person = [(0.0, 1000.0), (3000.0, 3700.0), (6400.0, 7000.0)]
    assert parted(person, agent) == person


# --- a long side ----------------------------------------------------------------------------------


def test_one_loud_sound_leaves_no_other_speech_out() -> None:
    starts = [1000.0, 6000, 11_000, 16_000]
    pcm = side(starts, 20_000)
    pcm[RATE * 5 :] = (pcm[RATE * 5 :] * 0.05).astype(pcm.dtype)  # -26 dB

    found = find_stretches(pcm, RATE)

    assert [stretch.is_soft for stretch in found] == [False] * len(found)
    assert len(found) >= len(starts)


def test_stretches_of_a_long_side() -> None:
    starts = [1000.0, 40_000.0, 95_000.0]
    found = find_stretches(side(starts, 100_000), RATE)
    joined = [s for n, s in enumerate(found) if not n or s.start_ms - found[n - 1].end_ms > 500]
    assert [s.start_ms for s in joined] == pytest.approx(starts, abs=NEAR_MS)
    assert found[-1].end_ms == pytest.approx(95_000 + SAID, abs=NEAR_MS)
    assert all(0 < s.end_error_ms < 100 for s in found)
