"""Played turns as they are stored."""

import traceback
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from turngap.caller.conversation import PlayedTurn
from turngap.caller.line import failed_on
from turngap.core.budget import STARVED_MS, TurnEnd
from turngap.core.clock import NS_PER_MS, ns_to_ms
from turngap.core.events import TurnEnded, UserSpeech
from turngap.core.results import (
    AnswerRecord,
    AudioRecord,
    BackchannelRecord,
    HoleRecord,
    PacingRecord,
    PauseRecord,
    Turn,
)
from turngap.core.tracked import unfinished
from turngap.core.untrusted import MOST_SENTENCE
from turngap.scenario.answers import answer_of
from turngap.scenario.model import Scenario, UserTurn
from turngap.store.turns import plain_event, stored_fields


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
    about = {
        "repeat": repeat,
        "phase_ms": phase_ms,
        "budget_ms": budget_ms or scenario.turns[played.turn.turn - 1].expect.budget_ms,
        "faults": faults,
    }
    try:
        return _record(scenario, played, file, starved_ms, about)
    except Exception as e:
        why, turn = failed_on("make the turn's record", e), played.turn
        speech = UserSpeech(turn.turn, turn.user_start_ns, turn.user_end_ns)
        end = TurnEnded(turn.turn, turn.ended_ns, turn.ended)
        trace = traceback.format_exc(limit=-8)[-MOST_SENTENCE:]
        bare = replace(played, turn=unfinished(speech, end, why), events=(), notes={trace: 1})
        return _record(scenario, bare, file, starved_ms, about)


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
    asked = scenario.turns[number - 1]
    bare = unfinished(UserSpeech(number, 0, 0), TurnEnded(number, 0, ended), why)
    return Turn(
        **stored_fields(bare) | {"speech_ms": None, "marks": ()},
        scenario=scenario.name,
        repeat=repeat,
        phase_ms=phase_ms,
        say=asked.say,
        budget_ms=budget_ms or asked.expect.budget_ms,
        pacing=pacing_record((), None),
        audio=None,
        answer=AnswerRecord(verdict="not_judged", why="the turn was not played"),
    )


def _record(
    scenario: Scenario,
    played: PlayedTurn,
    file: str,
    starved_ms: float,
    about: Mapping[str, Any],
) -> Turn:
    turn = played.turn
    fields = stored_fields(turn)
    fields["notes"] |= played.notes
    asked = scenario.turns[turn.turn - 1]
    begun_ns = played.window[0]
    return Turn(
        scenario=scenario.name,
        say=asked.say,
        pauses=_pauses(asked),
        backchannels=tuple(
            BackchannelRecord(
                say=asked.backchannels[b.index].say,
                start_ms=_since(begun_ns, b.start_ns),
                reply_stopped=b.reply_stopped,
            )
            for b in played.backchannels
        ),
        greeting_ms=None if played.greeting_ns is None else ns_to_ms(played.greeting_ns),
        holes=tuple(HoleRecord(at_ms=ns_to_ms(at), ms=ns_to_ms(ns)) for at, ns in played.holes),
        pacing=pacing_record(played.late_ns, played.lag_ns, starved_ms),
        audio=AudioRecord(
            file=file,
            user_start_ms=_since(begun_ns, turn.user_start_ns),
            user_end_ms=_since(begun_ns, turn.user_end_ns),
            onset_ms=None if turn.onset_ns is None else _since(begun_ns, turn.onset_ns),
            label_error_ms=None if asked.speech is None else asked.speech.end_error_ms,
        ),
        answer=answer_of(
            asked.expect,
            turn,
            played.events,
            played.window[1],
            stopped=any(b.reply_stopped for b in played.backchannels),
        ),
        events=tuple(plain_event(event) for event in played.events),
        **about,
        **fields,
    )


def _pauses(asked: UserTurn) -> tuple[PauseRecord, ...] | None:
    if asked.pauses is None or asked.speech is None:
        return None
    begun_ms = asked.speech.start_ms
    return tuple(
        PauseRecord(start_ms=p.start_ms - begun_ms, end_ms=p.end_ms - begun_ms)
        for p in asked.pauses
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
