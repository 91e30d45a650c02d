"""A load test from its start to what it stores, with callers that only say what they would."""

import asyncio
import errno
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from made_calls import turn_of
from otlp_collector import collector

import turngap
from turngap.caller.endpoint import Endpoint
from turngap.cli.loading import exit_code
from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError, ExitCode, InputError
from turngap.load.calls import (
    Answered,
    CallMark,
    Lateness,
    Played,
    Share,
    load_turn,
    missed_turns,
)
from turngap.load.export import read_load_turns
from turngap.load.keeping import Keeper, LoadProgress
from turngap.load.plan import LoadPlan
from turngap.load.play import Loaded, load
from turngap.load.report import answer, read_load, verdict
from turngap.load.steps import Rehearsed
from turngap.play.target import AgentChoice, Target
from turngap.store.folders import INTERRUPTED
from turngap.telemetry import telemetry_to
from turngap.telemetry.exporter import TURNS
from turngap.testing.virtual import LoopClock, in_virtual_time
from turngap.workers.pool import Done, Lost, Result, Work

# By its name: `turngap.load` is the function.
PLAY = import_module("turngap.load.play")
# What a caller answers to a share: the gap of each of its turns, or None where it is lost.
Gap = Callable[[Share], float | None]


class Callers:
    """An executor whose callers tell every turn at once, as planned.

    Args:
        gap_ms: of every turn of a share; None: its caller is lost after its first turn.
        late_ms: how late the caller is with so many sessions.
        stops_after: it tells nothing more after so many turns, and does not end.
    """

    name = "local"
    workers = 1

    def __init__(
        self,
        gap_ms: Gap,
        *,
        late_ms: Callable[[int], float] = lambda _: 0.0,
        stops_after: int | None = None,
    ) -> None:
        self._gap_ms = gap_ms
        self._late_ms = late_ms
        self._stops_after = stops_after
        self.entered = 0

    async def __aenter__(self) -> "Callers":
        self.entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.entered -= 1

    async def run(
        self, work: Work, pieces: Sequence[Any]
    ) -> AsyncGenerator[Result | Done | Lost, None]:
        for number, share in enumerate(pieces):
            assert isinstance(share, Share)
            async for said in self._told(share):
                if said is None:
                    yield Lost(number, "worker 1 is lost: its process ended (signal 9)")
                    break
                yield Result(number, said)
            else:
                yield Done(number)

    async def _told(self, share: Share) -> AsyncIterator[Any]:
        gap_ms, told = self._gap_ms(share), 0
        for call in share.calls:
            yield CallMark(call.number, call.at_s, running=True)
            for number in range(1, len(call.counted) + 1):
                if told == self._stops_after:
                    await asyncio.Event().wait()
                told += 1
                late_ms = self._late_ms(sessions_of(share))
                turn = turn_of(number, gap_ms or 300.0, late_ms)
                answered = Answered(turn, 0.0, 0.0, Lateness.of([round(late_ms * 1e6)] * 50))
                if call.counted[number - 1]:
                    yield answered.late
                yield load_turn(share.step, call, number, answered)
                if gap_ms is None:
                    yield None
                    return
            yield CallMark(call.number, call.at_s + call.shape.length_s, running=False)


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, nothing is reached, and nobody has to end anything between steps."""

    @asynccontextmanager
    async def serving(*_: object, **__: object) -> AsyncIterator[Endpoint]:
        yield Endpoint("ws://127.0.0.1:1", "pipecat")

    async def identified(_: Target, endpoint: Endpoint, *__: object) -> Endpoint:
        return endpoint

    async def rehearse(*_: object) -> Rehearsed:
        return Rehearsed("pipecat", 16_000, 0.0, 0.0)

    monkeypatch.setattr(Target, "serving", serving)
    monkeypatch.setattr(PLAY, "identified", identified)
    monkeypatch.setattr(PLAY, "rehearse", rehearse)
    monkeypatch.setattr(PLAY, "SETTLE_S", 0.0)


def plan(folder: Path, **asked: Any) -> LoadPlan:
    choice = AgentChoice(agent="ws://127.0.0.1:1")
    asked = {"calibration_turns": 0, "out": folder, **asked}
    return LoadPlan.of(choice, ["quick-questions"], None, None, **asked)


def sessions_of(share: Share) -> int:
    return len({call.line for call in share.calls})


def finished(folder: Path, callers: Callers, **asked: Any) -> Loaded:
    loaded = asyncio.run(load(plan(folder, **asked), callers=callers))
    assert callers.entered == 0
    assert read_load(loaded.path) == loaded.record
    return loaded


def test_a_search_finds_the_level_that_holds_and_stores_every_turn(tmp_path: Path) -> None:
    callers = Callers(lambda share: 300.0 if sessions_of(share) <= 3 else 2000.0)
    loaded = finished(tmp_path, callers, max_sessions=6)
    assert loaded.capacity is not None
    assert (loaded.capacity.sessions, loaded.capacity.not_held) == (3, 4)
    confirming = [s for s in loaded.record.steps if s.confirms and s.sessions == 3]
    mean, most = loaded.capacity.at_once or (0.0, 0)
    assert min(s.at_once[0] for s in confirming) <= mean <= max(s.at_once[0] for s in confirming)
    assert most == max(s.at_once[1] for s in confirming)
    assert answer(loaded.record).startswith(f"3 sessions ({mean:.1f} calls at once on average")
    assert loaded.record.failure is None
    assert loaded.record.finished_utc is not None
    assert sum(turn.counted for turn in loaded.turns) == sum(s.turns for s in loaded.record.steps)
    assert {step.holds for step in loaded.record.steps if step.sessions == 4} == {False}
    assert any(step.confirms and step.sessions == 3 for step in loaded.record.steps)
    assert repr(loaded) == f"<Loaded {str(loaded.path)!r}: 3 sessions certified>"


def test_a_search_ends_once_the_level_that_is_asked_for_surely_does_not_hold(
    tmp_path: Path,
) -> None:
    callers = Callers(lambda share: 300.0 if sessions_of(share) <= 3 else 1500.0)
    loaded = finished(tmp_path, callers, max_sessions=6, min_sessions=6)
    assert {step.sessions for step in loaded.record.steps} == {6}
    assert len(loaded.record.steps) <= 2
    assert exit_code(loaded.record, 6) == ExitCode.OVER_BUDGET
    assert "6 sessions certainly do not hold" in answer(loaded.record)


def test_a_ramp_holds_each_of_its_levels(tmp_path: Path) -> None:
    loaded = finished(tmp_path, Callers(lambda _: 300.0), sessions="1..4", duration_s=60.0)
    assert [step.sessions for step in loaded.record.steps] == [1, 2, 3, 4]
    assert loaded.capacity is None
    assert all(step.hit_rate.value == 1 for step in loaded.record.steps)
    # The one session of the first level is counted once, as at_once does for all of them.
    assert 0.8 < loaded.record.steps[0].at_once[0] <= 1
    assert loaded.record.steps[3].at_once[1] == 4


def test_calls_at_a_rate_are_one_step(tmp_path: Path) -> None:
    loaded = finished(tmp_path, Callers(lambda _: 300.0), rate="1/s", duration_s=30.0)
    (step,) = loaded.record.steps
    assert step.sessions is None
    assert step.offered_per_s == pytest.approx(1.0, abs=0.5)
    assert (loaded.record.mode, loaded.record.arrivals) == ("rate", "poisson")


def test_a_late_caller_voids_every_step_and_ends_the_search(tmp_path: Path) -> None:
    loaded = finished(tmp_path, Callers(lambda _: 300.0, late_ms=lambda _: 30.0), max_sessions=6)
    assert all(s.void and "was late by 30.0 ms (p99)" in s.void for s in loaded.record.steps)
    assert {step.caller_late_ms for step in loaded.record.steps} == {30.0}
    assert loaded.record.steps[-1].sessions == 1
    assert loaded.capacity is not None
    assert loaded.capacity.sessions is None
    assert loaded.capacity.why == loaded.record.steps[-1].void


def test_what_the_caller_cannot_call_is_not_held_against_the_agent(tmp_path: Path) -> None:
    callers = Callers(lambda _: 300.0, late_ms=lambda sessions: 30.0 if sessions > 3 else 1.0)
    loaded = finished(tmp_path, callers, max_sessions=6)
    assert loaded.capacity is not None
    assert loaded.capacity.sessions == 3
    assert loaded.capacity.caller_late_ms == 1.0
    assert {bool(s.void) for s in loaded.record.steps if s.sessions == 4} == {True}
    assert "was late by 30.0 ms (p99)" in loaded.record.ended


def test_a_ramp_ends_where_the_caller_is_late(tmp_path: Path) -> None:
    callers = Callers(lambda _: 300.0, late_ms=lambda sessions: 30.0 if sessions > 2 else 1.0)
    loaded = finished(tmp_path, callers, sessions="1..8", duration_s=30.0)
    assert [bool(step.void) for step in loaded.record.steps] == [False, False, True]


def test_the_turns_of_a_lost_caller_are_missed_and_the_level_is_looked_at_again(
    tmp_path: Path,
) -> None:
    loaded = finished(tmp_path, Callers(lambda s: None if s.step == 1 else 300.0), max_sessions=2)
    first = loaded.record.steps[0]
    assert first.outcomes["worker_lost"] >= first.turns - 1
    assert "worker 1 is lost: its process ended (signal 9)" in (first.void or "")
    assert loaded.record.steps[1].sessions == first.sessions
    assert loaded.capacity is not None
    assert loaded.capacity.sessions == 2
    lost = [turn for turn in loaded.turns if turn.missed == "worker_lost"]
    assert {turn.step for turn in lost} == {1}
    planned = plan(tmp_path, max_sessions=2).level_step(1, first.sessions or 0, first.turns)
    counted = [turn for turn in loaded.turns if turn.step == 1 and turn.counted]
    assert len(counted) == planned.turns == first.turns


def test_callers_that_are_lost_again_and_again_end_the_search(tmp_path: Path) -> None:
    loaded = finished(tmp_path, Callers(lambda _: None), max_sessions=2)
    assert len(loaded.record.steps) == 3
    assert loaded.capacity is not None
    assert "is lost" in (loaded.capacity.why or "")


def test_an_interruption_keeps_what_was_finished(tmp_path: Path) -> None:
    folders: list[Path] = []

    async def main() -> None:
        callers = Callers(lambda _: 300.0, stops_after=7)
        progress = LoadProgress(on_folder=folders.append)
        asked = {"sessions": "2", "duration_s": 60.0, "label": "nightly"}
        task = asyncio.create_task(load(plan(tmp_path, **asked), progress, callers))
        async with asyncio.timeout(30):
            while not folders or not list(read_load_turns(folders[0])):
                await asyncio.wait([task], timeout=0.05)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    record = read_load(folders[0])
    assert (record.failure, record.ended, record.finished_utc) == (INTERRUPTED, INTERRUPTED, None)
    assert record.label == "nightly"
    assert len(list(read_load_turns(folders[0]))) == 7
    assert record.steps == ()


def test_an_interruption_while_turns_are_written_loses_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, writes, may_go_on = Keeper.append, threading.Event(), threading.Event()
    folders: list[Path] = []

    def slow(self: Keeper, turns: Any) -> None:
        if turns:
            writes.set()
            may_go_on.wait(30)
        append(self, turns)

    async def main() -> None:
        callers = Callers(lambda _: 300.0, stops_after=7)
        progress = LoadProgress(on_folder=folders.append)
        asked = {"sessions": "2", "duration_s": 60.0}
        task = asyncio.create_task(load(plan(tmp_path, **asked), progress, callers))
        assert await asyncio.to_thread(writes.wait, 30)
        task.cancel()
        # Whoever does not wait for the disk is done by now.
        await asyncio.wait([task], timeout=0.2)
        may_go_on.set()
        await task

    monkeypatch.setattr(Keeper, "append", slow)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert read_load(folders[0]).failure == INTERRUPTED
    assert len(list(read_load_turns(folders[0]))) == 7


class Crashes(Callers):
    """Callers whose second step is refused."""

    async def _told(self, share: Share) -> AsyncIterator[Any]:
        if share.step == 1:
            async for said in super()._told(share):
                yield said
            return
        for call in share.calls:
            for turn in missed_turns(share.step, call, [], "refused", "nobody listens"):
                yield turn


@pytest.mark.parametrize(
    "failures", [[ConnectionRefusedError()] * 3, [OSError(errno.EADDRNOTAVAIL, "no port")] * 99]
)
def test_an_agent_that_is_back_soon_or_was_not_looked_for_is_not_gone(
    failures: list[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def knock(_: Endpoint) -> None:
        if failures:
            raise AgentError("agent.unreachable", "gone") from failures.pop()

    monkeypatch.setattr(Endpoint, "knock", knock)
    monkeypatch.setattr(PLAY, "LOOK_EVERY_S", 0.01)
    loaded = finished(tmp_path, Crashes(lambda _: 300.0), sessions="1..2", duration_s=30.0)
    assert loaded.failure is None
    assert [step.void for step in loaded.record.steps] == [None, None]


def test_an_agent_that_crashes_ends_the_test_and_voids_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLAY, "GONE_S", 0.0)
    # Nothing listens at port 1.
    loaded = finished(tmp_path, Crashes(lambda _: 300.0), sessions="1..2", duration_s=30.0)
    assert loaded.failure is not None
    assert loaded.failure.exit_code == 4
    assert "ws://127.0.0.1:1" in str(loaded.failure)
    first, second = loaded.record.steps
    assert first.void is None
    assert second.void == PLAY.GONE
    assert second.outcomes == {"refused": second.turns}
    assert {turn.step for turn in loaded.turns} == {1, 2}
    assert verdict(loaded.record).text == "? BROKEN OFF"


def test_a_step_ends_once_what_it_says_is_decided() -> None:
    async def step() -> float:
        clock, so_far = LoopClock(), Played()

        async def never() -> Played:
            await asyncio.Event().wait()
            raise AssertionError

        ends_ns = 5 * NS_PER_S
        assert await PLAY.until_decided(never(), so_far, lambda: clock.now_ns() > ends_ns) is so_far
        assert len(asyncio.all_tasks()) == 1
        return clock.now_ns() / NS_PER_S

    assert 5 < in_virtual_time(step()) <= 6.5


def test_a_fault_of_turngaps_own_is_stored_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rehearse(*_: object) -> Rehearsed:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(PLAY, "rehearse", rehearse)
    with pytest.raises(ZeroDivisionError):
        finished(tmp_path, Callers(lambda _: 300.0))
    (folder,) = tmp_path.iterdir()
    assert read_load(folder).failure == "turngap itself failed: ZeroDivisionError: oh"


def test_a_full_disk_ends_the_test_and_keeps_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Keeper.append

    def refuses_the_second_step(self: Keeper, turns: Any) -> None:
        if any(turn.step == 2 for turn in turns):
            raise InputError("load.unwritable", "no space left")
        append(self, turns)

    monkeypatch.setattr(Keeper, "append", refuses_the_second_step)
    with pytest.raises(InputError, match="no space left"):
        finished(tmp_path, Callers(lambda _: 300.0), sessions="1..2", duration_s=30.0)
    (folder,) = tmp_path.iterdir()
    record = read_load(folder)
    assert len(record.steps) == 1
    assert record.failure == "no space left"
    assert {turn.step for turn in read_load_turns(folder)} == {1}


def test_the_calls_of_a_step_that_an_error_ends_are_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Keeper, turns: Any) -> None:
        if turns:
            raise InputError("load.unwritable", "no space left")

    monkeypatch.setattr(Keeper, "append", refuses)
    with collector() as there:
        telemetry = telemetry_to(there.url)
        with pytest.raises(InputError, match="no space left"):
            finished(
                tmp_path, Callers(lambda _: 300.0), sessions="2", duration_s=30.0,
                telemetry=telemetry, label="before",
            )  # fmt: skip
        telemetry.close()
    roots = [span for span in there.spans if not span.parent]
    assert roots
    assert {root.attributes["error.type"] for root in roots} == {"load.unwritable"}
    assert {root.attributes["turngap.label"] for root in roots} == {"before"}


def test_the_agent_is_to_trace_no_call_that_only_finds_out_how_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    async def rehearse(_: LoadPlan, opens: Any) -> Rehearsed:
        asked.append(opens.func.__self__.headers)
        return Rehearsed("pipecat", 16_000, 0.0, 0.0)

    monkeypatch.setattr(PLAY, "rehearse", rehearse)
    with collector() as there:
        telemetry = telemetry_to(there.url)
        callers = Callers(lambda _: 300.0)
        finished(tmp_path, callers, sessions="2", duration_s=30.0, telemetry=telemetry)
        telemetry.close()
    ((header,),) = asked
    assert header.startswith("traceparent: 00-")
    assert header.endswith("-00")


def test_the_function_of_python_tells_what_it_plays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PLAY, "executor", lambda *_: Callers(lambda _: 300.0))
    with collector() as there:
        loaded = turngap.load(
            "ws://127.0.0.1:1",
            scenarios="quick-questions",
            sessions=2,
            duration_s=30.0,
            calibration=0,
            out=tmp_path,
            otlp=there.url,
        )
    counted = [point.as_int for name, _, _, point in there.points if name == TURNS]
    assert sum(counted) == sum(turn.counted for turn in loaded.turns) > 0


def test_a_disk_that_goes_on_refusing_ends_a_step_that_would_last_for_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Keeper, turns: Any) -> None:
        if turns:
            raise InputError("load.unwritable", "no space left")

    async def main() -> Loaded:
        asked = plan(tmp_path, sessions="2", duration_s=60.0)
        async with asyncio.timeout(60):  # the callers would not end by themselves
            return await load(asked, callers=Callers(lambda _: 300.0, stops_after=7))

    monkeypatch.setattr(Keeper, "append", refuses)
    monkeypatch.setattr(import_module("turngap.load.keeping"), "TICK_S", 0.0)
    with pytest.raises(InputError, match="no space left"):
        asyncio.run(main())
    (folder,) = tmp_path.iterdir()
    assert read_load(folder).failure == "no space left"
