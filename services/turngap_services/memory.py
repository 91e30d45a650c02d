"""What libraries say where memory is too little, in words of ours."""

import re

from turngap.core.errors import AgentError

# CTranslate2 and onnxruntime, on a CPU and on a GPU.
_TOO_LITTLE = re.compile(r"out of memory|bad.?alloc|failed to allocate|not allocate", re.IGNORECASE)


def too_little_memory(error: Exception, what: str, hint: str) -> AgentError | None:
    """The error to raise for one that says so; None: it says something else.

    Args:
        error: of a library, in whatever class it has for it.
        what: that needs more memory than there is.
        hint: what needs less.
    """
    if not isinstance(error, MemoryError) and not _TOO_LITTLE.search(str(error)):
        return None
    return AgentError(
        "model.memory", f"there is too little memory on this machine for {what}", hint=hint
    )
