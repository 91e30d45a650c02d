"""`turngap history trend`: the series, where they changed, and what is said of it."""

import shlex
from dataclasses import replace
from pathlib import Path

import made_runs as made
import pytest
from commandline import turngap_here
from history_runs import stored

from turngap.history.kinds import Entry
from turngap.history.listing import entries
from turngap.history.trend import latest_two, trend_lines, trends
from turngap.play.target import AgentChoice

SEED = 3001


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store 30 runs that are slower by 25 ms from the 18th on."""
    root = tmp_path_factory.mktemp("my runs")
    made.store(root, made.gaps_of(SEED, 30, 25.0, 18))
    return root


@pytest.fixture(scope="module")
def runs(slower: Path) -> list[Entry]:
    return entries([slower])


def words_of(stored: list[Entry]) -> str:
    (trend,) = trends(stored)
    return " ".join(line.text for line in trend_lines(trend).lines)


def test_the_command_names_the_run_and_the_commit_of_stored_runs(slower, capsys):
    done = turngap_here(capsys, "history", "trend", "--runs", slower, "--json")
    (series,) = done.document()["series"]
    (change,) = series["changes"]
    assert abs(change["number"] - 18) <= 1
    assert change["first_number"] <= 18 <= change["last_number"]
    assert change["low_ms"] < 25 < change["high_ms"]
    assert change["p_value"] <= 0.005
    assert [run["number"] for run in series["runs"]] == list(range(1, 31))
    assert (series["left_out"], series["why_none"]) == ([], None)
    done = turngap_here(capsys, "history", "trend", "--runs", slower)
    shown = " ".join(done.out.split())
    assert "slower from run" in shown
    assert f"`git log {change['commit_range']}`" in shown
    command = done.err.split("see what moved: ")[1]
    assert len(shlex.split(command)) == 5


def test_the_page_of_the_docs_shows_what_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    made.store(tmp_path, made.gaps_of(3000, 30, 25.0, 18))
    shown = turngap_here(capsys, "history", "trend", "--runs", tmp_path).out
    page = (Path(__file__).parents[2] / "docs/history.md").read_text(encoding="utf-8")
    text = page.split("## Which commit", 1)[1].split("```text\n", 1)[1].split("```", 1)[0]
    assert shown.split() == text.split()


def test_nothing_is_named_where_nothing_changed(tmp_path):
    made.store(tmp_path, made.gaps_of(SEED, 30, 0.0, 18))
    assert "no change of level in 30 runs" in words_of(entries([tmp_path]))


def test_a_quicker_agent_is_said_to_be_quicker(tmp_path):
    made.store(tmp_path, made.gaps_of(SEED, 30, -40.0, 18))
    assert "ms quicker from run" in words_of(entries([tmp_path]))


def test_there_is_a_series_for_each_agent_machine_and_what_was_played(runs):
    others = [
        {"agent": "stock"},
        {"machine": "other"},
        {"played": "0"},
        {"metrics_version": 99},
        {"line": "twilio 8000"},
        {"starved_ms": 40.0},
        {"kind": "check"},
        {"kind": "load"},
    ]
    stored = [*runs[:20], *(replace(runs[20], **other) for other in others)]
    assert [len(trend.points) for trend in trends(stored)] == [20, 1, 1, 1, 1, 1, 1]


def at(url: str, start: str = "") -> dict[str, str]:
    return {"url": url, "dialect": "twilio"} | ({"start": start} if start else {})


BOT = "python bot.py --port 8800"


@pytest.mark.parametrize(
    ("one", "other", "series"),
    [
        (at("ws://127.0.0.1:8800/ws", BOT), at("ws://localhost:8899/ws", BOT[:-4] + "8899"), 1),
        (at("ws://127.0.0.1:8800/", "python bot.py"), at("ws://[::1]:8899/", "python bot.py"), 1),
        (at("ws://127.0.0.1:40123/ws"), at("ws://127.0.0.1:51234/ws"), 1),
        (at("ws://127.0.0.1:8800/a", BOT), at("ws://127.0.0.1:8800/b", BOT), 2),
        (at("ws://127.0.0.1:8800/", BOT), at("ws://127.0.0.1:8800/", "python other.py"), 2),
        (at("ws://127.0.0.1:8765/ws"), at("ws://127.0.0.1:8766/ws"), 2),
        (at("ws://bot.test:8800/", BOT), at("ws://bot.test:8899/", BOT), 2),
        (at("ws://127.0.0.1:no/", BOT), at("ws://[/", BOT), 2),
    ],
)
def test_an_agent_has_one_series_at_whatever_port_it_was_started(tmp_path, one, other, series):
    for agent in (one, other):
        stored(tmp_path, agent=agent)
    assert len(trends(entries([tmp_path]))) == series


def test_telemetry_and_the_history_have_one_name_for_an_agent():
    for port in (8800, 8899):
        url = f"ws://127.0.0.1:{port}/ws?key=1"
        choice = AgentChoice.of(url, start=f"python bot.py --port={port}")
        assert choice.steady_name == "python bot.py --port=PORT at /ws"
    assert AgentChoice("ws://127.0.0.1:8765/ws").steady_name == "127.0.0.1:8765/ws"


def test_runs_that_cannot_be_used_are_left_out_with_their_reason(tmp_path):
    made.store(tmp_path, made.gaps_of(SEED, 20, 0.0, 18))
    stored = entries([tmp_path])
    stored[3] = replace(stored[3], valid=False, why=("the caller was starved",))
    (Path(stored[5].path) / "turns.jsonl").write_text("nonsense\n")
    turns = Path(stored[8].path) / "turns.jsonl"
    turns.write_bytes(b"".join(turns.read_bytes().splitlines(keepends=True)[:2]))
    (trend,) = trends(stored)
    assert [entry.path for entry, _ in trend.left_out] == [
        stored[3].path,
        stored[5].path,
        stored[8].path,
    ]
    assert len(trend.points) == 17
    text = words_of(stored)
    for why in ("the caller was starved", "turns.jsonl:1", "fewer than 5 turns in common"):
        assert why in text


def test_runs_that_a_busy_machine_slowed_are_shown_and_set_aside(tmp_path):
    gaps = made.gaps_of(SEED, 30, 25.0, 18)
    gaps[[15, 16]] += made.SLOW_MS[[5, 9]] - made.TYPICAL_MS
    made.store(tmp_path, gaps)
    (trend,) = trends(entries([tmp_path]))
    assert {16, 17} <= {n for n, point in enumerate(trend.points, start=1) if point.uneven}
    (change,) = trend.changes
    assert change.at == 16
    assert change.first <= 15
    assert "16, 17): their turns are off" in words_of(entries([tmp_path]))


def test_a_change_within_one_clean_commit_points_at_the_machine(runs):
    assert "look at the machine" in words_of([replace(run, commit="abcd") for run in runs])


@pytest.mark.parametrize("commit", [None, "abcd-dirty"])
def test_what_is_not_known_of_a_commit_acquits_none(runs, commit):
    text = words_of([replace(run, commit=commit) for run in runs])
    assert "do not name a commit without changes" in text
    assert "machine, the network" not in text


def test_the_commits_of_runs_that_were_left_out_are_in_question(runs):
    stored = [replace(run, commit="aaaa" if n < 17 else "cccc") for n, run in enumerate(runs, 1)]
    stored[16] = replace(stored[16], valid=False, commit="bbbb-dirty")
    text = words_of(stored)
    assert "`git log aaaa..cccc`; some of these runs do not" in text


def test_runs_that_never_reached_the_agent_are_no_series_of_their_own(runs):
    lost = [replace(run, valid=False, status="failed", n=0, line="") for run in runs[:2]]
    bad = [replace(run, valid=False, line="pipecat 16000") for run in runs[2:4]]
    (trend,) = trends([*lost, *bad])
    assert [entry for entry, _ in trend.left_out] == bad
    assert trends(lost) == []


def test_too_few_runs_say_how_many_it_takes(runs):
    assert "not known: 6 usable runs; expected 12 or more even ones" in words_of(runs[:6])
    alone = words_of(runs[:1])
    assert "1 run, " in alone
    assert "1 runs" not in alone
    assert "not known" in words_of([replace(runs[0], valid=False)])


def test_shifts_that_matter_to_nobody_are_not_named(tmp_path):
    gaps = made.gaps_of(SEED, 30, 0.0, 18)
    gaps[:] = 300.0
    gaps[15:] += 2.5
    made.store(tmp_path, gaps)
    assert trends(entries([tmp_path]))[0].changes == ()


def test_the_two_latest_runs_of_a_series_are_those_to_compare(runs):
    assert latest_two(runs) == (runs[-2], runs[-1])
    assert latest_two([*runs[:-1], replace(runs[-1], valid=False)]) == (runs[-3], runs[-2])
    assert latest_two(runs[:1]) is None


def test_without_a_replay_there_is_a_next_step(tmp_path, capsys):
    done = turngap_here(capsys, "history", "trend", "--runs", tmp_path)
    assert (done.code, done.out) == (0, "")
    assert "turngap replay" in done.err
    assert turngap_here(capsys, "history", "trend", "--runs", tmp_path, "--json").document() == {
        "series": []
    }


def test_options_before_the_subcommand_are_refused(tmp_path, capsys):
    done = turngap_here(capsys, "history", "--runs", tmp_path, "trend")
    assert done.code == 2
    assert "after `trend`" in done.err
