"""The tables of a load test: `turns.csv` and `steps.csv`, column by column."""

from collections.abc import Callable, Sequence
from typing import get_args

from turngap.core.budget import OUTCOMES
from turngap.core.columns import Cell, Column
from turngap.core.untrusted import printable
from turngap.load.record import LoadTurn, Missed, StepFigures

# A turn with the budget of its load test, and a step with its number.
TurnAndBudget = tuple[LoadTurn, float]
NumberedStep = tuple[int, StepFigures]


def _of_turn(of: Callable[[LoadTurn], Cell]) -> Callable[[TurnAndBudget], Cell]:
    return lambda pair: of(pair[0])


def _of_step(of: Callable[[StepFigures], Cell]) -> Callable[[NumberedStep], Cell]:
    return lambda pair: of(pair[1])


def _why(turn: LoadTurn) -> Cell:
    return printable(turn.why or (turn.played and turn.played.why_no_gap) or "")


TURN_COLUMNS: Sequence[Column[TurnAndBudget]] = (
    Column(
        "step", "integer", "Which step of the load test it is, from 1.", _of_turn(lambda t: t.step)
    ),
    Column("call", "integer", "Which call of the step it is, from 1.", _of_turn(lambda t: t.call)),
    Column(
        "line",
        "integer",
        "Which session of the level it is, where a level is held.",
        _of_turn(lambda t: t.line),
    ),
    Column("scenario", "text", "The scenario's name.", _of_turn(lambda t: printable(t.scenario))),
    Column(
        "turn", "integer", "Which turn of the scenario it is, from 1.", _of_turn(lambda t: t.turn)
    ),
    Column(
        "due_s",
        "number",
        "When the person was meant to end, in s from the beginning of the step.",
        _of_turn(lambda t: t.due_s),
    ),
    Column(
        "counted",
        "boolean",
        "Whether it lies in the measured window. No figure counts any other.",
        _of_turn(lambda t: t.counted),
    ),
    Column(
        "outcome",
        "text",
        "As of any turn, or why it was missed: `refused`, `late_start`, `dropped`, `not_reached` "
        "or `worker_lost`.",
        _of_turn(lambda t: t.outcome),
        True,
    ),
    Column(
        "on_time",
        "boolean",
        "Whether it was answered within the budget, counted from when the person was meant to end.",
        lambda pair: pair[0].hit(pair[1]),
    ),
    Column(
        "latency_ms",
        "number",
        "The gap and the wait for the line before it, in ms.",
        _of_turn(lambda t: t.latency_ms),
        True,
    ),
    Column(
        "waited_ms",
        "number",
        "How much later than intended the person could begin to speak, in ms: the line was not "
        "open, or the greeting came late.",
        _of_turn(lambda t: t.waited_ms),
    ),
    Column(
        "gap_ms",
        "number",
        "From the person's last sound to the agent's first, in ms.",
        _of_turn(lambda t: t.played and t.played.gap_ms),
        True,
    ),
    Column(
        "yield_ms",
        "number",
        "Where the person interrupted: from their first sound to the agent's silence, in ms.",
        _of_turn(lambda t: t.played and t.played.yield_ms),
        True,
    ),
    Column(
        "hole_ms",
        "number",
        "The longest time that the reply's audio was interrupted for, in ms.",
        _of_turn(lambda t: t.hole_ms),
        True,
    ),
    Column("why", "text", "Why it was missed, or has no gap.", _of_turn(_why), True),
    Column(
        "starved",
        "boolean",
        "Whether turngap itself was late in the turn.",
        _of_turn(lambda t: t.played and t.played.pacing.starved),
        True,
    ),
    Column(
        "node",
        "text",
        "The machine and process of the caller.",
        _of_turn(lambda t: printable(t.node)),
        True,
    ),
)


def _percentile(name: str) -> Column[NumberedStep]:
    return Column(
        f"gap_{name}_ms",
        "number",
        f"The {name} of the latency in ms, in which a missed turn is slower than any. Missing with "
        "too few turns.",
        _of_step(lambda s: s.gap_ms[name].value),
        True,
    )


def _became(name: str) -> Column[NumberedStep]:
    about = f"Turns with the outcome `{name}`."
    if name not in OUTCOMES:
        about = f"Turns that were missed: `{name}`."
    return Column(f"turns_{name}", "integer", about, _of_step(lambda s: s.outcomes.get(name, 0)))


STEP_COLUMNS: Sequence[Column[NumberedStep]] = (
    Column("step", "integer", "Which step it is, from 1.", lambda pair: pair[0]),
    Column(
        "sessions",
        "integer",
        "The level that was held. Missing where calls arrive at a rate.",
        _of_step(lambda s: s.sessions),
        True,
    ),
    Column(
        "confirms",
        "boolean",
        "Whether its turns count towards the certificate of a search.",
        _of_step(lambda s: s.confirms),
    ),
    Column(
        "offered_per_s",
        "number",
        "Calls a second that the schedule dialled in the measured window.",
        _of_step(lambda s: s.offered_per_s),
    ),
    Column(
        "seconds",
        "number",
        "The length of the measured window, in s.",
        _of_step(lambda s: s.seconds),
    ),
    Column("calls", "integer", "Calls with a turn that counts.", _of_step(lambda s: s.calls)),
    Column("turns", "integer", "Turns that count.", _of_step(lambda s: s.turns)),
    Column("hits", "integer", "Turns on time.", _of_step(lambda s: s.hit_rate.hits)),
    Column(
        "hit_rate",
        "number",
        "The share of turns on time.",
        _of_step(lambda s: s.hit_rate.value),
        True,
    ),
    Column(
        "low",
        "number",
        "The lower end of its 95 % interval.",
        _of_step(lambda s: s.hit_rate.low),
        True,
    ),
    Column(
        "high",
        "number",
        "The upper end of its 95 % interval.",
        _of_step(lambda s: s.hit_rate.high),
        True,
    ),
    Column(
        "effective_n",
        "number",
        "How many independent turns tell as much.",
        _of_step(lambda s: s.effective_n),
    ),
    Column(
        "holds",
        "boolean",
        "Whether the target share is on time. Missing where these turns do not tell.",
        _of_step(lambda s: s.holds),
        True,
    ),
    *map(_percentile, ("p50", "p95")),
    Column(
        "yield_ms",
        "number",
        "The median time to the agent's silence where the person interrupted, in ms.",
        _of_step(lambda s: s.yield_ms.value),
        True,
    ),
    Column(
        "holes",
        "number",
        "The share of replies with a hole in their audio of 20 ms or more.",
        _of_step(lambda s: s.holes),
        True,
    ),
    Column(
        "at_once_mean",
        "number",
        "Calls at the same time, in the mean.",
        _of_step(lambda s: s.at_once[0]),
    ),
    Column("at_once_most", "integer", "The same, at most.", _of_step(lambda s: s.at_once[1])),
    Column(
        "calls_refused",
        "integer",
        "Calls that the agent refused, or that could not be opened.",
        _of_step(lambda s: s.refused),
    ),
    Column(
        "calls_late_started",
        "integer",
        "Calls whose person had to wait for the line, or for a late greeting.",
        _of_step(lambda s: s.late_started),
    ),
    Column("calls_dropped", "integer", "Calls that broke off.", _of_step(lambda s: s.dropped)),
    Column(
        "caller_late_ms",
        "number",
        "The p99 of how late turngap's own packets were, in ms.",
        _of_step(lambda s: s.caller_late_ms),
        True,
    ),
    Column(
        "void",
        "text",
        "Why the step says nothing of the agent.",
        _of_step(lambda s: printable(s.void or "")),
        True,
    ),
    *map(_became, (*OUTCOMES, *get_args(Missed))),
    Column(
        "turns_waited",
        "integer",
        "Turns whose gap was within the budget but for the wait for the line, or a greeting.",
        _of_step(lambda s: s.waited),
    ),
    Column(
        "turns_not_played",
        "integer",
        "Turns that were planned and not played, because the step was ended before.",
        _of_step(lambda s: s.not_played),
    ),
)
