"""What the table of the price of `--otlp` says of what was played."""

import os
from pathlib import Path

import otlp_cost
import pytest
from made_records import make_turn, scaled
from otlp_cost import BEGIN, MEASURED, TAKEN, WAYS, Cost, Played

from turngap.core.results import Turn


def played(turn: Turn, wall_ms: float = 6000.0) -> Played:
    return Played(turn, wall_ms, caller_cpu_ms=500.0, agent_cpu_ms=900.0)


def test_a_shift_has_an_interval_around_it_once_there_are_enough_pairs() -> None:
    noise = [0.3, -0.2, 0.1, -0.4, 0.2, 0.0, -0.1, 0.4]
    cost = Cost.of([(400 + 5 + each, 400.0) for each in noise])
    assert cost.n == 8
    assert cost.shift_ms == pytest.approx(5.0, abs=0.2)
    assert cost.interval_ms is not None
    low, high = cost.interval_ms
    assert 4.5 < low < 5 < high < 5.5
    assert cost.words().startswith("+5.0 (+4.")


def test_rounds_that_lack_a_gap_are_left_out_and_too_few_have_no_interval() -> None:
    cost = Cost.of([(410.0, 400.0), (None, 400.0), (410.0, None)])
    assert (cost.n, cost.interval_ms) == (1, None)
    assert cost.words() == "+10.0 (too few for an interval)"
    assert Cost.of([(None, 400.0)]).words() == "none"


def test_each_way_is_a_row_beside_the_one_that_it_is_compared_with() -> None:
    dear = [played(make_turn(), 6850.0), played(make_turn(marks_ms=scaled(2)), 6850.0)]
    cheap = [played(make_turn()), played(make_turn(marks_ms=None, ended="timeout"))]
    made = {way.name: cheap if way.against is None else dear for way in WAYS}
    measured, taken = tables_of(otlp_cost.tables(made, {way.name: 1.5 for way in WAYS}))
    compared = [way.name for way in WAYS if way.against is not None]
    assert [row[0] for row in measured] == [MEASURED[0], "---", *compared]
    assert [row[0] for row in taken] == [TAKEN[0], "---", *compared]
    assert {len(row) for row in measured} == {len(MEASURED)}
    assert {len(row) for row in taken} == {len(TAKEN)}
    assert {row[1] for row in measured[2:]} == {"2, of which 1 with a gap"}
    assert {row[1].partition(" ")[0] for row in taken[2:]} == {"+0.85"}
    assert {row[-1] for row in taken[2:]} == {"1.50"}


def tables_of(text: str) -> list[list[list[str]]]:
    """The cells of each table."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    return [[line[2:-2].split(" | ") for line in block] for block in blocks]


def test_the_page_gets_it_and_no_variable_of_the_shell_sends_what_is_played_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, seen = tmp_path / "page.md", list[str]()
    page.write_text(f"before\n{BEGIN}\nold\n<!-- end -->\nafter\n", encoding="utf-8")

    async def measure(rounds: int, out: Path) -> tuple[dict[str, list[Played]], dict[str, float]]:
        seen.extend(name for name in os.environ if name.startswith("OTEL_"))
        made = {way.name: [played(make_turn())] * rounds for way in WAYS}
        return made, {way.name: 0.1 for way in WAYS}

    monkeypatch.setattr(otlp_cost, "measure", measure)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("sys.argv", ["otlp_cost.py", "--rounds", "8", "--write", str(page)])
    otlp_cost.main()
    assert seen == []
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "There were 8 rounds." in text
    assert len(tables_of(text)) == 2
