import numpy as np
import pytest

from turngap.core.audio import rms_dbfs
from turngap.scenario.library import library_dir, load_scenario
from turngap_services.stt.pocketsphinx import PocketsphinxSettings
from turngap_services.stt.pocketsphinx.model import RATE, Saying, build_model, library_model
from turngap_services.stt.pocketsphinx.recogniser import Recogniser


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


def test_digital_silence_reaches_the_decoder_as_the_noise_floor_the_same_in_each_session() -> None:
    heard = []
    for _ in range(2):
        hearing, ear = listening(noise_dbfs=-50)
        hearing.start()
        feed(hearing, np.zeros(RATE, np.int16))
        hearing.stop()
        heard.append(ear.pcm)
    assert rms_dbfs(heard[0]) == pytest.approx(-50, abs=0.2)
    assert np.array_equal(heard[0], heard[1])


def test_noise_does_not_wrap_full_scale_around() -> None:
    hearing, ear = listening(noise_dbfs=-20)
    hearing.start()
    feed(hearing, np.full(RATE, 32_767, np.int16))
    hearing.stop()
    assert ear.pcm.min() > 0


@pytest.mark.parametrize("packet", [160, 320, 333, 1600])
def test_pre_roll_is_kept_to_a_packet_and_everything_after_it_is_decoded(packet: int) -> None:
    hearing, ear = listening(pre_roll_ms=600, noise_dbfs=-90)
    before, during = np.arange(2 * RATE) % 20_000, np.arange(RATE) % 20_000
    feed(hearing, before.astype(np.int16), packet)
    hearing.start()
    feed(hearing, during.astype(np.int16), packet)
    hearing.stop()
    kept = len(ear.pcm) - len(during)
    assert 0.6 * RATE <= kept < 0.6 * RATE + packet
    expected = np.concatenate((before[len(before) - kept :], during))
    assert np.max(np.abs(ear.pcm - expected)) <= 5  # the noise asked for


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
