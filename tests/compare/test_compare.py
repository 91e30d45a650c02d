"""`turngap compare`: what is refused, what is played in which order, what is stored and said."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS, turngap_here
from fake_agents import FakeAgents, stand_in
from html_page import Page
from made_records import make_comparison, make_turn
from rich.console import Console

from turngap.backends import BackendChoice
from turngap.compare.figures import Side
from turngap.compare.play import ComparePlan, compare, parse_price
from turngap.compare.report import (
    HEIGHT_PX,
    comparison_json,
    comparison_report,
    read_comparison,
    speed_chart,
    task_charts,
)
from turngap.compare.words import crossing as words_of
from turngap.compare.words import stated
from turngap.core.errors import AgentError, InputError
from turngap.core.results import Turn
from turngap.core.stored import AnswerRecord
from turngap.play.plan import Progress
from turngap.play.target import AgentChoice, Target
from turngap.report import ci as markdown_writer
from turngap.report import page as page_writer
from turngap.report import terminal
from turngap.report.charts import BOX
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths
from turngap.store.comparisons import COMPARISON_FILE, ComparisonRecord, CrossingRecord
from turngap.store.documents import find_folder

UNDECIDED = "these turns do not decide whether b overtakes a within 20 turns; n = 21"
SCRIPT = "<script>alert(1)</script>"
WRONG = AnswerRecord(verdict="wrong", failed=("x",))
GOOD, QUICK = BackendChoice("good", "sim:full"), BackendChoice("quick", "sim:distilled")


class Answering(FakeAgents):
    """Agents that are right in all turns, or in two of three."""

    def turn(self, url: str, scenario: str, number: int, repeat: int, phase: int) -> Turn:
        made = make_turn(scenario=scenario, turn=number, repeat=repeat)
        wrong = url == "quick" and number == 3
        counts = {"llm_prompt_tokens": 100.0, "llm_completion_tokens": 10.0}
        if number != 2:
            counts |= {"llm_ttft_ms": 153.2, "llm_tokens_per_s": 64.4, "llm_window_tokens": 8.0}
        events = (
            {"event": "UserSpeech", "start_ns": 0},
            {"event": "AgentSilence", "at_ns": 2_000_000_000 if url == "quick" else 3_000_000_000},
        )
        answer = AnswerRecord(verdict="wrong" if wrong else "right", failed=("x",) * wrong)
        update = {"answer": answer, "counts": counts, "events": events}
        return made.model_copy(update=update)


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Answering:
    fake = Answering()

    def name_of(target: Target) -> str:
        return "quick" if target.choice.backends["llm"] == QUICK.backend else "good"

    stand_in(monkeypatch, fake, name_of)
    return fake


def plan(tmp_path: Path, **changes: Any) -> ComparePlan:
    values: dict[str, Any] = {
        "choice": AgentChoice("embedded"),
        "library": SCENARIOS,
        "contenders": [GOOD, QUICK],
        "scenarios": load_scenarios(scenario_paths(SCENARIOS, ["quick-questions"])),
        "rounds": 7,
        "out": tmp_path,
    }
    return ComparePlan(**(values | changes))


TWO = (SCENARIOS / "quick-questions.yaml", "--llm", GOOD.backend, "--llm", QUICK.backend)


def markdown(record: ComparisonRecord) -> str:
    return markdown_writer.markdown(comparison_report(record))


def render(record: ComparisonRecord) -> str:
    return page_writer.render(comparison_report(record))


def shown(record: ComparisonRecord, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(terminal.block(comparison_report(record), width))
    return file.getvalue()


async def test_backends_take_turns_and_what_they_did_is_stored(tmp_path: Path, agents: Answering):
    told: list[Turn] = []
    record, folder, failure = await compare(plan(tmp_path), Progress(on_turn=told.append))
    assert failure is None
    assert [url for url, *_ in agents.played[:4]] == ["good", "quick", "quick", "good"]
    assert len(told) == plan(tmp_path).turns == 42
    assert read_comparison(folder) == record
    good, quick = record.backends
    assert (good.correct.value, quick.correct.hits, quick.correct.n) == (1.0, 14, 21)
    assert good.price.usd_per_turn == pytest.approx((100 * 5 + 10 * 25) / 1e6)
    assert quick.price.usd_per_right == pytest.approx((100 * 0.75 + 10 * 4.5) / 1e6 * 1.5)
    assert all((folder / b.run / "turns.jsonl").is_file() for b in record.backends)
    in_time = next(c for c in record.crossings if c.what == "time")
    assert (in_time.leader, in_time.follower, in_time.turns) == ("quick", "good", 2)  # 9/4 > 3/2


async def test_one_overtakes_the_other_where_enough_turns_say_so(agents: Answering):
    right = [
        made_turn("right").model_copy(update={"turn": i, "scenario": f"s{i}"}) for i in range(1, 81)
    ]
    wrong = {"answer": WRONG, "events": agents.turn("quick", "x", 1, 1, 0).events}
    quick = [
        t.model_copy(update=wrong if t.turn % 2 else {"events": wrong["events"]}) for t in right
    ]
    record = make_comparison([Side("good", right, (1.0, 1.0)), Side("quick", quick, (0.9, 0.9))])
    found = {c.what: c for c in stated(record)}
    in_time = found["time"]
    assert (in_time.leader, in_time.follower) == ("quick", "good")
    assert (in_time.turns, in_time.earliest, in_time.latest, in_time.n) == (1, 1, 1, 80)
    said = words_of(in_time)
    assert said.startswith("in time, good is ahead of quick from a task of 1 turn on")
    assert said in shown(record, 250)


def test_drawings_stay_in_their_frames_whatever_the_figures():
    for right, n in ((0, 20), (1, 20), (20, 20)):
        for price in (None, (1.0, 10.0), (0.0, 0.0)):
            turns = [
                made_turn("right" if i <= right else "wrong").model_copy(
                    update={"turn": i, "scenario": f"s{i}"}
                )
                for i in range(1, n + 1)
            ]
            record = make_comparison([Side("one", turns, price), Side(SCRIPT, turns, price)])
            for chart in filter(None, (speed_chart(record), *task_charts(record))):
                assert all(0 <= m.at <= 100 for m in (*chart.x_ticks, *chart.rules))
                assert all(0 <= d.x <= 100 and 0 <= d.y <= HEIGHT_PX for d in chart.dots)
                places = [p.split() for line in chart.paths for p in pieces(line.d)]
                assert all(0 <= float(x) <= BOX for x, _ in places)
                assert all(-0.1 <= float(y) <= HEIGHT_PX + 0.1 for _, y in places)
            page = Page(render(record))
            page.assert_safe()
            assert SCRIPT in page.text


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ((6, 3, 12), "b overtakes a at a task of 6 turns (95 % interval: 3 to 12; n = 21)"),
        ((6, 3, None), UNDECIDED),
        ((1, 1, 1), "b is ahead of a from a task of 1 turn on (95 % interval: 1 to 1; n = 21)"),
        (
            (None, 4, None),
            UNDECIDED,
        ),
        (
            (None, None, None),
            "a stays ahead of b up to 20 turns (and so by the 95 % intervals; n = 21)",
        ),
    ],
)
def test_a_crossing_is_claimed_as_far_as_its_intervals_bear_it_out(
    at: tuple[int | None, int | None, int | None], said: str
):
    turns, earliest, latest = at
    found = CrossingRecord(
        what="time",
        leader="a",
        follower="b",
        turns=turns,
        earliest=earliest,
        latest=latest,
        longest=20,
        n=21,
    )
    assert words_of(found) == f"in time, {said}"


def pieces(path: str) -> list[str]:
    return path.removeprefix("M").split("L") if path else []


def made_turn(verdict: str) -> Turn:
    made = Answering().turn("good", "x", 1, 1, 0)
    return made.model_copy(update={"answer": AnswerRecord.model_validate({"verdict": verdict})})


async def test_a_line_that_is_lost_leaves_what_was_played(tmp_path: Path, agents: Answering):
    agents.dies_after = 3
    record, folder, failure = await compare(plan(tmp_path))
    assert isinstance(failure, AgentError)
    assert [b.turns for b in record.backends] == [3, 6]
    assert not any(b.valid for b in record.backends)
    assert "ended early: the line was lost" in shown(read_comparison(folder), 100)
    assert comparison_json(record, folder)["valid"] is False


def test_an_interruption_leaves_runs_that_say_so(
    tmp_path: Path, agents: Answering, monkeypatch: pytest.MonkeyPatch
):
    played = agents.play

    async def interrupted(*where: Any, **how: Any) -> None:
        if len(agents.played) == 2:
            raise asyncio.CancelledError
        await played(*where, **how)

    monkeypatch.setattr(agents, "play", interrupted)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(compare(plan(tmp_path)))
    stored = [run.read_text(encoding="utf-8") for run in tmp_path.glob("*/*/run.json")]
    assert len(stored) == 2
    assert all("interrupted by the user" in run for run in stored)
    (folder,) = tmp_path.iterdir()
    record = read_comparison(folder)
    assert [b.turns for b in record.backends] == [3, 3]
    assert record.failure == "interrupted by the user"
    assert record.pairs[0].right_n == 3


def test_a_backend_that_failed_in_some_turns_is_an_exit_of_its_own(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    agents: Answering,
    monkeypatch: pytest.MonkeyPatch,
):
    made = agents.turn
    monkeypatch.setattr(
        agents,
        "turn",
        lambda *where: made(*where).model_copy(update={"outcome": "error", "error": "refused"}),
    )
    done = turngap_here(capsys, "compare", "--out", tmp_path, *TWO)
    assert done.code == 4
    assert "sim:full: the agent failed in 3 of 3 turns, first: refused" in done.err


async def test_a_price_given_is_the_one_that_counts(tmp_path: Path, agents: Answering):
    record, *_ = await compare(plan(tmp_path, prices={"quick": (0.0, 100.0)}))
    assert record.backends[1].price.usd_per_turn == pytest.approx(1e-3)


def test_a_price_is_read():
    assert parse_price("slow=sim=1,2.5") == ("slow=sim", (1.0, 2.5))


@pytest.mark.parametrize(
    "text", ["small", "small=1", "small=1,2,3,4", "=1,2", "small=-1,2", "a=x,y"]
)
def test_a_price_that_is_none_is_refused(text: str):
    with pytest.raises(InputError, match="NAME=IN,OUT"):
        parse_price(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "0 backends; expected 2 to 8"),
        (["--llm", "sim"], "1 backend; expected 2 to 8"),
        (["--llm", "sim", "--llm", "r=race", "--price", "r=1,2"], "combines backends"),
        (["--llm", "sim", "--llm", "sim"], "two backends have the same name"),
        (["--llm", "sim", "--llm", "nobody"], "no llm backend named 'nobody'"),
        (["--llm", "sim", "--llm", "a=sim,speed"], "'speed' is no KEY=VALUE"),
        (["--llm", "sim", "--llm", "a=sim,speed=1"], "speed"),
        (["--llm", "sim", "--llm", "sim:full", "--price", "x=1,2"], "--price for x"),
        (["--llm", "sim", "--llm", "sim:full", "--agent", "ws://127.0.0.1:9/"], "name a stack"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_played(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], said: str
):
    done = turngap_here(capsys, "compare", "--out", tmp_path, *arguments)
    assert done.code == 2
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


async def test_report_prints_it_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, agents: Answering
):
    _, folder, _ = await compare(plan(tmp_path))
    assert find_folder(str(folder), COMPARISON_FILE) == folder
    assert find_folder(folder.name, COMPARISON_FILE, tmp_path) == folder
    assert find_folder(str(tmp_path), COMPARISON_FILE) is None
    assert read_comparison(folder).backends[0].name == "good"
    stored = json.loads((folder / COMPARISON_FILE).read_bytes())
    for entry in stored["backends"]:
        entry |= {"llm_n": 0, "ttft_ms": None, "tokens_per_s": None}
    (folder / COMPARISON_FILE).write_text(json.dumps(stored))
    assert "| – | – | 8 |" in markdown(read_comparison(folder))
    (folder / COMPARISON_FILE).write_text('{"schema_version": 1}')
    with pytest.raises(InputError, match=r"compare\.json: turngap_version"):
        read_comparison(folder)
    (folder / COMPARISON_FILE).write_text('{"schema_version": 99}')
    with pytest.raises(InputError, match="schema version 99"):
        read_comparison(folder)
