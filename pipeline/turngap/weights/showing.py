"""What is told of a download, and who shows it: the command line, or else a line in the log."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turngap.core.sizes import bytes_words

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

Say = Callable[[str], None]

_show: Show | None = None
_say: Say | None = None


def shown_by(show: Show, say: Say) -> None:
    """Have every download of this process shown so: the plan, its bytes, and lines by `say`."""
    global _show, _say  # one process has one terminal
    _show, _say = show, say


def tell(line: str) -> None:
    """Tell people a line: why they wait."""
    if _say is not None:
        _say(line)
        return
    from loguru import logger

    logger.info(line)


def showing(plan: Plan) -> AbstractContextManager[Told]:
    """Show the plan and then, while it is used as a context, the bytes that it is told of."""
    if _show is not None:
        return _show(plan)
    size = "" if plan.bytes is None else f" ({bytes_words(plan.bytes)})"
    names = ", ".join(item.weights.name for item in plan.items)
    tell(f"fetching {names}{size} from {plan.hub} to {plan.cache}")
    return nullcontext(lambda _: None)
