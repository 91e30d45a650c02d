"""Both sides of the line as stereo: the same instant lies at the same place of both."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.ear import Ear, Heard
from turngap.caller.recording import agent_side, user_side
from turngap.caller.stream import RATE, UserStream
from turngap.core.audio import Pcm, audible_end, audible_onset

MS = 1_000_000
T0 = 3_000_000_777

# A resampler's filter rings around an edge as sharp as these tones have.
ABOVE_RINGING = -16.0


def tone(ms: float, rate: int) -> Pcm:
    t = np.arange(round(ms * rate / 1000)) / rate
    return (np.cos(2 * np.pi * 500 * t) * 12000).astype(np.int16)


@given(
    st.integers(0, 400 * MS),
    st.sampled_from((8_000, 16_000, 22_050, 24_000, 48_000)),
    st.integers(0, 50 * MS),
)
def test_an_onset_lies_at_its_instant_on_both_sides(
    from_ns: int, rate: int, offset_ns: int
) -> None:
    stream = UserStream(T0)
    start = stream.place(tone(100, RATE), RATE // 2)
    window = (T0 + from_ns, T0 + 1_200 * MS)
    agent_ns = T0 + 700 * MS + offset_ns
    heard = [Heard(agent_ns, tone(200, rate), rate)]
    left, right = user_side(stream, window), agent_side(heard, window, RATE)
    assert abs(len(left) - len(right)) <= 1
    user_onset, agent_onset = audible_onset(left, RATE), audible_onset(right, RATE, ABOVE_RINGING)
    assert user_onset is not None
    assert agent_onset is not None
    # One sample for where the window was cut, one more for where the other rate's samples lie.
    slack_ms = 0.07 if rate == RATE else 0.2
    assert user_onset / 16 == pytest.approx((stream.instant_ns(start) - window[0]) / MS, abs=0.07)
    assert agent_onset / 16 == pytest.approx((agent_ns - window[0]) / MS, abs=slack_ms)


def test_what_was_played_in_pieces_is_whole() -> None:
    rate = 24_000
    ear, pcm = Ear(words=False), tone(300, rate)
    for i in range(0, len(pcm), 240):
        ear.receive(T0 + i * 1_000_000_000 // rate, pcm[i : i + 240], rate)
        ear.advance(T0 + i * 1_000_000_000 // rate + 3 * MS)
    ear.flush(T0 + 400 * MS)
    pieces = agent_side(ear.heard, (T0, T0 + 300 * MS), RATE)
    whole = agent_side([Heard(T0, pcm, rate)], (T0, T0 + 300 * MS), RATE)
    np.testing.assert_array_equal(pieces, whole)


def test_a_change_of_rate_leaves_both_pieces_in_place() -> None:
    heard = [
        Heard(T0 + 100 * MS, tone(100, 8_000), 8_000),
        Heard(T0 + 300 * MS, tone(100, 48_000), 48_000),
    ]
    out = agent_side(heard, (T0, T0 + 500 * MS), RATE)
    for begins_ms in (100, 300):
        part = out[(begins_ms - 50) * 16 : (begins_ms + 150) * 16]
        onset = audible_onset(part, RATE, ABOVE_RINGING)
        end = audible_end(part, RATE, ABOVE_RINGING)
        assert onset is not None
        assert end is not None
        assert onset / 16 == pytest.approx(50, abs=0.2)
        assert end / 16 == pytest.approx(150, abs=0.2)


def test_where_nothing_played_there_is_silence() -> None:
    out = agent_side([Heard(T0 + 900 * MS, tone(100, RATE), RATE)], (T0, T0 + 500 * MS), RATE)
    assert len(out) == 8_000
    assert not out.any()


def test_what_sounded_across_the_windows_edges_is_cut_there() -> None:
    pcm = np.arange(1, 1601, dtype=np.int16)
    heard = [Heard(T0 - 50 * MS, pcm, RATE), Heard(T0 + 450 * MS, pcm, RATE)]
    out = agent_side(heard, (T0, T0 + 500 * MS), RATE)
    np.testing.assert_array_equal(out[:800], pcm[800:])
    np.testing.assert_array_equal(out[-800:], pcm[:800])


def test_a_window_from_before_the_stream_began_is_no_trouble() -> None:
    stream = UserStream(T0)
    left = user_side(stream, (T0 - 100 * MS, T0 + 100 * MS))
    assert len(left) == 3_200


def test_an_empty_window_has_one_sample() -> None:
    assert len(agent_side([], (T0, T0), RATE)) == 1
    assert len(user_side(UserStream(T0), (T0, T0))) == 1
