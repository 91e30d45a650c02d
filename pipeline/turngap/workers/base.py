"""What every executor does: it hands pieces of work to workers and streams back what they tell."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# Called by the work with each thing that it has to tell, as soon as it has it.
Tell = Callable[[Any], None]
# A function of a module, so that another process finds it by its name. What it is given and what
# it tells is pickled. Work that is asynchronous runs a loop of its own.
Work = Callable[[Any, Tell], None]

_here = ""


def here() -> str:
    """Return the name of the worker that this process is; empty where it is none."""
    return _here


def be(name: str) -> None:
    """Let `here` return this name; call it in a worker's process, before it works."""
    global _here  # noqa: PLW0603 - a process is one worker for as long as it lives
    _here = name


@dataclass(frozen=True, slots=True)
class Told:
    """The results of piece `piece` (counted from 0) of the work."""

    piece: int
    said: Any


@dataclass(frozen=True, slots=True)
class Done:
    """A piece of the work has ended by itself."""

    piece: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A piece ended before it was done, because its worker is gone or it raised: `why` says it."""

    piece: int
    why: str


class Executor(Protocol):
    """Processes that work for this one.

    Attributes:
        name: as people know it: `local`, `ray`.
        workers: how many pieces run at the same time, each in a process of its own.
    """

    name: str
    workers: int

    async def __aenter__(self) -> "Executor":
        """Start the workers.

        Raises:
            AgentError: they cannot be started, or the cluster cannot be reached.
        """
        ...

    async def __aexit__(self, *exception: object) -> None:
        """End the workers, and whatever they still do."""
        ...

    def run(self, work: Work, pieces: Sequence[Any]) -> AsyncGenerator[Told | Done | Lost, None]:
        """Hand out the pieces and yield what they tell, each piece in its own order.

        Every piece ends with one `Done` or one `Lost`. A lost worker is replaced for the pieces
        that have not begun; a piece that had begun is never begun again. To close the iterator
        ends what still runs.
        """
        ...
