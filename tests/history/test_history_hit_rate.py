"""`turngap history trend`: changes of the hit rate, and runs that are set aside."""

from dataclasses import replace

import made_runs as made
import numpy as np
import pytest
from html_page import Page
from trend_series import SEED, entry, found, lost_from, reader

from turngap.core.results import TurnKey
from turngap.history.entry import Entry
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
    assert (move.change.low, move.change.high) == (None, None)
    assert "no 95 % interval: the runs on each side are all alike; p ≤ 0.001" in text
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
    assert change["why_no_interval"] == "the runs on each side are all alike"


def test_the_interval_of_a_change_of_the_hit_rate_has_room_on_either_side():
    entries = lost_from(16, [entry(n) for n in range(1, 31)])
    entries[20] = replace(entries[20], hits=8)
    (trend,) = found(entries, change_ms=0.0)
    (move,) = trend.hit_moves
    low, high = move.change.low, move.change.high
    assert low is not None and high is not None
    assert low < move.change.difference < high < 0
    ends = f"{100 * low:+.1f} to {100 * high:+.1f} points"
    assert f"95 % interval {ends};" in " ".join(trends_block([trend], 80).plain.split())


def cut_into_from(run: int, of: int = 8) -> list[Trend]:
    """30 runs of twelve turns; from a run on, the agent cuts into so many, other ones each time."""
    gaps = made.gaps_of(SEED, 30, 0.0, 18)
    rng = np.random.default_rng(5)
    for row in gaps[run - 1 :]:
        row[rng.choice(12, of, replace=False)] = np.nan
    entries = lost_from(run, [entry(n) for n in range(1, 31)], lost=of)
    entries = [replace(e, cut_ins=of * (n >= run)) for n, e in enumerate(entries, start=1)]

    def read(run_: Entry) -> dict[TurnKey, float]:
        gaps_read = reader(gaps)(run_)
        return {key: gap for key, gap in gaps_read.items() if not np.isnan(gap)}

    return trends(entries, read)


def test_an_agent_that_begins_to_cut_into_most_turns_has_a_change_of_its_hit_rate():
    found_ = cut_into_from(20)
    (trend,) = found_
    (move,) = trend.hit_moves
    assert (trend.moves, move.number, trend.left_out) == ((), 20, ())
    assert trend.without_level == tuple(range(20, 31))
    assert move.commits.came[-1] == made.commit_of(20)
    text = " ".join(trends_block(found_, 80).plain.split())
    assert "66.7 points lower from run 20" in text
    assert "Before, 0.0 % of the turns were cut into; after, 66.7 %." in text
    assert "no level 11 of 30 runs (20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30): fewer than" in text
    assert "counted for the hit rate only" in text
    (document,) = trends_json(found_)["series"]
    assert document["without_level"]["numbers"] == list(range(20, 31))
    assert [run["level_ms"] is None for run in document["runs"]] == [n >= 20 for n in range(1, 31)]
    chart = trend_chart(trend)
    assert chart is not None
    assert (len(chart.dots), len(chart.rules)) == (19, 1)
    shown = Page(page.render(trends_report(found_)))
    assert "counted for the hit rate only" in shown.text


@pytest.mark.parametrize(("run", "of"), [(9, 8), (9, 12), (1, 12)])
def test_where_too_few_runs_tell_a_level_the_hit_rate_is_still_looked_at(run, of):
    (trend,) = found_ = cut_into_from(run, of)
    assert [move.number for move in trend.hit_moves] == [run][: run > 1]
    assert trend.why_no_level is not None
    text = " ".join(trends_block(found_, 80).plain.split())
    assert f"not known: {trend.why_no_level}" in text
    assert trend.why_no_level in " ".join(Page(page.render(trends_report(found_))).text.split())
    (document,) = trends_json(found_)["series"]
    assert (document["why_none"], document["why_no_level"]) == (None, trend.why_no_level)


def test_where_neither_can_be_looked_at_that_is_said():
    entries = [entry(n, hits=0, budget_ms=float(n)) for n in range(1, 31)]
    (trend,) = found_ = trends(entries, lambda _: {})
    assert (trend.hit_moves, trend.why_no_level, trend.why_no_hits) == ((), None, None)
    assert trend.why_none == "only 0 of 30 runs tell a level, and it takes 12"
    assert "hit rate only" not in trends_block(found_, 80).plain


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
