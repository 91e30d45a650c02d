"""The published weights that an engine loads, as its specification names them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of published weights.

    Attributes:
        path: its path in the repository, with `/`.
        size: bytes; None where that is not known beforehand.
        sha256: its pinned digest; None where none is known, so that the hub's own word is checked.
    """

    path: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """Published weights in a repository of a hub, as an engine with certain settings loads them.

    Attributes:
        name: what people are shown, as `whisper base.en`.
        repository: its id on the hub.
        revision: a commit, or a branch where nothing is pinned.
        files: what is loaded; empty where only the hub knows, which then lists it.
        licence: the licence of the weights; empty where it is not known.
        patterns: shell patterns of the files wanted of the hub's list, where `files` is empty.
        pins: the file that replaces the pins that turngap ships, where one does.
        fetched_as: what `turngap fetch` takes for them, as `whisper,model=base.en`.
    """

    name: str
    repository: str
    revision: str
    files: tuple[WeightFile, ...] = ()
    licence: str = ""
    patterns: tuple[str, ...] = ()
    pins: str = ""
    fetched_as: str = ""
