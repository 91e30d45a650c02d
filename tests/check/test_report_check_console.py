import io
import re
from dataclasses import replace

import pytest
from made_checks import (
    beside_a_baseline,
    budgets_only_check,
    every_check,
    incomparable_check,
    make_budget,
    make_check,
    make_metric,
    make_side,
    make_stages,
    regressed_check,
    saved_check,
    undecided_check,
)
from rich.cells import cell_len
from rich.console import Console

from turngap.check import words as check_words
from turngap.check.record import BaselineUse, NoiseRecord, SaveRecord
from turngap.check.report import check_block, check_svg
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


def test_metric_is_one_line_with_its_figures_where_there_is_room():
    lines = printed(regressed_check(), 120)
    (head,) = [x for x in lines if x.startswith("metric")]
    (line,) = [x for x in lines if x.startswith("gap p50")]
    wanted = {
        "verdict": "✗ regressed",
        "change": "+41",
        "95 % interval": "+36 to +46",
        "limit": "+30",
        "n": "60",
    }
    for row, cells in ((head, wanted), (line, wanted.values())):
        found = [row.index(f" {cell} ") for cell in cells]
        assert found == sorted(found)
    assert "gap p50 would have caught +28 ms with 95 % power" in shown(regressed_check())


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


def test_undecided_says_how_many_more_turns_would_decide():
    text = shown(undecided_check())
    # 47 more pairs at 6 a round beside the 2 rounds that were played.
    assert "about 47 more pairs of turns: --rounds 10, or --until-decided" in text
    assert "a regression of 30 ms is not excluded" in text
    assert "n=12, needs 20" in text
    assert "to decide" not in shown(regressed_check())


def test_a_figure_that_is_missing_is_a_dash_and_its_reason():
    line, reason = [x for x in printed(undecided_check(), 120) if x.strip().startswith("gap p95")]
    assert line.split() == ["gap", "p95,", "ms", "?", "undecided", "–", "–", "+100", "12", "–"]
    assert "n=12, needs 20" in reason


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


def test_moved_stage_is_named_with_its_shift():
    assert "llm_first_token +41 ms in the typical pair" in shown(regressed_check())
    assert "no stage grew beyond chance" in shown(make_check())
    grown = shown(make_check(stages=make_stages("sent", 6.0)))
    assert "grew, without a regression of the whole: sent +6.0 ms" in grown
    assert "not known: too few pairs of turns have marks" in shown(make_check(stages=()))


def test_budgets_have_share_interval_and_target():
    text = shown(budgets_only_check(), 120)
    assert "budget verdict turns within 95 % interval target n" in text
    assert "gap ≤ 800 ms ✓ pass >99 % 95.4 % to 99.9 % 95 % 120" in text
    assert "llm_first_token ≤ 450 ms ✗ regressed 50 % 40 % to 60 %" in text
    nothing = make_budget(verdict="undecided", n=0, share=None, low=None, high=None)
    assert "? undecided – no turns" in shown(make_check(budgets=(nothing,)))


def test_it_is_said_why_a_budgets_interval_is_narrower_than_that_of_the_cut_ins():
    about = "so each of the 2 rounds narrows its interval"
    assert about in " ".join(shown(make_check(rounds=2)).split())
    assert "narrows its interval" not in " ".join(shown(make_check(rounds=1)).split())


def test_budgets_alone_are_not_called_a_comparison():
    text = shown(budgets_only_check())
    assert "none: budgets only" in text
    assert "agent embedded" in text
    assert "compared" not in text
    # The run's folder is named so in this made check.
    assert "candidate" not in text.replace("T170000Z-candidate", "")
    assert "PASS every budget is kept" in text
    assert "noise" not in text


def test_figures_that_cannot_be_compared_have_no_verdict():
    text = shown(incomparable_check())
    assert "≠ no verdict" in text
    assert "✗" not in text
    assert "stored baseline" in text


def test_what_was_only_saved_is_called_that_and_no_pass():
    text = shown(saved_check())
    assert text.startswith("↓ SAVED as a baseline; nothing was compared")
    assert "saved as a baseline: base.json" in text
    assert "pass" not in text.lower()
    lost = saved_check(saved=SaveRecord(file="base.json", done=False, why_not="invalid"))
    assert shown(lost).startswith("≠ CANNOT COMPARE")
    assert "not saved as base.json: invalid" in shown(lost)


def test_a_baseline_that_is_too_small_is_not_to_be_played_longer():
    text = shown(beside_a_baseline())
    assert "about 47 more pairs of turns, of which the baseline has only 3: a bigger one" in text
    assert "(--save with --rounds 20), or the reference itself (--against)" in text
    assert "--until-decided" not in text
    assert "6 turns without a twin in the baseline (other rounds or phases)" in text
    assert "2 saved under another budget, judged by this one" in text
    missed = beside_a_baseline(pairs=0)
    assert "to decide the rounds and phases that the baseline was saved with" in shown(missed)
    enough = beside_a_baseline(baseline=BaselineUse(unmatched=0, more_pairs=60, rejudged=0))
    assert "which the baseline has: --rounds 20" in shown(enough)


def test_a_caller_that_was_let_be_late_is_said_with_what_comes_of_it():
    text = shown(beside_a_baseline())
    assert "a caller up to 40 ms late is accepted (--starved-ms; by default 10)" in text
    assert "a gap reads at most 31 ms long" in text
    assert "is accepted" not in shown(make_check())


def test_noise_of_the_machine():
    text = shown(make_check())
    assert "reference against itself, n=30" in text
    assert "median shift −0.3 ms" in text
    assert "within ±12 ms" in text
    loud = NoiseRecord(n=4, shift_p50_ms=None, spread_p95_ms=None, verdict="regressed")
    assert "identical code was called REGRESSED" in shown(make_check(noise=loud))


def test_pairs_left_out_and_invalid_runs_are_told():
    text = shown(make_check(left_out=3, candidate=make_side(valid=False)))
    assert "60 pairs in 2 rounds; 3 left out" in text
    assert "INVALID" in text


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


def test_picture_of_the_terminal():
    svg = check_svg(regressed_check(), "20261120T170000Z-check")
    assert "REGRESSED" in svg
    assert not re.search(r"(url\(|href=)[\"']?http", svg)


def test_more_turns_do_not_help_what_cannot_be_compared():
    undecided = undecided_check()
    text = shown(incomparable_check(metrics=undecided.metrics))
    assert "would decide" not in text
    assert "to decide" not in text


def test_largest_shift_is_named_where_none_is_beyond_chance():
    stages = make_stages("llm_first_token", 178.0)
    stages = tuple(replace(s, moved=False) for s in stages)
    text = shown(undecided_check(stages=stages))
    assert "no stage grew beyond chance; the largest shift: llm_first_token +178 ms" in text


def test_an_agent_from_a_checkout_is_named_and_told_apart_by_its_commit():
    checkout = {"stack": "embedded", "checkout": "main", "commit": "7ae7a1d", "sets": [], "seed": 1}
    record = make_check(reference=make_side("r", agent=checkout))
    text = shown(record)
    assert "main#embedded" in text
    assert "commit: 7ae7a1d → –" in text
    assert "llm." not in text
    assert "--against 'main#embedded'" in check_words.command(record)
