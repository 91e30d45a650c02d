"""Workers that are processes of this machine."""

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest
import worker_tasks

from turngap.core.errors import InputError
from turngap.workers.local import LocalWorkers
from turngap.workers.pool import Done, Lost, Result


async def results(workers: LocalWorkers, work: Any, pieces: list[Any]) -> list[Any]:
    return [said async for said in workers.run(work, pieces)]


async def test_pieces_are_shared_out_and_told_in_order() -> None:
    async with LocalWorkers(2) as workers:
        said = await results(workers, worker_tasks.count, [3, 0, 2])
        for piece, count in enumerate((3, 0, 2)):
            expected = [Result(piece, number) for number in range(count)] + [Done(piece)]
            assert [each for each in said if each.piece == piece] == expected
        # The same processes work again, and nothing comes of nothing.
        first = await results(workers, worker_tasks.say_where, [0, 0])
        again = await results(workers, worker_tasks.say_where, [0, 0])
        told = {each.value for each in first if isinstance(each, Result)}
        assert told == {each.value for each in again if isinstance(each, Result)}
        assert {name for name, _ in told} == {"worker 1", "worker 2"}
        assert await results(workers, worker_tasks.count, []) == []
    assert not any(psutil.pid_exists(pid) for _, pid in told)


async def test_each_failure_is_told_and_the_others_go_on() -> None:
    ways = ["raise", "kill", "explain", "quit", "exit", "unpicklable", "none"]
    async with LocalWorkers(2) as workers:
        said = await results(workers, worker_tasks.fail, ways)
        first = [Result(piece, "first") for piece in range(len(ways))]
        assert [each for each in said if isinstance(each, Result) and each.value == "first"] != []
        assert all(each in said for each in first)
        ends = {each.piece: each for each in said if not isinstance(each, Result)}
        assert len([each for each in said if not isinstance(each, Result)]) == len(ways)
        why = {ways[n]: each.why for n, each in ends.items() if isinstance(each, Lost)}
        assert why["raise"] == "KeyError: 'no such thing'"
        assert why["explain"] == "the file is not there"
        assert "SystemExit: 3" in why["exit"]
        assert "is lost: its process was killed" in why["kill"]
        assert "(exit code 3): bailing out" in why["quit"]
        assert "pickle" in why["unpicklable"]
        assert ends[ways.index("none")] == Done(ways.index("none"))


async def test_a_worker_that_dies_in_the_middle_of_a_message_is_lost() -> None:
    async with LocalWorkers(1) as workers:
        (lost,) = await results(workers, worker_tasks.break_off, [0])
        assert isinstance(lost, Lost)
        (lost,) = await results(workers, worker_tasks.raise_unreadable, [0])
        assert "cannot be read" in lost.why
        assert await results(workers, worker_tasks.count, [0]) == [Done(0)]


async def test_closing_ends_what_still_runs_even_if_it_will_not(tmp_path: Path) -> None:
    async with LocalWorkers(2) as workers:
        pieces = [str(tmp_path / name) for name in ("a", "b", "c")]
        async with aclosing(workers.run(worker_tasks.hold, pieces)) as said:
            pids = [(await anext(said)).value for _ in range(2)]  # type: ignore
        assert not any(psutil.pid_exists(pid) for pid in pids)
        assert len(os.listdir(tmp_path)) == 2  # noqa: PTH208 - the third was never begun
        assert await results(workers, worker_tasks.count, [1]) == [Result(0, 0), Done(0)]


async def test_a_slow_reader_stops_no_work_and_loses_nothing(tmp_path: Path) -> None:
    done = tmp_path / "done"
    times = 600  # of 10 kB: more than the queue and the socket's buffers hold
    async with LocalWorkers(1) as workers:
        async with aclosing(workers.run(worker_tasks.flood, [(str(done), 10_000, times)])) as said:
            assert (await anext(said)) == Result(0, (0, b"x" * 10_000))
            async with asyncio.timeout(60):
                while not done.exists():
                    await asyncio.to_thread(os.sched_yield)
            rest = [each async for each in said]
        assert [each.value[0] for each in rest if isinstance(each, Result)] == list(range(1, times))
        assert rest[-1] == Done(0)


async def test_what_workers_print_is_not_seen(capfd: pytest.CaptureFixture[str]) -> None:
    async with LocalWorkers(1) as workers:
        assert Result(0, False) in await results(workers, worker_tasks.print_and_read, [0])
    assert capfd.readouterr() == ("", "")


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, sys\n"
        "import worker_tasks\n"
        "from turngap.workers.local import LocalWorkers\n"
        "async def main():\n"
        "    async with LocalWorkers(1) as workers:\n"
        f"        async for said in workers.run(worker_tasks.hold, [{str(tmp_path / 'held')!r}]):\n"
        "            print(said.value, flush=True)\n"
        "asyncio.run(main())\n"
    )
    path = os.pathsep.join([str(Path(worker_tasks.__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    with parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    worker.wait(60)


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_another_number_of_workers_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="expected 1 to 1024"):
        LocalWorkers(count)


async def test_work_of_a_script_is_refused() -> None:
    work = lambda given, tell: None  # noqa: E731
    work.__module__ = "__main__"
    async with LocalWorkers(1) as workers:
        with pytest.raises(ValueError, match="of a module"):
            await results(workers, work, [0])
