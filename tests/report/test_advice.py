"""Advice in a run's report: the setting that owns the slowest stage, and what it would buy."""

import json
from pathlib import Path
from typing import Any

import pytest
from every_document import curve
from made_records import make_run, make_turn

from turngap.core.summary import summarise
from turngap.report.console import run_blocks
from turngap.store.documents import this_machine


def agent_with(hold_ms: int, **turn: int) -> dict[str, Any]:
    settings = {"hold_ms": hold_ms, **turn}
    return {"stack": "embedded", "turn": {"backend": "silence", "settings": settings}}


def change(file: Path, changes: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes))


@pytest.mark.parametrize(
    ("agent", "changes", "says"),
    [
        (agent_with(400), {}, "turn.hold_ms 400 → 100: about −300 ms, cut-ins"),
        (agent_with(100), {}, ""),
        (agent_with(300), {}, ""),
        (agent_with(400, level=1), {}, ""),
        (agent_with(400), {"virtual": True}, ""),
        (agent_with(400), {"machine": {"fingerprint": "another"}}, ""),
    ],
    ids=["a point", "the quickest", "between points", "another setting", "virtual", "machine"],
)
def test_a_curve_next_to_the_run_says_what_its_setting_would_buy(
    agent: dict[str, Any], changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = curve(tmp_path / "20261120T152803Z-turns")
    for hold_ms in (100, 400):
        change(folder / f"run-{hold_ms}/run.json", {"agent": agent_with(hold_ms)})
    machine = this_machine().model_dump() | changes.get("machine", {})
    change(folder / "turns.json", {"virtual": False, **changes, "machine": machine})
    (tmp_path / "20261121T152803Z-turns").mkdir()
    (tmp_path / "20261121T152803Z-turns/turns.json").write_text("{", encoding="utf-8")
    # The gap is near to that of the slower point, whatever the run's setting.
    marks_ms = {"endpoint": 450.0, "sent": 490.0, "agent_onset": 500.0}
    turns = [make_turn(turn=n, marks_ms=marks_ms) for n in range(1, 8)]
    (tmp_path / "run").mkdir()
    run = make_run(turns, tmp_path / "run", agent=agent, machine=this_machine())
    assert summarise(turns).slowest_stage == "endpoint"
    shown = "".join(block.plain for block in run_blocks(run, 200))
    assert (says in shown) if says else ("turn.hold_ms 400 →" not in shown)
