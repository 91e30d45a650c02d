"""No report of a gap leaves out the other half: the turns that the agent cut into."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from html_page import Page
from made_checks import budgets_only_check, make_check, make_side, regressed_check
from made_records import MARKS_MS, make_comparison, make_run, make_turn
from rich.console import Console
from rich.text import Text

from turngap.check.files import check_json
from turngap.check.junit import junit
from turngap.check.record import GapRecord
from turngap.check.report import check_block, check_report
from turngap.check.words import cut_ins_words
from turngap.compare.advice import answer
from turngap.compare.figures import Side
from turngap.compare.files import comparison_json
from turngap.compare.report import comparison_block, comparison_report
from turngap.core.cut_ins import CutIns
from turngap.core.results import AnswerRecord, PauseRecord, Turn
from turngap.core.stats import Percentile
from turngap.live.keeping import figures_of
from turngap.report import page, words
from turngap.report.json import run_json
from turngap.report.markdown import markdown
from turngap.report.run import run_report, summary_block
from turngap.store.runs import Run

RIGHT = AnswerRecord(verdict="right")
PAUSE = PauseRecord(start_ms=400, end_ms=1100)


def turns(
    cut_into: int = 2, n: int = 20, pauses: tuple[PauseRecord, ...] | None = ()
) -> list[Turn]:
    """`n` recorded turns, of which the agent cuts into the first so many."""
    marks = [{"agent_onset": -300.0}] * cut_into + [MARKS_MS] * (n - cut_into)
    return [
        make_turn(turn=i, marks_ms=at, answer=RIGHT, pauses=pauses)
        for i, at in enumerate(marks, start=1)
    ]


def run_of(**about: Any) -> Run:
    return make_run(turns(**about), Path("runs/x"))


def printed(block: Text, width: int) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(block)
    return " ".join(file.getvalue().split())


NO_PAUSE = "none of them has a pause in which an agent could cut in"
SAID = f"2 of 20 turns; 95 % interval 3 % to 30 %; {NO_PAUSE}"
IN_A_SENTENCE = f"cut in on {SAID.replace('turns; ', 'turns (')})"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_run_on_a_terminal(width: int) -> None:
    text = printed(summary_block(run_of(), width), width)
    assert "gap p50" in text
    assert f"cut-ins 10 % {SAID}" in text


def test_a_run_in_files_and_documents() -> None:
    run = run_of()
    report = run_report(run, with_turns=True)
    shown = Page(page.render(report))
    assert f"cut-ins 10 %{SAID}".replace(" ", "") in shown.text.replace(" ", "")
    assert f"| cut-ins | 10 % | {SAID} |" in markdown(report)
    assert run_json(run)["summary"]["cut_ins"] == {
        "hits": 2,
        "n": 20,
        "recorded": 20,
        "value": 0.1,
        "ci95": [run.cut_ins.low, run.cut_ins.high],
        "turns_with_pauses": 0,
    }


def test_a_run_in_python() -> None:
    run = run_of()
    assert "gap p50 398 ms, cut in on 2 of 20" in repr(run)
    assert "<th style='text-align:left'>cut-ins</th>" in run._repr_html_()
    assert (run.cut_ins.hits, run.cut_ins.n, run.cut_ins.paused) == (2, 20, 0)
    assert (run.cut_ins.low or 1) < 0.1 < (run.cut_ins.high or 0)


def test_a_check() -> None:
    cut_ins = CutIns.of([(t.outcome, t.take) for t in turns()])
    sides = {"candidate": make_side(cut_ins=cut_ins), "reference": make_side(cut_ins=cut_ins)}
    said = f"candidate {words.cut_in_sentence(cut_ins)}"
    assert said.startswith("candidate cut in on 2 of 20 turns (95 % interval 3 % to 30 %")
    assert "both the reference and the candidate cut in on 2" in cut_ins_words(make_check(**sides))
    for record in (make_check(**sides), regressed_check(**sides)):
        assert said in printed(check_block(record, 100), 100)
        assert said in Page(page.render(check_report(record))).text
        assert said in markdown(check_report(record))
        assert said in junit(record, "").decode()
        document = check_json(record, Path("x"))
        assert document["candidate"]["cut_ins"]["hits"] == 2
        assert document["reference"]["cut_ins"]["n"] == 20
    alone = budgets_only_check(candidate=make_side(cut_ins=cut_ins))
    assert said.replace("candidate", "agent", 1) in printed(check_block(alone, 100), 100)


def test_a_check_that_passes_tells_the_gaps() -> None:
    gap = GapRecord(
        p50=Percentile(213.0, 205.0, 265.0),
        p95=Percentile(None, why_none="n=6, needs 20"),
        slowest_ms=322.0,
        slowest=("order", 2, 0.0, 3),
    )
    alone = budgets_only_check(candidate=make_side(gap=gap))
    told = "p50 213 ms (95 % interval 205 to 265), p95 – (n=6, needs 20), slowest reply 322 ms "
    told += "(order, turn 2, repeat 3)"
    for text in (
        printed(check_block(alone, 300), 300),
        Page(page.render(check_report(alone))).text,
        markdown(check_report(alone)),
    ):
        assert told in text
    both = make_check(candidate=make_side(gap=gap), reference=make_side(gap=gap))
    assert f"candidate {told}; reference p50 213 ms" in printed(check_block(both, 400), 400)


@pytest.mark.parametrize("width", [80, 100, 300])
def test_a_comparison(width: int) -> None:
    record = make_comparison([Side("one", turns(), None), Side("two", turns(cut_into=0), None)])
    assert "one cut in on 2 of 20 turns (95 % interval 3 % to 30 %" in answer(record)
    for text in (
        printed(comparison_block(record, width), width),
        Page(page.render(comparison_report(record))).text,
        markdown(comparison_report(record)),
    ):
        assert "cut-ins" in text
        assert "2 of 20 (3 % to 30 %)" in text
        assert "0 of 20 (0 % to 16 %)" in text
    first, second = json.loads(json.dumps(comparison_json(record, Path("x"))))["backends"]
    assert (first["cut_ins"]["hits"], second["cut_ins"]["hits"]) == (2, 0)
    assert first["cut_ins"].keys() == run_json(run_of())["summary"]["cut_ins"].keys()


def test_a_live_conversation() -> None:
    figures = figures_of(turns())
    for part in (figures["all"], *figures["llms"].values()):
        assert (part["cut_ins"]["percent"], part["cut_ins"]["words"]) == ("10 %", IN_A_SENTENCE)
        assert part["caption"].startswith(f"p50 398 ms · {IN_A_SENTENCE} · ")


@pytest.mark.parametrize(
    ("pauses", "said"),
    [
        (None, words.NOT_LOOKED),
        ((), NO_PAUSE),
        ((PAUSE,), "20 of them have a pause in which an agent could cut in"),
    ],
)
def test_a_share_of_cut_ins_says_what_could_have_drawn_one(
    pauses: tuple[PauseRecord, ...] | None, said: str
) -> None:
    _, remark = words.cut_ins_words(run_of(pauses=pauses).cut_ins)
    assert remark.endswith(f"; {said}")


def test_pauses_that_were_looked_for_in_some_turns_alone() -> None:
    mixed = [*turns(0, 3, None), *turns(0, 3)]
    assert make_run(mixed).cut_ins.paused is None
    assert make_run([*mixed, *turns(0, 1, (PAUSE,))]).cut_ins.paused == 1
    assert make_run([]).cut_ins.value is None
