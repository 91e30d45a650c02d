"""Advice in a run's report: the setting that owns the slowest stage, and what it would buy."""

from pathlib import Path

import pytest
from every_document import curve
from made_records import make_run, make_turn

from turngap.core.summary import summarise
from turngap.report.console import run_blocks


@pytest.mark.parametrize(
    ("gap_ms", "agent", "says"),
    [
        (500.0, "embedded", "turn.hold_ms 400 → 100: about −300 ms, cut-ins"),
        (200.0, "embedded", ""),
        (500.0, "stock", ""),
    ],
)
def test_a_curve_next_to_the_run_says_what_a_setting_would_buy(
    gap_ms: float, agent: str, says: str, tmp_path: Path
) -> None:
    curve(tmp_path / "20261120T152803Z-turns")
    (tmp_path / "20261121T152803Z-turns").mkdir()
    (tmp_path / "20261121T152803Z-turns/turns.json").write_text("{", encoding="utf-8")
    marks_ms = {"endpoint": gap_ms - 50, "sent": gap_ms - 10, "agent_onset": gap_ms}
    turns = [make_turn(turn=n, marks_ms=marks_ms) for n in range(1, 8)]
    (tmp_path / "run").mkdir()
    run = make_run(turns, tmp_path / "run", agent={"stack": agent})
    assert summarise(turns).slowest_stage == "endpoint"
    shown = "".join(block.plain for block in run_blocks(run, 200))
    assert (says in shown) if says else ("turn.hold_ms" not in shown)
