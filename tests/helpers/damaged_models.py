"""Ways to damage the folder of a model, for tests of what is said of it then."""

from collections.abc import Callable
from pathlib import Path


def spoil(name: str, content: bytes | None) -> Callable[[Path], None]:
    """Write something else into a file of the model, or remove it (None)."""

    def change(directory: Path) -> None:
        if content is None:
            (directory / name).unlink()
        else:
            (directory / name).write_bytes(content)

    return change


def cut_short(directory: Path) -> None:
    """Damage weights as a download that broke off does."""
    path = directory / "model.bin"
    path.write_bytes(path.read_bytes()[:5000])
