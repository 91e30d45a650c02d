"""Turn-taking: by voice activity alone, by pipecat's smart turn, or by the person's words."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, TurnTaking
from turngap.core.clock import Clock
from turngap_services.loading import lazily

if TYPE_CHECKING:
    from pipecat.audio.vad.silero import SileroVADAnalyzer


class _SileroSettings(BackendSettings):
    """Settings of pipecat's Silero VAD."""

    start_secs: Annotated[float, Field(ge=0)] = 0.2
    """Speech after which the person counts as speaking, in seconds, rounded to windows of 32 ms."""
    stop_secs: Annotated[float, Field(ge=0)] = 0.2
    """Silence after which the person counts as silent, in seconds, rounded to windows of 32 ms."""
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
    """Build pipecat's default: at the VAD's stop a model hears the turn and says if it is over."""
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


Ms = Annotated[float, Field(ge=0)]


class AdaptiveSettings(BackendSettings):
    """Settings of `adaptive`. Silence counts from the last audible sample."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Silero's probability from which a window is speech."""
    start_ms: Ms = 100.0
    """Speech that begins a turn, in ms, unless recognised words begin it before."""
    certainty: Annotated[float, Field(ge=0, lt=1)] = 0.7
    """Certainty that the turn is over at which it ends: a higher value waits longer and cuts in
    less; 0: end it after `hold_ms`, whatever was said."""
    # An answer that is asked for at the first sign of silence is not there before.
    hold_ms: Ms = 200.0
    """Least silence that ends a turn, in ms."""
    longest_ms: Annotated[float, Field(gt=0)] = 2000.0
    """Silence that ends a turn however uncertain it is, in ms."""
    # Next to what was fitted it changes little on people, and costs on synthetic voices.
    smart_turn: bool = False
    """Ask pipecat's smart turn too, during the silence: about 50 ms of CPU, in a thread."""
    speculate: bool = True
    """Ask the LLM, and the TTS for its answer, at the first sign of silence."""
    pause_ms: Ms = 60.0
    """Silence that is the first sign, in ms."""
    conclude_ms: Ms = 20.0
    """How long before the end of the hold the recogniser is asked for its final transcript, in ms;
    0: not before. It listens on if the person does."""
    # A closure within a word is silent too, but what is read of the word by then changes: over the
    # library's 32 recordings 40 ms make 25 answers of 57 void instead of 40 of 72.
    steady_ms: Ms = 40.0
    """How long the words must stay the same before they are answered, in ms."""
    barge_in: Literal["attentive", "vad"] = "attentive"
    """`attentive`: the agent falls silent at once, and speaks on if it was only a cough or an
    "mm-hmm". `vad`: any speech of `start_ms` stops it for good."""
    least_words: Annotated[int, Field(ge=1)] = 2
    """Different words that stop the agent for good; a word like "stop" does so alone."""
    takeover_ms: Ms = 1000.0
    """Speech that stops the agent for good although too little of it is recognised, in ms."""
    final_ms: Ms = 1000.0
    """How long to wait for the final transcript if words were read or the STT does not say how long
    it takes, in ms; a later one is still answered."""


ADAPTIVE = BackendSpec(
    name="adaptive",
    kind="turn",
    settings_type=AdaptiveSettings,
    create=lazily("turngap_services.turn.taker:create"),
    prepare=lazily("turngap_services.turn.taker:prepare"),
    licence="BSD-2-Clause AND MIT",
    notes="Silero VAD and energy. How long it waits depends on what was said; the answer begins "
    "before the wait is over. CPU, in process.",
)
