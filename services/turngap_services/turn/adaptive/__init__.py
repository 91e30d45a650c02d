"""`adaptive`: the turn ends when the silence after the last word has said enough."""

from turngap.backends import BackendSpec, Floor, TurnTaking
from turngap.core.clock import Clock
from turngap_services.turn.adaptive.settings import AdaptiveSettings


def prepare(settings: AdaptiveSettings) -> None:
    """Load Silero, and smart turn where it is asked."""
    import pipecat.turns.user_turn_strategies

    import turngap_services.turn.adaptive.ears
    import turngap_services.turn.adaptive.turns  # noqa: F401
    from turngap_services.turn.adaptive import silero

    silero.load()
    if settings.smart_turn:
        import pipecat.audio.turn.smart_turn.local_smart_turn_v3  # noqa: F401


def create(settings: AdaptiveSettings, clock: Clock) -> TurnTaking:
    """One session's ears and strategies."""
    from pipecat.turns.user_turn_strategies import UserTurnStrategies

    from turngap_services.turn.adaptive.attention import Attention
    from turngap_services.turn.adaptive.ears import Listener
    from turngap_services.turn.adaptive.taker import TurnTaker
    from turngap_services.turn.adaptive.turns import TakenStart, TakenStop

    classifier = None
    if settings.smart_turn:
        from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

        classifier = LocalSmartTurnAnalyzerV3()
    floor = Floor()
    taker = TurnTaker(Attention(settings), clock, floor)
    start = TakenStart(taker)
    return TurnTaking(
        vad=None,
        strategies=UserTurnStrategies(start=[start], stop=[TakenStop(taker, start)]),
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
    notes="Silero and energy, a hold that suits what was said, answers begun before it ends. CPU.",
)
