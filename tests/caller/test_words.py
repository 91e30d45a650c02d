"""Words among the other sounds that agents make."""

from itertools import pairwise

import numpy as np
import pytest
from remembered_silero import really_ask, really_reset

from turngap.caller.ear import Ear
from turngap.caller.onset import place
from turngap.caller.words import Bed, Found, Sound, Word, WordFinder
from turngap.core.audio import UNPLACED_MS, Pcm, SpeechEnd, audible_onset
from turngap.core.events import AgentSound
from turngap.core.wire import MU_LAW
from turngap.scenario.model import shipped_library
from turngap.silero import Silero
from turngap.store.sound import read_sound
from turngap.testing.agent import voice
from turngap.testing.zoo import sound

RATE = 16_000


def quiet(ms: float) -> Pcm:
    return np.zeros(round(ms * RATE / 1000), np.int16)


def noise(ms: float, dbfs: float) -> Pcm:
    draws = np.random.default_rng(7).standard_normal(round(ms * RATE / 1000))
    return (draws * 32768 * 10 ** (dbfs / 20)).astype(np.int16)


def hum(ms: float, dbfs: float, hz: float = 50.0) -> Pcm:
    t = np.arange(round(ms * RATE / 1000)) / RATE
    return (np.sin(2 * np.pi * hz * t) * 2**0.5 * 32768 * 10 ** (dbfs / 20)).astype(np.int16)


def level(ms: float, value: int) -> Pcm:
    return np.full(round(ms * RATE / 1000), value, np.int16)


def after(*sounds: Pcm) -> Pcm:
    return np.concatenate(sounds)


def clicks(ms: float, every_ms: float, long_ms: float, dbfs: float) -> Pcm:
    pcm = quiet(ms)
    for at in np.arange(100, ms - long_ms, every_ms):
        first = round(at * RATE / 1000)
        click = noise(long_ms, dbfs)
        pcm[first : first + len(click)] = click
    return pcm


def hear(pcm: Pcm, sizes: tuple[int, ...] = (320,)) -> list[Found]:
    """Feed a stream in pieces of these sizes, in turn, and half a second of silence."""
    finder, found, at = WordFinder(RATE, gap_ms=300), list[Found](), 0
    pcm = after(pcm, quiet(700))
    while at < len(pcm):
        size = sizes[0]
        sizes = (*sizes[1:], size)
        found += finder.feed(pcm[at : at + size])
        at += size
    while finder.behind:
        found += finder.feed(pcm[:0])
    return found + finder.cut()


def words_ms(found: list[Found]) -> list[float]:
    replaced = {e.instead_of for e in found if isinstance(e, Word)}
    words = [e.sample for e in found if isinstance(e, Word) and e.sample not in replaced]
    return [sample * 1000 / RATE for sample in words]


def recorded(take: str) -> Pcm:
    pcm = read_sound(shipped_library() / f"{take}.flac", "test").samples[:, 0]
    onset = audible_onset(pcm, RATE)
    assert onset is not None
    return pcm[onset : onset + 2 * RATE].copy()


VOICE = voice(900, RATE)
LONG = 1500 + 900 + 600


def over(bed: Pcm, at_ms: float = 1500) -> Pcm:
    return bed + after(quiet(at_ms), VOICE, quiet(LONG - at_ms - 900))


CASES = {
    "silence": (after(quiet(1500), VOICE), 1500),
    **{f"a bed of {db} dBFS": (over(noise(LONG, db)), 1500) for db in (-47, -42, -41, -35, -30)},
    "clicks": (over(clicks(LONG, 555, 15, -28)), 1500),
    "typing": (after(quiet(150), clicks(2350, 140, 20, -25), VOICE), 2500),
    "a header": (after(quiet(300), noise(2.75, -10), quiet(300), VOICE), 602.75),
    "a pop": (after(quiet(300), noise(40, -15), quiet(260), VOICE), 600),
    "zeros in µ-law": (after(quiet(300), level(300, -32124), VOICE), 600),
    "an offset before": (after(quiet(300), level(600, 340), VOICE + np.int16(340)), 900),
    "an offset throughout": (after(quiet(1500), VOICE, quiet(500)) + np.int16(600), 1500),
    "hum before": (after(quiet(300), hum(600, -37), VOICE), 900),
    "hum throughout": (over(hum(LONG, -37)), 1500),
    "a breath": (after(quiet(500), noise(350, -36), quiet(30), VOICE), 880),
    "a beep": (after(quiet(200), hum(600, -18, 880), quiet(60), VOICE), 860),
    "music": (
        after(quiet(200), hum(1500, -30, 440) + hum(1500, -32, 660), quiet(100), VOICE),
        1800,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_word_is_found_to_the_sample(name: str) -> None:
    pcm, word_ms = CASES[name]
    assert words_ms(hear(pcm)) == [pytest.approx(word_ms, abs=0.3)]


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000, 48_000])
def test_the_first_word_is_found_at_every_rate(rate: int) -> None:
    pcm = after(np.zeros(rate // 2, np.int16), voice(400, rate), np.zeros(rate, np.int16))
    finder = WordFinder(rate, gap_ms=300)
    found = [e for i in range(0, len(pcm), rate // 50) for e in finder.feed(pcm[i:][: rate // 50])]
    end = rate // 2 + round(rate * 0.4) - 1
    assert found == [Word(rate // 2, 0), SpeechEnd(end)]


@pytest.mark.parametrize("db", [-10, -14, -18])
def test_a_softer_voice_begins_at_the_same_instant(db: int) -> None:
    swell = np.minimum(np.arange(len(VOICE)) / (0.15 * RATE), 1) ** 3
    loud, soft = (
        after(quiet(400), (VOICE * swell * g).astype(np.int16)) for g in (1, 10 ** (db / 20))
    )
    (first,), (second,) = words_ms(hear(loud)), words_ms(hear(soft))
    assert second == pytest.approx(first, abs=9)  # the next pulse of its glottis


def test_other_sound_is_reported_with_its_level() -> None:
    found = hear(after(quiet(200), noise(30, -20), quiet(300), noise(700, -35), quiet(100)))
    first, second, bed, over = found
    assert isinstance(first, Sound)
    assert isinstance(second, Sound)
    assert [round(e.sample * 1000 / RATE) for e in (first, second)] == [200, 530]
    assert (first.dbfs, second.dbfs) == (pytest.approx(-20, abs=2), pytest.approx(-35, abs=2))
    assert isinstance(bed, Bed)
    assert bed.dbfs == pytest.approx(-35, abs=1)
    assert isinstance(over, Bed)
    assert over.dbfs is None


def test_ambience_that_begins_in_speech_is_not_speech() -> None:
    ambience = after(quiet(700), noise(2300, -35))
    found = hear(ambience + after(quiet(300), VOICE, quiet(1800)))
    (end,) = (e.sample * 1000 / RATE for e in found if isinstance(e, SpeechEnd))
    assert words_ms(found) == [300]
    assert end == pytest.approx(1200, abs=20)


@pytest.mark.parametrize("at_ms", range(0, 240, 40))
def test_a_tune_directly_after_speech_is_not_speech(at_ms: int) -> None:
    phrase = recorded("order-status/1")[: 960 * 16]
    tune = sound("music", ms=3300, dbfs=-22).make(RATE)
    found = hear(MU_LAW.decode(MU_LAW.encode(after(quiet(300), phrase, quiet(at_ms), tune))))
    (end,) = (e.sample * 1000 / RATE for e in found if isinstance(e, SpeechEnd))
    assert words_ms(found) == [pytest.approx(300, abs=10)]
    assert end < 300 + 960 + at_ms + 300


def test_how_the_stream_is_cut_changes_nothing() -> None:
    pcm = after(*(CASES[n][0] for n in ("a header", "a breath", "clicks", "a bed of -35 dBFS")))
    whole = hear(pcm)
    assert len(words_ms(whole)) == 4
    for sizes in ((160,), (161, 3), (1000, 7), (512, 80, 4000)):
        assert hear(pcm, sizes) == whole


def test_events_are_in_order() -> None:
    for pcm, _ in CASES.values():
        edges = [e for e in hear(pcm) if isinstance(e, Word | SpeechEnd)]
        assert all(a.sample < b.sample for a, b in pairwise(edges) if type(a) is not type(b))


@pytest.mark.parametrize("bed", ["white", "pink", "office"])
def test_what_a_bed_hides_of_a_word_is_in_its_spread(bed: str) -> None:
    takes = ("doctor-appointment/2", "museum-visit/1", "pizza-order/1", "thinking-aloud/6")
    for take in takes:
        pcm = after(quiet(1500), recorded(take))
        pcm += sound(bed, ms=len(pcm) / 16 + 1, dbfs=-35).make(RATE)[: len(pcm)]
        (word, *_) = (e for e in hear(pcm) if isinstance(e, Word))
        assert word.spread is not None
        assert abs(word.sample - 1500 * 16) <= word.spread + 2 * 16


BEFORE = {
    "a bed that began 100 ms before": (noise(1500, -35), 100),
    "a bed that began 200 ms before": (noise(1500, -35), 200),
    "a beep": (hum(300, -18, 880), 300),
    "a long beep": (hum(600, -18, 880), 600),
    "a beep 10 ms before": (hum(300, -18, 880), 310),
    "a long beep 10 ms before": (hum(600, -18, 880), 610),
    "a click": (noise(100, -20), 100),
    "a click 40 ms before": (noise(100, -20), 140),
    "a click 80 ms before": (noise(100, -20), 180),
}


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("take", [None, "thinking-aloud/6", "museum-visit/1"])
def test_a_sound_directly_before_a_word_is_in_its_spread(name: str, take: str | None) -> None:
    other, lead_ms = BEFORE[name]
    spoken = VOICE if take is None else recorded(take)
    pcm = after(quiet(500 + lead_ms), spoken, quiet(1000))
    pcm[500 * 16 : 500 * 16 + len(other)] += other
    (word, *_) = (e for e in hear(pcm) if isinstance(e, Word))
    late = word.sample - (500 + lead_ms) * 16
    assert word.spread is not None
    assert abs(late) <= word.spread + 2 * 16 or word.spread >= UNPLACED_MS * 16
    assert abs(late) < 60 * 16 or word.spread >= UNPLACED_MS * 16


def test_a_consonant_before_a_word_is_in_its_spread_where_the_detector_is_late() -> None:
    pcm = after(quiet(600), noise(110, -30), quiet(30), VOICE)

    def heard(first: int, end: int) -> Pcm:
        return pcm[first:end]

    late = 900 * 16
    onset, spread, _ = place(heard, late, 0, late + 1600, -40.0, rate=RATE, under=-120.0)
    assert (onset / 16, spread / 16) == (pytest.approx(740, abs=1), pytest.approx(140, abs=5))


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("text", ["It's ten past nine now.", "It's sunny, about twenty degrees."])
def test_a_short_vowel_before_a_long_fricative_is_the_first_word(text: str, at: int) -> None:
    speech = pytest.importorskip("training.whisper.speech", exc_type=ImportError)
    pcm = speech.speak(speech.Voice("espeak-ng", "en-us"), text, 1.0).astype(np.int16)
    onset = audible_onset(pcm, RATE)
    assert onset is not None
    begun = 500 + at * 4  # the detector's windows take 32 ms
    (first, *_) = words_ms(hear(after(quiet(begun), pcm, quiet(500))))
    assert first - begun == pytest.approx(onset * 1000 / RATE, abs=10)


def test_a_word_that_only_the_lowest_level_finds_cannot_be_placed() -> None:
    (word,) = (e for e in hear(over(noise(LONG, -25.5))) if isinstance(e, Word))
    assert word.spread == UNPLACED_MS * 16


def test_sound_that_may_be_speech_for_long_keeps_its_instant(monkeypatch) -> None:
    monkeypatch.setattr(Silero, "probability", lambda *_: 0.7)
    ear, ms = Ear(), 1_000_000
    tone = hum(20, -20, 440)
    found = [e for i in range(200) for e in ear.receive(i * 20 * ms, tone, RATE)]
    assert any(isinstance(e, AgentSound) and e.at_ns < 20 * ms for e in found + ear.flush(10**10))


@pytest.mark.parametrize("db", [-50, -44, -40])
def test_a_voice_begins_over_one_in_the_background(db: int) -> None:
    people = sound("babble", ms=3000, dbfs=db).make(RATE)
    words = [e for e in hear(over(people)) if isinstance(e, Word)]
    (agent,) = (word for word in words if word.dbfs is not None and word.dbfs > -30)
    assert agent.spread is not None
    assert agent.spread < UNPLACED_MS * 16
    assert agent.sample == pytest.approx(1500 * 16, abs=agent.spread + 32)


@pytest.mark.parametrize(("bed", "dbfs"), [("pink", -45), ("office", -42), ("white", -35)])
def test_the_detector_is_seldom_asked_about_a_bed(bed: str, dbfs: int, monkeypatch) -> None:
    asked, ask = [0], Silero.probability

    def count(self: Silero, window: Pcm, rate: int) -> float:
        asked[0] += 1
        return ask(self, window, rate)

    monkeypatch.setattr(Silero, "probability", count)
    hear(sound(bed, ms=8000, dbfs=dbfs).make(RATE))
    assert asked[0] < 60


def test_a_detector_that_was_given_back_hears_as_a_new_one_does() -> None:
    """Detectors are used again, and the other tests remember what they said."""
    spoken = np.split(after(voice(256, RATE), quiet(256)), 16)
    heard: list[list[float]] = []
    for _ in range(3):
        silero = Silero()
        heard.append([really_ask(silero, window, RATE) for window in spoken])
        really_reset(silero)
    assert heard[0] == heard[1] == heard[2]
    assert len(set(heard[0])) > 8  # each depends on what came before
