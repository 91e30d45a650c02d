"""Workers on a Ray cluster. What needs Ray itself is one test: a cluster takes seconds to start."""

import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quiet
import worker_tasks

from turngap.core.errors import InputError
from turngap.workers.pool import Done, Lost, Result

# What Ray says of a node that takes longer than its limit, which nobody can set.
TOO_SLOW = "timed out during startup"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of one processor each, as processes of this machine, on loopback."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # the token would lie in the user's home
    monkeypatch.setenv("RAY_health_check_period_ms", "1000")  # else it takes half a minute
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'turngap[ray]'")
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    few = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    try:
        try:
            nodes.add_node(node_name="left", **few)
            doomed = nodes.add_node(node_name="right", **few)
        except Exception as e:  # it has no class of its own
            if TOO_SLOW not in str(e):
                raise
            raise TimeoutError("Ray gave a node half a minute to start") from e
        yield nodes, doomed
    finally:
        nodes.shutdown()


@pytest.mark.realtime  # Ray gives a node 30 s to start, whatever else the machine does
async def test_a_node_that_is_killed_loses_its_pieces_and_no_others(
    cluster: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from turngap.workers.ray import GONE, RayWorkers

    nodes, doomed = cluster
    capfd.readouterr()
    said: dict[int, list[Any]] = {piece: [] for piece in range(3)}
    where: dict[int, str] = {}
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with RayWorkers(address=nodes.address) as workers:
            assert workers.workers == 2
            async for each in workers.run(worker_tasks.wait_for_lock, [lock.name] * len(said)):
                said[each.piece].append(each)
                if isinstance(each, Result) and each.value != "unlocked":
                    where[each.piece] = each.value
                    if len(where) == 2:
                        nodes.remove_node(doomed, allow_graceful=False)
                if sum(isinstance(end, Lost) for told in said.values() for end in told[1:]) == 1:
                    fcntl.flock(lock, fcntl.LOCK_UN)
            on_right = {piece for piece in where if where[piece].endswith(" on right")}
            # Ray takes a node that is late with its answers for dead, and says otherwise why.
            with quiet.measured():
                assert len(on_right) == 1
                for piece, each in said.items():
                    if piece in on_right:
                        assert each[1:] == [Lost(piece, f"{where[piece]} is lost: {GONE}")]
                    elif piece in where:
                        assert each == [
                            Result(piece, where[piece]),
                            Result(piece, "unlocked"),
                            Done(piece),
                        ]
                assert workers.workers == 1
            again = [each async for each in workers.run(worker_tasks.count, [1, 1, 1])]
            with quiet.measured():
                assert [each for each in again if isinstance(each, Lost)] == []
                assert workers.workers == 1
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("address", ["nonsense", "ray://head:10001", "head:", "head:0", ":1"])
def test_another_address_is_refused_with_the_way_there_is(address: str) -> None:
    from turngap.workers.ray import RayWorkers

    with pytest.raises(InputError, match="expected HOST:PORT or auto") as refused:
        RayWorkers(2, address)
    assert "ray job submit" in refused.value.hint


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from turngap.workers.ray import RayWorkers

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match="Ray is not installed") as refused:
        RayWorkers(2)
    assert refused.value.hint == "install it: pip install 'turngap[ray]'"
