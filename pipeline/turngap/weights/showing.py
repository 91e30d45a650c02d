"""What is told of a download, and who shows it. The command line shows it; a library is silent."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turngap.backends import Weights


@dataclass(frozen=True, slots=True)
class Item:
    """Weights of which something is fetched.

    Attributes:
        bytes: all of what is missing, a begun download included; None where it is not known.
        begun_bytes: what an earlier, broken download has left of it.
        unpinned: how many of the files have no pinned digest.
    """

    weights: "Weights"
    bytes: int | None
    begun_bytes: int
    unpinned: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to be fetched.

    Attributes:
        hub: the host that it comes from.
        cache: the folder that it goes to.
        free_bytes: the room that there is on that disk.
        remarks: what else people should know, as that a file was damaged.
    """

    items: tuple[Item, ...]
    hub: str
    cache: Path
    free_bytes: int
    remarks: tuple[str, ...] = ()

    @property
    def bytes(self) -> int | None:
        sizes = [item.bytes for item in self.items]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def begun_bytes(self) -> int:
        return sum(item.begun_bytes for item in self.items)


# Is told of every further bytes; they may be negative, where a broken download begins again.
Told = Callable[[int], None]
Show = Callable[[Plan], AbstractContextManager[Told]]

_show: Show | None = None


def shown_by(show: Show) -> None:
    """Have every download of this process shown so: the plan first, then its bytes."""
    global _show  # noqa: PLW0603  # one process has one terminal
    _show = show


def showing(plan: Plan) -> AbstractContextManager[Told]:
    """Show the plan and then, while it is used as a context, the bytes that it is told of."""
    return nullcontext(lambda _: None) if _show is None else _show(plan)
