"""Audio at another rate: the same sound at the same instants, and little of it held back."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.agent.output import RATES, Resampling, StreamResampler

PAIRS = [(22_050, 24_000), (22_050, 8_000), (24_000, 8_000), (24_000, 16_000), (8_000, 16_000)]


def tone(hz: float, rate: int, s: float = 0.5) -> np.ndarray:
    return np.rint(np.sin(2 * np.pi * hz * np.arange(round(rate * s)) / rate) * 16_000)


def through(pcm: np.ndarray, in_rate: int, out_rate: int, chunk: int) -> np.ndarray:
    stream = Resampling(in_rate, out_rate)
    pieces = [stream.add(pcm[i : i + chunk]) for i in range(0, len(pcm), chunk)]
    return np.concatenate([*pieces, stream.finish()])


def db(pcm: np.ndarray) -> float:
    return 20 * math.log10(max(1e-9, float(np.sqrt(np.mean(pcm.astype(float) ** 2)))))


@pytest.mark.parametrize(("in_rate", "out_rate"), PAIRS)
@pytest.mark.parametrize("hz", [300.0, 1000.0, 3000.0])
def test_a_tone_keeps_its_place_and_its_level(hz: float, in_rate: int, out_rate: int) -> None:
    made = through(tone(hz, in_rate), in_rate, out_rate, in_rate // 100)
    meant = tone(hz, out_rate)
    assert len(made) == len(meant)
    inside = slice(out_rate // 20, -out_rate // 20)
    assert db((made - meant)[inside]) < db(meant) - 40


@pytest.mark.parametrize("hz", [5000.0, 6500.0, 9000.0])
def test_what_a_telephone_cannot_carry_is_not_folded_into_its_band(hz: float) -> None:
    made = through(tone(hz, 22_050), 22_050, 8_000, 220)
    inside = slice(400, -400)
    assert db(made[inside]) < db(tone(hz, 22_050)) - 55


@pytest.mark.parametrize(("in_rate", "out_rate"), PAIRS)
def test_at_most_two_milliseconds_are_held_back(in_rate: int, out_rate: int) -> None:
    stream, chunk = Resampling(in_rate, out_rate), np.zeros(in_rate // 100, np.int16)
    came_s = went_s = held_s = 0.0
    for _ in range(50):
        came_s += len(chunk) / in_rate
        went_s += len(stream.add(chunk)) / out_rate
        held_s = max(held_s, came_s - went_s)
    assert held_s <= 16 / min(in_rate, out_rate) + 1.5 / in_rate


@pytest.mark.parametrize(("in_rate", "out_rate"), PAIRS)
def test_a_sound_does_not_begin_later_or_much_earlier(in_rate: int, out_rate: int) -> None:
    pcm = np.concatenate((np.zeros(in_rate // 10), tone(1000, in_rate)))
    made = through(pcm, in_rate, out_rate, in_rate // 100)
    onset_s = int(np.argmax(np.abs(made) > 1600)) / out_rate
    meant_s = int(np.argmax(np.abs(pcm) > 1600)) / in_rate
    assert abs(onset_s - meant_s) < 0.000_3


@settings(max_examples=40, deadline=None)
@given(
    pair=st.sampled_from(PAIRS),
    cuts=st.lists(st.integers(0, 700), max_size=12),
    seed=st.integers(0, 99),
)
def test_how_a_stream_is_cut_makes_no_difference(
    pair: tuple[int, int], cuts: list[int], seed: int
) -> None:
    pcm = np.random.default_rng(seed).integers(-30_000, 30_000, sum(cuts), dtype=np.int16)
    stream = Resampling(*pair)
    pieces = [stream.add(piece) for piece in np.split(pcm, np.cumsum(cuts)[:-1])] if cuts else []
    assert (
        np.concatenate([*pieces, stream.finish()]).tolist()
        == through(pcm, *pair, max(1, len(pcm))).tolist()
    )


@pytest.mark.parametrize("in_rate", RATES)
def test_every_rate_that_a_client_may_name_is_cheap_to_prepare(in_rate: int) -> None:
    for out_rate in (8_000, 16_000):
        if in_rate != out_rate:
            stream = Resampling(in_rate, out_rate)
            assert stream._kernels.nbytes < 1 << 20  # pyright: ignore[reportPrivateUsage]


async def test_nothing_of_a_dropped_reply_is_in_the_next() -> None:
    resampler = StreamResampler()
    await resampler.resample(b"\xff\x7f" * 220, 22_050, 24_000)
    await resampler.reset()
    assert set(await resampler.resample(bytes(440), 22_050, 24_000)) == {0}
    await resampler.resample(b"\xff\x7f" * 220, 22_050, 24_000)
    assert await resampler.flush()
    assert set(await resampler.resample(bytes(440), 22_050, 24_000)) == {0}


async def test_audio_of_the_right_rate_is_left_alone() -> None:
    resampler = StreamResampler()
    assert await resampler.resample(b"\x01\x02" * 10, 8_000, 8_000) == b"\x01\x02" * 10
    assert await resampler.flush() == b""
