"""Scenarios as the caller plays them: recordings at the line's rate."""

from turngap.caller.stream import RATE
from turngap.core.cue import BackchannelCue, Cue, SpeechBounds
from turngap.scenario.library import LoadedScenario
from turngap.scenario.model import Backchannel, UserTurn


def cues_of(
    scenario: LoadedScenario, budget_ms: float | None = None, *, rate: int = RATE
) -> list[Cue]:
    """Convert a scenario's turns to cues at a line's rate; `budget_ms` overrides its own."""
    return [
        Cue(
            pcm=scenario.clips[turn.audio].at_rate(rate),
            speech=_speech(turn),
            when=turn.when,
            budget_ms=budget_ms or turn.expect.budget_ms,
            backchannels=tuple(
                BackchannelCue(scenario.clips[b.audio].at_rate(rate), _speech(b), b.reply_ms)
                for b in turn.backchannels
            ),
        )
        for turn in scenario.scenario.turns
    ]


def _speech(recorded: UserTurn | Backchannel) -> SpeechBounds:
    if recorded.speech is None:
        raise AssertionError(f"{recorded.audio} is unlabelled: load_scenario refuses that")
    return recorded.speech
