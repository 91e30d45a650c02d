"""Which commits may have brought a change of level, as far as the stored runs know."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from turngap.history.entry import Entry

_DIRTY = "-dirty"


@dataclass(frozen=True, slots=True)
class Commits:
    """The commits of the checkout over the runs in question, and over the last run before them.

    Attributes:
        before, after: those of the last run before, and of the last run in question.
        came: those that came in, in their order; one that is not known is `unknown`.
        unknown: whether one of the runs does not say its commit.
        dirty: whether files differed from the commit in one of them.
    """

    before: str | None
    after: str | None
    came: tuple[str, ...]
    unknown: bool
    dirty: bool

    @classmethod
    def of(cls, runs: Sequence[Entry]) -> "Commits":
        """Of the last run before the change and all runs that follow, until it is over for sure."""
        found = [run.commit for run in runs]
        return cls(
            before=found[0],
            after=found[-1],
            came=tuple(
                dict.fromkeys(new or "unknown" for old, new in pairwise(found) if new != old)
            ),
            unknown=None in found,
            dirty=any(commit is not None and commit.endswith(_DIRTY) for commit in found),
        )

    @property
    def same(self) -> bool:
        """Whether all of these runs are known to be of one commit and nothing else."""
        return not (self.came or self.unknown or self.dirty)

    @property
    def range(self) -> str | None:
        """What `git log` takes to list all that came in; None where an end of it is not known."""
        if self.before is None or self.after is None:
            return None
        first, last = (commit.removesuffix(_DIRTY) for commit in (self.before, self.after))
        return None if first == last else f"{first}..{last}"
