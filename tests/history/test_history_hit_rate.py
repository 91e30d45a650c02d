"""`turngap history trend`: changes of the hit rate, and runs that are set aside."""

from dataclasses import replace

import made_runs as made
import numpy as np
import pytest
from html_page import Page
from trend_series import entry, found, lost_from, reader

from turngap.history.page import trends_block, trends_report
from turngap.history.trend import ALPHA_EACH, Trend, trends
from turngap.history.trend_json import trends_json
from turngap.history.trend_words import trend_chart
from turngap.report import page


def test_replies_that_are_lost_from_a_run_on_are_a_change_of_the_hit_rate():
    (trend,) = found(lost_from(16, [entry(n) for n in range(1, 31)]), change_ms=0.0)
    (move,) = trend.hit_moves
    assert (trend.moves, move.number) == ((), 16)
    assert (move.change.before, move.change.after) == pytest.approx((1.0, 10 / 12))
    assert move.change.p_value <= ALPHA_EACH
    text = " ".join(trends_block([trend], 80).plain.split())
    of = f"(commit {made.commit_of(16)[:9]})"
    assert f"hit rate 16.7 points lower from run 16 {of} on, 100.0 % before and 83.3 %" in text
    assert "Before, 0.0 % of the turns were cut into; after, 0.0 %." in text
    chart = trend_chart(trend)
    assert chart is not None
    assert [rule.label.partition(": ")[2] for rule in chart.rules] == ["hit rate -16.7 points"]
    shown = Page(page.render(trends_report([trend])))
    assert "Changes of the hit rate" in shown.text
    (document,) = trends_json([trend])["series"]
    (change,) = document["hit_rate_changes"]
    assert document["changes"] == []
    assert (change["number"], change["commit"]) == (16, made.commit_of(16))
    assert change["difference_hit_rate"] == pytest.approx(-2 / 12)


def test_a_change_of_the_gap_and_one_of_the_hit_rate_stand_beside_each_other():
    entries = lost_from(10, [entry(n) for n in range(1, 31)])
    (trend,) = found(entries, at=20)
    (moved,), (lost,) = trend.moves, trend.hit_moves
    assert abs(moved.number - 20) <= 1
    assert abs(lost.number - 10) <= 1
    labels = [line.split()[0] for line in trends_block([trend], 80).plain.splitlines() if line]
    assert labels.index("moved") < labels.index("hit")


def test_runs_with_several_budgets_have_no_hit_rate_to_compare():
    entries = lost_from(16, [entry(n) for n in range(1, 31)])
    entries[0] = replace(entries[0], budget_ms=500.0)
    (trend,) = found(entries, change_ms=0.0)
    assert (trend.hit_moves, trend.why_no_hits) == ((), "the runs had several budgets")
    text = " ".join(trends_block([trend], 100).plain.split())
    assert "no change of level in 30 runs; of the hit rate not known: the runs had" in text
    assert "in the older half of the runs, – of the turns were in time" in text
    (trend,) = found([replace(e, hits=None) for e in entries[1:]])
    assert trend.why_no_hits == "not every run has one"
    assert "hit rate not known: not every run has one" in " ".join(
        trends_block([trend], 100).plain.split()
    )


def slowed_by_a_machine(of_eight: tuple[int, ...]) -> list[Trend]:
    """A series in which these of each eight runs are slower, each turn by something else."""
    rng = np.random.default_rng(1)
    gaps = made.TYPICAL_MS + rng.normal(0, 6, (40, len(made.TYPICAL_MS)))
    bad = [place for place in range(40) if place % 8 in of_eight]
    gaps[bad] += rng.exponential(150, (len(bad), gaps.shape[1]))
    return trends([entry(1, path=f"runs/{number}") for number in range(1, 41)], reader(gaps))


def test_how_many_runs_were_set_aside_is_said_and_stored():
    (trend,) = slowed_by_a_machine((5,))
    (document,) = trends_json([trend])["series"]
    aside = document["set_aside"]
    assert (aside["numbers"], trend.why_none) == (list(trend.uneven), None)
    assert trend.uneven == (6, 14, 22, 30, 38)
    text = " ".join(trends_block([trend], 80).plain.split())
    assert aside["why"] in text
    assert aside["why"].startswith(f"{len(trend.uneven)} of 40 runs are uneven (")
    assert aside["why"].endswith(f"The trend stands on the other {40 - len(trend.uneven)}.")
    assert aside["why"] in " ".join(page.render(trends_report([trend])).split())
    (still,) = found([entry(n) for n in range(1, 4)])
    assert trends_json([still])["series"][0]["set_aside"] == {"numbers": [], "why": None}


def test_where_more_than_a_third_is_uneven_no_change_is_looked_for():
    (trend,) = slowed_by_a_machine((0, 1, 2))
    n = len(trend.uneven)
    assert n > 40 / 3
    assert (trend.moves, trend.hit_moves) == ((), ())
    why = trend.why_none
    assert why is not None
    assert why.startswith(f"{n} of 40 runs are uneven, and where more than a third are")
    text = " ".join(trends_block([trend], 80).plain.split())
    assert f"not known: {why}" in text
    assert "The trend stands on" not in text
    assert "in the older half" not in text
    assert "not known" in " ".join(page.render(trends_report([trend])).split())
