"""Work in several processes: of this machine, or of a Ray cluster.

Executors hand out pieces of work to a few workers, each of which does one at a time.
"""

import os
from typing import Literal, cast, get_args

from turngap.core.errors import InputError, known_names
from turngap.workers.pool import Executor

On = Literal["local", "ray"]
EXECUTORS: tuple[On, ...] = get_args(On)


def require_executor(on: str, ray_address: str | None = None) -> On:
    """Return the name of a known executor; check that it goes with the address, if any.

    Raises:
        InputError: there is no such executor, or it takes no address.
    """
    if on not in EXECUTORS:
        raise InputError("workers.unknown", f"--on {on[:40]!r}", hint=known_names(on, EXECUTORS))
    if ray_address is not None and on != "ray":
        raise InputError(
            "workers.address",
            "--ray-address is the address of a Ray cluster",
            hint="give --on ray with it",
        )
    return cast(On, on)


def executor(on: str, workers: int | None = None, ray_address: str | None = None) -> Executor:
    """Return the executor of a name, not started yet.

    Args:
        on: one of `EXECUTORS`.
        workers: how many; None: one for each processor, of this machine or of the Ray cluster.
        ray_address: see `RayWorkers`.

    Raises:
        InputError: there is no such executor, Ray is not installed, or a value does not fit.
    """
    if require_executor(on, ray_address) == "local":
        from turngap.workers.local import LocalWorkers

        return LocalWorkers(os.cpu_count() or 1 if workers is None else workers)
    from turngap.workers.ray import RayWorkers

    return RayWorkers(workers, ray_address)
