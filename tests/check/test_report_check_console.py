import io
import re
from dataclasses import replace

import pytest
from made_checks import (
    every_check,
    incomparable_check,
    make_budget,
    make_check,
    make_metric,
    make_side,
    make_stages,
    regressed_check,
    undecided_check,
)
from rich.cells import cell_len
from rich.console import Console

from turngap.check import words as check_words
from turngap.check.report import check_block
from turngap.report.terminal import LESS, MORE, ZERO

WIDTHS = (60, 80, 100, 120)
TITLES = {
    "pass": "✓ PASS",
    "regressed": "✗ REGRESSED",
    "undecided": "? UNDECIDED",
    "cannot_compare": "≠ CANNOT COMPARE",
}


def printed(record, width=100, **settings) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, **settings).print(check_block(record, width))
    return file.getvalue().splitlines()


def shown(record, width=100) -> str:
    return " ".join(" ".join(printed(record, width)).split())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("record", every_check())
def test_verdict_comes_first_then_why(record, width):
    lines = printed(record, width)
    only_saved = record.saved is not None and record.saved.done
    assert lines[0].startswith("↓ SAVED" if only_saved else TITLES[record.verdict])
    assert lines[1].split()[0] == "why"
    for why in record.why:
        assert why in shown(record, width)


@pytest.mark.parametrize("width", [1, 40, *WIDTHS])
@pytest.mark.parametrize("record", every_check())
def test_no_line_is_wider_than_the_terminal(record, width):
    assert all(cell_len(line) <= max(width, 40) for line in printed(record, max(width, 40)))
    wide = record.model_copy(update={"why": ("x" * 300, "日本語 " * 60)})
    assert all(cell_len(line) <= max(width, 40) for line in printed(wide, max(width, 40)))


def test_plain_text_where_no_terminal_is():
    assert "\x1b" not in "".join(printed(regressed_check()))
    assert "\x1b[" in "".join(printed(regressed_check(), force_terminal=True))


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


@pytest.mark.parametrize("width", WIDTHS)
def test_bars_point_from_one_zero_to_the_slower_and_the_quicker_side(width):
    stages = make_stages("llm_first_token")
    stages = (replace(stages[0], shift_ms=-41.0), *stages[1:])
    lines = [x for x in printed(regressed_check(stages=stages), width) if ZERO in x]
    assert len(lines) == len(stages)
    assert len({cell_len(line[: line.index(ZERO)]) for line in lines}) == 1
    by_name = {line.split()[0]: line for line in lines}
    assert re.search(rf"{ZERO}{MORE}+\s+moved", by_name["llm_first_token"])
    assert re.search(f"{LESS}+{ZERO}$", by_name["endpoint"])
    quiet = by_name["sent"]
    assert MORE not in quiet
    assert LESS not in quiet
    longest = by_name["llm_first_token"].count(MORE)
    assert by_name["endpoint"].count(LESS) == longest >= 4


def test_what_is_set_differently_is_shown():
    agent = {"stack": "embedded", "llm": {"backend": "sim", "settings": {"first_token_ms": 80}}}
    record = make_check(reference=make_side("r", agent=agent))
    assert "llm.settings.first_token_ms: 80 → 120" in shown(record)
    many = make_check(reference=make_side("r", agent={f"k{i}": i for i in range(20)}))
    assert "more settings" in shown(many)


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


def test_more_turns_do_not_help_what_cannot_be_compared():
    undecided = undecided_check()
    text = shown(incomparable_check(metrics=undecided.metrics))
    assert "would decide" not in text
    assert "to decide" not in text


def test_an_agent_from_a_checkout_is_named_and_told_apart_by_its_commit():
    checkout = {"stack": "embedded", "checkout": "main", "commit": "7ae7a1d", "sets": [], "seed": 1}
    record = make_check(reference=make_side("r", agent=checkout))
    text = shown(record)
    assert "main#embedded" in text
    assert "commit: 7ae7a1d → –" in text
    assert "llm." not in text
    assert "--against 'main#embedded'" in check_words.command(record)
