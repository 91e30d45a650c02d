"""`--otlp` on the command line, before anything is played."""

from pathlib import Path

import pytest
from commandline import turngap_here

from turngap.caller.endpoint import Endpoint

COMMANDS = {
    "replay": [],
    "check": ["--budget", "gap=800"],
    "compare": ["--llm", "sim", "--llm", "slow=sim,ttft_ms=400"],
    "load": ["--sessions", "1"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_collector_is_refused_before_anything_is_played(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [command, "quick-questions", *COMMANDS[command], "--otlp", "collector:4318"]
    done = turngap_here(capsys, *asked)
    assert done.code == 2
    assert "'collector:4318' is no URL of a collector" in done.err
    assert "http://HOST:PORT" in done.err


def test_a_collector_that_is_down_does_not_change_how_a_command_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["replay", "quick-questions", "--agent", "ws://127.0.0.1:9/ws", "--out", tmp_path]
    without = turngap_here(capsys, *asked)
    done = turngap_here(capsys, *asked, "--otlp", "http://127.0.0.1:9")
    assert done.code == without.code == 4
    assert done.err.count("telemetry") <= 1


def test_the_users_own_header_wins() -> None:
    ours = ("traceparent: 00-aa-bb-01",)
    own = Endpoint("ws://127.0.0.1:9/ws", headers=("TraceParent: 00-cc-dd-01",))
    assert own.with_headers(ours) == own
    bare = Endpoint("ws://127.0.0.1:9/ws", headers=("X-Key: a",))
    assert bare.with_headers(ours).opening()[1] == {"X-Key": "a", "traceparent": "00-aa-bb-01"}
