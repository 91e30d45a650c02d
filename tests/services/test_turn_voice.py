"""Beginning and end of a voice, by made-up verdicts and by Silero's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.audio import LINE_FLOOR_DBFS, Pcm
from turngap.core.clock import ms_to_ns
from turngap.scenario.library import LoadedScenario, load_scenario
from turngap.scenario.model import library_dir
from turngap_services.turn.voice import (
    HEARS_ON_MS,
    HOP_MS,
    PAUSED_MS,
    STARTING_HOPS,
    WINDOW_MS,
    Arrivals,
    Model,
    Voice,
    silero_model,
)

RATE = 16_000
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def the_same_noise_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(0))


def level(window: np.ndarray) -> float:
    """A model that takes any loud window for speech, at once."""
    return float(np.sqrt(np.mean(window**2)) > 0.05)


def never(window: np.ndarray) -> float:
    return 0.0


def noise(ms: float, dbfs: float = LINE_FLOOR_DBFS) -> Pcm:
    return RNG.normal(0, 32768 * 10 ** (dbfs / 20), round(ms * 16)).astype(np.int16)


def tone(ms: float, dbfs: float = -15.0) -> Pcm:
    wave = np.sin(np.arange(round(ms * 16)) * 0.4) * 32768 * 10 ** (dbfs / 20) * 2**0.5
    return wave.astype(np.int16)


def voice(model: object = level) -> Voice:
    return Voice(RATE, (model, model), 0.5)  # type: ignore[arg-type]


def feed(v: Voice, *pieces: Pcm, packet: int = 320) -> None:
    whole = np.concatenate(pieces)
    for at in range(0, len(whole), packet):
        v.feed(whole[at : at + packet])


def ms(samples: int | None) -> float:
    assert samples is not None
    return samples * 1000 / RATE


def test_a_voice_begins_after_some_windows_and_is_dated_back() -> None:
    v = voice()
    feed(v, noise(500), tone(40))
    assert not v.speaking
    feed(v, tone(40))
    assert v.speaking
    assert ms(v.onset) == pytest.approx(500, abs=10)
    assert ms(v.heard) - 500 <= STARTING_HOPS * HOP_MS + WINDOW_MS


def hearing_on(ms: float) -> Model:
    """A model that takes what follows a loud window for speech, too, for so long."""
    left = 0.0

    def judge(window: np.ndarray) -> float:
        nonlocal left
        left = ms if level(window) else left - 2 * HOP_MS  # each model sees every other hop
        return float(left >= 0)

    return judge


def test_what_the_model_hears_long_after_the_rest_is_a_soft_syllable() -> None:
    v = Voice(RATE, (hearing_on(400), hearing_on(400)), 0.5)
    feed(v, noise(500), tone(600), noise(900))
    seen_ms = ms(v.last_audible) - 1100 - (400 - HEARS_ON_MS)
    assert -4 * HOP_MS < seen_ms < WINDOW_MS


def test_the_melody_is_that_of_the_voice_before_the_silence() -> None:
    v = voice()
    feed(v, noise(500), tone(600), noise(300))
    assert v.melody() is not None
    v.settle()
    assert v.melody() is None


@pytest.mark.parametrize("longer_ms", [0, 2.5, 5, 7.5])
def test_the_end_is_found_though_the_model_hears_on(longer_ms: float) -> None:
    v = Voice(RATE, (hearing_on(80), hearing_on(80)), 0.5)
    feed(v, noise(500), tone(600 + longer_ms), noise(60))
    # Wherever it lies in a frame of 10 ms; the tone's own last sample may be a soft one.
    assert ms(v.last_audible) == pytest.approx(1100 + longer_ms, abs=0.3)
    assert v.speaking  # so says the model


def test_what_is_loud_and_no_speech_is_a_stir_and_nothing_more() -> None:
    v = voice(never)
    feed(v, noise(500), tone(200))
    assert v.onset is None
    assert ms(v.stirring) == pytest.approx(500, abs=10)
    feed(v, noise(100))
    assert v.stirring is None


def test_noise_around_the_voice_is_not_its_end() -> None:
    v = voice()
    loud = noise(3000, -36.0)  # above what is audible on a quiet line
    speech = loud[1000 * 16 : 1600 * 16] + tone(600, -12)
    feed(v, loud[: 1000 * 16], speech, loud[1600 * 16 :])
    assert ms(v.last_audible) == pytest.approx(1600, abs=20)


def test_a_soft_voice_is_heard_to_its_end() -> None:
    v = voice(lambda window: float(np.sqrt(np.mean(window**2)) > 0.004))
    feed(v, noise(500), tone(600, -42), noise(400))
    assert ms(v.last_audible) == pytest.approx(1100, abs=10)


def test_settled_it_begins_anew() -> None:
    v = voice()
    feed(v, noise(500), tone(300), noise(300))
    v.settle()
    assert (v.onset, v.last_audible, v.voiced_ms) == (None, None, 0)
    feed(v, noise(200), tone(300))
    assert ms(v.onset) == pytest.approx(1300, abs=10)


@given(st.integers(1, 2000))
def test_how_the_stream_is_cut_changes_nothing(packet: int) -> None:
    pieces = (noise(300), tone(250), noise(120), tone(80), noise(300))
    one, other = voice(), voice()
    feed(one, *pieces)
    feed(other, *pieces, packet=packet)
    assert (one.onset, one.last_audible, one.voiced_ms) == (
        other.onset,
        other.last_audible,
        other.voiced_ms,
    )


# --- Silero -----------------------------------------------------------------------------------


def scenario(name: str) -> LoadedScenario:
    return load_scenario(library_dir() / f"{name}.yaml")


@pytest.mark.parametrize("name", ["smart-home", "coffee-order", "table-booking", "noisy-taxi"])
@pytest.mark.parametrize("softer_db", [0, 12])
def test_recorded_turns_are_found_and_ended_to_a_few_frames(name: str, softer_db: float) -> None:
    late_ms: list[float] = []
    loaded = scenario(name)
    for turn in loaded.scenario.turns:
        assert turn.speech is not None
        clip = loaded.clips[turn.audio].at_rate(RATE) * 10 ** (-softer_db / 20)
        v = Voice(RATE, (silero_model(RATE), silero_model(RATE)), 0.5)
        feed(v, noise(1000), clip.astype(np.int16), noise(600))
        assert ms(v.onset) - 1000 == pytest.approx(turn.speech.start_ms, abs=100)
        late_ms.append(ms(v.last_audible) - 1000 - turn.speech.end_ms)
    # Silero hears on in an echo or a breath now and then, and is believed.
    assert min(late_ms) > -25
    assert np.median(late_ms) < 50
    assert max(late_ms) < 200


def test_noise_is_no_voice() -> None:
    v = Voice(RATE, (silero_model(RATE), silero_model(RATE)), 0.5)
    feed(v, noise(3000, -25.0))
    assert v.onset is None


def test_each_model_has_a_state_of_its_own() -> None:
    window = (tone(32) / 32768).astype(np.float32)
    one, other = silero_model(RATE), silero_model(RATE)
    first = one(window)
    one(window)
    assert other(window) == first


# --- instants ---------------------------------------------------------------------------------


def test_a_sample_sounded_when_the_fastest_packet_says() -> None:
    arrivals = Arrivals(RATE)
    for packet, late_ms in enumerate([5, 1, 30, 2], start=1):
        arrivals.arrived(ms_to_ns(1000 + packet * 20 + late_ms), packet * 320)
    assert arrivals.instant_ns(4 * 320) == ms_to_ns(1000 + 80 + 1)


def test_a_caller_that_paused_is_not_taken_for_a_slow_line() -> None:
    arrivals = Arrivals(RATE)
    arrivals.arrived(ms_to_ns(1020), 320)
    arrivals.arrived(ms_to_ns(1020 + 5000), 640)  # five seconds of no packets
    assert arrivals.instant_ns(640) >= ms_to_ns(6020 - PAUSED_MS)
