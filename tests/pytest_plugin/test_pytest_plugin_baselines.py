"""`--turngap-save` and `--turngap-compare` as somebody else's test run sees them."""

import json
from typing import Any

import pytest
from inner_runs import PLAIN, URL, Inner, Play, made_turns

pytest_plugins = ["pytester"]


def test_without_the_baseline_there_is_no_pass(inner: Inner, play: Play) -> None:
    play(made_turns(75))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*no baseline main of this test", "*pytest --turngap-save main makes it", "*inconclusive"]
    )


def test_saved_then_compared(inner: Inner, play: Play, pytester: pytest.Pytester) -> None:
    play(made_turns(75))
    saved = inner(PLAIN, "--turngap-save=main")
    saved.assert_outcomes(passed=1)
    saved.stdout.fnmatch_lines(["*passed, nothing asserted, saved as main"])
    (file,) = (pytester.path / ".turngap/main").iterdir()
    assert file.name.startswith("test_latency.py-test_agent-")
    play(made_turns(75))
    same = inner(PLAIN, "--turngap-compare=main")
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines(["*passed, not slower than main"])


def test_a_regression_fails_with_its_stage_named(inner: Inner, play: Play) -> None:
    play(made_turns(75))
    inner(PLAIN, "--turngap-save=main")
    play(made_turns(75, tts_first_audio=90.0))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*worse than main in gap p50*; stage that moved: tts_first_audio +90 ms (n=75)",
            "*gap p50: regressed, +90 ms (95 % interval * to *; n=75 pairs)",
            "*✓ coffee-order · turn *",
            "*▓ tts_first_audio 90*",
            "*baseline: *.turngap/main/*",
            "*too slow",
        ]
    )


def test_too_few_pairs_are_undecided(inner: Inner, play: Play) -> None:
    play(made_turns(6))
    inner(PLAIN, "--turngap-save=main")
    play(made_turns(6))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*undecided beside main: 6 pairs; more take more turns on both sides: "
            "--turngap-rounds N with --turngap-save main, then with --turngap-compare main",
            "*gap p95: undecided*",
        ]
    )
    play(made_turns(9))
    result = inner(PLAIN, "--turngap-compare=main")
    result.stdout.fnmatch_lines(
        ["*undecided beside main: 6 pairs*", "*3 turns without a twin in main*"]
    )


def test_a_budget_that_has_changed_since_moves_nothing(inner: Inner, play: Play) -> None:
    play(made_turns(75))
    inner(PLAIN, "--turngap-save=main")
    # What was answered within 800 ms is late by 300, on both sides alike.
    strict = [
        turn.model_copy(update={"budget_ms": 300.0, "outcome": "late"}) for turn in made_turns(75)
    ]
    play(strict)
    inner(PLAIN, "--turngap-compare=main").assert_outcomes(passed=1)
    play([turn.model_copy(update={"outcome": "late"}) for turn in made_turns(75)])
    result = inner(PLAIN, "--turngap-compare=main")
    result.stdout.fnmatch_lines(["*hit rate: regressed, −100 points*"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": {"fingerprint": "elsewhere"}}, "saved on another machine"),
        ({"scenario_hashes": {"coffee-order": "other"}}, "scenario coffee-order*changed since"),
        ({"metrics_version": 0}, "metrics version 0"),
        ({"turns": []}, "it holds no turns"),
        ({"schema_version": 99}, "schema version 99*"),
    ],
)
def test_a_baseline_of_something_else_is_never_a_pass(
    inner: Inner, play: Play, pytester: pytest.Pytester, change: dict[str, Any], said: str
) -> None:
    play(made_turns(75))
    inner(PLAIN, "--turngap-save=main")
    (file,) = (pytester.path / ".turngap/main").iterdir()
    document = json.loads(file.read_text())
    for key, value in change.items():
        document[key] = document[key] | value if isinstance(value, dict) else value
    file.write_text(json.dumps(document))
    play(made_turns(75))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*cannot compare with main: *{said}*", "*inconclusive"])


def test_a_baseline_that_was_cut_short_is_never_a_pass(
    inner: Inner, play: Play, pytester: pytest.Pytester
) -> None:
    play(made_turns(75))
    inner(PLAIN, "--turngap-save=main")
    (file,) = (pytester.path / ".turngap/main").iterdir()
    file.write_bytes(file.read_bytes()[:-200])
    play(made_turns(75))
    result = inner(PLAIN, "--turngap-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*cannot compare with main: *cut short*"])


def test_a_failed_test_is_not_saved(inner: Inner, play: Play, pytester: pytest.Pytester) -> None:
    play(made_turns(21))
    code = f'def test_it(turngap):\n    turngap.replay("{URL}").assert_gap(max_ms=100)\n'
    inner(code, "--turngap-save=main").assert_outcomes(failed=1)
    assert not (pytester.path / ".turngap").exists()


def test_each_test_and_each_of_its_runs_has_a_baseline_of_its_own(
    inner: Inner, play: Play, pytester: pytest.Pytester
) -> None:
    play(*[made_turns(6) for _ in range(4)])
    code = f"""
import pytest
@pytest.mark.parametrize("which", ["a/b", "a-b"])
def test_it(turngap, which):
    turngap.replay("{URL}")
    turngap.replay("{URL}")
"""
    inner(code, "--turngap-save=main", "--turngap-baselines=kept").assert_outcomes(passed=2)
    assert len(list((pytester.path / "kept/main").iterdir())) == 4
