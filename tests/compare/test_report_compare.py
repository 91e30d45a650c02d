"""Reports of many backends: side by side at any width, and nothing twice."""

import io

import pytest
from html_page import Page
from made_records import make_comparison, make_turn
from rich.console import Console

from turngap.compare.figures import Side
from turngap.compare.report import comparison_report
from turngap.compare.words import answer
from turngap.core.results import Turn
from turngap.core.stored import AnswerRecord
from turngap.report import page as pages
from turngap.report import terminal
from turngap.store.comparisons import ComparisonRecord

UNNAMED = "race,fast=small,full=sim:full"


def turns(n: int) -> list[Turn]:
    answer = AnswerRecord(verdict="right")
    counts = {"llm_prompt_tokens": 100.0, "llm_completion_tokens": 10.0}
    spoken = (
        {"event": "UserSpeech", "start_ns": 0},
        {"event": "AgentSilence", "at_ns": 3_000_000_000},
    )
    about = {"answer": answer, "counts": counts, "events": spoken}
    return [make_turn(scenario=f"s{i}", turn=i, **about) for i in range(1, n + 1)]


def compared(
    *names: str, n: int = 20, price: tuple[float, float] | None = None
) -> ComparisonRecord:
    return make_comparison([Side(name, turns(n), price) for name in names])


def render(record: ComparisonRecord) -> str:
    return pages.render(comparison_report(record))


def shown(record: ComparisonRecord, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(terminal.block(comparison_report(record), width))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 300])
def test_backends_stand_beside_each_other_as_far_as_the_terminal_is_wide(width: int) -> None:
    names = ["one", "two", UNNAMED, "four", "five"]
    lines = shown(compared(*names), width)
    assert all(len(line) <= width for line in lines)
    heads = [line.split() for line in lines if line.startswith("backend")]
    if width == 300:
        assert heads[0][:3] == ["backend", "turns", "gap"]
        return
    # A column each, each once; and every table names its figures.
    assert [name for _, *of_one in heads for name in of_one] == names
    assert len([line for line in lines if line.startswith("hit rate")]) == len(heads)
    assert len(heads) == {60: 5, 80: 3, 100: 3}[width]


def test_a_page_of_many_backends_folds_their_sentences_and_breaks_labels_at_commas() -> None:
    page = Page(render(compared("one", "two", UNNAMED, "four")))
    page.assert_safe()
    page.assert_accessible()
    details = page.all("details")
    assert len(details) == 2
    assert not any("open" in attrs for attrs in details)
    assert "Each pair of backends, over the same turns (6)" in page.text
    assert len(page.all("wbr")) == 2 * UNNAMED.count(",")  # its row, and its column of the task
    assert "100\N{NO-BREAK SPACE}% (" in render(compared("one", "two"))


def taking(n: int, factor: float, wrong_every: int = 0) -> list[Turn]:
    """`n` turns of an agent that is so many times as slow, and wrong in every so manyth."""
    return [
        turn.model_copy(
            update={
                "gap_ms": (turn.gap_ms or 0.0) * factor,
                "answer": AnswerRecord(
                    verdict="wrong" if wrong_every and turn.turn % wrong_every == 0 else "right"
                ),
            }
        )
        for turn in turns(n)
    ]


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            taking(60, 1.0, 2),
            taking(60, 1.5),
            "For one-turn questions take one: it is quicker (gap p50 398 ms against 597 ms); "
            "other is right more often (100 % against 50 %)",
        ),
        (
            taking(60, 1.0, 60),
            taking(60, 1.5),
            "For one-turn questions take one: it is quicker (gap p50 398 ms against 597 ms), and "
            "no difference in right answers is beyond chance (n = 60).",
        ),
        (
            taking(60, 1.0),
            taking(60, 1.5, 2),
            "For one-turn questions take one (gap p50 398 ms, 100 % right): none is quicker or "
            "right more often.",
        ),
        (
            taking(5, 1.0),
            taking(5, 1.0, 5),
            "No answer: one is ahead (gap p50 398 ms, 100 % right), but n = 5 is too small to "
            "distinguish it from other. Play more scenarios.",
        ),
        (taking(3, 1.0), taking(3, 1.5), "No answer: fewer than two backends have both a gap p50"),
    ],
)
def test_a_comparison_ends_with_an_answer_or_says_that_n_is_too_small_for_one(
    one: list[Turn], other: list[Turn], said: str
) -> None:
    record = make_comparison([Side("one", one, None), Side("other", other, None)])
    assert answer(record).startswith(said)
    text = " ".join(" ".join(shown(record, 100)).split())
    assert said in text
    assert said in Page(render(record)).text
