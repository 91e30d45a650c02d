"""Plan of a load test, and the estimated time that it takes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import ceil, sqrt
from pathlib import Path
from typing import Any, Literal, Self

from turngap.core.budget import CALIBRATION_TURNS, DEFAULT_BUDGET_MS
from turngap.core.errors import InputError
from turngap.core.stats import CONFIDENCE, n_without_a_miss
from turngap.load.schedule import (
    COOL_DOWN_S,
    LAST_REPLY_S,
    MOST_CALLS,
    SETUP_S,
    Arrivals,
    Shape,
    Step,
    Window,
    calls_expected,
    constant,
    held,
    held_for,
    poisson,
    too_many,
    turn_s,
)
from turngap.load.search import TARGET, Pace, Search, to_come
from turngap.play.options import LOAD_MINUTES, MOST_SESSIONS, Asked, require_ranges
from turngap.play.plan import START_S, PlayPlan, calibration_s, expected_turns_ms, played_as
from turngap.play.target import AgentChoice, Target, resolve
from turngap.scenario.library import LoadedScenario, chosen
from turngap.workers import On, require_executor

# The search goes no higher by default.
SESSIONS = 32
MOST_PER_S = 1000.0
LEAST_PER_S = 1 / 3600

Mode = Literal["search", "held", "ramp", "rate"]


def ramp(lowest: int, highest: int) -> tuple[int, ...]:
    """List levels, each a half or a third more than the one before: 4, 6, 8."""
    between = {n for k in range(MOST_SESSIONS.bit_length()) for n in (2**k, 3 * 2**k // 2)}
    return (lowest, *sorted(n for n in between if lowest < n < highest), highest)


_SESSIONS = re.compile(r"\s*(\d{1,6})\s*(?:\.\.\s*(\d{1,6})\s*)?")
_RATE = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*/\s*(s|min)\s*")


def parse_sessions(text: str | int) -> tuple[int, ...]:
    """Read a level, `16`, or a ramp, `1..64`, as the levels to be held.

    Raises:
        InputError: the text is neither.
    """
    found = _SESSIONS.fullmatch(str(text))
    levels = [int(part) for part in found.groups() if part is not None] if found else []
    if not levels or not all(1 <= n <= MOST_SESSIONS for n in levels) or levels[0] > levels[-1]:
        raise InputError(
            "load.sessions",
            f"sessions {str(text)[:40]!r}: expected a level from 1 to {MOST_SESSIONS:,}, or two of "
            "them, the lower one first",
            hint="for example --sessions 16, or --sessions 1..64",
        )
    if len(levels) == 1 or levels[0] == levels[1]:
        return (levels[0],)
    return ramp(*levels)


def parse_rate(text: str) -> float:
    """Read `2/s` or `30/min` as calls a second.

    Raises:
        InputError: the text is neither, or out of range.
    """
    found = _RATE.fullmatch(text)
    per_s = float(found[1]) / (60 if found[2] == "min" else 1) if found else 0.0
    if not LEAST_PER_S * 0.999 <= per_s <= MOST_PER_S:
        raise InputError(
            "load.rate",
            f"rate {text[:40]!r}: expected a number of calls a second or a minute, from one an "
            f"hour to {MOST_PER_S:g} a second",
            hint="for example --rate 2/s, or --rate 30/min",
        )
    return per_s


def arriving(
    sessions: str | int | None,
    max_sessions: int | None,
    rate: str | None,
    arrivals: str | None,
) -> dict[str, Any]:
    """Return the plan's attributes that say how calls arrive.

    Raises:
        InputError: one of the options cannot be used, or two of them exclude each other.
    """
    if sessions is not None and rate is not None:
        raise InputError(
            "load.arrivals",
            "--sessions and --rate cannot be combined",
            hint="give one of them, or neither to search for the most sessions",
        )
    if arrivals is not None and (rate is None or arrivals not in ("poisson", "constant")):
        raise InputError(
            "load.arrivals",
            f"--arrivals {arrivals[:40]!r}: expected poisson or constant, and --arrivals needs "
            "--rate",
            hint="for example --rate 2/s --arrivals constant",
        )
    named = "--rate" if sessions is None else "--sessions"
    if max_sessions is not None and (sessions is not None or rate is not None):
        raise InputError(
            "load.sessions",
            f"--max-sessions cannot be combined with {named}",
            hint=f"drop --max-sessions, or {named}",
        )
    if rate is not None:
        return {"mode": "rate", "per_s": parse_rate(rate), "arrivals": arrivals or "poisson"}
    if sessions is not None:
        levels = parse_sessions(sessions)
        return {"mode": "held" if len(levels) == 1 else "ramp", "levels": levels}
    most = SESSIONS if max_sessions is None else max_sessions
    require_ranges("load", max_sessions=most)
    return {"mode": "search", "levels": (1, most) if most > 1 else (1,)}


def require_sense(duration_s: float | None, asked: Mapping[str, Any]) -> None:
    """Refuse numbers that make no sense for the calls that are played.

    Raises:
        InputError: there is such a number.
    """
    if duration_s is not None and asked["mode"] == "search":
        raise InputError(
            "load.duration",
            "a search plays as many turns as it needs to be sure: its steps have no duration",
            hint="drop --duration, or hold a level: --sessions 16",
        )
    least = asked.get("min_sessions")
    if least is not None and asked["mode"] != "search":
        raise InputError(
            "load.sessions",
            "--min-sessions needs a search",
            hint=f"search up to that level: --min-sessions {least} --max-sessions {least}",
        )
    if least is not None and least > max(asked["levels"]):
        raise InputError(
            "load.sessions",
            f"--min-sessions {least} is more than the most sessions that are played, "
            f"{max(asked['levels'])}",
            hint="raise --max-sessions",
        )


# Between two steps: the agent ends its sessions.
SETTLE_S = 2.0
# Calls arrive at a rate for this long by default.
RATE_S = 120.0
# A level is held at least this long: a slow spell of the machine hits all sessions at once.
SHORTEST_HELD_S = 30.0
# Making the schedule of more calls beforehand would take seconds.
MANY_CALLS = 5000
# Turns that are left out while every line begins: with the second turn of each, all lines speak
# as often as they will, and the agent has done everything once.
WARM_UP_TURNS = 2
SHORTEST_WARM_UP_S, LONGEST_DEFAULT_WARM_UP_S = 5.0, 30.0

# Ranges of these are those of the options.
_NUMBERS = ("target", "confidence", "starved_ms", "min_sessions", "max_minutes", "callers")
_NUMBERS += ("greeting_ms",)

# Conversations are rehearsed as long as all together should take no longer than this.
REHEARSED_S = 45.0


@dataclass(frozen=True, slots=True)
class Waits:
    """The times from each person's end until the next recording, or the call's end.

    They are measured in calls alone, before any schedule is made: load does not change them.

    Attributes:
        measured_s: the wait of each turn, for scenarios that were rehearsed.
        pace: for other scenarios, the ratio of the waits for a reply to the expected ones.
    """

    measured_s: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict[str, tuple[float, ...]]
    )
    pace: float = 1.0

    def of(self, scenario: LoadedScenario) -> list[float]:
        """Return the wait of each turn in seconds."""
        if measured := self.measured_s.get(scenario.scenario.name):
            return list(measured)
        expected = [wait_ms / 1000 for _, wait_ms in expected_turns_ms(scenario)]
        waits = zip(expected, awaits_reply(scenario), strict=True)
        return [wait_s * self.pace if awaits else wait_s for wait_s, awaits in waits]


def awaits_reply(scenario: LoadedScenario) -> Iterator[bool]:
    """Yield for each turn whether the next one waits for the agent."""
    yield from (turn.when.at_ms is None for turn in scenario.scenario.turns[1:])
    yield True


def shape_of(scenario: LoadedScenario, greeted_s: float = 0.0, waits: Waits | None = None) -> Shape:
    """Estimate the timing of a conversation, from the instant at which it is dialled."""
    at_s, ends_s = SETUP_S + greeted_s, list[float]()
    waits_s = (waits or Waits()).of(scenario)
    for (end_ms, _), wait_s in zip(expected_turns_ms(scenario), waits_s, strict=True):
        ends_s.append(at_s + end_ms / 1000)
        at_s = ends_s[-1] + wait_s
    return Shape(scenario.scenario.name, tuple(ends_s), at_s)


def rehearsed(shapes: Sequence[Shape]) -> int:
    """Count the conversations to rehearse: the first, and more while there is time."""
    over_s = accumulate(shape.length_s for shape in shapes)
    return max(1, sum(at_s <= REHEARSED_S for at_s in over_s))


@dataclass(frozen=True, kw_only=True)
class LoadPlan(PlayPlan):
    """A plan of a load test: scenarios, agent and levels, and how callers share the calls.

    Attributes:
        agent: the agent that is measured.
        levels: the levels to hold: one, those of a ramp, or the least and the most of a search;
            empty if calls arrive at a rate.
        per_s: calls a second; None without a rate.
        duration_s: length of each measured window; None for as long as its turns take.
        target: the share of turns that must be on time.
        min_sessions: the number that CI requires; it only changes the search's first guess.
        max_minutes: after this time, a search that has certified a level begins no further step.
        callers: how many processes call; None for as many as needed.
        on: where they run.
        schedule_seed: the seed of the schedule.
        greeted_s: how much later a person begins because the agent speaks first.
        waits: how long this agent takes for its replies, once it was rehearsed.
    """

    agent: Target
    mode: Mode
    levels: tuple[int, ...] = ()
    per_s: float | None = None
    arrivals: Arrivals | None = None
    duration_s: float | None = None
    warm_up_s: float
    target: float = TARGET
    confidence: float = CONFIDENCE
    min_sessions: int | None = None
    max_minutes: float = LOAD_MINUTES
    callers: int | None = None
    on: On = "local"
    ray_address: str | None = None
    schedule_seed: int = 1
    greeted_s: float = 0.0
    waits: Waits | None = None
    calibration_turns: int = CALIBRATION_TURNS

    @classmethod
    def of(  # noqa: D417 - what is not named here is an attribute, or as in `ReplayPlan.of`
        cls,
        choice: AgentChoice,
        names: Sequence[str],
        tag: str | None,
        library: Path | None,
        *,
        sessions: str | int | None = None,
        max_sessions: int | None = None,
        rate: str | None = None,
        arrivals: str | None = None,
        duration_s: float | None = None,
        warm_up_s: float | None = None,
        executor: str = "local",
        ray_address: str | None = None,
        budget_ms: float = DEFAULT_BUDGET_MS,
        **asked: Any,
    ) -> Self:
        """Plan a load test; `asked` has the plan's other attributes.

        Args:
            sessions: a level, `16`, or a ramp, `1..64`; without it and `rate`, search for the most
                sessions, up to `max_sessions`.
            rate: `2/s` or `30/min`.
            arrivals: `poisson` or `constant`.
            executor: `local` or `ray`.

        Raises:
            InputError: an option cannot be used (kind `load.…` or `workers.…`), or there is no such
                scenario or agent.
            AgentError: this machine lacks something that an engine needs.
        """
        asked |= arriving(sessions, max_sessions, rate, arrivals)
        asked["on"] = require_executor(executor, ray_address)
        numbers = {name: asked[name] for name in _NUMBERS if name in asked}
        numbers["calibration"] = asked.get("calibration_turns")
        numbers |= {"budget_ms": budget_ms, "duration_s": duration_s, "warm_up_s": warm_up_s}
        require_ranges("load", **numbers)
        require_sense(duration_s, asked)
        folder, loaded = chosen(choice.agent, names, tag, library)
        # A foreign server does not get the schedule's seed.
        agent = resolve(replace(choice, seed=None) if choice.is_url else choice, folder)
        shapes = [shape_of(scenario) for scenario in loaded]
        if warm_up_s is None and asked["mode"] == "rate":
            # Calls reach their final number once the first of them have ended.
            warm_up_s = max(shape.length_s for shape in shapes)
        elif warm_up_s is None:
            least_s = WARM_UP_TURNS * turn_s(shapes)
            warm_up_s = min(max(least_s, SHORTEST_WARM_UP_S), LONGEST_DEFAULT_WARM_UP_S)
        plan = cls(
            scenarios=loaded,
            agent=agent,
            schedule_seed=1 if choice.seed is None else choice.seed,
            duration_s=duration_s,
            warm_up_s=warm_up_s,
            budget_ms=budget_ms,
            ray_address=ray_address,
            **asked,
        )
        if (calls := plan.most_calls) > MOST_CALLS:
            raise too_many(calls)
        require_turns(plan)
        return plan

    @classmethod
    def asked(cls, asked: Asked) -> Self:
        """Plan according to the options of `load`.

        Raises:
            InputError, AgentError: as `of`.
        """
        same = ("sessions", "max_sessions", "min_sessions", "max_minutes", "rate", "arrivals")
        same += ("duration_s", "warm_up_s", "target", "confidence", "callers", "ray_address")
        return cls.of(
            AgentChoice.asked(asked),
            asked.scenarios,
            asked.tag,
            asked.library,
            executor=asked.on,
            **{name: asked[name] for name in same},
            **played_as(asked),
        )

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Return the expected timing of each scenario."""
        return tuple(shape_of(s, self.greeted_s, self.waits) for s in self.scenarios)

    @property
    def pass_ms(self) -> float:
        """Return the budget of every turn, which replaces the scenarios' own."""
        return self.budget_ms or DEFAULT_BUDGET_MS

    @property
    def most_sessions(self) -> int:
        """Return how many calls may run at the same time, as far as known."""
        if self.levels:
            return max(self.levels)
        return ceil(calls_expected(self.shapes, self.rate_per_s))

    @property
    def most_calls(self) -> float:
        """Estimate how many calls one step has at most."""
        outside_s = self.warm_up_s + COOL_DOWN_S
        if self.mode != "rate":
            lines = max(self.levels)
            calls_s = sum(shape.length_s for shape in self.shapes) / len(self.shapes)
            return lines * (1 + (self.level_s(lines) + outside_s) / calls_s)
        calls = self.rate_per_s * (self.rate_s + outside_s)
        # Chance exceeds the mean by this much once in ten million schedules.
        return calls + 1 + (5.2 * sqrt(calls) if self.arrivals == "poisson" else 0.0)

    @property
    def rate_per_s(self) -> float:
        """Return the calls a second, on average; 0 without a rate."""
        return self.per_s or 0.0

    @property
    def between_s(self) -> float:
        """Estimate how long a step takes beyond its measured window."""
        return self.warm_up_s + LAST_REPLY_S + SETTLE_S

    @property
    def before_s(self) -> float:
        """Estimate how long it takes until the first step begins."""
        rehearsed_s = sum(shape.length_s for shape in self.shapes[: rehearsed(self.shapes)])
        return START_S + calibration_s(self.calibration_turns) + rehearsed_s

    def level_turns(self, sessions: int) -> int:
        """Return the default number of turns that count at a held level."""
        spells = ceil(SHORTEST_HELD_S * sessions / turn_s(self.shapes))
        return max(n_without_a_miss(self.target), spells)

    def level_s(self, sessions: int) -> float:
        """Estimate the length of the measured window of a level."""
        if self.duration_s is not None:
            return self.duration_s
        return self.level_turns(sessions) * turn_s(self.shapes) / sessions

    @property
    def rate_s(self) -> float:
        """Return how long calls that arrive at a rate are measured."""
        return RATE_S if self.duration_s is None else self.duration_s

    @property
    def probable_s(self) -> float:
        """Estimate how long the whole test takes."""
        return self.before_s + self._steps_s

    @cached_property
    def _steps_s(self) -> float:
        if self.mode == "search":
            return sum(to_come(self.search()).seconds) / 2
        if self.mode == "rate":
            return self.between_s + self.rate_s
        return sum(self.between_s + self.level_s(level) for level in self.levels)

    def search(self) -> Search:
        """Begin the search for the most sessions."""
        return Search(
            max(self.levels),
            Pace(turn_s(self.shapes), self.between_s),
            target=self.target,
            confidence=self.confidence,
            asked=self.min_sessions,
            most_s=60 * self.max_minutes - self.before_s,
        )

    def level_step(self, number: int, sessions: int, turns: int | None = None) -> Step:
        """Schedule step `number`, counted from 1, that holds a level until `turns` have counted.

        Without `turns`, the level is held for as long as the plan says.
        """
        seed = self._seed(number)
        if turns is None and self.duration_s is not None:
            window = Window(self.warm_up_s, self.duration_s, COOL_DOWN_S)
            calls = held(self.shapes, sessions, window, seed)
        else:
            window, calls = held_for(
                self.shapes,
                sessions,
                self.level_turns(sessions) if turns is None else turns,
                seed,
                warm_up_s=self.warm_up_s,
                cool_down_s=COOL_DOWN_S,
            )
        return Step(number, sessions, window, calls)

    def rate_step(self, number: int) -> Step:
        """Schedule step `number`, in which calls arrive at the plan's rate."""
        window, seed = Window(self.warm_up_s, self.rate_s, COOL_DOWN_S), self._seed(number)
        arriving_at = constant if self.arrivals == "constant" else poisson
        calls = arriving_at(self.shapes, self.rate_per_s, window, seed)
        return Step(number, None, window, calls)

    def _seed(self, number: int) -> int:
        """Derive a seed for each step, so that no step repeats another's turns."""
        return self.schedule_seed * 1_000_003 + number


def require_turns(plan: LoadPlan) -> None:
    """Refuse a plan with a step in which no turn counts.

    Some turns count at a level that is not held too briefly, and among thousands of calls.

    Raises:
        InputError: the plan has such a step, with the kind `load.nothing_counts`.
    """
    if plan.most_calls > MANY_CALLS:
        return
    levels = () if plan.duration_s is None else enumerate(plan.levels, 1)
    rate = [plan.rate_step(1)] if plan.mode == "rate" else []
    for step in (*rate, *(plan.level_step(number, level) for number, level in levels)):
        if not step.turns:
            window = step.window
            raise InputError(
                "load.nothing_counts",
                f"no turn ends in the {window.measured_s:.3g} s that are measured after the "
                f"warm-up of {window.warm_up_s:.3g} s: there would be nothing to count",
                hint="measure for longer (--duration), make more calls, or give a shorter "
                "--warm-up",
            )
