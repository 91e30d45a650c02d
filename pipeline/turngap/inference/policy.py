"""How an engine forms its batches."""

from dataclasses import dataclass
from typing import Literal

from turngap.core.errors import InputError

PolicyName = Literal["continuous", "static", "immediate"]
POLICIES: tuple[PolicyName, ...] = ("continuous", "static", "immediate")


@dataclass(frozen=True, slots=True)
class Policy:
    """How an engine forms its batch.

    `continuous` admits a request at the next step that has room for it (Orca, OSDI 2022; vLLM).
    `static` waits until the batch is full and runs it to its last reply. `immediate` takes the
    requests that wait when the engine is free, up to `max_batch`, and runs them to the last reply;
    with a `max_batch` of 1, each request has the engine to itself.

    Attributes:
        max_batch: the most sequences at once.
        chunk_tokens: the most tokens that a step computes, decoded ones included; a long prompt is
            cut into chunks. With None, a prompt is computed in one step.
        max_wait_ms: with `static`, start a batch that is not full when its oldest request has
            waited this long. With None, wait for ever.
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
                f"more than max_batch ({self.max_batch}), as prompts get only what is left over",
            )
        if self.max_wait_ms is not None:
            if self.name != "static":
                raise _bad("max_wait_ms", self.max_wait_ms, "none, because only `static` waits")
            if not 0 <= self.max_wait_ms < float("inf"):
                raise _bad("max_wait_ms", self.max_wait_ms, "0 or more")


def _bad(name: str, value: object, want: str) -> InputError:
    return InputError("inference.policy", f"policy: {name} is {value!r}, expected {want}")
