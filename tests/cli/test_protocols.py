"""`turngap dialects`, and what the commands on protocols make of bad input."""

import pytest
from commandline import turngap_here

from turngap.caller.dialects.registry import dialects
from turngap.report.run import calibrations_block

Capture = pytest.CaptureFixture[str]


def test_every_dialect_is_listed(capsys: Capture) -> None:
    done = turngap_here(capsys, "dialects", "--json")
    assert done.code == 0
    listed = {row["name"]: row for row in done.document()}
    assert set(listed) == set(dialects())
    twilio = listed["twilio"]
    assert (twilio["available"], twilio["missing"], twilio["rate"]) == (True, [], 8_000)
    assert twilio["loopback"]
    shown = turngap_here(capsys, "dialects")
    assert shown.code == 0
    assert all(name in shown.out for name in dialects())


@pytest.mark.parametrize("width", [80, 120])
def test_a_dialect_that_failed_stands_below_those_that_were_calibrated(width: int) -> None:
    error = {"n": 200, "p50": 0.21, "p95": 0.9, "p99": 1.62, "max": 3.0}
    measured = {"dialect": "pipecat", "rate": 16_000, "agent_rate": 24_000, "error_ms": error}
    failed = {"dialect": "twilio", "error": "the line was lost"}
    document = {"dialects": [{**measured, "signed_p50_ms": 0.11}, failed]}
    shown = calibrations_block(document, width).plain
    for text in ("16,000 / 24,000", "1.62", "+0.11", "twilio: the line was lost"):
        assert text in shown


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("calibrate", "--dialect", "twilo"), 2, "did you mean twilio?"),
        (("calibrate", "--dialect", "twilio,nothing=1"), 2, "nothing"),
    ],
)
def test_bad_input_says_what_is_allowed(
    arguments: tuple[str, ...], code: int, said: str, capsys: Capture
) -> None:
    done = turngap_here(capsys, *arguments)
    assert done.code == code
    assert said in done.err
