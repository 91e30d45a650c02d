import io
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import every_outcome, make_run, make_turn, scaled
from rich.cells import cell_len
from rich.console import Console

from turngap.core.stages import MARKS
from turngap.core.stored import BackchannelRecord
from turngap.report import words
from turngap.report.console import Scale, run_svg, telling_turns, turn_block
from turngap.report.run import summary_block

WIDTHS = (60, 80, 120)


def printed(block, width, **settings) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, **settings).print(block)
    return file.getvalue().splitlines()


def block_lines(turn, width=100) -> list[str]:
    return printed(turn_block(turn, width), width)


@pytest.mark.parametrize("width", [1, 20, 40, *WIDTHS])
def test_no_line_is_wider_than_the_terminal(width):
    turn = make_turn(
        scenario="a" * 200,
        transcript="日本語 " * 90,
        reply="x" * 500,
        backchannels=(BackchannelRecord(say="mm-hm", start_ms=1, reply_stopped=False),),
    )
    lines = block_lines(turn, width)
    assert all(cell_len(line) <= width for line in lines)
    lines = printed(summary_block(make_run(every_outcome()), width), width)
    assert all(cell_len(line) <= width for line in lines)


def test_what_the_agent_says_cannot_steer_the_terminal_or_the_markup():
    turn = make_turn(transcript="a\x1b[2J\x1b]0;x\x07\r\nb\u202ec", reply="[bold]x[/bold] \u2028y")
    heard, replied = block_lines(turn)[-3:-1]
    assert heard.split("heard ")[1].isprintable()
    assert replied.endswith("[bold]x[/bold] y")


def test_telling_turns_are_typical_slowest_and_unanswered():
    turns = [make_turn(turn=n, marks_ms=scaled(n / 3)) for n in range(1, 8)]
    turns.append(make_turn(turn=8, marks_ms=None, ended="timeout"))
    assert [t.turn for t in telling_turns(turns)] == [4, 7, 8]
    assert telling_turns([]) == []
    assert telling_turns(turns[:1]) == turns[:1]


def test_svg_is_whole_and_fetches_nothing():
    svg = run_svg(make_run(every_outcome()))
    root = ElementTree.fromstring(svg)
    assert "font-face" not in svg
    assert "url(http" not in svg
    for element in root.iter():
        for name, value in element.attrib.items():
            assert "http" not in value, name
    text = "".join(root.itertext()).replace("\xa0", " ")
    assert "answered" in text
    assert "hit rate" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01, "<0.1"), (0.06, "0.1"), (9.94, "9.9"), (9.96, "10"), (-340.4, "−340")],
)
def test_ms(value, text):
    assert words.ms(value) == text


@given(st.floats(0, 1))
def test_only_all_is_100_percent_and_only_none_is_0(share):
    assert (words.percent(share) == "100 %") == (share == 1)
    assert (words.percent(share) == "0 %") == (share == 0)


@given(
    st.lists(st.floats(0, 3000), min_size=len(MARKS) - 1, max_size=len(MARKS) - 1),
    st.integers(40, 140),
)
def test_any_marks_draw_a_bar_of_their_gap(instants, width):
    turn = make_turn(marks_ms=dict(zip(MARKS[1:], instants, strict=True)))
    scale = Scale(width, 800.0)
    bar = turn_block(turn, width).plain.split("\n")[1].ljust(width)
    end = min(scale.column(turn.gap_ms or 0.0), width)
    drawn = [n for n, char in enumerate(bar) if char != " " and n != scale.rule]
    assert drawn == [n for n in range(scale.zero, end) if n != scale.rule]
    assert all(a < b for a, b in pairwise(drawn))
