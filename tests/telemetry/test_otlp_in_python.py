"""`otlp=` of the functions that play, and what their logger says of it."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS
from fake_agents import Served
from otlp_collector import collector
from virtual_agents import VirtualAgents

import turngap
from turngap.play.target import Target
from turngap.testing.agent import Reply, Script

URL = "ws://127.0.0.1:9/ws"
PLAYS: list[Callable[..., Any]] = [
    lambda **s: turngap.replay(URL, **s),
    lambda **s: turngap.check(URL, budgets={"gap": 800}, **s),
    lambda **s: turngap.compare("sim", "slow=sim,ttft_ms=400", **s),
    lambda **s: turngap.load(URL, sessions=1, **s),
]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT", "METRICS_ENDPOINT", "PROTOCOL", "HEADERS"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


@pytest.fixture
def asked(tmp_path: Path, virtual_agents: VirtualAgents) -> dict[str, Any]:
    url = virtual_agents.url_of(Script(replies=(Reply(),)))
    quick = {"scenarios": "quick-questions", "library": SCENARIOS, "calibration": 0}
    return {"agent": url, "out": tmp_path} | quick


@pytest.mark.parametrize("play", PLAYS, ids=["replay", "check", "compare", "load"])
def test_what_is_no_collector_is_refused_before_anything_is_played(
    play: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(turngap.InputError, match="'collector:4318' is no URL of a collector"):
        play(scenarios="quick-questions", out=tmp_path, otlp="collector:4318")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_replay_is_told_and_the_logger_says_so(
    by: str,
    asked: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "turngap")
    with collector() as there:
        if by == "environment":
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.url)
        turngap.replay(**asked, otlp=there.url if by == "argument" else None)
        assert [span.name for span in there.spans].count("turngap.turn") == 3
        said = f"telemetry of 1 conversation sent to {there.url}: {len(there.spans)} spans"
    assert [(r.levelname, r.message) for r in caplog.records if r.name == "turngap"] == [
        ("INFO", said)
    ]


def test_a_check_tells_the_conversations_of_both_sides(
    asked: dict[str, Any], virtual_agents: VirtualAgents
) -> None:
    against = virtual_agents.url_of(Script(replies=(Reply(),)))
    with collector() as there:
        turngap.check(**asked, against=against, rounds=1, otlp=there.url)
    roots = [span for span in there.spans if not span.parent]
    assert {root.attributes["gen_ai.agent.name"] for root in roots} == {
        f"{asked['agent'].removeprefix('ws://')} candidate",
        f"{against.removeprefix('ws://')} reference",
    }


def test_a_comparison_tells_the_conversations_of_each_backend(
    tmp_path: Path, virtual_agents: VirtualAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = virtual_agents.url_of(Script(replies=(Reply(),)))
    monkeypatch.setattr(Target, "serving", lambda *_: Served(url))
    with collector() as there:
        compared = turngap.compare(
            "a=sim",
            "b=sim,ttft_ms=400",
            scenarios="quick-questions",
            library=SCENARIOS,
            out=tmp_path,
            otlp=there.url,
        )
    roots = [span for span in there.spans if not span.parent]
    assert [root.attributes["turngap.turns"] for root in roots] == [3, 3]
    assert {root.attributes["turngap.run"] for root in roots} == {
        path.name for path in compared.path.rglob("*") if (path / "run.json").is_file()
    }


def test_a_collector_that_is_down_costs_a_warning_and_no_run(
    asked: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run = turngap.replay(**asked, otlp="http://127.0.0.1:9")
    assert len(run.turns) == 3
    (warned,) = [r for r in caplog.records if r.name == "turngap"]
    assert warned.levelname == "WARNING"
    assert "could not be sent to http://127.0.0.1:9" in warned.message
