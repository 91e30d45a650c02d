"""`adaptive`: the turn ends when the silence after the last word has said enough."""

from typing import Annotated, Literal

from pydantic import Field

from turngap.backends import BackendSettings, BackendSpec, Floor, TurnTaking
from turngap.core.clock import Clock

Ms = Annotated[float, Field(ge=0)]


class AdaptiveSettings(BackendSettings):
    """Settings of `adaptive`. Silence counts from the last audible sample."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Silero's probability from which a window is speech."""
    start_ms: Ms = 100.0
    """Speech that begins a turn, in ms, unless recognised words begin it before."""
    certainty: Annotated[float, Field(ge=0, lt=1)] = 0.7
    """How certain it must be that the turn is over before it ends: more waits longer and cuts in
    less; 0: end it after `hold_ms`, whatever was said."""
    # An answer that is asked for at the first sign of silence is not there before.
    hold_ms: Ms = 200.0
    """Least silence that ends a turn, in ms."""
    longest_ms: Annotated[float, Field(gt=0)] = 2000.0
    """Silence that ends a turn however uncertain it is, in ms."""
    # Beside what was fitted it changes little on people, and costs on synthetic voices.
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


def prepare(settings: AdaptiveSettings) -> None:
    """Load Silero, what was fitted, and smart turn if it is used."""
    import pipecat.turns.user_turn_strategies

    import turngap_services.turn.adaptive.ears  # noqa: F401
    from turngap_services.turn.adaptive import silero
    from turngap_services.turn.adaptive.over import shipped

    silero.load()
    shipped()
    if settings.smart_turn:
        import pipecat.audio.turn.smart_turn.local_smart_turn_v3  # noqa: F401


def create(settings: AdaptiveSettings, clock: Clock) -> TurnTaking:
    """Make one session's ears and strategies."""
    from pipecat.turns.user_turn_strategies import UserTurnStrategies

    from turngap_services.turn.adaptive.attention import Attention
    from turngap_services.turn.adaptive.ears import Listener
    from turngap_services.turn.adaptive.over import shipped
    from turngap_services.turn.adaptive.taker import TurnTaker

    classifier = None
    if settings.smart_turn:
        from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

        classifier = LocalSmartTurnAnalyzerV3()
    floor = Floor()
    taker = TurnTaker(Attention(settings, shipped()), clock, floor)
    return TurnTaking(
        vad=None,
        strategies=UserTurnStrategies(start=[taker.start], stop=[taker.stop]),
        hold_ms=0.0,
        ears=Listener(taker, settings.confidence, classifier),
        speculates=settings.speculate,
        floor=floor,
        decisions=taker.decisions,
    )


SPEC = BackendSpec(
    name="adaptive",
    kind="turn",
    settings_type=AdaptiveSettings,
    create=create,
    prepare=prepare,
    licence="BSD-2-Clause AND MIT",
    notes="Silero VAD and energy. How long it waits depends on what was said; the answer begins "
    "before the wait is over. CPU, in process.",
)
