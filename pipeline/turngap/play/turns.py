"""Conversions of turns: from a scenario to a cue, then to what is stored and doubted."""

import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median, median_low

from turngap.caller.connection import failed_on
from turngap.caller.conversation import PlayedTurn
from turngap.caller.stream import RATE
from turngap.core.budget import STARVED_MS, TurnEnd
from turngap.core.clock import NS_PER_MS, ns_to_ms
from turngap.core.credits import HOLD_PHRASE_MS
from turngap.core.cue import BackchannelCue, Cue, SpeechBounds, Utterance
from turngap.core.events import TurnEnded, UserSpeech, plain_event, unfinished
from turngap.core.results import AMBIGUOUS, Turn, TurnKey
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
    """Build one line of `turns.jsonl`.

    If turngap fails on what the agent said, the turn becomes an `error`, without what the agent
    said.
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
            line=played.line,
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
    """Build the record of a turn that a call did not reach."""
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
    """Return the words of a turn; `budget_ms` overrides the turn's own."""
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
    """Convert a scenario's turns to cues at a line's rate; `budget_ms` overrides the turns' own."""
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


# A greeting through LLM and TTS was seen to take one to two seconds, four to five where the agent
# is cold, and six in its first call.
GREETING_MS, FIRST_GREETING_MS = 5000.0, 8000.0
# After this many calls in a row without a greeting, none is waited for.
SILENT_CALLS = 2
# An agent that first speaks at the same time of each call greets, too, wherever the person ends.
APART_NS = 1_500_000_000


class Greetings:
    """Rule that decides, for each call of an agent, how long to wait for a greeting.

    Attributes:
        greets: the agent has greeted.
    """

    def __init__(self, asked_ms: float | None) -> None:
        self._asked_ms = asked_ms
        self.greets = False
        self._firsts: list[tuple[int, int]] = []  # of each silent call: its onset, the user's end
        self._silent: list[bool] = []  # calls in a row without one: whether the agent then cut in

    @property
    def wait_ms(self) -> float:
        """Return how long to wait in the next call, as requested or as earlier calls showed."""
        if self._asked_ms is not None:
            return self._asked_ms
        if self.greets:
            return GREETING_MS
        return 0.0 if self.decided else GREETING_MS if self._silent else FIRST_GREETING_MS

    @property
    def open(self) -> bool:
        """Return whether turngap still has to find out how long to wait."""
        return self._asked_ms is None

    @property
    def decided(self) -> bool:
        """Return whether further calls can change nothing."""
        return self._asked_ms is not None or self.greets or len(self._silent) >= SILENT_CALLS

    @property
    def steady(self) -> bool:
        """Return whether the agent first speaks at the same time in each call, as in a greeting."""
        if not self._firsts:
            return False
        onsets, ends = (max(each) - min(each) for each in zip(*self._firsts, strict=True))
        return ends > max(APART_NS, 2 * onsets)

    def take(self, *, greeted: bool, cut_in: bool, first_ns: tuple[int, int] | None = None) -> None:
        """Learn from a call. An agent that suddenly cuts into its first turn may have greeted.

        `first_ns`: the times from the opening to the agent's first speech and to the person's end.
        """
        self.greets |= greeted
        if first_ns is not None and not greeted:
            self._firsts.append(first_ns)
        sudden = cut_in and self.decided and not all(self._silent)
        self._silent = [] if sudden else self._silent[1 - SILENT_CALLS :]
        self._silent.append(cut_in)


STILL_THERE = (
    "it came much later than other replies, and may not be an answer but a question whether the "
    "person is still there"
)
HOLD_OVER = (
    "a short reply came before a long one: the first may be a hold phrase, and its answer may "
    "have come during the second turn"
)
# A question whether the person is still there comes so late, and so many times as late as a reply.
ASKS_MS, ASKS_TIMES = 3000.0, 4.0
# Replies are short and long beside the median.
SHORT, LONG = 0.67, 1.5


def doubts_of(turns: Sequence[Turn]) -> dict[TurnKey, str]:
    """Return the notes of the turns that are in doubt."""
    gaps = [turn.gap_ms for turn in turns if turn.gap_ms is not None]
    if not gaps:
        return {}
    late_ms = max(ASKS_MS, ASKS_TIMES * median_low(gaps))
    telling = any(_is_told(turn) for turn in turns)
    lengths = {turn.key: _length_ms(turn) for turn in turns if turn.gap_ms is not None}
    found: dict[TurnKey, str] = {}
    if not telling:
        usual_ms = median(lengths.values())
        for one, then in pairwise(turn for turn in turns if turn.key in lengths):
            follows = one.call == then.call and then.turn == one.turn + 1
            short = lengths[one.key] < min(HOLD_PHRASE_MS, SHORT * usual_ms)
            if follows and short and lengths[then.key] > LONG * usual_ms:
                found |= dict.fromkeys((one.key, then.key), HOLD_OVER)
    for turn in turns:
        heard_ms = turn.first_answer_ms if turn.gap_ms is None else turn.gap_ms
        asks = not _is_told(turn) if telling else _length_ms(turn) < HOLD_PHRASE_MS
        if heard_ms is not None and heard_ms > late_ms and asks:
            found[turn.key] = AMBIGUOUS + STILL_THERE
    return found


def _is_told(turn: Turn) -> bool:
    """Return whether the agent said that it had heard the turn."""
    return bool(turn.endpoints_ms or turn.transcript)


def _length_ms(turn: Turn) -> float:
    """Return how long the agent spoke, from its first word in the turn to the last."""
    begun, ended = turn.instants("AgentSpeech", "onset_ns"), turn.instants("AgentSilence")
    return ns_to_ms(max(ended) - min(begun)) if begun and ended else 0.0
