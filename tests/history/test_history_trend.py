"""`turngap history trend`: the series, where they changed, and what is said of it."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import made_runs as made
import pytest
from commandline import turngap_here
from html_page import Page
from trend_series import SEED, entry, found, reader

from turngap.core.errors import InputError
from turngap.history.entry import Entry
from turngap.history.page import list_report, trends_block, trends_report
from turngap.history.reading import entries
from turngap.history.trend import Move, Trend, trends
from turngap.history.trend_words import commits_words, move_sentence, trend_chart
from turngap.report import page


def only_move(found_: list[Trend]) -> Move:
    (trend,) = found_
    (move,) = trend.moves
    return move


def test_the_command_names_the_run_and_the_commit_of_stored_runs(tmp_path, capsys):
    runs, file = tmp_path / "runs", tmp_path / "trend.html"
    made.store(runs, made.gaps_of(SEED, 30, 25.0, 18))
    done = turngap_here(capsys, "history", "trend", "--runs", runs, "--html", file, "--json")
    assert done.code == 0
    (series,) = done.document()["series"]
    (change,) = series["changes"]
    assert abs(change["number"] - 18) <= 1
    assert made.commit_of(18) in change["commits"]
    assert change["commit_range"].endswith(change["commits"][-1])
    assert change["low_ms"] < 25 < change["high_ms"]
    assert change["p_value"] <= 0.01
    assert [run["number"] for run in series["runs"]] == list(range(1, 31))
    assert (series["agent"], series["left_out"], series["why_none"]) == ("embedded", [], None)
    shown = Page(file.read_text())
    shown.assert_safe()
    assert f"{made.commit_of(18)[:9]}" in shown.text
    assert len(shown.all("circle")) == 30
    assert "Everything stored" not in shown.text
    done = turngap_here(capsys, "history", "trend", "--runs", runs)
    assert "slower from run" in " ".join(done.out.split())
    assert "turngap history diff" in done.err


def test_the_page_leads_from_each_run_to_its_own_page(tmp_path):
    made.store(tmp_path / "runs", made.gaps_of(SEED, 3, 0.0, 18))
    stored = entries([tmp_path / "runs"])
    (Path(stored[1].path) / "report.html").write_text("x")
    shown = page.render(trends_report(trends(stored), tmp_path / "pages"))
    name = Path(stored[1].path).name
    assert re.findall(r'<a href="([^"]*)"', shown) == [f"../runs/{name}/report.html"]


def test_the_page_of_the_docs_shows_what_is_printed(tmp_path):
    made.store(tmp_path, made.gaps_of(3000, 30, 25.0, 18))
    shown = trends_block(trends(entries([tmp_path])), 120).plain
    page_ = (Path(__file__).parents[2] / "docs/trend.md").read_text(encoding="utf-8")
    said = page_.split("```text\n", 1)[1].split("```", 1)[0]
    assert [line.rstrip() for line in shown.splitlines() if line.strip()] == said.splitlines()


def test_nothing_is_named_where_nothing_changed(tmp_path, capsys):
    made.store(tmp_path, made.gaps_of(SEED, 30, 0.0, 18))
    done = turngap_here(capsys, "history", "trend", "--runs", tmp_path)
    assert "no change of level or hit rate in 30 runs" in done.out


def test_there_is_a_series_for_each_agent_machine_and_what_was_played():
    entries = [entry(n) for n in range(1, 31)]
    entries += [entry(n, agent="stock") for n in (31, 32)]
    entries += [entry(33, machine="other"), entry(34, played="0"), entry(35, metrics_version=3)]
    entries += [entry(36, kind="check"), entry(37, kind="load")]
    entries += [entry(38, line="twilio 8000"), entry(39, starved_ms=40.0)]
    sizes = [len(trend.points) for trend in found(entries)]
    assert sizes == [30, 2, 1, 1, 1, 1, 1]


def test_runs_that_cannot_be_used_are_left_out_with_their_reason():
    entries = [entry(n) for n in range(1, 31)]
    entries[3] = replace(entries[3], valid=False, why=("the caller was starved",))

    def read(of: Entry):
        if of.path == "runs/6":
            raise InputError("document.damaged", "turns.jsonl:3 is damaged")
        return {("x", turn, 0.0, 1): 300.0 for turn in range(12 if of.path != "runs/9" else 2)}

    (trend,) = trends(entries, read)
    assert len(trend.points) == 27
    assert [(e.path, why) for e, why in trend.left_out] == [
        ("runs/4", "the caller was starved"),
        ("runs/6", "turns.jsonl:3 is damaged"),
        (
            "runs/9",
            "2 turns in common with half of the runs, where a run needs 5: play more in each run "
            "with --repeat 3",
        ),
    ]
    text = " ".join(trends_block([trend], 100).plain.split())
    assert "3 of 30 runs: the caller was starved; turns.jsonl:3 is damaged; 2 turns in" in text


def test_where_too_few_runs_tell_nothing_is_drawn_or_said_of_a_level():
    (trend,) = found([entry(n) for n in range(1, 4)])
    assert trend.why_none is not None
    chart = trend_chart(trend)
    assert chart is not None
    assert not chart.paths
    assert "Lines are" not in chart.note
    assert "Not known" in chart.spoken


def test_runs_that_a_busy_machine_slowed_are_shown_and_set_aside():
    gaps = made.gaps_of(SEED, 30, 25.0, 18)
    gaps[[15, 16]] += made.SLOW_MS[[5, 9]] - made.TYPICAL_MS
    (trend,) = trends([entry(n) for n in range(1, 31)], reader(gaps))
    assert len(trend.points) == 30
    assert {16, 17} <= {n for n, point in enumerate(trend.points, start=1) if point.uneven}
    (move,) = trend.moves
    assert move.number == 17
    assert move.change.first <= 15
    assert made.commit_of(18) in move.commits.came
    assert "16, 17" in " ".join(trends_block([trend], 100).plain.split())
    chart = trend_chart(trend)
    assert chart is not None
    assert sum(dot.hollow for dot in chart.dots) == sum(point.uneven for point in trend.points)
    assert "Hollow" in chart.note


def test_a_change_within_one_clean_commit_points_at_the_machine():
    move = only_move(found([entry(n, commit="abc") for n in range(1, 31)]))
    assert move.commits.same
    assert "at one commit there: look at the machine" in move_sentence(move)


@pytest.mark.parametrize(
    ("commit", "why", "cell"),
    [
        (None, "Not every run there says its commit", "some unknown"),
        ("abc-dirty", "The checkout had changes that no commit names", "files differed"),
    ],
)
def test_what_is_not_known_of_a_commit_acquits_none(commit, why, cell):
    move = only_move(found([entry(n, commit=commit) for n in range(1, 31)]))
    assert not move.commits.same
    assert why in move_sentence(move)
    assert cell in commits_words(move)
    assert "machine" not in move_sentence(move)


def test_the_commits_of_runs_that_were_left_out_are_in_question():
    entries = [entry(n, commit="aaaa" if n < 17 else "cccc") for n in range(1, 31)]
    entries[16] = replace(entries[16], valid=False, why=("it was late",), commit="bbbb")
    move = only_move(found(entries))
    assert move.commits.came == ("bbbb", "cccc")
    assert move.commits.range == "aaaa..cccc"
    assert "your checkout's commits in `git log aaaa..cccc`" in move_sentence(move)


def test_a_commit_that_came_and_went_is_named():
    commits = ["aaaa"] * 16 + ["bbbb", "aaaa"] + ["aaaa"] * 12
    entries = [entry(n, commit=commit) for n, commit in enumerate(commits, start=1)]
    entries[16] = replace(entries[16], valid=False)
    move = only_move(found(entries))
    assert (move.commits.same, move.commits.range) == (False, None)
    assert "came to bbbb, aaaa" in move_sentence(move)


def test_the_outcomes_stand_beside_a_change():
    entries = [entry(n, hits=12 if n < 18 else 9, cut_ins=0) for n in range(1, 31)]
    move = only_move(found(entries))
    assert "were in time and 0.0 % cut into; after, 75.0 % and 0.0 %." in move_sentence(move)
    assert (move.after.turns, move.before.turns + move.after.turns) == (12 * move.after.runs, 360)


def test_the_newest_of_each_series_are_taken():
    entries = [entry(n) for n in range(1, 31)] + [entry(n, agent="stock") for n in range(31, 41)]
    gaps = {("x", turn, 0.0, 1): 300.0 for turn in range(12)}
    assert [len(t.points) for t in trends(entries, lambda _: gaps, last=20)] == [20, 10]


def test_runs_that_never_reached_the_agent_are_no_series_of_their_own():
    lost = [
        entry(n, valid=False, status="failed", n=0, line="", why=("nothing can be reached",))
        for n in (1, 2)
    ]
    bad = [entry(n, valid=False, line="pipecat 16000", why=("starved",)) for n in (3, 4)]
    (trend,) = found([*lost, *bad])
    assert [of.path for of, _ in trend.left_out] == ["runs/3", "runs/4"]
    assert found(lost) == []


def test_where_no_run_has_enough_turns_it_is_said_how_to_have_more():
    read = reader(made.gaps_of(SEED, 40, 0.0, 18)[:, :3])
    (trend,) = trends([entry(n, n=3, hits=3, cut_ins=0) for n in range(1, 4)], read)
    text = " ".join(trends_block([trend], 100).plain.split())
    assert "fewer than 5 turns in common with half of the runs: play more turns in each" in text


def test_the_next_step_can_be_pasted(tmp_path, capsys):
    made.store(tmp_path / "my runs", made.gaps_of(SEED, 30, 25.0, 18))
    done = turngap_here(capsys, "history", "trend", "--runs", tmp_path / "my runs")
    command = done.err.split("see what moved: ")[1]
    assert len(shlex.split(command)) == 5


def test_a_quicker_agent_is_said_to_be_quicker():
    move = only_move(found([entry(n) for n in range(1, 31)], change_ms=-40.0))
    assert abs(move.number - 18) <= 1
    assert f"ms quicker from run {move.number}" in move_sentence(move)


def test_too_few_runs_say_how_many_it_takes():
    (trend,) = found([entry(n) for n in range(1, 7)])
    assert trend.why_none == "6 usable runs, and it takes 12 to tell a change from chance"
    assert "not known: 6 usable runs" in trends_block([trend], 100).plain
    (trend,) = found([entry(1, valid=False)])
    assert trend.points == ()


def test_shifts_that_matter_to_nobody_are_not_named():
    def read(of: Entry):
        late = int(of.path.rpartition("/")[2]) > 15
        return {("x", turn, 0.0, 1): 300.0 + 2.5 * late for turn in range(12)}

    (trend,) = trends([entry(n) for n in range(1, 31)], read)
    assert trend.moves == ()


@pytest.mark.parametrize("agent", ["<script>alert(1)</script>", "\x1b[31mred", ""])
def test_what_an_entry_says_is_text_on_the_page(agent):
    entries = [entry(n, agent=agent, label=agent) for n in range(1, 31)]
    for shown in (list_report(entries, found(entries)), trends_report(found(entries))):
        Page(page.render(shown)).assert_safe()


def test_without_a_replay_there_is_a_next_step(tmp_path, capsys):
    done = turngap_here(capsys, "history", "trend", "--runs", tmp_path)
    assert (done.code, done.out) == (0, "")
    assert "turngap replay" in done.err
    assert turngap_here(capsys, "history", "trend", "--runs", tmp_path, "--json").document() == {
        "series": []
    }
    html = tmp_path / "none.html"
    assert turngap_here(capsys, "history", "trend", "--runs", tmp_path, "--html", html).code == 0
    Page(html.read_text()).assert_safe()


def test_options_before_the_subcommand_are_refused(tmp_path, capsys):
    done = turngap_here(capsys, "history", "--runs", tmp_path, "trend")
    assert done.code == 2
    assert "after `trend`" in done.err


def test_the_list_has_a_page_too(tmp_path, capsys):
    file = tmp_path / "history.html"
    made.store(tmp_path / "runs", made.gaps_of(SEED, 3, 0.0, 18))
    done = turngap_here(capsys, "history", "--runs", tmp_path / "runs", "--html", file)
    assert (done.code, "written" in done.err) == (0, True)
    shown = Page(file.read_text())
    shown.assert_safe()
    assert "3 usable runs, and it takes 12" in shown.text
    titles = [shown.text.index(t) for t in ("Everything stored", "Trend: embedded")]
    assert titles == sorted(titles)
    assert (
        turngap_here(capsys, "history", "--runs", tmp_path / "runs", "--html", tmp_path).code == 2
    )
