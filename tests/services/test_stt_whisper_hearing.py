"""Readings of a session's audio, and their times: without a model."""

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap_services.sound import FRAME, RATE, Sound
from turngap_services.stt import WhisperSettings
from turngap_services.stt.readings import (
    MOST_MS,
    Reading,
    Readings,
    Utterance,
    begins_with,
)

PACKET = RATE // 50
WINDOW_S = 30.0
SILENT_MS = 400.0  # the VAD's verdict in these tests


def sound(ms: float, dbfs: float = -20) -> np.ndarray:
    """A tone, as loud as that."""
    n = round(ms * RATE / 1000)
    amplitude = 32768 * 10 ** (dbfs / 20) * 2**0.5
    return np.rint(amplitude * np.sin(np.arange(n) * 0.3)).astype(np.int16)


def silence(ms: float, dbfs: float = -58) -> np.ndarray:
    """White noise, as under the shipped recordings."""
    amplitude = 32768 * 10 ** (dbfs / 20)
    n = round(ms * RATE / 1000)
    return np.rint(np.random.default_rng(1).normal(0, amplitude, n)).astype(np.int16)


def packets(*parts: np.ndarray) -> Iterator[np.ndarray]:
    pcm = np.concatenate(parts)
    for at in range(0, len(pcm), PACKET):
        yield pcm[at : at + PACKET]


def utterance(window_s: float = WINDOW_S, **values: object) -> Utterance:
    return Utterance(WhisperSettings(**values), window_s)  # type: ignore


def readings(
    heard: Utterance, *parts: np.ndarray, takes_ms: float = 0, stop: bool = True
) -> list[Reading]:
    """Feed an utterance in real time, with a reader that takes so long, and stop it at the end."""
    done: list[Reading] = []
    under_way: Reading | None = None
    ready = now = 0.0

    def read() -> None:
        nonlocal under_way, ready
        if under_way is not None and now >= ready:
            done.append(under_way)
            heard.read(under_way, f"{len(done)}", takes_ms)
            under_way = None
        if under_way is None and (under_way := heard.due()):
            ready = now + takes_ms

    for pcm in packets(*parts):
        heard.audio(pcm)
        now += 20
        read()
    if stop:
        heard.stop(SILENT_MS)
        while not heard.over:
            now = max(now, ready)
            read()
    return done


def test_in_a_pause_all_that_was_said_is_read_and_nothing_is_left_at_the_end() -> None:
    heard = utterance(partial_every_ms=None)
    done = readings(heard, silence(500), sound(1000), silence(300), stop=False)
    assert [round(r.last / RATE * 1000) for r in done] == [1560]
    heard.stop(300)
    assert heard.over
    assert heard.text == "1"


def test_a_pause_that_is_announced_is_read_however_loud_the_room_is() -> None:
    heard = utterance(partial_every_ms=None)
    room = (sound(300) * 0.5).astype(np.int16)
    assert readings(heard, silence(500), sound(1000), room, stop=False) == []
    heard.pause(300)
    reading = heard.due()
    assert reading is not None
    assert round(reading.last / RATE * 1000) == 1560
    heard.read(reading, "one", 0)
    heard.pause(280)  # its end is found a little later: that was read
    heard.stop(300)
    assert heard.over
    assert heard.text == "one"


def test_speech_that_goes_on_after_a_pause_is_read_again_from_its_beginning() -> None:
    parts = (silence(500), sound(800), silence(200), sound(600), silence(300))
    done = readings(utterance(partial_every_ms=None), *parts)
    assert [round(r.last / RATE * 1000) for r in done] == [1360, 2160]
    assert [len(r.pcm) for r in done] == [r.last for r in done]


def test_read_after_the_end_alone_it_is_the_same_audio() -> None:
    parts = (silence(500), sound(800), silence(200), sound(600), silence(400))
    streamed = readings(utterance(partial_every_ms=300), *parts)
    at_once = readings(utterance(while_speaking=False), *parts)
    assert len(at_once) == 1
    assert len(streamed) > 2
    assert np.array_equal(streamed[-1].pcm, at_once[-1].pcm)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(60, 900), st.integers(20, 700)), min_size=1, max_size=6),
    st.sampled_from([0, 30, 140, 700]),
    st.sampled_from([None, 100, 300]),
    st.sampled_from([2.0, 30.0]),
)
def test_however_people_pause_both_ways_read_the_same_in_the_end(
    spoken: list[tuple[int, int]], takes_ms: float, every: float | None, window_s: float
) -> None:
    parts = [silence(500)]
    for said_ms, pause_ms in spoken:
        parts += [sound(said_ms), silence(pause_ms)]
    parts.append(silence(400))
    streamed = utterance(window_s, partial_every_ms=every)
    at_once = utterance(window_s, while_speaking=False)
    last = readings(streamed, *parts, takes_ms=takes_ms)
    alone = readings(at_once, *parts)
    assert streamed.over
    kept = [r.last for r in last if r.keeps]
    assert kept == [r.last for r in alone if r.keeps]
    # A partial reading may have gone on into the silence: then it is not read again without it.
    said = len(alone[-1].pcm)
    assert np.array_equal(last[-1].pcm[:said], alone[-1].pcm)
    assert not np.any(np.abs(last[-1].pcm[said:]) > 1000)
    longest = window_s * RATE
    assert all(len(r.pcm) <= longest for r in last)


def test_a_slow_reader_is_asked_less_often() -> None:
    def asked(takes_ms: float) -> int:
        return len(readings(utterance(partial_every_ms=100), sound(4000), takes_ms=takes_ms))

    assert asked(0) > 30
    # A third of the time at most, so that a pause seldom has to wait.
    assert asked(200) <= 4000 / 600 + 2


def test_where_reading_takes_long_a_closure_within_a_word_is_not_read_and_a_pause_is() -> None:
    parts = (silence(500), sound(400), silence(100), sound(400), silence(300))

    def read(takes_ms: float) -> list[int]:
        heard = Utterance(WhisperSettings(), WINDOW_S, takes_ms)
        done = readings(heard, *parts, takes_ms=takes_ms, stop=False)
        return [round(r.last / RATE * 1000) for r in done]

    assert read(20) == [960, 1460]
    assert read(100) == [960, 1460]
    # The same samples, though it began to read them later.
    assert read(130 / 0.25) == []  # still under way
    heard = Utterance(WhisperSettings(), WINDOW_S, 600)
    last = readings(heard, *parts, takes_ms=600)
    assert [round(r.last / RATE * 1000) for r in last] == [1460]


def test_one_thing_is_read_at_a_time() -> None:
    heard = utterance(partial_every_ms=100)
    for pcm in packets(sound(500)):
        heard.audio(pcm)
    first = heard.due()
    assert first is not None
    heard.audio(sound(500))
    heard.stop(0)
    assert heard.due() is None
    assert not heard.over
    heard.read(first, "so far", 20)
    last = heard.due()
    assert last is not None
    assert last.last > first.last
    assert not heard.over
    heard.read(last, "all", 20)
    assert heard.over
    assert heard.text == "all"


def test_an_utterance_longer_than_the_window_is_cut_where_it_is_quietest() -> None:
    heard = utterance(2.0, partial_every_ms=None)
    done = readings(heard, sound(1400), silence(300), sound(900))
    in_the_pause, kept, last = done
    assert kept.keeps
    assert not in_the_pause.keeps and not last.keeps
    assert 1400 < kept.last / RATE * 1000 < 1700
    assert len(kept.pcm) == kept.last
    assert len(last.pcm) == last.last - kept.last
    assert heard.text == "2 3"


def test_what_the_vad_hears_and_we_do_not_is_read_all_the_same() -> None:
    # So soft behind something so loud that it counts as silence here.
    parts = (silence(500), sound(500, -6), sound(700, -45), silence(100))
    heard = utterance(partial_every_ms=None)
    early = readings(heard, *parts, stop=False)[-1].last
    heard.stop(100)
    last = heard.due()
    assert last is not None
    assert last.last > early
    assert last.last == round(1.8 * RATE)


def test_an_utterance_in_which_nothing_is_audible_is_read_where_the_vad_heard_something() -> None:
    heard = utterance()
    for pcm in packets(silence(800)):
        heard.audio(pcm)
        assert heard.due() is None
    heard.stop(200)
    assert heard.due() is not None


def test_what_waits_to_be_read_is_bounded() -> None:
    hearing = Readings(WhisperSettings(while_speaking=False), WINDOW_S)
    minute = sound(60_000).tobytes()
    for _ in range(2):
        hearing.start()
        for _ in range(3):
            hearing.audio(minute)
        hearing.stop(SILENT_MS)
    assert hearing.lost_ms == 6 * 60_000 - MOST_MS
    assert hearing.due() is not None


def test_an_utterance_without_audio_is_over_and_empty() -> None:
    heard = utterance()
    heard.stop(0)
    assert heard.over
    assert heard.text == ""


@pytest.mark.parametrize("noise_dbfs", [-58, -45, -35])
def test_where_a_voice_ends_is_found_in_noise(noise_dbfs: float) -> None:
    heard = Sound()
    quiet, rest = silence(500, noise_dbfs), silence(300, noise_dbfs)
    voice = silence(1000, noise_dbfs) + sound(1000, -15)
    for pcm in packets(quiet, voice, rest):
        heard.feed(pcm)
    assert heard.last_audible is not None
    assert abs(heard.last_audible - 1.5 * RATE) <= 2 * FRAME


def test_how_the_stream_is_cut_makes_no_difference() -> None:
    pcm = np.concatenate([silence(300), sound(700), silence(200)])
    whole, pieces = Sound(), Sound()
    whole.feed(pcm)
    for at in range(0, len(pcm), 77):
        pieces.feed(pcm[at : at + 77])
    assert pieces.last_audible == whole.last_audible
    assert np.array_equal(pieces.between(0, len(pcm)), pcm)


@pytest.mark.parametrize("packet", [160, 320, 333, 1600])
def test_pre_roll_is_kept_to_a_packet_and_everything_after_it_is_heard(packet: int) -> None:
    hearing = Readings(WhisperSettings(pre_roll_ms=600), WINDOW_S)
    pcm = np.concatenate([silence(2000), sound(1000)])
    for at in range(0, 2 * RATE, packet):
        hearing.audio(pcm[at : min(at + packet, 2 * RATE)].tobytes())
    hearing.start()
    hearing.audio(pcm[2 * RATE :].tobytes())
    hearing.stop(0)
    due = hearing.due()
    assert due is not None
    before = len(due[1].pcm) - RATE
    assert 0.6 * RATE <= before < 0.6 * RATE + packet
    assert np.array_equal(due[1].pcm, pcm[2 * RATE - before :])


def test_utterances_are_concluded_in_order_though_the_first_takes_longer() -> None:
    hearing = Readings(WhisperSettings(), WINDOW_S)
    for _ in range(2):
        hearing.start()
        hearing.audio(sound(500).tobytes())
        hearing.stop(0)
    said: list[str] = []
    for text in ("one", "two"):
        assert hearing.concluded() is None
        assert not hearing.settled
        due = hearing.due()
        assert due is not None
        assert hearing.due() is None
        due[0].read(due[1], text, 10)
        said.append(hearing.concluded() or "")
    assert said == ["one", "two"]
    assert hearing.settled


def test_a_start_within_an_utterance_and_a_stop_without_one_are_nothing() -> None:
    hearing = Readings(WhisperSettings(), WINDOW_S)
    hearing.stop(0)
    assert hearing.settled
    hearing.start()
    hearing.audio(sound(300).tobytes())
    hearing.start()
    hearing.stop(0)
    due = hearing.due()
    assert due is not None
    assert len(due[1].pcm) == round(0.3 * RATE)


SAID = [f"word{number}" for number in range(200)]


def talk(
    spoken: list[tuple[int, int]], reads: Callable[[Reading, int], list[str]]
) -> tuple[Utterance, list[Reading], list[list[str]]]:
    """Say so many words of 500 ms with so long a pause behind them, in turn, and read them.

    Returns the utterance, its readings, and the words that were settled after each.
    """
    heard = Utterance(WhisperSettings(), WINDOW_S)
    done: list[Reading] = []
    settled: list[list[str]] = []

    def read() -> None:
        while due := heard.due():
            done.append(due)
            heard.read(due, " ".join(reads(due, len(done))), 0)
            settled.append(list(heard._kept))

    for words, pause_ms in spoken:
        for pcm in packets(sound(words * 500), silence(pause_ms)):
            heard.audio(pcm)
            read()
    heard.stop(SILENT_MS)
    read()
    return heard, done, settled


def word_at(spoken: list[tuple[int, int]], reading: Reading) -> list[str]:
    """Read as a perfect reader does: the words that end within the samples."""
    first, ends, at = reading.last - len(reading.pcm), [], 0.0
    for words, pause_ms in spoken:
        ends += [at + 500 * (number + 1) for number in range(words)]
        at += words * 500 + pause_ms
    begin_ms, end_ms = first / RATE * 1000, reading.last / RATE * 1000
    # The tone and the silence of a packet's edge shift a word's end by a frame at most.
    return [SAID[n] for n, ms in enumerate(ends) if begin_ms + 20 < ms <= end_ms + 20]


turns = st.lists(
    st.tuples(st.integers(2, 6), st.sampled_from([100, 200, 300])), min_size=3, max_size=5
).map(lambda spoken: [*spoken, (1, 500)])


@settings(max_examples=12, deadline=None)
@given(turns)
def test_where_the_readings_agree_the_text_is_that_of_the_whole_reading(
    spoken: list[tuple[int, int]],
) -> None:
    heard, _, _ = talk(spoken, lambda reading, _: word_at(spoken, reading))
    assert heard.over
    assert heard.text.split() == SAID[: sum(words for words, _ in spoken)]


@settings(max_examples=12, deadline=None)
@given(turns, st.randoms(use_true_random=False))
def test_a_settled_word_is_never_lost_nor_read_again(
    spoken: list[tuple[int, int]], draw: Random
) -> None:
    def reads(reading: Reading, _: int) -> list[str]:
        # A reader that is often wrong about the last word, and at times about another.
        words = word_at(spoken, reading)
        for n in range(len(words)):
            if draw.random() < (0.4 if n == len(words) - 1 else 0.05):
                words[n] = f"wrong{draw.randrange(3)}"
        return words

    heard, done, settled = talk(spoken, reads)
    for sooner in settled:
        assert heard.text.split()[: len(sooner)] == sooner
    firsts = [reading.last - len(reading.pcm) for reading in done]
    assert firsts == sorted(firsts)  # what was left out stays so


def test_a_long_utterance_is_read_on_from_a_pause_whose_words_two_readings_agree_on() -> None:
    spoken = [(8, 300), (5, 300), (4, 300), (3, 500)]
    heard, done, settled = talk(spoken, lambda reading, _: word_at(spoken, reading))
    lengths = [round(len(reading.pcm) / RATE, 1) for reading in done]
    # After the third pause the words of the second are settled, and so on.
    assert lengths == [4.1, 6.9, 5.1, 4.1]
    assert [len(words) for words in settled] == [0, 8, 13, 13]
    assert heard.text.split() == SAID[:20]


def test_words_on_which_they_do_not_agree_are_read_again() -> None:
    spoken = [(8, 300), (5, 300), (4, 500)]

    def reads(reading: Reading, number: int) -> list[str]:
        return [*word_at(spoken, reading)[:-1], f"guess{number}"]

    _, done, settled = talk(spoken, reads)
    assert all(len(reading.pcm) == reading.last for reading in done)
    assert settled == [[]] * len(done)


def test_case_and_marks_are_no_disagreement() -> None:
    assert begins_with(["Turn", "off", "the", "lights,", "please."], ["turn", "off", "The."])
    assert not begins_with(["turn", "off"], ["turn", "off", "the"])
    assert not begins_with(["turn", "of", "the"], ["turn", "off"])
