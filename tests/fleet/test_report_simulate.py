"""How a simulation's figures are written: plainly, however small or free."""

from pathlib import Path

import pytest
from commandline import turngap_here
from html_page import Page

from turngap.fleet.report import read_simulation, render
from turngap.fleet.words import hours, usd

TURN = (
    "--set", "turn.before_ms=300", "--set", "turn.after_ms=40", "--set", "turn.speech_ms=1500",
    "--set", "turn.reply_ms=2000", "--set", "turn.user_tokens=10", "--set", "turn.reply_tokens=30",
    "--set", "turn.opening_tokens=6", "--set", "call.system_tokens=300", "--set", "call.turns=5",
    "--minutes", "0.2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("price", "shown", "chart"),
    [
        ("0", "$0", "Accelerator-hours for 1000 turns"),  # free has no place on a logarithmic axis
        ("0.00001", "$0.00000", "Price of 1000 turns"),
        ("3", "$0.", "Price of 1000 turns"),
    ],
)
def test_whatever_a_fleet_costs_is_shown_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, price: str, shown: str, chart: str
) -> None:
    done = turngap_here(
        capsys,
        "simulate",
        *TURN,
        "--calls",
        "5,50",
        "--set",
        f"pool.part_hour_usd={price}",
        "--out",
        tmp_path,
    )
    assert done.code == 0, done.err
    (folder,) = tmp_path.iterdir()
    record = read_simulation(folder)
    said = [usd(load) for load in record.loads]
    assert all(text.startswith(shown) and text in done.out for text in said)
    page = Page(render(record))
    assert chart in page.text
    assert not any("e-" in text for text in (*said, *(hours(load) for load in record.loads)))
    assert "e-0" not in page.text
    assert f"page: {folder / 'simulation.html'}" in done.err
