"""End a benchmark with one line where something fails that its user can mend."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from turngap.core.errors import TurngapError


@contextmanager
def errors_told() -> Generator[None]:
    """Say an error in one line, as `turngap` does, and exit with its code."""
    try:
        yield
    except TurngapError as e:
        hint = f" ({e.hint})" if e.hint else ""
        print(f"{Path(sys.argv[0]).stem}: {e}{hint}", file=sys.stderr)
        sys.exit(e.exit_code)
