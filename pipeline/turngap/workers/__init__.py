"""Work in several processes: of this machine, or of a Ray cluster."""

import os

from turngap.core.errors import InputError, known_names
from turngap.workers.base import Done, Executor, Lost, Tell, Told, Work, here
from turngap.workers.local import LocalWorkers

__all__ = [
    "EXECUTORS",
    "Done",
    "Executor",
    "LocalWorkers",
    "Lost",
    "Tell",
    "Told",
    "Work",
    "executor",
    "here",
]

EXECUTORS = ("local", "ray")


def executor(on: str, workers: int | None = None, ray_address: str | None = None) -> Executor:
    """Return the executor of a name, not started yet.

    Args:
        on: one of `EXECUTORS`.
        workers: how many; None: one for each processor, of this machine or of the Ray cluster.
        ray_address: see `RayWorkers`.

    Raises:
        InputError: there is no such executor, Ray is not installed, or a value does not fit.
    """
    if ray_address is not None and on != "ray":
        raise InputError(
            "workers.address",
            "--ray-address is that of a Ray cluster",
            hint="give --on ray with it",
        )
    if on == "local":
        return LocalWorkers(os.cpu_count() or 1 if workers is None else workers)
    if on == "ray":
        from turngap.workers.ray import RayWorkers

        return RayWorkers(workers, ray_address)
    raise InputError("workers.unknown", f"--on {on!r}", hint=known_names(on, EXECUTORS))
