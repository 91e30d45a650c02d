import numpy as np
import pytest
import soxr
from rapidfuzz.distance import Levenshtein

from turngap.core.audio import dbfs_to_amplitude, rms_dbfs
from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir, scenario_paths
from turngap_services.sound import RATE, TARGET_DBFS
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import DITHER_DBFS, Filling, Recogniser, lacks_high_band
from turngap_services.stt.sentences import Saying, build_model, library_model
from turngap_services.text import spoken_words


class Ear:
    """Takes the decoder's place and keeps what it is given."""

    def __init__(self) -> None:
        self.pcm = np.empty(0, np.int16)

    def process_raw(self, pcm: bytes, no_search: bool, full_utterance: bool) -> None:
        self.pcm = np.concatenate((self.pcm, np.frombuffer(pcm, np.int16)))

    def start_utt(self) -> None: ...

    def end_utt(self) -> None: ...

    def hyp(self) -> None: ...


def listening(**settings: object) -> tuple[Recogniser, Ear]:
    model = build_model([Saying("s", "hello")], {})
    hearing = Recogniser(model, PocketsphinxSettings(**settings))  # type: ignore
    hearing._decoder = ear = Ear()  # type: ignore
    return hearing, ear


def feed(hearing: Recogniser, pcm: np.ndarray, packet: int = 320) -> None:
    for at in range(0, len(pcm), packet):
        hearing.audio(pcm[at : at + packet].tobytes())


def library_turn(scenario: str, number: int) -> np.ndarray:
    loaded = load_scenario(library_dir() / f"{scenario}.yaml")
    return loaded.clips[loaded.scenario.turns[number - 1].audio].at_rate(RATE)


def read(pcm: np.ndarray, packet: int = 320, start_ms: float = 350) -> str:
    """Return the text heard in a recording whose start a VAD finds `start_ms` into it."""
    hearing = Recogniser(library_model(None, ()), PocketsphinxSettings())
    at = round(start_ms * RATE / 1000)
    feed(hearing, pcm[:at], packet)
    hearing.start()
    feed(hearing, pcm[at:], packet)
    return hearing.stop()


def over_telephone(pcm: np.ndarray) -> np.ndarray:
    narrow = soxr.resample(pcm / 32768, RATE, RATE // 2)
    code = np.rint(np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) * 127) / 127
    heard = np.sign(code) * np.expm1(np.abs(code) * np.log(256)) / 255
    return np.rint(soxr.resample(heard, RATE // 2, RATE) * 32768).astype(np.int16)


TURNS = [
    ("quick-questions", 2, "what's the weather like today"),
    ("smart-home", 1, "turn off the kitchen lights"),
]


@pytest.mark.parametrize(("scenario", "number", "said"), TURNS)
@pytest.mark.parametrize("gain_db", [-30, -20, -10, 0, 6])
def test_a_voice_reads_the_same_however_soft_it_is(
    scenario: str, number: int, said: str, gain_db: float
) -> None:
    pcm = library_turn(scenario, number) * 10 ** (gain_db / 20)
    assert read(np.clip(np.rint(pcm), -32768, 32767).astype(np.int16)) == said


@pytest.mark.parametrize("gain_db", [-20, 0])
def test_few_words_are_lost_over_a_telephone_line_of_8_khz(gain_db: float) -> None:
    words = wrong = 0
    for name in ("quick-questions", "smart-home", "coffee-order"):
        loaded = load_scenario(library_dir() / f"{name}.yaml")
        for turn in loaded.scenario.turns:
            pcm = over_telephone(loaded.clips[turn.audio].at_rate(RATE) * 10 ** (gain_db / 20))
            assert lacks_high_band(pcm)
            said = spoken_words(turn.say)
            words += len(said)
            wrong += Levenshtein.distance(said, read(pcm).split())
    # Without noise in the empty band about every third word is wrong.
    assert wrong <= words / 8


def test_only_a_line_without_the_band_above_4_khz_is_taken_for_a_telephone() -> None:
    rng = np.random.default_rng(0)
    for loaded in map(load_scenario, scenario_paths(library_dir())):
        assert not any(lacks_high_band(clip.at_rate(RATE)) for clip in loaded.clips.values())
    noise = np.rint(rng.normal(0, 3, RATE)).astype(np.int16)
    assert not lacks_high_band(noise)
    assert lacks_high_band(over_telephone(noise))
    assert not lacks_high_band(np.zeros(RATE, np.int16))
    assert not lacks_high_band(noise[:100])


def test_the_text_and_the_decoded_audio_do_not_depend_on_how_the_stream_is_cut() -> None:
    pcm = library_turn("quick-questions", 2)
    decoded = []
    for packet in (160, 800, 1600):
        hearing, ear = listening(pre_roll_ms=500)
        feed(hearing, pcm[:8000], packet)
        hearing.start()
        feed(hearing, pcm[8000:], packet)
        hearing.stop()
        decoded.append(ear.pcm)
        assert read(pcm, packet, start_ms=500) == "what's the weather like today"
    assert len(decoded[0]) == len(pcm)
    assert all(np.array_equal(decoded[0], other) for other in decoded[1:])


def test_digital_silence_reaches_the_decoder_as_the_dither_the_same_in_each_session() -> None:
    heard = []
    for _ in range(2):
        hearing, ear = listening()
        hearing.start()
        feed(hearing, np.zeros(RATE, np.int16))
        hearing.stop()
        heard.append(ear.pcm)
    assert rms_dbfs(heard[0]) == pytest.approx(DITHER_DBFS, abs=0.2)
    assert np.array_equal(heard[0], heard[1])


def test_noise_does_not_wrap_full_scale_around() -> None:
    loudest = np.full(RATE, 32_767, np.int16)
    assert Filling(np.empty(0, np.int16)).feed(loudest).min() > 0


@pytest.mark.parametrize("packet", [160, 320, 333, 1600])
def test_pre_roll_is_kept_to_a_packet_and_everything_after_it_is_decoded(packet: int) -> None:
    hearing, ear = listening(pre_roll_ms=600)
    # Every 30 ms of it are at the level that voices are brought to, so it keeps its own.
    amplitude = dbfs_to_amplitude(TARGET_DBFS)
    pcm = (np.random.default_rng(0).choice([-1, 1], 3 * RATE) * amplitude).astype(np.int16)
    before, during = pcm[: 2 * RATE], pcm[2 * RATE :]
    feed(hearing, before, packet)
    hearing.start()
    feed(hearing, during, packet)
    hearing.stop()
    kept = len(ear.pcm) - len(during)
    assert 0.6 * RATE <= kept < 0.6 * RATE + packet
    expected = np.concatenate((before[len(before) - kept :], during))
    assert np.max(np.abs(ear.pcm - expected)) <= 16  # the dither


def test_audio_of_one_utterance_is_no_pre_roll_of_the_next() -> None:
    hearing, ear = listening()
    hearing.start()
    feed(hearing, np.zeros(RATE, np.int16))
    hearing.stop()
    decoded = len(ear.pcm)
    hearing.start()
    hearing.stop()
    assert len(ear.pcm) == decoded


def test_catching_up_never_decodes_more_than_a_few_packets_at_once() -> None:
    hearing, ear = listening(pre_roll_ms=1000)
    feed(hearing, np.zeros(RATE, np.int16))
    hearing.start()
    steps = []
    for _ in range(30):
        before = len(ear.pcm)
        feed(hearing, np.zeros(320, np.int16))
        steps.append((len(ear.pcm) - before) // 320)
    assert max(steps) <= 4
    assert steps[-1] == 1


def test_a_turn_that_ends_before_the_pre_roll_is_caught_up_with_is_heard_whole() -> None:
    loaded = load_scenario(library_dir() / "quick-questions.yaml")
    pcm = loaded.clips[loaded.scenario.turns[0].audio].at_rate(RATE)
    hearing = Recogniser(library_model(None, ()), PocketsphinxSettings(pre_roll_ms=5000))
    feed(hearing, pcm)
    hearing.start()
    assert hearing.partial() == ""
    assert hearing.stop() == "what time is it"
    assert hearing.stop() == ""


def test_with_decoding_put_off_nothing_is_decoded_before_the_end_and_all_of_it_then() -> None:
    pcm = (np.arange(RATE) % 20_000).astype(np.int16)
    decoded: list[np.ndarray] = []
    for while_speaking in (False, True):
        hearing, ear = listening(while_speaking=while_speaking)
        hearing.start()
        feed(hearing, pcm)
        assert (len(ear.pcm) > 0) == while_speaking
        hearing.stop()
        decoded.append(ear.pcm)
    assert np.array_equal(decoded[0], decoded[1])
