"""benchmarks/interval_coverage.py: what turngap says of its intervals, in few trials."""

from math import sqrt

import numpy as np
import pytest
from interval_coverage import Library, coverage, main

TRIALS = 100


def enough(expected: float) -> float:
    """Three standard errors of so many trials below."""
    return expected - 3 * sqrt(expected * (1 - expected) / TRIALS)


@pytest.mark.parametrize(
    "library",
    [
        Library(7, 3, 0.3, 0.0),
        Library(7, 5, 0.6, 0.0),
        Library(16, 3, 0.9, 0.0),
        Library(16, 3, 0.3, 0.3),
        Library(16, 1, 0.0, 0.3),
    ],
    ids=str,
)
def test_intervals_hold_the_truth_95_times_in_100_whatever_links_the_turns(
    library: Library,
) -> None:
    found = coverage(library, TRIALS, ways=("independent", "turngap"))
    for figure in ("p50", "p95", "hit rate"):
        held, _ = found[figure, "turngap"]
        assert held >= enough(0.95), figure
        assert held >= found[figure, "independent"][0]


def test_as_if_rounds_were_turns_nearly_half_would_miss() -> None:
    found = coverage(Library(7, 8, 0.9, 0.0), TRIALS, ways=("independent", "turngap"))
    assert found["p50", "independent"][0] < 0.7
    assert found["hit rate", "independent"][0] < 0.75
    assert found["p50", "turngap"][0] >= enough(0.95)


def test_where_nothing_links_them_one_round_is_hardly_wider() -> None:
    found = coverage(Library(16, 1, 0.0, 0.0), TRIALS, ways=("independent", "turngap"))
    for figure in ("p50", "hit rate"):
        assert found[figure, "turngap"][1] <= 1.2 * found[figure, "independent"][1]


def test_what_is_slow_in_every_round_is_in_what_is_to_be_held() -> None:
    plain, slow = Library(200, 20, 0.0, 0.0), Library(200, 20, 0.0, 0.0, slow=1 / 12)
    for library in (plain, slow):
        gaps = library.gaps(np.random.default_rng(1))
        for q in (0.5, 0.9, 0.95):
            assert library.truth(q) == pytest.approx(float(np.quantile(gaps, q)), abs=0.15)
    assert slow.truth(0.95) > plain.truth(0.95) + 0.5


def test_of_no_trials_there_is_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["interval_coverage.py", "--trials", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "--trials: 1 or more" in capsys.readouterr().err
