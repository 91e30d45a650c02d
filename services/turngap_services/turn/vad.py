"""Turn-taking by voice activity alone, and by pipecat's smart turn on top of it."""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, TurnTaking
from turngap.core.clock import Clock

if TYPE_CHECKING:
    from pipecat.audio.vad.silero import SileroVADAnalyzer


class _SileroSettings(BackendSettings):
    """Settings of pipecat's Silero VAD."""

    start_secs: Annotated[float, Field(ge=0)] = 0.2
    """Speech after which the person speaks, in seconds, rounded to windows of 32 ms."""
    stop_secs: Annotated[float, Field(ge=0)] = 0.2
    """Silence after which the person is silent, in seconds, rounded to windows of 32 ms."""
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.7
    """The model's probability from which a window is speech."""
    min_volume: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Loudness below which a window is not speech, 0 to 1."""


class VadSettings(_SileroSettings):
    """Settings of `vad`."""

    # pipecat's 0.6 finds the start 100 ms later (250 to 460 ms where the speech is 12 to 28 dB
    # softer, if at all) and the end no sooner: 36 recordings of the library.
    min_volume: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Loudness below which a window is not speech, 0 to 1."""
    hold_ms: Annotated[float, Field(ge=0)] = 0.0
    """How long the person may pause after the VAD's stop before the turn is over, in ms."""


class SmartTurnSettings(_SileroSettings):
    """Settings of `smart-turn`."""

    wait_secs: Annotated[float, Field(gt=0)] = 3.0
    """Silence that ends a turn that the model calls incomplete, in seconds."""


def _prepare(settings: _SileroSettings) -> None:
    """Import the analyzers, onnxruntime with them."""
    import pipecat.audio.turn.smart_turn.local_smart_turn_v3
    import pipecat.audio.vad.silero
    import pipecat.turns.user_turn_strategies  # noqa: F401


def _silero(settings: _SileroSettings) -> "SileroVADAnalyzer":
    from pipecat.audio.vad.silero import SileroVADAnalyzer
    from pipecat.audio.vad.vad_analyzer import VADParams

    return SileroVADAnalyzer(
        params=VADParams(
            confidence=settings.confidence,
            start_secs=settings.start_secs,
            stop_secs=settings.stop_secs,
            min_volume=settings.min_volume,
        )
    )


def create_vad(settings: VadSettings, clock: Clock) -> TurnTaking:
    """End the turn `hold_ms` after the VAD's stop, once there is a transcript."""
    from pipecat.turns.user_start import VADUserTurnStartStrategy
    from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
    from pipecat.turns.user_turn_strategies import UserTurnStrategies

    return TurnTaking(
        vad=_silero(settings),
        strategies=UserTurnStrategies(
            start=[VADUserTurnStartStrategy()],
            stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=settings.hold_ms / 1000)],
        ),
        hold_ms=settings.hold_ms,
    )


def create_smart_turn(settings: SmartTurnSettings, clock: Clock) -> TurnTaking:
    """Do as pipecat by default: at the VAD's stop a model hears the turn and says if it is over."""
    from pipecat.audio.turn.smart_turn.base_smart_turn import SmartTurnParams
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
    from pipecat.turns.user_stop import TurnAnalyzerUserTurnStopStrategy
    from pipecat.turns.user_turn_strategies import (
        UserTurnStrategies,
        default_user_turn_start_strategies,
    )

    analyzer = LocalSmartTurnAnalyzerV3(params=SmartTurnParams(stop_secs=settings.wait_secs))
    return TurnTaking(
        vad=_silero(settings),
        strategies=UserTurnStrategies(
            start=default_user_turn_start_strategies(),
            stop=[TurnAnalyzerUserTurnStopStrategy(turn_analyzer=analyzer)],
        ),
        # No fixed hold: the model decides, and if it says no, the wait does.
        hold_ms=0.0,
    )


VAD = BackendSpec(
    name="vad",
    kind="turn",
    settings_type=VadSettings,
    create=create_vad,
    prepare=_prepare,
    licence="MIT",
    notes="Silero VAD and a fixed hold. CPU, in process.",
)

SMART_TURN = BackendSpec(
    name="smart-turn",
    kind="turn",
    settings_type=SmartTurnSettings,
    create=create_smart_turn,
    prepare=_prepare,
    licence="BSD-2-Clause AND MIT",
    notes="pipecat's default: Silero VAD, then smart turn v3 on the whole turn. CPU, in process.",
)
