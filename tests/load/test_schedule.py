"""Schedules of calls, whatever the shapes, the level and the seed are."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.core.errors import InputError
from turngap.load.schedule import (
    MOST_CALLS,
    Call,
    Shape,
    Step,
    Window,
    constant,
    held,
    held_for,
    poisson,
    shares,
    turn_s,
)

Arrives = Callable[[Sequence[Shape], float, Window, int], tuple[Call, ...]]
SECONDS = st.floats(0.5, 20.0)


@st.composite
def shapes_of(draw: st.DrawFn) -> list[Shape]:
    made: list[Shape] = []
    for number in range(draw(st.integers(1, 4))):
        steps = draw(st.lists(SECONDS, min_size=1, max_size=5))
        ends = [sum(steps[: i + 1]) for i in range(len(steps))]
        made.append(Shape(f"scenario-{number}", tuple(ends), ends[-1] + draw(SECONDS)))
    return made


WINDOWS = st.builds(Window, st.floats(0, 30), st.floats(1, 120), st.floats(0, 20))
SEEDS = st.integers(0, 2**40)


@given(shapes_of(), st.integers(1, 40), WINDOWS, SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_held_level_is_never_exceeded_if_each_call_lasts_as_long_as_expected(
    shapes: list[Shape], sessions: int, window: Window, seed: int
) -> None:
    calls = held(shapes, sessions, window, seed)
    ends = [(c.at_s + c.shape.length_s, -1) for c in calls]
    running = most = 0
    for _, change in sorted([*((c.at_s, 1) for c in calls), *ends]):
        running += change
        most = max(most, running)
    assert most <= sessions
    assert {c.line for c in calls} <= set(range(sessions))


@given(shapes_of(), st.integers(1, 40), WINDOWS, SEEDS)
@settings(max_examples=25, deadline=None)
def test_each_line_dials_at_fixed_instants_and_begins_within_one_turn(
    shapes: list[Shape], sessions: int, window: Window, seed: int
) -> None:
    calls = held(shapes, sessions, window, seed)
    assert [c.number for c in calls] == list(range(1, len(calls) + 1))
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(calls))
    for line in range(sessions):
        mine = [c for c in calls if c.line == line]
        if mine:
            assert mine[0].at_s <= turn_s(shapes)
        for before, after in itertools.pairwise(mine):
            assert math.isclose(after.at_s, before.at_s + before.shape.slot_s, abs_tol=1e-6)


@given(shapes_of(), st.integers(1, 30), st.integers(1, 200), SEEDS)
@settings(max_examples=25, deadline=None)
def test_as_many_turns_count_as_were_asked_for(
    shapes: list[Shape], sessions: int, turns: int, seed: int
) -> None:
    window, calls = held_for(shapes, sessions, turns, seed, warm_up_s=8.0, cool_down_s=20.0)
    assert Step(1, sessions, window, calls).turns == turns
    assert window.measured_s > 0
    for call in calls:
        assert call.counted == tuple(window.counts(due_s) for due_s in call.due_s)


@given(shapes_of(), st.floats(0.05, 5), WINDOWS, SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_same_seed_makes_the_same_schedule(
    shapes: list[Shape], per_s: float, window: Window, seed: int
) -> None:
    assert poisson(shapes, per_s, window, seed) == poisson(shapes, per_s, window, seed)
    assert constant(shapes, per_s, window, seed) == constant(shapes, per_s, window, seed)
    assert held(shapes, 3, window, seed) == held(shapes, 3, window, seed)
    longer = Window(window.warm_up_s, window.measured_s + 60, window.cool_down_s)
    before = [(c.at_s, c.shape) for c in poisson(shapes, per_s, window, seed)]
    after = [(c.at_s, c.shape) for c in poisson(shapes, per_s, longer, seed)]
    assert after[: len(before)] == before


def test_poisson_calls_come_at_their_rate_and_by_chance() -> None:
    shapes, window = [Shape("a", (2.0,), 4.0)], Window(0, 20_000, 0)
    at_s = [call.at_s for call in poisson(shapes, 0.5, window, 7)]
    # 10,000 calls are expected, give or take 100: five times that is no chance.
    assert abs(len(at_s) - 10_000) < 500
    gaps = [b - a for a, b in itertools.pairwise(at_s)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps))
    assert 0.95 < spread / mean < 1.05  # that of an exponential distribution is its mean


def test_constant_calls_come_at_equal_distances() -> None:
    calls = constant([Shape("a", (2.0,), 4.0)], 2.0, Window(1, 20, 1), 3)
    assert len(calls) == 44
    assert all(math.isclose(b.at_s - a.at_s, 0.5) for a, b in itertools.pairwise(calls))


@given(shapes_of(), st.integers(1, 30), st.integers(1, 6), SEEDS)
@settings(max_examples=20, deadline=None)
def test_calls_are_dealt_out_once_each_and_lines_stay_whole(
    shapes: list[Shape], sessions: int, workers: int, seed: int
) -> None:
    window = Window(5, 40, 5)
    calls = held(shapes, sessions, window, seed)
    dealt = shares(Step(1, sessions, window, calls), workers)
    assert sorted(c.number for share in dealt for c in share) == [c.number for c in calls]
    homes = {(c.line, i) for i, share in enumerate(dealt) for c in share}
    assert len(homes) == len({line for line, _ in homes})
    arriving = shares(Step(1, None, window, poisson(shapes, 1.0, window, seed)), workers)
    counts = [len(share) for share in arriving]
    assert max(counts) - min(counts) <= 1 or len(counts) < workers


def test_all_scenarios_are_played_alike() -> None:
    shapes = [Shape(name, (2.0, 5.0), 8.0) for name in "abcd"]
    calls: tuple[Call, ...] = poisson(shapes, 2.0, Window(0, 200, 0), 5)
    counts = Counter(call.shape.scenario for call in calls)
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("arrives", [poisson, constant])
def test_more_calls_than_are_made_is_an_error_and_no_shorter_schedule(arrives: Arrives) -> None:
    shape = Shape("one", (1.0,), 2.0)
    window = Window(0.0, MOST_CALLS * 0.9, 0.0)
    assert MOST_CALLS * 0.89 < len(arrives([shape], 1.0, window, 1)) <= MOST_CALLS
    with pytest.raises(InputError) as refused:
        arrives([shape], 1.1, Window(0.0, MOST_CALLS, 0.0), 1)
    assert refused.value.kind == "load.too_many_calls"
