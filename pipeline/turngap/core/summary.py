"""Figures that are shown of turns: hit rate, cut-ins, gap percentiles, slowest stage."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from statistics import median
from typing import Any, Literal

from turngap.core.budget import OUTCOMES, SILENT, WITHOUT_GAP
from turngap.core.clock import NS_PER_MS, ns_to_ms
from turngap.core.counts import COLD, NO_RATE, RATE, SERVER, TTFT, WINDOW
from turngap.core.cut_ins import CutIns, EarlyTurns, cut_ins_of, early_turns
from turngap.core.line_figures import LineFigures, line_figures
from turngap.core.results import Turn
from turngap.core.stages import MARKS
from turngap.core.stats import (
    Percentile,
    Proportion,
    percentile,
    percentile_of,
    proportion,
    proportion_of,
)
from turngap.core.stored import NO_TEXT, AnswerRecord

# Who spoke when they should not have: cut-ins, false stops, and how slowly the agent yields.


@dataclass(frozen=True, slots=True)
class TurnTakingFigures:
    """A run's turn-taking.

    Attributes:
        early: turns in which the agent spoke, or considered the turn over, before the user's end.
        false_stops: backchannels for which the agent stopped its reply, of all backchannels.
        yield_ms: barge-in: time from the user's onset to the agent's silence at the caller's ear,
            with all buffered audio; the median over `barge_ins` turns.
        endpoint_ms: the agent's endpoint stage over the answered turns that report it.
    """

    early: EarlyTurns
    false_stops: Proportion
    barge_ins: int
    yield_ms: Percentile
    endpoint_ms: Percentile
    gap_ms: Percentile

    @property
    def cut_ins(self) -> CutIns:
        """Turns in which the agent was heard before the user had ended, of all turns."""
        return self.early.heard

    def as_json(self) -> dict[str, Any]:
        decided = self.early.decided
        return {
            "cut_in_rate": self.cut_ins.value,
            "cut_ins": self.cut_ins.hits,
            "false_endpoint_turns": None if decided is None else decided.hits,
            "false_endpoints_of": None if decided is None else decided.n,
            "backchannels": self.false_stops.n,
            "false_stops": self.false_stops.hits,
            "barge_ins": self.barge_ins,
            "yield_ms_p50": self.yield_ms.value,
            "endpoint_ms_p50": self.endpoint_ms.value,
        }


def turn_taking(turns: Sequence[Turn]) -> TurnTakingFigures:
    """Compute all turn-taking figures of a run; all are None if it has no turns."""
    turns = counted_turns(turns)
    answered = [t for t in turns if t.replied]
    yields = [t.yield_ms for t in turns if t.yield_ms is not None]
    backchannels = [b for t in turns for b in t.backchannels]
    endpoints = [s.ms for t in answered for s in t.stages if s.name == "endpoint"]
    unanswered = sum(t.outcome in SILENT for t in turns)
    gaps = [t.gap_ms for t in answered if t.gap_ms is not None]
    return TurnTakingFigures(
        early=early_turns(turns),
        false_stops=proportion(sum(b.reply_stopped for b in backchannels), len(backchannels)),
        barge_ins=len(yields),
        yield_ms=percentile(yields, 0.5),
        endpoint_ms=percentile(endpoints, 0.5),
        gap_ms=percentile(gaps, 0.5, censored=unanswered),
    )


# Verdicts besides the rule's on the agent's own words: by the sound of it, and a judge model's.


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on the same turns by another judge.

    Attributes:
        right: right turns, of the turns that this judge judged.
        not_judged: turns that it did not judge, by the reason.
        both: turns that both this judge and the rule on the agent's text judged; `agree`: of these,
            turns with the same verdict.
        alone: turns among these that only this judge judged right; `rule_alone`: only the rule.
        transcribed: turns that it judged by the words of a recogniser.
    """

    right: Proportion
    not_judged: dict[str, int]
    both: int
    agree: int
    alone: int
    rule_alone: int
    transcribed: int

    def as_json(self) -> dict[str, Any]:
        return {
            "right": self.right.hits,
            "n": self.right.n,
            "recorded": self.right.recorded,
            "value": self.right.value,
            "ci95": [self.right.low, self.right.high],
            "not_judged": self.not_judged,
            "agree": self.agree,
            "both": self.both,
            "alone": self.alone,
            "rule_alone": self.rule_alone,
        }


def other_verdicts(turns: Sequence[Turn], by: Literal["transcribed", "judged"]) -> Verdicts | None:
    """Compare the verdicts by the agent's sound, or by a judge model, with the rule's.

    Return None if no recogniser, or no judge model, was asked.
    """
    given = [(t, t.transcribed if by == "transcribed" else t.judged) for t in turns]
    known = [(turn.right, verdict) for turn, verdict in given if verdict is not None]
    if not known:
        return None
    both = [(rule, v.right) for rule, v in known if rule is not None and v.right is not None]
    judged = [v for _, v in known if v.right is not None]
    return Verdicts(
        right=_right_of((turn, v.right) for turn, v in given if v is not None),
        not_judged=dict(Counter(v.why or "not known" for _, v in known if v.right is None)),
        both=len(both),
        agree=sum(rule == other for rule, other in both),
        alone=both.count((False, True)),
        rule_alone=both.count((True, False)),
        transcribed=sum(v.source == "transcribed" for v in judged),
    )


@dataclass(frozen=True, slots=True)
class Heard:
    """Figures of an agent's sound apart from its gaps.

    Attributes:
        first_answer_ms_p50: time to the first word that is no hold phrase, over turns with a reply.
        hold_phrases: turns in which a hold phrase came before that word.
        ambiguous_turns: turns whose reply may belong to another turn.
        discontiguous_replies: replies with a hole within their first two seconds.
        false_starts, backchannels_heard: how many there were.
        greeting_ms_p50: time from the open line to the greeting, over calls that had one.
        sound_before_word: turns whose first sound comes over 100 ms before the first word.
        onset_spread_ms_p50, onset_spread_ms_p95: how far off the first word or answer may be, over
            the `onsets` with a known spread; `unsure_onsets` counts those over 20 ms.
        playout_gap_ms_p50: the gap behind a playout buffer, over turns with a `playout_ms`, whose
            median is `playout_ms_p50`.
    """

    first_answer_ms_p50: float | None
    hold_phrases: int
    ambiguous_turns: int
    discontiguous_replies: int
    false_starts: int
    backchannels_heard: int
    greeting_ms_p50: float | None
    sound_before_word: int
    onset_spread_ms_p50: float | None
    onset_spread_ms_p95: float | None
    onsets: int
    unsure_onsets: int
    playout_gap_ms_p50: float | None
    playout_ms_p50: float | None


# First sound that comes so much before the first word is something else, and an onset whose spread
# is over this is not placed well.
OTHER_SOUND_MS = 100.0
UNSURE_ONSET_MS = 20.0


def heard_of(turns: Sequence[Turn]) -> Heard:
    """Compute the figures of an agent's sound apart from its gaps."""
    replied = [t for t in turns if t.replied]
    answers = [t.first_answer_ms for t in replied if t.first_answer_ms is not None]
    greetings = [t.greeting_ms for t in turns if t.greeting_ms is not None]
    played = [
        (t.gap_ms, t.playout_ms)
        for t in replied
        if t.gap_ms is not None and t.playout_ms is not None
    ]
    spreads = [t.onset_spread_ms for t in turns if t.onset_spread_ms is not None]
    return Heard(
        first_answer_ms_p50=median(answers) if answers else None,
        hold_phrases=sum((t.first_answer_ms or 0.0) > (t.gap_ms or 0.0) for t in replied),
        ambiguous_turns=sum(t.ambiguous for t in turns),
        discontiguous_replies=sum(t.discontiguous for t in turns),
        false_starts=sum(t.false_starts for t in turns),
        backchannels_heard=sum(t.backchannels_heard for t in turns),
        greeting_ms_p50=median(greetings) if greetings else None,
        sound_before_word=sum(
            t.gap_ms - t.first_sound_ms > OTHER_SOUND_MS
            for t in turns
            if t.gap_ms is not None and t.first_sound_ms is not None
        ),
        onset_spread_ms_p50=median(spreads) if spreads else None,
        onset_spread_ms_p95=percentile(spreads, 0.95).value,
        onsets=len(spreads),
        unsure_onsets=sum(spread > UNSURE_ONSET_MS for spread in spreads),
        playout_gap_ms_p50=percentile([gap + later for gap, later in played], 0.5).value,
        playout_ms_p50=median(later for _, later in played) if played else None,
    )


PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class GapFigures:
    """The turn gap over a run, in ms: three percentiles, each with its interval.

    Attributes:
        n: turns behind the percentiles: those with a reply, and those without one that was due,
            which count as slower than any other.
        recorded: the number of recorded turns that these are takes of.
    """

    n: int
    recorded: int
    p50: Percentile
    p90: Percentile
    p95: Percentile

    def __str__(self) -> str:
        return f"p50 {self.p50}, p90 {self.p90}, p95 {self.p95} ms, n={self.n}"


@dataclass(frozen=True, slots=True)
class StageFigure:
    """One stage over a run.

    Attributes:
        n: turns that have the stage; all figures but `share` are over these.
        share: the stage's part of all the silence of all answered turns; None if that is 0.
    """

    name: str
    n: int
    p50_ms: float
    p95_ms: Percentile
    max_ms: float
    share: float | None


@dataclass(frozen=True, slots=True)
class TokenFigures:
    """Speed of the LLM's tokens: medians, and the slow end of the first token.

    An LLM's first turn since the agent began counts only in `cold_n` and `cold_ttft_ms`.

    Attributes:
        n: warm turns; each figure is over those in which it is known.
        ttft_ms: time from the request to the first token; None if every turn was a first one.
        per_s: tokens a second after the first, by the LLM's own token count; None with the reason
            `NO_RATE`.
        in_window: tokens within `LLM_WINDOW_MS` of the request.
        server_ms: the times in `SERVER` that the LLM's server reported.
        cold_n: first turns.
        cold_ttft_ms: median of their times to the first token.
    """

    n: int
    ttft_ms: float | None
    ttft_p95_ms: Percentile
    per_s: float | None
    in_window: float | None
    server_ms: dict[str, float]
    cold_n: int
    cold_ttft_ms: float | None

    def as_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "ttft_ms": {"p50": self.ttft_ms, "p95": self.ttft_p95_ms.value},
            "tokens_per_s": {"p50": self.per_s}
            | ({"why_none": NO_RATE} if self.per_s is None else {}),
            "window_tokens": {"p50": self.in_window},
            "server_ms": {name: {"p50": ms} for name, ms in self.server_ms.items()},
            "cold": {"n": self.cold_n, "ttft_ms": {"p50": self.cold_ttft_ms}},
        }


def token_figures(turns: Sequence[Turn]) -> TokenFigures | None:
    """Compute the token figures of a run; None if no agent reported any."""
    cold = _told([turn for turn in turns if COLD in turn.counts], TTFT)
    warm = [turn for turn in turns if COLD not in turn.counts]
    first = _told(warm, TTFT)
    if not first and not cold:
        return None
    server = {name: _middle(_told(warm, count)) for name, count in SERVER.items()}
    return TokenFigures(
        n=len(first),
        ttft_ms=_middle(first),
        ttft_p95_ms=percentile(first, 0.95),
        per_s=_middle(_told(warm, RATE)),
        in_window=_middle(_told(warm, WINDOW)),
        server_ms={name: ms for name, ms in server.items() if ms is not None},
        cold_n=len(cold),
        cold_ttft_ms=_middle(cold),
    )


def _told(turns: Sequence[Turn], name: str) -> list[float]:
    return [turn.counts[name] for turn in turns if name in turn.counts]


def _middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures.

    Attributes:
        hit_rate: turns answered within budget of all turns, whatever their outcome; `n` is less
            than `turns` if some have a reason to be left out. Rounds count in its interval only as
            far as they add information (`core.clusters.Clusters`), as in the percentiles'.
        cut_ins: turns in which the agent spoke before the person had finished, of the same turns.
            Read it together with the gap: an agent can buy a short gap with cut-ins.
        gap_n: turns behind the gap percentiles: those with a reply, and those without one that was
            due (which count as slower than any measured).
        gap_recorded: the number of recorded turns that these are takes of.
        left_out: turns that no gap percentile can count, by outcome or by their own reason. An
            agent that cut in was not quick. A turn with a reason of its own (`Turn.left_out`) is
            only in `turns` and `outcomes`.
        stages: each stage over the answered turns that have it, in causal order.
        right: replies that were right, of those that were judged.
        not_judged: turns whose reply was not judged, by the reason, without the turns left out.
        transcribed, judged: right replies by the agent's sound, and by a judge model; None if not
            asked.
        llm: how fast the LLM was; None if the agent reported nothing of it.
        heard: figures of the agent's sound.
        calls, lost_calls: calls that were played, and calls whose line was lost.
        starved: turns in which the caller was later than its run accepts.
        caller_error_ms: by how much the gap of a turn that was not starved may at most read long
            because of the caller's lateness; None without such a turn.
        label_error_ms: how far off the labelled end of speech, and so the gap, may be: the median
            over the turns whose recording says so; None if none does.
        line: what a line did to the turns; None without one.
    """

    turns: int
    outcomes: dict[str, int]
    hit_rate: Proportion
    cut_ins: CutIns
    gap_n: int
    gap_recorded: int
    gap_ms: dict[str, Percentile]
    left_out: dict[str, int]
    stages: tuple[StageFigure, ...]
    right: Proportion
    not_judged: dict[str, int]
    transcribed: Verdicts | None
    judged: Verdicts | None
    llm: TokenFigures | None
    heard: Heard
    calls: int
    lost_calls: int
    starved: int
    caller_error_ms: float | None
    label_error_ms: float | None
    line: LineFigures | None

    @property
    def stage_p50_ms(self) -> dict[str, float]:
        """Return the median of each stage over the turns that have it."""
        return {stage.name: stage.p50_ms for stage in self.stages}

    @property
    def slowest_stage(self) -> str | None:
        """Return the stage that took most of the run's silence.

        This is not the stage with the largest median, which may occur in only one turn of many.
        """
        slowest = max(self.stages, key=lambda stage: stage.share or 0.0, default=None)
        return slowest.name if slowest else None

    def as_json(self) -> dict[str, Any]:
        gap: dict[str, Any] = {"n": self.gap_n, "recorded": self.gap_recorded}
        why = {}
        intervals = {}
        for name, p in self.gap_ms.items():
            gap[name] = p.value
            intervals[name] = [p.low, p.high]
            if p.why_none:
                why[name] = p.why_none
        gap |= {"ci95": intervals, "why_none": why}
        shown = {"hit_rate": self.hit_rate, "cut_ins": self.cut_ins, "correct": self.right}
        shown |= self.gap_ms
        return {
            "turns": self.turns,
            "recorded_turns": self.hit_rate.recorded,
            "outcomes": self.outcomes,
            "hit_rate": self.hit_rate.value,
            "hit_rate_ci95": [self.hit_rate.low, self.hit_rate.high],
            "cut_ins": self.cut_ins.as_json(),
            "gap_ms": gap,
            "left_out": self.left_out,
            "why_no_ci95": {k: why for k, v in shown.items() if (why := v.why_no_interval)},
            "stage_p50_ms": self.stage_p50_ms,
            "slowest_stage": self.slowest_stage,
            "correct": {
                "right": self.right.hits,
                "n": self.right.n,
                "recorded": self.right.recorded,
                "value": self.right.value,
                "ci95": [self.right.low, self.right.high],
                "not_judged": self.not_judged,
            },
            "transcribed": self.transcribed.as_json() if self.transcribed else None,
            "judged": self.judged.as_json() if self.judged else None,
            "llm": self.llm.as_json() if self.llm else None,
            **asdict(self.heard),
            "calls": self.calls,
            "lost_calls": self.lost_calls,
            "starved_turns": self.starved,
            "caller_error_ms": self.caller_error_ms,
            "label_error_ms": self.label_error_ms,
            "line": self.line.as_json() if self.line else None,
        }


def summarise(turns: Sequence[Turn]) -> Summary:
    """Compute all figures of a run; all are None if it has no turns."""
    of_all = Counter(t.outcome for t in turns)
    counted = counted_turns(turns)
    reasons = Counter(t.left_out for t in turns if t.left_out is not None)
    outcomes = Counter(t.outcome for t in counted)
    due = due_gaps(counted)
    judged = _judged(counted)
    calls, lost = calls_of(turns)
    return Summary(
        turns=len(turns),
        outcomes={o: of_all[o] for o in OUTCOMES if of_all[o]},
        hit_rate=_hit_rate(counted),
        cut_ins=cut_ins_of(counted),
        gap_n=len(due),
        gap_recorded=len({turn.take[:2] for _, turn in due}),
        gap_ms={k: due_percentile(due, q) for k, q in PERCENTILES.items()},
        left_out={o: outcomes[o] for o in WITHOUT_GAP if outcomes[o]} | dict(reasons),
        stages=stage_figures(counted),
        right=_right_of((t, answer.right) for t, answer in judged),
        not_judged=dict(Counter(a.why for _, a in judged if a.why is not None)),
        transcribed=other_verdicts(counted, "transcribed"),
        judged=other_verdicts(counted, "judged"),
        llm=token_figures(counted),
        heard=heard_of(counted),
        calls=len(calls),
        lost_calls=len(lost),
        starved=sum(t.pacing.starved for t in turns),
        caller_error_ms=max(
            (t.pacing.error_ms for t in turns if not t.pacing.starved), default=None
        ),
        label_error_ms=_label_error_ms(counted),
        line=line_figures(counted),
    )


def calls_of(
    turns: Iterable[Turn],
) -> tuple[list[tuple[str, float, int]], list[tuple[str, float, int]]]:
    """List the calls in order, and those of them that the agent lost or ended early."""
    turns = list(turns)
    calls = dict.fromkeys(turn.call for turn in turns)
    return list(calls), list(dict.fromkeys(turn.call for turn in turns if turn.lost))


def _judged(turns: Sequence[Turn]) -> list[tuple[Turn, AnswerRecord]]:
    """List the turns with their verdicts; if no reply could be judged, no silent turn is judged."""
    unheard = any(t.answer.why == NO_TEXT for t in turns) and not any(
        t.replied and t.right is not None for t in turns
    )
    none = AnswerRecord(verdict="not_judged", why=NO_TEXT)
    return [(t, none if unheard and t.right is not None else t.answer) for t in turns]


def _label_error_ms(turns: Sequence[Turn]) -> float | None:
    errors = [t.audio.label_error_ms for t in turns if t.audio is not None]
    known = [error for error in errors if error is not None]
    return median(known) if known else None


def due_ms(turn: Turn) -> float | None:
    """Return the gap; infinite if a due reply is missing, None if none was due or it cut in."""
    if turn.outcome in SILENT:
        return inf
    return turn.gap_ms if turn.replied else None


def due_gaps(turns: Iterable[Turn]) -> list[tuple[float, Turn]]:
    """List the gaps of the turns that were due a reply, as in `due_ms`."""
    return [(ms, turn) for turn in turns if (ms := due_ms(turn)) is not None]


def due_percentile(due: Sequence[tuple[float, Turn]], q: float) -> Percentile:
    """Compute a percentile of gaps of turns that were due a reply, infinite if none came.

    If the percentile falls among turns that the person gave up on, the reason says so.
    """
    times, takes = [ms for ms, _ in due], [turn.take for _, turn in due]
    found = percentile_of(times, takes, q)
    waits = [turn.waited_ms for _, turn in due if turn.outcome == "abandoned"]
    known = [ms for ms in waits if ms is not None]
    if found.value is not None or not known or len(known) < len(waits):
        return found
    least = percentile_of([min(known) if ms == inf else ms for ms in times], takes, q).value
    if least is None:
        return found
    return replace(found, why_none=f"{found.why_none}: it is over {least:,.0f} ms")


def _hit_rate(turns: Sequence[Turn]) -> Proportion:
    hits = [turn.outcome == "answered" for turn in turns]
    return proportion_of(hits, [turn.take for turn in turns])


def _right_of(verdicts: Iterable[tuple[Turn, bool | None]]) -> Proportion:
    """Return the share of right replies, of those that were judged."""
    judged = [(right, turn.take) for turn, right in verdicts if right is not None]
    if not judged:
        return proportion(0, 0)
    return proportion_of([right for right, _ in judged], [take for _, take in judged])


def counted_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns that figures are based on: those with no reason to be left out."""
    return [turn for turn in turns if turn.left_out is None]


def stage_figures(turns: Sequence[Turn]) -> tuple[StageFigure, ...]:
    """Compute the time of each stage over the turns with a reply, in causal order.

    A turn whose silence has several unexplained pieces counts once, with their sum.
    """
    answered = [t for t in turns if t.replied]
    total_ns = sum(stage.ns for turn in answered for stage in turn.stages)
    spent_ns: dict[str, list[int]] = {}
    for turn in answered:
        of_turn: Counter[str] = Counter()
        for stage in turn.stages:
            of_turn[stage.name] += stage.ns
        for name, ns in of_turn.items():
            spent_ns.setdefault(name, []).append(ns)
    return tuple(
        StageFigure(
            name=name,
            n=len(ns),
            p50_ms=median(ns) / NS_PER_MS,
            p95_ms=percentile([ns_to_ms(v) for v in ns], 0.95),
            max_ms=ns_to_ms(max(ns)),
            share=sum(ns) / total_ns if total_ns else None,
        )
        for name, ns in sorted(spent_ns.items(), key=lambda item: _causal_rank(item[0]))
    )


def _causal_rank(stage: str) -> int:
    return MARKS.index(stage) if stage in MARKS else len(MARKS)
