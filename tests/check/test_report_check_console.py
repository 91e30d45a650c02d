import io
from dataclasses import replace

import pytest
from made_checks import (
    every_check,
    make_budget,
    make_check,
    make_metric,
    make_side,
    make_stages,
)
from rich.cells import cell_len
from rich.console import Console

from turngap.check import words as check_words
from turngap.check.report import check_report
from turngap.report import terminal

WIDTHS = (60, 80, 100, 120)


def printed(record, width=100, **settings) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, **settings).print(terminal.block(check_report(record), width))
    return file.getvalue().splitlines()


def shown(record, width=100) -> str:
    return " ".join(" ".join(printed(record, width)).split())


@pytest.mark.parametrize("width", [1, 40, *WIDTHS])
@pytest.mark.parametrize("record", every_check())
def test_no_line_is_wider_than_the_terminal(record, width):
    assert all(cell_len(line) <= max(width, 40) for line in printed(record, max(width, 40)))
    wide = record.model_copy(update={"why": ("x" * 300, "日本語 " * 60)})
    assert all(cell_len(line) <= max(width, 40) for line in printed(wide, max(width, 40)))


def test_a_loss_of_hit_rate_is_a_change_below_zero():
    metric = make_metric("hit rate", unit="share", limit=0.1, difference=0.05, low=-0.02, high=0.12)
    assert check_words.difference_words(metric) == "−5 points"
    assert check_words.interval_words(metric) == "−12 to +2"
    assert check_words.limit_words(metric) == "−10 points"
    assert check_words.difference_words(replace(metric, difference=0.0)) == "0 points"


def test_more_cut_ins_are_a_change_above_zero():
    metric = make_metric("cut-ins", unit="share", limit=0.1, difference=0.05, low=-0.02, high=0.12)
    assert check_words.difference_words(metric) == "+5 points"
    assert check_words.interval_words(metric) == "−2 to +12"
    assert check_words.limit_words(metric) == "+10 points"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(1.0, None, "at least +1.0"), (None, 44.0, "at most +44"), (None, None, "")],
)
def test_an_interval_may_lack_an_end(low, high, words):
    metric = make_metric(low=low, high=high)
    assert check_words.interval_words(metric) == words
    lost = make_metric("hit rate", unit="share", low=low, high=high)
    assert check_words.interval_words(lost).startswith(
        {"at least": "at most", "at most": "at least", "": ""}[" ".join(words.split()[:2])]
    )


def test_what_a_record_holds_cannot_steer_the_terminal():
    evil = "\x1b[31mred\x1b[0m\u202e\n"
    stage = replace(make_stages()[0], name=evil)
    record = make_check(
        why=(evil,),
        candidate=make_side(evil, agent={"stack": evil, evil: evil}),
        metrics=(make_metric(evil, why=evil),),
        stages=(stage,),
        budgets=(make_budget(name=evil),),
    )
    text = "".join(printed(record))
    assert "\x1b" not in text
    assert "\u202e" not in text
