"""Workers on a Ray cluster: one of this machine's own making, or the user's.

An actor holds a place on a node, and the work itself runs in a process next to the actor, the same
as on one machine (`turngap.workers.local`). So no part of Ray runs in a process that paces calls.
"""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Self, cast

from turngap.core.errors import AgentError, InputError
from turngap.workers.local import LocalWorker, why
from turngap.workers.pool import Done, Lost, Pool, Result

# A process that imports Ray takes two seconds where nothing else runs, and twenty where much does.
CONNECT_TIMEOUT_S = 120.0

# A path to a socket has at most 107 bytes, of which Ray's own part takes about 65.
_LONGEST_FOLDER = 40


def prepare(*, alone: bool) -> None:
    """Set the environment that Ray reads when it is imported; the user's own values stay.

    With it, Ray sends no statistics to its makers and makes no environments by itself. A cluster
    that is `alone` on this machine opens its ports on loopback only.
    """
    names = ["USAGE_STATS_ENABLED", "ENABLE_UV_RUN_RUNTIME_ENV", "ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"]
    if alone:
        names.append("ENABLE_WINDOWS_OR_OSX_CLUSTER")  # Ray's name for it, on Linux too
    for name in names:
        os.environ.setdefault(f"RAY_{name}", "0")


def checked(address: str | None) -> str | None:
    """Return the address as Ray takes it; None for a cluster of this machine's own.

    Raises:
        InputError: the text is not the address of a cluster.
    """
    if address is None or address == "auto":
        return address
    if address == "local":
        return None
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(
            "workers.address",
            f"Ray's address {address!r}: expected HOST:PORT or auto",
            hint="run turngap on a machine of the cluster (ray job submit -- turngap …), with "
            "--ray-address auto",
        )
    return address


async def reach(address: str) -> None:
    """Check in a process of its own that a cluster answers, because `ray.init` tries for ever.

    Raises:
        AgentError: none answers, or one with another version of Ray.
    """
    argv = [] if address == "auto" else ["--address", address]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError as e:
        reason = f"it did not answer within {CONNECT_TIMEOUT_S:g} s"
        raise not_connected(address, reason) from e
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        lines = output.decode(errors="replace").strip().splitlines()
        raise not_connected(address, lines[-1] if lines else f"exit code {process.returncode}")


def not_connected(address: str | None, reason: str) -> AgentError:
    """Build the error for a cluster that cannot be used, with what to do next."""
    what = "a Ray cluster of this machine" if address is None else f"the Ray cluster at {address}"
    text = " ".join(reason.split())[:300]
    kind, hint = "workers.no_cluster", "check whether it runs, from this machine: ray status"
    if "ersion mismatch" in text:
        kind = "workers.version"
        hint = "use the same versions of Ray and Python here as on the cluster"
    elif address is None:
        hint = "--on local does without Ray"
    return AgentError(kind, f"{what} cannot be used: {text}", hint=hint)


# Ray sees only after half a minute which of these it was.
GONE = "its node or its process has died, or cannot be reached"

INSTALL = "pip install 'turngap[ray]'"

# Messages are kept where they arise until they are asked for, and those of turns are small. The
# least that Ray starts with is 75 MiB.
OBJECT_STORE_BYTES = 80 * 2**20

# To start a process on a node that is busy. A cluster whose processors other work holds never does.
START_TIMEOUT_S = 120.0

# As a job's own environment names its cluster, on KubeRay too.
ADDRESS = "RAY_ADDRESS"


class _Node:
    """A worker process on the node of this actor."""

    def __init__(self, name: str, path: list[str] | None) -> None:
        self._name = name
        self._path = sys.path if path is None else path
        self._worker: LocalWorker | None = None

    async def start(self) -> None:
        if self._worker is None or self._worker.ended:
            self._worker = await LocalWorker.start(self._name, self._path)

    async def do(self, piece: int, task: bytes) -> AsyncGenerator[Result | Done | Lost, None]:
        await self.start()  # it may have been lost with the last piece
        assert self._worker is not None
        async for said in self._worker.do(piece, task):
            yield said


class RayWorker:
    """A worker on a node, as seen from here: see `turngap.workers.Worker`."""

    def __init__(self, actor: Any, name: str) -> None:
        self._actor = actor
        self._name = name
        self.ended = False

    async def do(self, piece: int, task: bytes) -> AsyncGenerator[Result | Done | Lost, None]:
        """See `Worker.do`."""
        from ray.exceptions import RayError

        reports = self._actor.do.options(num_returns="streaming").remote(piece, task)
        try:
            async for reference in reports:
                report = await reference
                yield report
                if not isinstance(report, Result):
                    return
            reason = GONE
        except RayError as e:
            reason = _reason(e)
        await self.end()  # it may still work, and only be out of reach
        yield Lost(piece, f"{self._name} is lost: {reason}")

    async def end(self) -> None:
        """End the actor, and with it the process that works for it."""
        import ray

        self.ended = True
        with suppress(Exception):  # it is gone already, or its cluster is
            ray.kill(self._actor)


def _reason(error: Exception) -> str:
    """Extract the reason from Ray's long text."""
    if isinstance(cause := getattr(error, "cause", None), Exception):
        return why(cause)  # what was done there raised it
    text = str(error)
    if "out-of-memory" in text or "OOM" in text:
        return "its process was killed, because the node is out of memory"
    return GONE


class RayWorkers(Pool):
    """An `Executor` whose workers are on a Ray cluster, a processor each.

    Args:
        workers: how many; None: one for each processor of the cluster.
        address: the user's cluster, `HOST:PORT`, or `auto` for one that this machine is a part of;
            None: that of `RAY_ADDRESS`, or else a cluster of this machine's own, which ends with
            this object.

    Raises:
        InputError: Ray is not installed, or the address or the number cannot be used.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self._address = checked(address or os.environ.get(ADDRESS) or None)
        prepare(alone=self._address is None)
        try:
            import ray  # noqa: F401
        except ImportError as e:
            raise InputError(
                "workers.no_ray", "Ray is not installed", hint=f"install it: {INSTALL}"
            ) from e
        self._asked = workers
        self._ours = False
        self._folder: Path | None = None
        self._places: list[tuple[str, str]] = []
        super().__init__(1 if workers is None else workers)

    async def __aenter__(self) -> Self:
        try:
            await self._connect()
            self._places = self._find_places()
            self.workers = len(self._places)
            self._slots = dict.fromkeys(range(self.workers))
            if self._folder is None:
                await self._check_nodes()
        except BaseException:
            await self._disconnect()
            raise
        return await super().__aenter__()

    async def __aexit__(self, *exception: object) -> None:
        await super().__aexit__()
        await self._disconnect()

    async def _connect(self) -> None:
        import ray
        import ray._private.worker as driver

        if ray.is_initialized():  # the user's notebook or job is connected already
            return
        options: dict[str, Any] = {"address": self._address}
        if self._address is None:
            parent = tempfile.gettempdir()
            parent = parent if len(parent) <= _LONGEST_FOLDER - 20 else "/tmp"
            self._folder = Path(tempfile.mkdtemp(prefix="turngap-ray-", dir=parent))
            options = {
                "address": "local",
                "num_cpus": max(self._asked or 0, os.cpu_count() or 1),
                "num_gpus": 0,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_node_name": "local",
                "_temp_dir": str(self._folder),
            }
        else:
            await reach(self._address)
        self._ours = True
        try:
            # Not in a thread: what it starts ends when the thread ends that started it.
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
            # It prints on stdout what befalls its nodes; what matters comes as `Lost`.
            driver.print_to_stdstream = lambda *_, **__: None
        except Exception as e:  # Ray raises a bare one where a node does not start in time
            raise not_connected(self._address, str(e) or type(e).__name__) from e

    async def _disconnect(self) -> None:
        import ray

        if self._ours:
            self._ours = False
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _find_places(self) -> list[tuple[str, str]]:
        """Choose a node's id and name for each worker, evenly by the nodes' processors.

        Raises:
            InputError: the cluster has too few processors.
        """
        free = {
            (str(node["NodeID"]), str(node["NodeName"])): int(node["Resources"].get("CPU", 0))
            for node in _nodes()
        }
        most = sum(free.values())
        wanted = most if self._asked is None else self._asked
        if not 1 <= wanted <= most:
            raise InputError(
                "workers.count",
                f"{wanted} workers: the Ray cluster has {most} processors on {len(free)} nodes",
                hint="ask for fewer workers, or give the cluster more nodes first",
            )
        places: list[tuple[str, str]] = []
        for _ in range(wanted):
            node = max(free, key=lambda each: free[each])
            free[node] -= 1
            places.append(node)
        return places

    async def _check_nodes(self) -> None:
        """Check that every node has this version of turngap.

        Raises:
            AgentError: a node has another version or none, or does not answer.
        """
        import ray

        from turngap.core import __version__

        def version() -> str | None:
            from importlib import metadata

            try:
                return metadata.version("turngap")
            except metadata.PackageNotFoundError:
                return None

        # Its code is sent, not the name of its module, because turngap may not be there.
        sent = FunctionType(version.__code__, {}, version.__name__)
        sent.__module__ = "__main__"
        remote = cast(Any, ray.remote(sent))
        for node_id, name in dict.fromkeys(self._places):
            there = await _answered(remote.options(num_cpus=0, **_on(node_id)).remote(), name)
            if there != __version__:
                raise AgentError(
                    "workers.version",
                    f"node {name} has {f'turngap {there}' if there else 'no turngap'}; "
                    f"turngap {__version__} is needed there as here",
                    hint=f"on every node: pip install 'turngap[ray]=={__version__}'",
                )

    async def _start(self, slot: int) -> RayWorker:
        import ray

        node_id, node = self._places[slot]
        name = f"worker {slot + 1} on {node}"
        if node_id not in {each["NodeID"] for each in _nodes()}:
            raise AgentError("workers.lost", f"{name} cannot be replaced: its node has died")
        path = list(sys.path) if self._folder else None  # a user's cluster has paths of its own
        actor = cast(Any, ray.remote(_Node)).options(num_cpus=1, **_on(node_id)).remote(name, path)
        worker = RayWorker(actor, name)
        try:
            await _answered(actor.start.remote(), node)
        except BaseException:
            await worker.end()
            raise
        return worker


def _nodes() -> list[Mapping[str, Any]]:
    """List the nodes that are alive."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _on(node_id: str) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


async def _answered(reference: Any, node: str) -> Any:
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return await reference
    except TimeoutError as e:
        raise AgentError(
            "workers.not_started",
            f"node {node} started no worker within {START_TIMEOUT_S:g} s",
            hint="check whether other work uses its processors: ray status",
        ) from e
    except RayError as e:
        raise AgentError(
            "workers.not_started", f"node {node} could not start a worker: {_reason(e)}"
        ) from e
