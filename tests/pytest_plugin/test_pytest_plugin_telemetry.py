"""Telemetry of tests: flag, ini file, a test's `otlp=`, and failed deliveries."""

import logging

import pytest
from inner_runs import INI, PLAIN, URL, Inner, Play, made_turns, text_of

pytest_plugins = ["pytester"]

DOWN = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def collectors(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The collectors that are asked for, of which none is made."""
    from turngap import telemetry

    asked: list[str | None] = []

    def telemetry_to(url: str | None) -> telemetry.Telemetry:
        asked.append(url)
        return telemetry.OFF

    monkeypatch.setattr(telemetry, "telemetry_to", telemetry_to)
    return asked


def test_the_flag_wins_over_the_ini_file_and_a_test_over_both(
    inner: Inner, play: Play, pytester: pytest.Pytester, collectors: list[str | None]
) -> None:
    pytester.makeini(f"{INI}turngap_otlp = http://ini:4318\n")
    code = f'{PLAIN}\ndef test_own(turngap):\n    turngap.replay("{URL}", otlp="http://own:4318")\n'
    for flag in ([], ["--turngap-otlp", "http://flag:4318"]):
        play(made_turns(3), made_turns(3))
        inner(code, *flag).assert_outcomes(passed=2)
    own = "http://own:4318"
    assert collectors == ["http://ini:4318", own, "http://flag:4318", own]


def test_what_could_not_be_sent_is_said_below_the_run_and_fails_nothing(
    inner: Inner, play: Play
) -> None:
    warn = logging.getLogger("turngap").warning
    play(made_turns(3), during=lambda: warn("telemetry: 9 of 9 spans could not be sent"))
    result = inner(PLAIN, "--turngap-otlp", DOWN)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["  runs: *", "  telemetry: 9 of 9 spans could not be sent"])


@pytest.mark.parametrize("where", ["flag", "ini"])
def test_what_is_no_collector_ends_pytest_before_anything_is_played(
    where: str, inner: Inner, pytester: pytest.Pytester
) -> None:
    flag = ["--turngap-otlp", "collector:4318"] if where == "flag" else []
    if not flag:
        pytester.makeini(f"{INI}turngap_otlp = collector:4318\n")
    result = inner(PLAIN, *flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "'collector:4318' is no URL of a collector" in text_of(result)
