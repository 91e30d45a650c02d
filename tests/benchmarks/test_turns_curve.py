"""The drawing and the table of several agents' curves."""

import re
from pathlib import Path

import pytest
import turns_curve
from every_document import curve

from turngap.core.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stored curve of two values."""
    return curve(tmp_path)


def test_the_table_says_where_each_agent_lies_and_what_was_not_real(folder: Path):
    agents = [turns_curve.named(f"ours={folder}")]
    text = turns_curve.table(agents)
    assert "ours, `turn.hold_ms = 100` | 200 " in text
    assert "10 of 40, 25 %" in text
    # From 25 % at 200 ms to 2.5 % at 500 ms.
    assert re.search(r"ours, as measured \|.* 467 ms", text)
    assert "silence alone" in text
    said = turns_curve.about(agents)
    assert "synthetic voices" in said
    assert "lower bounds" in said


def test_the_drawing_has_every_point_and_is_whole(folder: Path):
    svg = turns_curve.drawn([turns_curve.named(f"a <b>={folder}")])
    assert svg.count("<circle") == 2
    assert "a &lt;b&gt;" in svg
    assert "<b>" not in svg
    assert svg.endswith("</svg>\n")


@pytest.mark.parametrize("text", ["runs/x", "ours=nowhere"])
def test_what_is_no_curve_is_refused(text: str):
    with pytest.raises(InputError):
        turns_curve.named(text)
