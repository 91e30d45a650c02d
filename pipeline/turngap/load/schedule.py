"""Schedule of calls, made before anything is played, so that no agent can slow it down.

All of it is pure and seeded. A call is dialled at its instant, however earlier calls went.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from turngap.core.errors import InputError

# From the instant at which a call is dialled until its first recording is to begin. People dial,
# are connected and hear the line for a moment. The last 640 ms are the silence that every caller
# keeps before the first word (`ROOM_ON_GRID_MS`), so an agent has half a second to take a call
# before anybody waits.
SETUP_S = 1.2
# Between two calls of a line, as a share of the call: a call may be this much longer than those
# that were rehearsed, and the agent has a moment to clear the session up, before the next call of
# the line overlaps with it. Of 20 searches against an agent that slows down from session 13 on,
# with calls of 34 s planned as they really are, 12 found 12 with a pause of 0.5 s, 19 with 1.0 s
# and all with 1.5 s (`benchmarks/capacity_agent.py`). A line that waits is no session: the
# certificate says how many calls ran at once.
PAUSE_SHARE, LEAST_PAUSE_S = 0.045, 0.5
# The last turn that counts is played under the load of all callers for so long after its person
# ends: then it is answered, or late.
LAST_REPLY_S = 3.0
# A schedule of more calls than this is a mistake: it would be a day at one call a second.
MOST_CALLS = 100_000

Arrivals = Literal["poisson", "constant"]

# Calls go on being dialled for so long at most after the measured window, for turns that come later
# than expected; they end when the last turn that counts is over.
COOL_DOWN_S = 20.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The expected course of a conversation, from its recordings and expected replies.

    Attributes:
        scenario: its name.
        ends_s: for each turn, the expected end of the person's speech, from the call's instant.
        length_s: time from the call's instant until it is expected to be over.
    """

    scenario: str
    ends_s: tuple[float, ...]
    length_s: float

    @property
    def slot_s(self) -> float:
        """Return the time from the call's instant until its line dials the next call."""
        return self.length_s + max(LEAST_PAUSE_S, PAUSE_SHARE * self.length_s)


@dataclass(frozen=True, slots=True)
class Call:
    """A call to be made.

    Attributes:
        number: counted from 1 within its step.
        at_s: when it is dialled, from the beginning of the step.
        line: at a held level, the session that it continues, counted from 0; else 0.
        counted: for each turn, whether it counts: the person's expected end must lie in the
            measured window. Turns before and after are warm-up and cool-down.
    """

    number: int
    at_s: float
    line: int
    shape: Shape
    counted: tuple[bool, ...]

    @property
    def due_s(self) -> tuple[float, ...]:
        """Return each turn's expected end of speech, in seconds from the start of the step."""
        return tuple(self.at_s + end_s for end_s in self.shape.ends_s)


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a step that is measured; the times before and after are left out.

    Attributes:
        warm_up_s: time from the beginning of the step.
        measured_s: the time after that; turns that are expected to end in it count.
        cool_down_s: the longest time for which calls are dialled after that. The last turn that
            counts is thus played under the same load.
    """

    warm_up_s: float
    measured_s: float
    cool_down_s: float

    @property
    def end_s(self) -> float:
        return self.warm_up_s + self.measured_s

    @property
    def whole_s(self) -> float:
        return self.end_s + self.cool_down_s

    def counts(self, due_s: float) -> bool:
        return self.warm_up_s <= due_s < self.end_s


@dataclass(frozen=True, slots=True)
class Step:
    """A level that is held, or a stretch of arrivals.

    Attributes:
        number: counted from 1.
        sessions: the level; None if calls arrive at a rate.
        calls: in the order in which they are dialled.
    """

    number: int
    sessions: int | None
    window: Window
    calls: tuple[Call, ...]

    @property
    def turns(self) -> int:
        """Return how many turns count."""
        return sum(sum(call.counted) for call in self.calls)

    @property
    def until_s(self) -> float:
        """Return how long all callers call, from the beginning; 0 if no turn counts."""
        due = (
            due_s
            for call in self.calls
            for due_s, counts in zip(call.due_s, call.counted, strict=True)
            if counts
        )
        return max((due_s + LAST_REPLY_S for due_s in due), default=0.0)

    @property
    def offered_per_s(self) -> float:
        """Return the calls a second that are dialled in the measured window."""
        window = self.window
        dialled = sum(window.counts(call.at_s) for call in self.calls)
        return dialled / window.measured_s


def turn_s(shapes: Sequence[Shape]) -> float:
    """Return the mean time a line takes for one turn, including the pause between its calls."""
    turns = sum(len(shape.ends_s) for shape in shapes)
    return sum(shape.slot_s for shape in shapes) / turns


def held(shapes: Sequence[Shape], sessions: int, window: Window, seed: int) -> tuple[Call, ...]:
    """Schedule calls that hold a level: a line dials again when its last call should be over.

    The lines begin spread over one turn, each a little off its place, so that turns of different
    lines do not coincide. Every line plays the scenarios in an order of its own.
    """
    random = np.random.default_rng((seed, sessions))
    spread_s = turn_s(shapes)
    offsets = (np.arange(sessions) + random.random(sessions)) * spread_s / sessions
    starts = [
        (at_s, line, shape)
        for line, offset_s in enumerate(offsets.tolist())
        for at_s, shape in _line(shapes, offset_s, window.whole_s, random)
    ]
    return _numbered(sorted(starts, key=lambda start: start[:2]), window)


def held_for(
    shapes: Sequence[Shape],
    sessions: int,
    turns: int,
    seed: int,
    *,
    warm_up_s: float,
    cool_down_s: float,
) -> tuple[Window, tuple[Call, ...]]:
    """Schedule a window in which exactly this many turns count at a held level.

    Lines are as in `held`: a longer window begins with the calls of a shorter one.
    """
    guess_s = (turns / sessions + 2) * turn_s(shapes)
    while True:
        calls = held(shapes, sessions, Window(warm_up_s, guess_s, 0.0), seed)
        due = sorted(d for call in calls for d in call.due_s if d >= warm_up_s)
        # Only what lies before the end of the guess is all there.
        if bisect_left(due, warm_up_s + guess_s) > turns:
            break
        guess_s *= 1.5
    window = Window(warm_up_s, (due[turns - 1] + due[turns]) / 2 - warm_up_s, cool_down_s)
    return window, held(shapes, sessions, window, seed)


def poisson(shapes: Sequence[Shape], per_s: float, window: Window, seed: int) -> tuple[Call, ...]:
    """Schedule calls that arrive at random, independent of each other, `per_s` a second on average.

    Raises:
        InputError: there are more than `MOST_CALLS`.
    """
    random = np.random.default_rng((seed, 0))

    def instants() -> Iterator[float]:
        at_s = 0.0
        while True:
            at_s += random.exponential(1 / per_s)
            yield at_s

    return _arriving(shapes, instants(), window, seed)


def constant(shapes: Sequence[Shape], per_s: float, window: Window, seed: int) -> tuple[Call, ...]:
    """Schedule calls at equal distances, `per_s` a second; the first within one distance at random.

    Raises:
        InputError: there are more than `MOST_CALLS`.
    """
    first = np.random.default_rng((seed, 0)).random()
    instants = ((first + number) / per_s for number in count())
    return _arriving(shapes, instants, window, seed)


def shares(step: Step, workers: int) -> list[tuple[Call, ...]]:
    """Deal a step's calls out to several callers: whole lines at a held level, else call by call.

    Callers without calls are left out.
    """
    dealt: list[list[Call]] = [[] for _ in range(workers)]
    for call in step.calls:
        dealt[(call.number if step.sessions is None else call.line) % workers].append(call)
    return [tuple(share) for share in dealt if share]


def _line(
    shapes: Sequence[Shape], at_s: float, until_s: float, random: np.random.Generator
) -> Iterator[tuple[float, Shape]]:
    """Yield the calls of one line, each when the one before should be over."""
    # One number of its own for each line: how far one is drawn must not change the next one.
    order = np.random.default_rng(int(random.integers(2**63)))
    for shape in _mixed(shapes, order):
        if at_s >= until_s:
            return
        yield at_s, shape
        at_s += shape.slot_s


def _mixed(shapes: Sequence[Shape], random: np.random.Generator) -> Iterator[Shape]:
    """Yield all shapes in a random order, then all in another one, without end."""
    while True:
        for index in random.permutation(len(shapes)).tolist():
            yield shapes[index]


def _arriving(
    shapes: Sequence[Shape], instants: Iterable[float], window: Window, seed: int
) -> tuple[Call, ...]:
    mixed = _mixed(shapes, np.random.default_rng((seed, 1)))
    starts: list[tuple[float, int, Shape]] = []
    for at_s in instants:
        if at_s >= window.whole_s:
            break
        if len(starts) == MOST_CALLS:
            raise too_many(MOST_CALLS + 1)
        starts.append((at_s, 0, next(mixed)))
    return _numbered(starts, window)


def _numbered(starts: Sequence[tuple[float, int, Shape]], window: Window) -> tuple[Call, ...]:
    return tuple(
        Call(
            number,
            at_s,
            line,
            shape,
            tuple(window.counts(at_s + end_s) for end_s in shape.ends_s),
        )
        for number, (at_s, line, shape) in enumerate(starts, start=1)
    )


def too_many(calls: float) -> InputError:
    """Build the error for a step with too many calls."""
    return InputError(
        "load.too_many_calls",
        f"one step would have about {calls:,.0f} calls; expected at most {MOST_CALLS:,}",
        hint="measure for a shorter time (--duration), or with fewer calls",
    )


def calls_expected(shapes: Sequence[Shape], per_s: float) -> float:
    """Return the mean number of simultaneous calls at a rate (Little's law)."""
    return per_s * math.fsum(shape.length_s for shape in shapes) / len(shapes)
