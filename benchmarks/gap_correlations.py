"""Correlations of gaps: of one recording, of one play of a conversation, of one conversation.

    python benchmarks/gap_correlations.py runs/*-compare

Of each folder the runs that it holds (or is), which heard the same recordings: rounds, or backends
of one agent. Gaps are taken by their normal scores within a run, so that one backend's pace and a
few long silences are no likeness. What is printed are correlations over all pairs of that kind, and
how many pairs.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from endings import errors_told
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.summary import counted_turns
from turngap.store.folders import TURNS_FILE
from turngap.store.runs import read_run

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
KINDS = ("recording", "play", "conversation")


def scores(gaps: Sequence[float]) -> Floats:
    """Return the normal scores of the gaps of a run, two of which differ."""
    found = norm.ppf((rankdata(gaps) - 0.5) / len(gaps))
    return found / np.sqrt(np.mean(found**2))


def correlations(runs: Sequence[Sequence[Turn]]) -> dict[str, tuple[float | None, int]]:
    """By kind the correlation, None without a pair, and of how many pairs.

    `recording`: takes of one recorded turn; `play`: turns of a conversation that was played once;
    `conversation`: turns of one, taken in different plays.
    """
    names: list[tuple[str, int, tuple[int, int]]] = []
    gaps: list[Floats] = []
    for number, turns in enumerate(runs):
        known = [(t, t.gap_ms) for t in counted_turns(turns) if t.replied and t.gap_ms is not None]
        if len({ms for _, ms in known}) < 2:
            continue  # nothing in it is slower than anything else
        names += [(t.scenario, t.turn, (number, t.repeat)) for t, _ in known]
        gaps.append(scores([ms for _, ms in known]))
    if not gaps:
        return dict.fromkeys(KINDS, (None, 0))
    z = np.concatenate(gaps)
    products = np.outer(z, z)

    def same(values: Sequence[object]) -> Mask:
        return np.array([[a == b for b in values] for a in values])

    conversation = same([scenario for scenario, *_ in names])
    turn, play = same([turn for _, turn, _ in names]), same([play for *_, play in names])
    upper = np.triu(np.ones_like(turn), 1)
    pairs = {
        "recording": conversation & turn & upper,
        "play": conversation & ~turn & play & upper,
        "conversation": conversation & ~turn & ~play & upper,
    }
    return {
        kind: (float(products[which].mean()) if which.any() else None, int(which.sum()))
        for kind, which in pairs.items()
    }


def main() -> None:
    """Print a line for each folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    with errors_told():
        for folder in parser.parse_args().folders:
            print(line(folder))


def line(folder: Path) -> str:
    """Describe a folder.

    Raises:
        InputError: it has no runs, or one that cannot be read.
    """
    found = [path.parent for path in sorted(folder.glob(f"**/{TURNS_FILE}"))]
    if not found:
        raise InputError("gap_correlations.no_runs", f"there is no run in {folder}")
    runs = [read_run(run).turns for run in found]
    conversations = {turn.scenario for turns in runs for turn in turns}
    said = [
        f"{kind} {'–' if value is None else f'{value:.2f}'} ({n})"
        for kind, (value, n) in correlations(runs).items()
    ]
    head = f"{folder.name}: {len(runs)} runs, {len(conversations)} conversations; "
    return head + ", ".join(said)


if __name__ == "__main__":
    main()
