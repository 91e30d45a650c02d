"""Who is in the batch, and when it leaves."""

from dataclasses import dataclass
from typing import Literal

from turngap.core.errors import InputError

PolicyName = Literal["continuous", "static", "immediate"]
POLICIES: tuple[PolicyName, ...] = ("continuous", "static", "immediate")


@dataclass(frozen=True, slots=True)
class Policy:
    """How an engine forms its batch.

    `continuous` lets a request in at the next step that has room for it (Orca, OSDI 2022; vLLM).
    `static` waits until the batch is full and runs it to its last reply. `immediate` takes whoever
    is waiting when the engine is free, up to `max_batch`, and runs these to the last reply: with 1
    everyone has the engine to themselves.

    Attributes:
        max_batch: sequences at once.
        chunk_tokens: tokens that a step computes at most, decoded ones included: a long prompt is
            cut into chunks. None: a prompt is computed in one step.
        max_wait_ms: of `static`: leave with a batch that is not full when its oldest request has
            waited so long. None: wait for ever.
    """

    name: PolicyName = "continuous"
    max_batch: int = 256
    chunk_tokens: int | None = None
    max_wait_ms: float | None = None

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise _bad("name", self.name, f"one of {', '.join(POLICIES)}")
        if self.max_batch < 1:
            raise _bad("max_batch", self.max_batch, "1 or more")
        if self.chunk_tokens is not None and self.chunk_tokens <= self.max_batch:
            raise _bad(
                "chunk_tokens",
                self.chunk_tokens,
                f"more than max_batch ({self.max_batch}): the rest of it is all that prompts get",
            )
        if self.max_wait_ms is not None:
            if self.name != "static":
                raise _bad("max_wait_ms", self.max_wait_ms, "none: only `static` waits")
            if not 0 <= self.max_wait_ms < float("inf"):
                raise _bad("max_wait_ms", self.max_wait_ms, "0 or more")


def _bad(name: str, value: object, want: str) -> InputError:
    return InputError("inference.policy", f"policy: {name} is {value!r}, expected {want}")
