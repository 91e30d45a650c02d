"""The pytest plugin as somebody else's test run sees it: assertions, settings, failures."""

import sys

import pytest
from fake_agents import NEW, OLD, FakeAgents
from inner_runs import PLAIN, URL, Inner, Play, made_turns, slower, text_of
from made_records import make_turn

from turngap.core.errors import AgentError

pytest_plugins = ["pytester"]


def test_a_quick_agent_passes_and_is_listed_with_its_run(inner: Inner, play: Play) -> None:
    play(made_turns(21))
    code = f"""
import pytest

@pytest.mark.turngap(budget_ms=800)
def test_fast_enough(turngap):
    run = turngap.replay("{URL}", scenarios=["quick-questions"], repeat=7)
    run.assert_hit_rate(0.95)
    run.assert_gap(p50_ms=410, p95_ms=450, max_ms=500)
    run.assert_cut_ins(at_most=0.05)
    run.assert_stage("llm_first_token", p95_ms=150)
    run.assert_outcome("coffee-order", 2)
"""
    result = inner(code, "--turngap-out", "kept")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*= turngap =*",
            "test *hit rate *p50 *p95 *cut-ins *verdict",
            "test_latency.py::test_fast_enough *100 % (n=21) *398 ms *401 ms *0 of 21 *passed",
            "*runs: */kept/*made",
        ]
    )


def test_no_row_is_a_command_of_a_ci_server(inner: Inner, play: Play) -> None:
    play(made_turns(3), valid=False, why_invalid=("it was ##teamcity[buildStop]",))
    said = text_of(inner(PLAIN))
    assert "## teamcity[" in said
    assert "##teamcity[" not in said


def test_a_slow_agent_fails_with_its_waterfalls_and_the_stage_that_took_the_time(
    inner: Inner, play: Play
) -> None:
    late = made_turns(21)
    for i in (4, 5, 6, 7):
        late[i] = make_turn(turn=i % 3 + 1, repeat=2, marks_ms=slower(llm_first_token=600))
    play(late, late)
    code = f"""
def test_hits(turngap):
    turngap.replay("{URL}").assert_hit_rate(0.95)

def test_stage(turngap):
    run = turngap.replay("{URL}")
    run.assert_stage("llm_first_token", p95_ms=450)
"""
    result = inner(code)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            '>       turngap.replay("ws://127.0.0.1:9/ws").assert_hit_rate(0.95)',
            "E   *LatencyError: hit rate 81 % (17 of 21 turns within 800 ms;*), expected 95 %",
            "E*most of it: *llm_first_token*, median 720 ms in these turns, 120 ms in the other 17",
            "E*! coffee-order · turn 2 · repeat 2 · late · 998 ms, 198 over the budget",
            "E*█ first token 720*",
            "E*… and 1 turn more",
            "E*run: */*made",
            "E   *LatencyError: llm_first_token p95 720 ms (*; n=21), expected at most 450 ms",
            "E*! coffee-order · turn 2*",
        ]
    )
    assert "measured.py" not in text_of(result), "the user's line is to blame, not the plugin's"


@pytest.mark.parametrize(
    ("assertion", "turns", "said"),
    [
        ("assert_gap(p95_ms=450)", 3, "turn gap p95 – (n=3, needs 20)*repeat=7*"),
        ("assert_hit_rate(0.95, sure=True)", 21, "*65 more calls without a miss would be enough"),
        ("assert_cut_ins(0.05, sure=True)", 21, "*65 more calls without a cut-in would be enough"),
        ("assert_stage('llm_first_token', p95_ms=130, sure=True)", 21, "*95 % bound is over it*"),
    ],
)
def test_too_few_turns_are_inconclusive_and_no_pass(
    inner: Inner, play: Play, assertion: str, turns: int, said: str
) -> None:
    code = f'def test_it(turngap):\n    turngap.replay("{URL}").{assertion}\n'
    play(made_turns(turns))
    failed = inner(code)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines([f"*{said}", "test_latency.py::test_it *inconclusive"])
    play(made_turns(turns))
    skipped = inner(code, "--turngap-inconclusive=skip", "-rs")
    skipped.assert_outcomes(skipped=1)
    skipped.stdout.fnmatch_lines(["*inconclusive, skipped", "SKIPPED*inconclusive: *"])


def test_rounds_make_sure_of_these_recordings(inner: Inner, play: Play) -> None:
    play(made_turns(216))  # three recorded ones, in 72 calls
    code = f'def test_it(turngap):\n    turngap.replay("{URL}").assert_hit_rate(0.95, sure=True)\n'
    inner(code).assert_outcomes(passed=1)


def test_an_agent_that_is_quick_by_cutting_in_fails(inner: Inner, play: Play) -> None:
    turns = made_turns(21)
    turns[4] = make_turn(turn=2, repeat=2, marks_ms={"agent_onset": -300.0})
    turns[8] = make_turn(turn=3, repeat=3, marks_ms={"agent_onset": -300.0})
    play(turns)
    code = f"""
def test_both_halves(turngap):
    run = turngap.replay("{URL}")
    run.assert_gap(p50_ms=500)
    run.assert_cut_ins(at_most=0.05)
"""
    inner(code).stdout.fnmatch_lines(
        [
            "E   *LatencyError: cut-ins 10 % (2 of 21 turns; 95 % interval *), expected *5 %",
            "E*« coffee-order · turn 2 · repeat 2 · cut_in*",
            "test_latency.py::test_both_halves *2 of 21 *too slow",
        ]
    )


def test_few_turns_that_are_all_too_slow_are_too_slow(inner: Inner, play: Play) -> None:
    play(made_turns(3))
    result = inner(f'def test_it(turngap):\n    turngap.replay("{URL}").assert_gap(p95_ms=200)')
    result.stdout.fnmatch_lines(
        ["*LatencyError: turn gap p95 –*", "*3 of 3 turns over it already", "*too slow"]
    )


def test_a_limit_that_is_surely_broken_outweighs_one_that_cannot_be_told(
    inner: Inner, play: Play
) -> None:
    play(made_turns(6), made_turns(6))
    code = f"""
def test_first(turngap):
    turngap.replay("{URL}").assert_gap(p95_ms=450, max_ms=300)
def test_only(turngap):
    turngap.replay("{URL}").assert_gap(p95_ms=450, max_ms=900)
"""
    result = inner(code)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*LatencyError: turn gap max 400 ms, expected at most 300 ms*",
            "*InconclusiveError: turn gap p95 –*",
            "*::test_first *too slow",
            "*::test_only *inconclusive",
        ]
    )


def test_secrets_of_a_url_do_not_reach_the_log(inner: Inner, play: Play) -> None:
    failure = AgentError(
        "line.lost", "ws://u:hunter2@h/ws: lost", hint="try wss://h/ws?api_key=SEKRET"
    )
    play(made_turns(3), failure=failure)
    shown = text_of(inner(PLAIN))
    assert "ws://h/ws: lost" in shown
    assert "hunter2" not in shown
    assert "SEKRET" not in shown


def test_turns_without_a_reply_are_slower_than_any(inner: Inner, play: Play) -> None:
    turns = made_turns(19) + [make_turn(marks_ms=None, ended="timeout") for _ in range(2)]
    play(turns, turns, turns)
    code = f"""
def test_p95(turngap):
    turngap.replay("{URL}").assert_gap(p95_ms=5000)
def test_max(turngap):
    turngap.replay("{URL}").assert_stage("llm_first_token", max_ms=5000)
def test_outcome(turngap):
    turngap.replay("{URL}").assert_outcome("coffee-order", 1)
"""
    result = inner(code)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*LatencyError: turn gap p95 – (2 of 21 turns have no reply)*",
            "*∅ coffee-order · turn 1 · no_reply*",
            "*LatencyError: llm_first_token max without a figure*",
            "*LatencyError: coffee-order, turn 1: no_reply in 2 of 9, expected answered",
        ]
    )


def test_a_stage_that_the_agent_does_not_report_is_not_held(inner: Inner, play: Play) -> None:
    play([make_turn(marks_ms={"agent_onset": 300.0}) for _ in range(21)])
    code = f'def test_it(turngap):\n    turngap.replay("{URL}").assert_stage("sent", max_ms=9999)\n'
    result = inner(code)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*no turn has the stage sent*unattributed*", "*MarksObserver*", "*inconclusive"]
    )


def test_a_starved_caller_makes_no_pass(inner: Inner, play: Play) -> None:
    play(made_turns(21), valid=False, why_invalid=("the caller was starved in 9 of 21 turns",))
    result = inner(PLAIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*InconclusiveError: the run is invalid: the caller was starved*", "*inconclusive"]
    )


def test_nothing_is_asserted_of_a_candidate_whose_caller_was_starved(
    inner: Inner, agents: FakeAgents
) -> None:
    agents.starved = lambda _url, _nth: True
    code = f"""
def test_it(turngap):
    check = turngap.check(
        "{NEW}", against="{OLD}", scenarios="quick-questions", calibration=0, rounds=1
    )
    assert check.verdict == "cannot_compare"
    assert len(check.run.turns) == 6
    check.candidate.assert_gap(max_ms=5000)
"""
    result = inner(code)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       check.candidate.assert_gap(max_ms=5000)",
            "*InconclusiveError: the run is invalid: the caller was starved in 6 of 6 turns*",
            "*inconclusive (check: cannot compare)",
        ]
    )


def test_a_comparison_that_cannot_be_made_shows_no_verdicts(
    inner: Inner, agents: FakeAgents
) -> None:
    agents.starved = lambda _url, _nth: True
    result = inner(
        f"""
def test_it(turngap):
    turngap.check(
        "{NEW}", against="{OLD}", scenarios="quick-questions", calibration=0, rounds=1,
        budgets={{"gap": 800}},
    ).assert_not_slower()
"""
    )
    result.stdout.fnmatch_lines(["*cannot compare: the caller was starved in 6 of 6 pairs*"])
    result.stdout.no_fnmatch_line("*undecided*")


def test_a_comparison_says_in_how_many_pairs_the_caller_was_starved(
    inner: Inner, agents: FakeAgents
) -> None:
    agents.starved = lambda _url, nth: nth == 2
    result = inner(
        f"""
def test_it(turngap):
    turngap.check(
        "{NEW}", against="{OLD}", scenarios="quick-questions", calibration=0, rounds=3
    ).assert_not_slower()
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*InconclusiveError: undecided: *", "*the caller was starved in 3 of 18 pairs (0 in the*"]
    )


def test_an_agent_that_fails_says_what_was_played_and_where(inner: Inner, play: Play) -> None:
    failure = AgentError("agent.lost", "the line was lost", hint="its log: agent.log")
    play(made_turns(2), failure=failure, planned_turns=21)
    result = inner(PLAIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AgentError: the line was lost",
            "E*its log: agent.log",
            "E*2 of 21 turns were played; they are stored in */*made",
            "*not measured",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "call", "said"),
    [
        ("budgets=800", "replay()", "no setting budgets*allowed: agent, start, dialect,*"),
        ("budget_ms=0", "replay()", "budget_ms=0: expected a number from 1 to 60000"),
        ("800", "replay()", "name each argument*"),
        ("", "replay(repeat=0)", "repeat=0: expected a whole number from 1 to 1000000"),
        ("", "replay(starved_ms=0)", "starved_ms=0: expected a number from 1 to 1000"),
        ("", "replay(rounds=2)", "no setting rounds*allowed:*repeat*"),
        (
            "",
            "replay(scenarios='nowhere')",
            "no scenario 'nowhere'*known: coffee-order, *lists all*",
        ),
        ("", "replay(sets=['llm.ttft_ms=1'])", "is a running agent*drop*"),
        ("", "replay().assert_stage('llm', max_ms=1)", "no stage 'llm'*stages: line_up*"),
        ("", "replay().assert_gap()", "no limit given*for example p95_ms*"),
        ("", "replay().assert_hit_rate(95)", "at_least=95: expected a share*"),
        ("", "replay().assert_cut_ins(5)", "at_most=5: expected a share*"),
        ("", "replay().assert_outcome('coffee-order', 9)", "no turn 9*played: coffee-order 1*"),
        ("", "check()", "nothing to compare with*give against*"),
        ("", "check(against='x')", "no agent named 'x'*"),
        ("", "check(budgets={'llm': 1})", "budget llm=1:*known: gap,*"),
        ("", "check(budgets={'gap': 1}, target=1)", "target=1: no number of turns*0.99 takes 368*"),
        ("", "check(budgets={'gap': 1}, target=95)", "target=95: expected a share*"),
        (
            "",
            "check(budgets={'gap': 1}, phases=0)",
            "phases=0: expected a whole number from 1 to 32",
        ),
        ("", "check(budgets={'gap': 1}, rounds=1.5)", "rounds=1.5: expected a whole number"),
        ("", "check(budgets={'gap': 1}, limit_p50_ms=-1)", "limit_p50_ms=-1: expected a number*"),
    ],
)
def test_what_cannot_be_asked_for_is_said(
    inner: Inner, play: Play, marker: str, call: str, said: str
) -> None:
    play(made_turns(21))
    mark = f"import pytest\n@pytest.mark.turngap({marker})" if marker else ""
    result = inner(f"{mark}\ndef test_it(turngap):\n    turngap.{call}\n", f"--turngap-agent={URL}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = " ".join(line.removeprefix("E").strip() for line in result.outlines)
    pytester_match(lines, f"*InputError: *{said}")


def pytester_match(text: str, pattern: str) -> None:
    pytest.LineMatcher([text]).fnmatch_lines([f"{pattern}*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--turngap-rounds=0"], "--turngap-rounds: '0': expected a whole number from 1 to"),
        (["--turngap-rounds=many"], "'many': expected a whole number"),
        (["--turngap-inconclusive=pass"], "invalid choice: 'pass'"),
        (["-o", "turngap_inconclusive=pass"], "turngap_inconclusive is 'pass': expected fail or"),
        (["--turngap-starved-ms=0"], "--turngap-starved-ms: '0': expected a number from 1 to 1000"),
        (["-o", "turngap_starved_ms=x"], "turngap_starved_ms is 'x': expected a number from 1"),
        (["-o", "turngap_calibration=-1"], "turngap_calibration is '-1': expected a whole number"),
    ],
)
def test_a_wrong_option_ends_pytest_at_once(inner: Inner, arguments: list[str], said: str) -> None:
    result = inner(PLAIN, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in text_of(result)


def test_the_help_and_the_markers_are_there(inner: Inner) -> None:
    shown = text_of(inner("", "--help"))
    for option in (
        "out",
        "rounds",
        "agent",
        "start",
        "inconclusive",
        "line",
        "starved-ms",
    ):
        assert f"--turngap-{option}" in shown
    for ini in ("out", "agent", "start", "inconclusive", "calibration", "starved_ms"):
        assert f"turngap_{ini} (string)" in shown
    assert "@pytest.mark.turngap(" in text_of(inner("", "--markers"))


def test_settings_come_from_the_call_then_the_marker_then_the_options(
    inner: Inner, play: Play
) -> None:
    plans = play(made_turns(3), made_turns(3))
    code = """
import pytest
@pytest.mark.turngap(budget_ms=700, repeat=5, scenarios="quick-questions", phase_ms=8)
def test_it(turngap):
    turngap.replay(budget_ms=600)
    turngap.replay("ws://127.0.0.1:10/ws", calibration=3)
"""
    ini = ["-o", "turngap_calibration=0", "-o", f"turngap_agent={URL}"]
    inner(code, *ini).assert_outcomes(passed=1)
    first, second = plans
    assert (first.budget_ms, first.rounds, first.phase, first.calibration_turns) == (600, 5, 128, 0)
    assert [s.scenario.name for s in first.scenarios] == ["quick-questions"]
    assert first.target.choice.agent == URL
    assert (second.budget_ms, second.calibration_turns) == (700, 3)
    assert second.target.choice.agent == "ws://127.0.0.1:10/ws"
    plans = play(made_turns(3), made_turns(3))
    inner(code, *ini, "--turngap-rounds=2").assert_outcomes(passed=1)
    assert [p.rounds for p in plans] == [2, 2]


def test_the_command_of_the_options_starts_the_agent_of_the_options_alone(
    inner: Inner, play: Play
) -> None:
    plans = play(made_turns(3), made_turns(3), made_turns(3))
    code = """
def test_it(turngap):
    turngap.replay()
    turngap.replay("ws://127.0.0.1:10/ws")
    turngap.replay("ws://127.0.0.1:10/ws", start="env other.py")
"""
    options = [f"--turngap-agent={URL}", "--turngap-start=env bot.py"]
    inner(code, *options).assert_outcomes(passed=1)
    assert [p.target.choice.start for p in plans] == ["env bot.py", None, "env other.py"]


def test_how_late_the_caller_may_be_comes_from_call_marker_option_and_ini(
    inner: Inner, play: Play
) -> None:
    code = """
import pytest
@pytest.mark.turngap(starved_ms=30)
def test_marked(turngap):
    turngap.replay(starved_ms=20)
    turngap.replay()
def test_plain(turngap):
    turngap.replay()
"""
    agent, ini = f"--turngap-agent={URL}", ("-o", "turngap_starved_ms=50")
    for arguments, expected in (
        ((), [20, 30, 10]),
        (ini, [20, 30, 50]),
        ((*ini, "--turngap-starved-ms=40"), [20, 30, 40]),
    ):
        plans = play(*[made_turns(3)] * 3)
        inner(code, agent, *arguments).assert_outcomes(passed=2)
        assert [plan.starved_ms for plan in plans] == expected


def test_a_line_comes_from_the_call_or_the_option(inner: Inner, play: Play) -> None:
    plans = play(made_turns(3), made_turns(3))
    code = "def test_it(turngap):\n    turngap.replay()\n    turngap.replay(line='lte-bad')\n"
    inner(code, f"--turngap-agent={URL}", "--turngap-line=lte").assert_outcomes(passed=1)
    assert [plan.line and plan.line.text for plan in plans] == ["lte", "lte-bad"]


def test_what_uses_the_fixture_can_be_left_out_and_nothing_asserted_is_said(
    inner: Inner, play: Play
) -> None:
    play(made_turns(3))
    code = f"{PLAIN}\ndef test_other():\n    pass\n"
    inner(code, "-m", "not turngap").assert_outcomes(passed=1, deselected=1)
    result = inner(code, "-m", "turngap")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*100 % (n=3) *n=3, needs 5 *needs 20 *passed, nothing asserted"])
    assert "= turngap =" not in text_of(inner(code, "-k", "other"))


def test_within_a_running_loop_it_plays_too(inner: Inner, play: Play) -> None:
    play(made_turns(21))
    code = f"""
import asyncio
def test_it(turngap):
    async def inside():
        turngap.replay("{URL}").assert_hit_rate(0.95)
    asyncio.run(inside())
"""
    inner(code).assert_outcomes(passed=1)


def test_without_its_dependencies_the_fixture_says_what_to_do(
    inner: Inner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "turngap.pytest_plugin.fixture", None)
    monkeypatch.setattr("turngap.backends.needs._without_dependencies", lambda: True)
    result = inner(PLAIN + "\ndef test_other():\n    pass\n")
    result.assert_outcomes(passed=1, errors=1)
    said = text_of(result)
    assert "run this in turngap's own environment" in said
    assert "ModuleNotFoundError" not in said
