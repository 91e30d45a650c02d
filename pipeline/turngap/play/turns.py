"""Turns on their way: from a scenario's to what the caller plays, and to what is stored."""

import traceback
from dataclasses import replace
from statistics import median

from turngap.caller.conversation import PlayedTurn
from turngap.caller.line import failed_on
from turngap.caller.stream import RATE
from turngap.core.budget import STARVED_MS, TurnEnd
from turngap.core.clock import NS_PER_MS, ns_to_ms
from turngap.core.cue import BackchannelCue, Cue, SpeechBounds, Utterance
from turngap.core.events import TurnEnded, UserSpeech, plain_event, unfinished
from turngap.core.results import Turn
from turngap.core.stored import (
    AnswerRecord,
    AudioRecord,
    BackchannelRecord,
    HoleRecord,
    PacingRecord,
    PauseRecord,
)
from turngap.core.untrusted import MOST_SENTENCE
from turngap.scenario.answers import answer_of
from turngap.scenario.library import LoadedScenario
from turngap.scenario.model import Backchannel, Scenario, UserTurn


def turn_record(
    scenario: Scenario,
    played: PlayedTurn,
    *,
    repeat: int,
    phase_ms: float,
    file: str,
    faults: tuple[str, ...],
    budget_ms: float | None,
    starved_ms: float = STARVED_MS,
) -> Turn:
    """One line of `turns.jsonl`.

    If turngap cannot make one of what the agent said, the turn is an `error` without it.
    """
    number = played.turn.turn
    turn = scenario.turns[number - 1]
    said = utterance(scenario, number, budget_ms)

    def made(played: PlayedTurn) -> Turn:
        begun_ns, stopped = played.window[0], any(b.reply_stopped for b in played.backchannels)
        return Turn.of(
            played.turn,
            said,
            repeat=repeat,
            phase_ms=phase_ms,
            backchannels=tuple(
                BackchannelRecord(
                    say=turn.backchannels[b.index].say,
                    start_ms=_since(begun_ns, b.start_ns),
                    reply_stopped=b.reply_stopped,
                )
                for b in played.backchannels
            ),
            greeting_ms=None if played.greeting_ns is None else ns_to_ms(played.greeting_ns),
            holes=tuple(HoleRecord(at_ms=ns_to_ms(at), ms=ns_to_ms(ns)) for at, ns in played.holes),
            pacing=pacing_record(played.late_ns, played.lag_ns, starved_ms),
            audio=_audio(played, file, turn.speech),
            faults=faults,
            notes=played.notes,
            answer=answer_of(
                turn.expect, played.turn, played.events, played.window[1], stopped=stopped
            ),
            events=tuple(map(plain_event, played.events)),
        )

    try:
        return made(played)
    except Exception as e:
        why, tracked = failed_on("make the turn's record", e), played.turn
        speech = UserSpeech(number, tracked.user_start_ns, tracked.user_end_ns)
        end = TurnEnded(number, tracked.ended_ns, tracked.ended)
        trace = traceback.format_exc(limit=-8)[-MOST_SENTENCE:]
        bare = unfinished(speech, end, why)
        return made(replace(played, turn=bare, events=(), notes={trace: 1}))


def unplayed(
    scenario: Scenario,
    number: int,
    ended: TurnEnd,
    why: str,
    budget_ms: float | None,
    *,
    repeat: int,
    phase_ms: float,
) -> Turn:
    """Build the record of a turn that a call did not come to."""
    return Turn.of(
        unfinished(UserSpeech(number, 0, 0), TurnEnded(number, 0, ended), why),
        replace(utterance(scenario, number, budget_ms), pauses=None),
        repeat=repeat,
        phase_ms=phase_ms,
        pacing=pacing_record((), None),
        audio=None,
        answer=AnswerRecord(verdict="not_judged", why="the turn was not played"),
    )


def utterance(scenario: Scenario, number: int, budget_ms: float | None) -> Utterance:
    """Return what is said in a turn; `budget_ms` overrides its own."""
    turn = scenario.turns[number - 1]
    return Utterance(
        scenario=scenario.name,
        say=turn.say,
        budget_ms=budget_ms or turn.expect.budget_ms,
        pauses=_pauses(turn),
    )


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


def _pauses(turn: UserTurn) -> tuple[PauseRecord, ...] | None:
    if turn.pauses is None or turn.speech is None:
        return None
    begun_ms = turn.speech.start_ms
    return tuple(
        PauseRecord(start_ms=p.start_ms - begun_ms, end_ms=p.end_ms - begun_ms) for p in turn.pauses
    )


def _audio(played: PlayedTurn, file: str, speech: SpeechBounds | None) -> AudioRecord:
    turn, begun_ns = played.turn, played.window[0]
    return AudioRecord(
        file=file,
        user_start_ms=_since(begun_ns, turn.user_start_ns),
        user_end_ms=_since(begun_ns, turn.user_end_ns),
        onset_ms=None if turn.onset_ns is None else _since(begun_ns, turn.onset_ns),
        label_error_ms=None if speech is None else speech.end_error_ms,
    )


def _since(origin_ns: int, at_ns: int) -> float:
    return (at_ns - origin_ns) / NS_PER_MS


def pacing_record(
    late_ns: tuple[int, ...], lag_ns: int | None, starved_ms: float = STARVED_MS
) -> PacingRecord:
    """Build the record of caller lateness from each packet's and the loop's worst lag."""
    late_ms = [ns_to_ms(ns) for ns in late_ns]
    lag_ms = None if lag_ns is None else ns_to_ms(lag_ns)
    return PacingRecord(
        packets=len(late_ms),
        late_ms_p50=median(late_ms) if late_ms else None,
        late_ms_max=max(late_ms, default=None),
        loop_lag_ms_max=lag_ms,
        starved=max([*late_ms, lag_ms or 0.0]) > starved_ms,
    )
