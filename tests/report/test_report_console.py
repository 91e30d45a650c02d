import io
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import MARKS_MS, every_outcome, make_record, make_run, make_turn, scaled
from rich.cells import cell_len
from rich.console import Console

from turngap.core.budget import OUTCOMES
from turngap.core.events import ToolCall
from turngap.core.results import (
    AnswerRecord,
    BackchannelRecord,
    CalibrationRecord,
    PacingRecord,
    Quantiles,
)
from turngap.core.stages import MARKS
from turngap.core.untrusted import printable
from turngap.report import looks, measured_words, words
from turngap.report.console import RULE, Scale, run_svg, telling_turns, turn_block
from turngap.report.run import summary_block
from turngap.report.terminal import GUTTER

WIDTHS = (60, 80, 120)


def printed(block, width, **settings) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, **settings).print(block)
    return file.getvalue().splitlines()


def block_lines(turn, width=100) -> list[str]:
    return printed(turn_block(turn, width), width)


def bar_of(turn, width=100) -> str:
    return block_lines(turn, width)[1]


def summary_text(run, width=100) -> str:
    return "\n".join(printed(summary_block(run, width), width))


@pytest.mark.parametrize("width", WIDTHS)
def test_rule_stands_in_one_column_for_every_turn(width):
    turns = [*every_outcome(), make_turn(budget_ms=1500.0), make_turn(marks_ms=scaled(9))]
    assert {t.outcome for t in turns} == set(OUTCOMES)
    rule = Scale(width, 800.0).rule
    for turn in turns:
        _, bar, axis, *_ = block_lines(turn, width)
        assert bar[rule] == RULE
        assert axis[rule] == "┴"
        assert bar.count(RULE) == 1


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


@pytest.mark.parametrize("width", WIDTHS)
def test_outcome_is_a_symbol_and_a_word_and_the_gap_a_figure(width):
    for turn in every_outcome():
        header = block_lines(turn, width)[0]
        assert header.startswith(looks.SYMBOLS[turn.outcome])
        assert turn.outcome in header
        assert f"turn {turn.turn}" in header
        if turn.gap_ms is not None:
            assert f"{words.ms(turn.gap_ms)} ms" in header
    assert len(set(looks.SYMBOLS.values())) == len(OUTCOMES)


def test_output_that_is_no_terminal_has_no_escapes():
    for turn in every_outcome():
        assert not any("\x1b" in line for line in block_lines(turn))
    assert "\x1b" not in summary_text(make_run(every_outcome()))


def test_bar_is_as_long_as_the_gap_and_late_ones_pass_the_rule():
    scale = Scale(100, 800.0)
    for factor in (0.5, 1.0, 1.9, 2.3):
        turn = make_turn(marks_ms=scaled(factor))
        drawn = bar_of(turn).rstrip().rstrip(RULE).rstrip()
        assert len(drawn) == scale.column(turn.gap_ms or 0.0)
    assert turn.outcome == "late"
    assert len(drawn) > scale.rule


def test_bar_beyond_the_edge_ends_in_an_arrow():
    assert bar_of(make_turn(marks_ms=scaled(5))).endswith("▶")


def test_each_stage_has_its_own_pattern_in_the_bar():
    patterns = [looks.look_of(name).pattern for name in [*MARKS[1:], "unattributed"]]
    assert len(set(patterns)) == len(patterns)
    even = {name: 60.0 * n for n, name in enumerate(MARKS) if n}
    bar = bar_of(make_turn(marks_ms=even), 120)
    assert re.findall(r"([^\s│])\1+", bar[GUTTER:]) == patterns[:-1]


def test_stages_are_named_with_their_ms_and_the_short_ones_together():
    text = " ".join(" ".join(block_lines(make_turn())).split())
    assert "endpoint 231" in text
    assert "llm_first_token 120" in text
    assert "llm_request, tts_first_audio, sent, received: 1.9 ms in all" in text
    assert all(name in text for name in MARKS_MS)


def test_unexplained_time_is_named():
    turn = make_turn(marks_ms={"endpoint": 200.0, "agent_onset": 612.0})
    assert "unattributed 412" in " ".join(block_lines(turn))


def test_a_turn_without_marks_has_a_plain_bar_and_no_stages():
    """Nothing is known of its stages, which the summary says once for all turns."""
    turn = make_turn(marks_ms={"received": 699.7, "agent_onset": 700.0})  # the caller's own
    text = "\n".join(block_lines(turn))
    assert "unattributed" not in text
    assert "?" not in text
    assert set(bar_of(turn).split("│")[0].strip()) == {"▄"}
    assert "▄" not in [looks.look_of(name).pattern for name in (*MARKS[1:], "unattributed")]
    slow = make_turn(marks_ms={"agent_onset": 9000.0})
    assert bar_of(slow).endswith("▶")
    buffered = make_turn(marks_ms={"received": 500.0, "agent_onset": 700.0})
    assert "agent_onset 200" in "\n".join(block_lines(buffered))


def test_cut_in_is_drawn_left_of_zero():
    early = make_turn(marks_ms={"agent_onset": -100.0})
    bar = bar_of(early)
    assert bar[:GUTTER].strip()
    assert bar[GUTTER:].replace(RULE, "").strip() == ""
    assert bar_of(make_turn(marks_ms={"agent_onset": -900.0})).startswith("◀")
    assert "before the person had finished" in block_lines(early)[0]


def test_turn_without_a_reply_says_why():
    for turn in every_outcome():
        lines = block_lines(turn)
        if turn.gap_ms is None:
            assert any("why" in line and str(turn.why_no_gap) in line for line in lines)
    lost_in_reply = every_outcome()[-1]
    assert any("before the reply had ended" in line for line in block_lines(lost_in_reply))


def test_silence_runs_past_the_rule_only_where_the_caller_waited():
    drawn = {t.outcome: bar_of(t).replace(RULE, "").strip() for t in every_outcome()[:6]}
    assert drawn["no_reply"].endswith("▶")
    assert drawn["abandoned"] == drawn["error"] == ""


def test_natural_band_is_marked_on_the_axis():
    axis = block_lines(make_turn())[2]
    scale = Scale(100, 800.0)
    heavy = [n for n, char in enumerate(axis) if char == "━"]
    assert scale.column(200) <= heavy[0] <= scale.column(200) + 1
    assert scale.column(400) - 1 == heavy[-1]
    assert "200" in axis
    assert "400" in axis
    assert axis.rstrip().endswith("800 ms")


def test_notes_tell_barge_in_backchannel_fault_and_starvation():
    turn = make_turn(
        yield_ms=243.0,
        starved=True,
        faults=("stt: stream closed",),
        backchannels=(BackchannelRecord(say="mm-hm", start_ms=1, reply_stopped=True),),
    )
    text = " ".join(" ".join(block_lines(turn)).split())
    assert "silent after 243 ms" in text
    assert "“mm-hm” stopped the reply" in text
    assert "the agent reported: stt: stream closed" in text
    assert "caller starved" in text


def answered(verdict, **about):
    return make_turn(answer=AnswerRecord(verdict=verdict, **about))


def test_a_turn_says_whether_its_reply_was_right_and_what_was_wrong():
    wrong = answered("wrong", failed=('all_of: "ten" was not said', "regex: x does not match"))
    (line,) = [line for line in block_lines(wrong) if "answer " in line]
    assert line.strip() == ('answer ✗ wrong: all_of: "ten" was not said; regex: x does not match')
    assert "answer ✓ right" in "\n".join(block_lines(answered("right")))
    cut = answered("not_judged", heard="It's", why="broken off")
    assert "answer not judged: broken off" in "\n".join(block_lines(cut))
    assert "answer" not in [line.split()[:1] for line in block_lines(make_turn())]


def test_the_tools_that_were_called_are_named_with_what_came_of_them():
    calls = (
        ToolCall(name="weather", arguments={"day": "today"}, ms=12.3, result='{"a": 1}'),
        ToolCall(name="order", ms=4.0, error="ValueError: \x1b[2Jno"),
        ToolCall(name="clock", error="cancelled"),
        ToolCall(name="slow"),
    )
    lines = [line.strip() for line in block_lines(make_turn(calls=calls))]
    (first,) = [i for i, line in enumerate(lines) if line.startswith("tool ")]
    assert lines[first : first + 4] == [
        'tool weather(day=today) gave after 12 ms: {"a": 1}',
        "order() failed after 4.0 ms: ValueError: [2Jno",
        "clock() failed: cancelled",
        "slow() did not come back",
    ]
    assert not any("tool " in line for line in block_lines(make_turn(calls=())))


def test_a_tool_is_a_stage_between_the_request_and_the_first_token():
    called = {**MARKS_MS, "tool_call": 300.0, "tool_result": 340.0}
    text = " ".join(" ".join(block_lines(make_turn(marks_ms=called))).split())
    assert "tool_call 67" in text
    assert "tool_result 40" in text
    assert "llm_first_token 13" in text


def test_summary_has_the_share_of_right_answers_where_any_was_judged():
    turns = [answered("right"), answered("wrong"), answered("not_judged", why="odd")]
    text = " ".join(summary_text(make_run(turns)).split())
    assert "right 50 % 1 of 2 turns (1 different); 95 % interval" in text
    assert "1 not judged (odd)" in text
    assert "right" not in summary_text(make_run([make_turn()]))


def test_what_the_agent_says_cannot_steer_the_terminal_or_the_markup():
    turn = make_turn(transcript="a\x1b[2J\x1b]0;x\x07\r\nb\u202ec", reply="[bold]x[/bold] \u2028y")
    heard, replied = block_lines(turn)[-3:-1]
    assert heard.split("heard ")[1].isprintable()
    assert replied.endswith("[bold]x[/bold] y")


def test_turn_block_is_pure():
    turn = make_turn(transcript="long " * 200)
    first, again = turn_block(turn, 120), turn_block(turn, 120)
    assert again == first
    assert again.spans == first.spans


def test_summary_gives_each_figure_its_n_or_its_reason():
    text = summary_text(make_run([make_turn(turn=n) for n in range(1, 13)]))
    assert "100 %  12 of 12 turns within 800 ms; 95 % interval 76 % to 100 %" in text
    assert re.search(r"p50 +398 ms +95 % interval 398 to 398", text)
    assert re.search(r"p90 +398 ms +95 % sure: at least 398", text)
    assert re.search(r"p95 +– +n=12, needs 20", text)


def test_rounds_are_told_from_recorded_turns():
    turns = [make_turn(turn=n, repeat=r) for n in range(1, 13) for r in (1, 2)]
    text = summary_text(make_run(turns))
    said = "24 of 24 turns (12 different) within 800 ms; 95 % interval 76 % to 100 %"
    assert said in " ".join(text.split())


def test_summary_counts_every_outcome_and_what_is_left_out():
    text = summary_text(make_run(every_outcome()))
    for outcome in OUTCOMES:
        n = 2 if outcome == "error" else 1
        assert re.search(rf"{re.escape(looks.SYMBOLS[outcome])} {outcome} +{n}\b", text)
    assert "1 of 7 turns" in text
    assert "1 cut_in (an agent that cuts in is not quick)" in text
    assert "1 abandoned (the person did not wait)" in text


def test_summary_names_the_slowest_stage():
    lines = summary_text(make_run([make_turn()])).splitlines()
    assert next(line for line in lines if "slowest" in line).split()[1] == "endpoint"


def test_a_stage_of_few_turns_is_not_the_slowest_and_says_so():
    odd = make_turn(marks_ms={"agent_onset": 700.0})
    text = summary_text(make_run([*(make_turn() for _ in range(9)), odd]))
    (unattributed,) = [line for line in text.splitlines() if "unattributed" in line]
    assert "1 of 10" in unattributed
    assert "slowest" not in unattributed


def test_an_agent_without_marks_is_told_how_to_get_stages():
    turns = [make_turn(marks_ms={"received": 699.7, "agent_onset": 700.0}) for _ in range(3)]
    text = " ".join(summary_text(make_run(turns)).split())
    assert text.count("add the two lines of MarksObserver") == 1
    assert text.count("unattributed") == 1
    assert "MarksObserver" not in summary_text(make_run([*turns, make_turn()]))


def test_invalid_run_says_so_in_words_first():
    run = make_run([make_turn(starved=True)], valid=False, why_invalid=("caller starved",))
    lines = summary_text(run).splitlines()
    assert "INVALID, do not use these figures: caller starved" in lines[1]
    text = " ".join(" ".join(lines).split())
    assert "caller starved in 1 turn of 1, which count in all figures" in text
    assert text.count("INVALID, do not use these figures: caller starved") == 1
    assert "validity INVALID, for what is said at the top" in text


def test_a_run_that_accepts_a_later_caller_says_how_far_off_it_may_be():
    pacing = PacingRecord(
        packets=9, late_ms_p50=1.0, late_ms_max=21.0, loop_lag_ms_max=12.0, starved=False
    )
    turns = [make_turn(), make_turn(turn=2, pacing=pacing)]
    text = " ".join(summary_text(make_run(turns, starved_ms=40.0)).split())
    assert "a caller up to 40 ms late is accepted (--starved-ms; by default 10)" in text
    assert "a gap reads at most 33 ms long" in text
    assert "is accepted" not in summary_text(make_run(turns))


def test_a_long_title_goes_on_in_the_next_line():
    name = "before the change that makes everything slower"
    run = make_run([make_turn()], name=name, agent={"url": "wss://voice.example.org:8443/media"})
    first, second, *_ = summary_text(run, 80).splitlines()
    assert first == f"━━ {name} ·"
    assert second.startswith("   wss://voice.example.org:8443/media · 1 turn of coffee-order ━")
    assert len(second) == 80
    long = summary_text(make_run([make_turn()], name="x" * 300), 80).splitlines()
    assert all(len(line) <= 80 for line in long)
    assert sum(line.count("x") for line in long) >= 300


def test_title_names_run_and_agent_once():
    named_after_its_agent = make_run([make_turn()], name="embedded")
    assert summary_text(named_after_its_agent).startswith("━━ embedded · 1 turn of coffee-order ━")
    assert summary_text(make_run([make_turn()])).startswith("━━ replay · embedded · 1 turn of ")
    nameless = make_run([make_turn()], name="", agent={"url": "ws://host"})
    assert summary_text(nameless).startswith("━━ ws://host · 1 turn of ")


def test_failed_run_says_why():
    assert "failed: it went away" in summary_text(make_run([make_turn()], failure="it went away"))


def test_summary_shows_instrument_clock_and_place():
    text = summary_text(make_run([make_turn()]))
    assert "error p50 0.12 · p95 0.61 · max 1.20 ms (n=40)" in text
    assert "±0.03 ms (n=20)" in text
    assert "runs/x" in text
    text = summary_text(make_run([make_turn()], calibration=None, clock_offset=None))
    assert "not calibrated" in text
    assert "no marks from the agent" in text


def test_a_calibration_at_another_rate_than_the_run_says_so() -> None:
    """ElevenLabs' loopback agent speaks 16 kHz only."""
    error = Quantiles(n=40, p50=0.12, p95=0.61, p99=None, max=1.2)
    calibration = CalibrationRecord(
        error_ms=error, signed_p50_ms=0.1, dialect="elevenlabs", rate=16_000
    )

    def said(rate: int) -> str:
        agent = {"dialect": "elevenlabs", "line_rate_hz": rate}
        return measured_words.calibration_words(make_record(agent=agent, calibration=calibration))

    assert said(8_000).endswith("in elevenlabs at 16,000 Hz; this run's line has 8,000 Hz")
    assert said(16_000).endswith("in elevenlabs at 16,000 Hz")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("n", [0, 1, 200])
def test_summary_of_any_length_of_run(width, n):
    turns = [make_turn(turn=i + 1, marks_ms=scaled(0.5 + i / 100)) for i in range(n)]
    text = summary_text(make_run(turns), width)
    assert f"{n} turn" in text
    assert "stored in" in text


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


def test_svg_of_one_run_is_the_same_twice():
    run = make_run(every_outcome())
    assert run_svg(run) == run_svg(run)


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


@given(st.text())
def test_clean_text_is_one_printable_line(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


@given(st.lists(st.floats(0, 3000), min_size=12, max_size=12), st.integers(40, 140))
def test_any_marks_draw_a_bar_of_their_gap(instants, width):
    turn = make_turn(marks_ms=dict(zip(MARKS[1:], instants, strict=True)))
    scale = Scale(width, 800.0)
    bar = turn_block(turn, width).plain.split("\n")[1].ljust(width)
    end = min(scale.column(turn.gap_ms or 0.0), width)
    drawn = [n for n, char in enumerate(bar) if char != " " and n != scale.rule]
    assert drawn == [n for n in range(scale.zero, end) if n != scale.rule]
    assert all(a < b for a, b in pairwise(drawn))


def test_settings_are_told_in_no_words_of_python() -> None:
    settings = {"tag": None, "marks": True, "vad": {"on": False, "ms": 200}}
    told = [("tag", "–"), ("marks", "yes"), ("vad.on", "no"), ("vad.ms", "200")]
    assert list(words.flat(settings)) == told
