"""Requests for a load test, and those refused before anything is started."""

from typing import Any

import pytest

from turngap.core.errors import InputError
from turngap.core.stats import n_without_a_miss
from turngap.load.plan import LoadPlan, parse_rate, parse_sessions
from turngap.load.steps import callers_for
from turngap.play.target import AgentChoice

URL = "ws://127.0.0.1:1/ws"


def plan(seed: int | None = None, **asked: Any) -> LoadPlan:
    choice = AgentChoice(agent=URL, seed=seed)
    return LoadPlan.of(choice, ["quick-questions"], None, None, **asked)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("16", (16,)),
        (16, (16,)),
        (" 3..3 ", (3,)),
        ("1..8", (1, 2, 3, 4, 6, 8)),
        ("5 .. 20", (5, 6, 8, 12, 16, 20)),
        ("10000", (10_000,)),
    ],
)
def test_levels_and_ramps_are_read(text: str | int, levels: tuple[int, ...]) -> None:
    assert parse_sessions(text) == levels


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "8..1", "1..", "..8", "1...8", "x", "1.5", "10001", "1..999999", "9" * 9],
)
def test_what_is_no_level_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_sessions(text)
    assert refused.value.kind == "load.sessions"


@pytest.mark.parametrize(
    ("text", "per_s"), [("2/s", 2.0), ("30/min", 0.5), (" 0.25 / s ", 0.25), ("1000/s", 1000.0)]
)
def test_rates_are_read(text: str, per_s: float) -> None:
    assert parse_rate(text) == per_s


@pytest.mark.parametrize("text", ["", "2", "0/s", "-1/s", "2/h", "1e9/s", "nan/s", "1001/s", "/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_rate(text)
    assert refused.value.kind == "load.rate"


def test_what_is_asked_for_says_what_is_done() -> None:
    assert (plan().mode, plan().levels) == ("search", (1, 32))
    assert plan(max_sessions=1).levels == (1,)
    assert (plan(sessions="16").mode, plan(sessions="1..4").mode) == ("held", "ramp")
    arriving = plan(rate="30/min")
    assert (arriving.mode, arriving.per_s, arriving.arrivals) == ("rate", 0.5, "poisson")
    assert plan(rate="2/s", arrivals="constant").arrivals == "constant"


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"sessions": "4", "rate": "2/s"}, "load.arrivals"),
        ({"arrivals": "poisson"}, "load.arrivals"),
        ({"rate": "2/s", "arrivals": "bursts"}, "load.arrivals"),
        ({"max_sessions": 0}, "argument.range"),
        ({"max_sessions": 10_001}, "argument.range"),
        ({"max_sessions": 4, "min_sessions": 8}, "load.sessions"),
        ({"max_sessions": 8, "sessions": "4"}, "load.sessions"),
        ({"max_sessions": 8, "rate": "1/s"}, "load.sessions"),
        ({"min_sessions": 4, "sessions": "4"}, "load.sessions"),
        ({"min_sessions": 4, "sessions": "1..8"}, "load.sessions"),
        ({"min_sessions": 4, "rate": "1/s"}, "load.sessions"),
        ({"sessions": "1", "duration_s": 1.0, "warm_up_s": 0.0}, "load.nothing_counts"),
        ({"sessions": "1..4", "duration_s": 1.0, "warm_up_s": 0.0}, "load.nothing_counts"),
        ({"rate": "1/min", "duration_s": 1.0, "warm_up_s": 0.0}, "load.nothing_counts"),
        ({"duration_s": 30.0}, "load.duration"),
        ({"sessions": "4", "duration_s": 0}, "argument.range"),
        ({"sessions": "4", "duration_s": float("nan")}, "argument.range"),
        ({"sessions": "4", "duration_s": 1e9}, "argument.range"),
        ({"warm_up_s": -1.0}, "argument.range"),
        ({"budget_ms": 0.0}, "argument.range"),
        ({"target": 1.0}, "argument.range"),
        ({"confidence": 1.0}, "argument.range"),
        ({"starved_ms": 0.0}, "argument.range"),
        ({"callers": 0}, "argument.range"),
        ({"callers": 1.5}, "argument.range"),
        ({"min_sessions": 0}, "argument.range"),
        ({"calibration_turns": -1}, "argument.range"),
        ({"executor": "cloud"}, "workers.unknown"),
        ({"ray_address": "h:1"}, "workers.address"),
        ({"rate": "1000/s", "duration_s": 86_400.0}, "load.too_many_calls"),
        ({"rate": "1000/s", "duration_s": 80.0, "warm_up_s": 0.0}, "load.too_many_calls"),
        ({"sessions": "10000", "duration_s": 86_400.0}, "load.too_many_calls"),
    ],
)
def test_what_cannot_be_done_is_refused(asked: dict[str, Any], kind: str) -> None:
    with pytest.raises(InputError) as refused:
        plan(**asked)
    assert refused.value.kind == kind


def test_a_seed_is_the_schedules_and_not_that_of_somebodys_server() -> None:
    assert plan(seed=7).schedule_seed == 7
    assert plan().schedule_seed == 1
    assert plan(seed=7).level_step(1, 4, 20) == plan(seed=7).level_step(1, 4, 20)
    assert plan(seed=7).level_step(1, 4, 20).calls != plan(seed=8).level_step(1, 4, 20).calls
    assert plan().level_step(1, 4, 20).calls != plan().level_step(2, 4, 20).calls


def test_a_held_level_is_held_for_as_many_turns_as_tell() -> None:
    assert n_without_a_miss(0.95) == 72
    assert plan(sessions="2").level_step(1, 2).turns == 72
    held = plan(sessions="2", duration_s=20.0).level_step(1, 2)
    assert held.window.measured_s == 20.0


def test_as_many_callers_as_the_sessions_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    assert callers_for(plan(sessions="50")) == 1
    assert callers_for(plan(sessions="51")) == 2
    assert callers_for(plan(sessions="500")) == 2
    assert callers_for(plan(sessions="500", executor="ray")) == 10
    assert callers_for(plan(sessions="1", callers=7)) == 7
