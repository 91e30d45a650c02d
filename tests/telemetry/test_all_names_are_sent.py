"""Every name that is listed is sent by something: a replay, a load test, or a turn of some kind."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import SCENARIOS, turngap_here
from made_records import USER_END_NS, make_turn, scaled
from otlp_collector import Collector, collector
from virtual_agents import VirtualAgents

from turngap.caller.endpoint import Endpoint
from turngap.core.clock import NS_PER_S
from turngap.core.events import ToolCall
from turngap.core.stored import AnswerRecord
from turngap.load.calls import Answered, load_turn
from turngap.load.schedule import Call, Shape, Step, Window
from turngap.load.steps import TracedSteps
from turngap.play.target import AgentChoice, resolve
from turngap.telemetry import telemetry_to
from turngap.testing.agent import Reply, Script
from turngap.testing.clock import ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \| ", re.MULTILINE)


def names_of(heading: str) -> frozenset[str]:
    """The names that docs/telemetry.md lists under a heading."""
    section = PAGE.split(f"\n### {heading}", 1)[1].split("\n### ", 1)[0]
    return frozenset(name.strip("`") for row in ROW.findall(section) for name in row.split(", "))


CONVERSATION, TURN, STAGE, METRICS = map(
    names_of, ("The conversation", "A turn", "A stage", "Metrics")
)
# Of a load test alone, of a call that an error ended, and of a URL that has one.
NOT_OF_A_REPLAY = {"turngap.call", "turngap.step", "turngap.sessions", "error.type", "server.port"}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("TRACES_ENDPOINT", "METRICS_ENDPOINT", "PROTOCOL", "HEADERS"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    with collector() as kept:
        yield kept


def roots(there: Collector) -> list[dict[str, object]]:
    return [dict(span.attributes) for span in there.spans if not span.parent]


def test_a_replay_sends_all_that_is_listed_of_a_conversation(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    virtual_agents: VirtualAgents,
    there: Collector,
) -> None:
    url = virtual_agents.url_of(Script(replies=(Reply(),)))
    done = turngap_here(
        capsys, "replay", SCENARIOS / "quick-questions.yaml", "--calibration", "0",
        "--out", tmp_path, "--agent", url,
        "--label", "before", "--otlp", there.url,
    )  # fmt: skip
    assert done.code == 0, done.err
    (root,) = roots(there)
    assert set(root) == set(CONVERSATION) - NOT_OF_A_REPLAY
    assert (root["turngap.label"], root["turngap.dialect"]) == ("before", "pipecat")


async def test_a_load_test_sends_the_rest_of_it(there: Collector) -> None:
    call = Call(1, 0.0, 0, Shape("made", (0.36,), 1.0), (True,))
    step = Step(1, 8, Window(0, 10, 0), (call,))
    telemetry = telemetry_to(there.url)
    agent = resolve(AgentChoice("ws://127.0.0.1:9/ws"), SCENARIOS)
    steps = TracedSteps(telemetry, "a-load", agent, label="before", commit="abc")
    steps.headers(step, Endpoint("ws://127.0.0.1:9/ws"))
    missed = load_turn(1, call, 1, None, missed="refused", why="HTTP 503")
    await steps.ended([load_turn(1, call, 1, Answered(make_turn(), waited_ms=100.0)), missed])
    telemetry.close()
    (root,) = roots(there)
    assert set(root) == set(CONVERSATION)
    assert (root["error.type"], root["turngap.label"]) == ("refused", "before")


# Prometheus shows them as HELP, and complains where two versions of turngap say different things of
# one metric: give a new text a new name.
TEXTS = {
    "turngap.turn.gap": "The heard gap of turns with a reply after the person's end.",
    "turngap.turn.agent_gap": "The same gap as the agent claims it.",
    "turngap.stage.duration": "The time that each stage of these turns took.",
    "turngap.turn.yield": "Barge-in: from the person's onset to silence.",
    "turngap.turn.outcomes": "Turns by outcome.",
}


def test_turns_of_all_kinds_send_all_that_is_listed_of_a_turn(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    turns = [
        make_turn(llm="small", yield_ms=120.0, counts={"user_bot_latency_ms": 333.25}),
        make_turn(turn=2, marks_ms=scaled(-0.5), error="it broke off", left_out="a cold start"),
        make_turn(turn=3, marks_ms=None, ended="timeout"),
        make_turn(turn=4, calls=(ToolCall("weather"),), answer=AnswerRecord(verdict="right")),
    ]
    telemetry = telemetry_to(there.url)
    clock = ManualClock(start_ns=USER_END_NS - NS_PER_S)
    with telemetry.conversation("embedded", clock, "the-run/coffee-order/1/0") as recorder:
        for turn in turns:
            recorder.turn(turn, waited_ms=1.0)
    telemetry.close()
    spans = there.spans
    sent = {name for span in spans if span.name == "turngap.turn" for name in span.attributes}
    assert sent == set(TURN)
    stages = [span for span in spans if "turngap.stage" in span.attributes]
    assert {frozenset(span.attributes) for span in stages} == {STAGE}
    # A tool takes a span with one of these for the call of an LLM, of which it would count two.
    llms = {"gen_ai.operation.name", "gen_ai.request.model"}
    assert not any(llms & set(span.attributes) for span in spans if span.parent)
    assert {name for name, *_ in there.points} == set(METRICS)
    assert there.texts == TEXTS
