import numpy as np
import pytest
from pipecat.audio.vad.vad_analyzer import VADState
from pipecat.turns.user_stop import (
    SpeechTimeoutUserTurnStopStrategy,
    TurnAnalyzerUserTurnStopStrategy,
)
from running_line import InstantClock

from turngap.backends import TurnTaking
from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir
from turngap_services.turn import (
    SMART_TURN,
    VAD,
    SmartTurnSettings,
    VadSettings,
    create_smart_turn,
    create_vad,
)

RATE = 16_000
PACKET = RATE // 50


def names(strategies: list[object] | None) -> list[str]:
    return [type(s).__name__ for s in strategies or []]


async def bounds(taking: TurnTaking, pcm: np.ndarray) -> list[tuple[VADState, float]]:
    """The VAD's verdicts and the ms of audio after which it reached them."""
    assert taking.vad is not None
    taking.vad.set_sample_rate(RATE)
    found: list[tuple[VADState, float]] = []
    for at in range(0, len(pcm), PACKET):
        state = await taking.vad.analyze_audio(pcm[at : at + PACKET].tobytes())
        settled = state in (VADState.SPEAKING, VADState.QUIET)
        if settled and state != (found[-1][0] if found else VADState.QUIET):
            found.append((state, (at + PACKET) * 1000 / RATE))
    await taking.vad.cleanup()
    return found


def test_vad_ends_the_turn_after_the_hold_and_starts_it_on_speech_alone() -> None:
    taking = create_vad(VadSettings(hold_ms=250), InstantClock())
    (stop,) = taking.strategies.stop or []
    assert isinstance(stop, SpeechTimeoutUserTurnStopStrategy)
    assert stop._user_speech_timeout == 0.25
    assert taking.hold_ms == 250
    assert names(list(taking.strategies.start or [])) == ["VADUserTurnStartStrategy"]


def test_smart_turn_is_pipecats_default() -> None:
    from pipecat.audio.vad.vad_analyzer import VADParams
    from pipecat.turns.user_turn_strategies import UserTurnStrategies

    taking, stock = create_smart_turn(SmartTurnSettings(), InstantClock()), UserTurnStrategies()
    assert names(list(taking.strategies.start or [])) == names(list(stock.start or []))
    assert names(list(taking.strategies.stop or [])) == names(list(stock.stop or []))
    assert taking.vad is not None
    assert taking.vad.params == VADParams()
    (mine,), (theirs,) = taking.strategies.stop or [], stock.stop or []
    assert isinstance(mine, TurnAnalyzerUserTurnStopStrategy)
    assert isinstance(theirs, TurnAnalyzerUserTurnStopStrategy)
    assert mine._turn_analyzer.params == theirs._turn_analyzer.params


@pytest.mark.parametrize("quieter_db", [0, 28])
async def test_vad_finds_a_recorded_turn_also_a_soft_one(quieter_db: float) -> None:
    loaded = load_scenario(library_dir() / "smart-home.yaml")
    said = loaded.scenario.turns[0]
    assert said.speech is not None
    pcm = loaded.clips[said.audio].at_rate(RATE) * 10 ** (-quieter_db / 20)
    silence = np.zeros(RATE)
    whole = np.concatenate((silence, pcm, silence)).astype(np.int16)
    found = await bounds(create_vad(VadSettings(), InstantClock()), whole)
    assert [state for state, _ in found] == [VADState.SPEAKING, VADState.QUIET]
    assert 0 < found[0][1] - 1000 - said.speech.start_ms < 500
    assert 150 < found[1][1] - 1000 - said.speech.end_ms < 400


async def test_settings_reach_the_vad() -> None:
    taking = create_vad(
        VadSettings(start_secs=0.1, stop_secs=0.5, confidence=0.6, min_volume=0.4), InstantClock()
    )
    assert taking.vad is not None
    params = taking.vad.params
    assert (params.start_secs, params.stop_secs) == (0.1, 0.5)
    assert (params.confidence, params.min_volume) == (0.6, 0.4)
    await taking.vad.cleanup()


@pytest.mark.parametrize("spec", [VAD, SMART_TURN], ids=lambda s: s.name)
def test_each_session_has_its_own_vad(spec: object) -> None:
    create = spec.create  # type: ignore
    settings = spec.settings({})  # type: ignore
    one, other = create(settings, InstantClock()), create(settings, InstantClock())
    assert one.vad is not other.vad
    assert one.strategies.stop[0] is not other.strategies.stop[0]
