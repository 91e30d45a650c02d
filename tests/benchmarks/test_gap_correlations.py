"""benchmarks/gap_correlations.py: what was planted is found, and nothing where there is nothing."""

from pathlib import Path

import numpy as np
import pytest
from gap_correlations import correlations, main
from interval_coverage import Library
from made_records import make_turn

from turngap.core.errors import ExitCode
from turngap.core.results import Turn

NOTHING = {"recording": (None, 0), "play": (None, 0), "conversation": (None, 0)}


def played(library: Library, seed: int) -> list[Turn]:
    """A run of a made-up library."""
    gaps = 400 + 50 * library.gaps(np.random.default_rng(seed))
    return [
        make_turn(scenario=scenario, turn=turn + 1, repeat=take + 1, gap_ms=float(gap))
        for (scenario, turn, take), gap in zip(library.takes(), gaps, strict=True)
    ]


@pytest.mark.parametrize(("recording", "play"), [(0.6, 0.0), (0.0, 0.6), (0.3, 0.3)])
def test_what_links_turns_is_told_apart(recording: float, play: float) -> None:
    found = correlations([played(Library(60, 3, recording, play), seed=1)])
    assert found["recording"] == (pytest.approx(recording, abs=0.12), 60 * 3 * 3)
    assert found["play"] == (pytest.approx(play, abs=0.12), 60 * 3 * 3)
    assert found["conversation"][0] == pytest.approx(0, abs=0.12)


def test_the_pace_of_a_run_is_no_likeness() -> None:
    quick, slow = (played(Library(40, 1, 0.0, 0.0), seed) for seed in (2, 3))
    slow = [turn.model_copy(update={"gap_ms": (turn.gap_ms or 0) + 900}) for turn in slow]
    value, pairs = correlations([quick, slow])["recording"]
    assert (value, pairs) == (pytest.approx(0, abs=0.25), 120)


def test_a_run_in_which_nothing_is_slower_than_anything_else_says_nothing() -> None:
    alike = [make_turn(turn=n, repeat=r) for n in (1, 2) for r in (1, 2)]
    lost = [make_turn(outcome="no_reply", gap_ms=None)]
    assert correlations([alike, alike[:1], lost, []]) == NOTHING
    some = played(Library(4, 2, 0.5, 0.0), seed=4)
    assert correlations([some, alike[:1], lost, []]) == correlations([some])


def test_a_folder_without_runs_is_said_to_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["gap_correlations.py", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.BAD_INPUT
    said = f"gap_correlations: there is no run in {tmp_path / 'none'}\n"
    assert capsys.readouterr() == ("", said)
