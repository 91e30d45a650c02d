"""Telemetry of played turns, and the effect of a collector that fails."""

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from commandline import SCENARIOS
from made_records import MARKS_MS, USER_END_NS, make_turn, scaled
from otlp_collector import Collector, Span, collector

from turngap.caller.endpoint import Endpoint
from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError
from turngap.core.events import ToolCall
from turngap.core.results import Turn
from turngap.core.secrets import remember
from turngap.load.calls import Answered, load_turn
from turngap.load.schedule import Call, Shape, Step, Window
from turngap.load.steps import TracedSteps
from turngap.play.target import AgentChoice, resolve
from turngap.telemetry import Recorder, Telemetry, exporter, telemetry_to
from turngap.telemetry.exporter import GAP, STAGES, TURNS
from turngap.testing.clock import ManualClock

SECRET = "sk-a1b2c3d4e5f6g7h8"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ENDPOINT",
        "HEADERS",
        "PROTOCOL",
        "TIMEOUT",
        "TRACES_ENDPOINT",
        "METRICS_ENDPOINT",
    ):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(exporter, "TIMEOUT_S", 30.0)  # a busy machine is no slow collector
    with collector() as kept:
        yield kept


def begun(telemetry: Telemetry, **about: Any) -> Recorder:
    clock = ManualClock(start_ns=USER_END_NS - NS_PER_S)
    return telemetry.conversation("embedded", clock, "the-run/coffee-order/1/0", **about)


def record(telemetry: Telemetry, *turns: Turn, **about: Any) -> tuple[str, ...]:
    """A conversation of these turns; returns the headers that its agent got."""
    with begun(telemetry, **about) as recorder:
        for turn in turns:
            recorder.turn(turn, USER_END_NS + NS_PER_S)
    return recorder.headers


def sent_of(there: Collector, *turns: Turn) -> list[Span]:
    telemetry = telemetry_to(there.url)
    record(telemetry, *turns)
    telemetry.close()
    return there.spans


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def test_a_conversation_is_one_tree_of_turns_and_stages(there: Collector) -> None:
    telemetry = telemetry_to(there.url)
    turn = make_turn(counts={"user_bot_latency_ms": 333.25, "agent_gap_ms": 340.0})
    (header,) = record(telemetry, turn, make_turn(turn=2, marks_ms=None, ended="timeout"))
    assert telemetry.close() == (
        f"telemetry of 1 conversation sent to {there.url}: {len(there.spans)} spans"
    )
    spans = there.spans
    (root,) = (span for span in spans if not span.parent)
    assert root.name == "invoke_agent embedded"
    assert header == f"traceparent: 00-{root.trace}-{root.id}-01"
    assert {span.trace for span in spans} == {root.trace}
    first, second = named(spans, "turngap.turn")
    assert first.parent == second.parent == root.id
    assert first.attributes["turngap.gap_ms"] == 398.25
    assert first.attributes["turngap.agent.gap_ms"] == 333.25
    assert first.attributes["turngap.agent.gap_source"] == "pipecat"
    assert first.attributes["turngap.gap_difference_ms"] == 65.0
    assert first.attributes["turngap.outcome"] == "answered"
    assert first.attributes["turngap.cut_in"] is False
    stages = [span for span in spans if span.parent == first.id]
    assert [span.name for span in stages] == [f"turngap.{s.name}" for s in turn.stages]
    # To the nanosecond, on a clock of which a double would hold a quarter of a microsecond.
    assert sum(span.end_ns - span.start_ns for span in stages) == turn.gap_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(stages))
    assert second.attributes["turngap.outcome"] == "no_reply"
    assert "turngap.gap_ms" not in second.attributes
    assert second.failed == second.attributes["turngap.why_no_gap"]
    assert {span.service for span in spans} == {"turngap"}


def test_a_cut_in_is_traced_and_has_no_stages(there: Collector) -> None:
    spans = sent_of(there, make_turn(marks_ms=scaled(-0.5)))
    (turn,) = named(spans, "turngap.turn")
    assert turn.attributes["turngap.cut_in"] is True
    assert turn.attributes["turngap.gap_ms"] == -199.125
    assert turn.start_ns <= turn.end_ns
    assert not [span for span in spans if span.parent == turn.id]
    assert {a["turngap.outcome"] for name, _, a, _ in there.points if name == TURNS} == {"cut_in"}
    assert GAP not in {name for name, *_ in there.points}


def test_the_histogram_has_the_gaps_in_seconds_and_exemplars_that_lead_to_their_turns(
    there: Collector,
) -> None:
    spans = sent_of(there, make_turn(), make_turn(turn=2, marks_ms=scaled(3)))
    points = {a["turngap.outcome"]: p for n, _, a, p in there.points if n == GAP}
    assert points["answered"].sum == pytest.approx(0.39825)
    assert points["late"].count == 1
    turns = {span.attributes["turngap.outcome"]: span for span in named(spans, "turngap.turn")}
    for outcome, point in points.items():
        assert point.exemplars[0].span_id.hex() == turns[outcome].id
        assert point.exemplars[0].as_double == point.sum
    stages = [(a["turngap.stage"], p.sum) for n, _, a, p in there.points if n == STAGES]
    assert sum(spent for _, spent in stages) == pytest.approx(4 * 0.39825)
    assert {name for name, _ in stages} == set(MARKS_MS)


def test_a_turn_that_no_figure_counts_is_in_the_trace_alone(there: Collector) -> None:
    spans = sent_of(there, make_turn(left_out="a cold start"), make_turn(turn=2))
    assert len(named(spans, "turngap.turn")) == 2
    assert sum(p.as_int for n, _, _, p in there.points if n == TURNS) == 1


def test_what_was_said_is_sent_only_if_it_is_wanted(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = make_turn(reply="Your code is 1234.")
    (quiet,) = named(sent_of(there, turn), "turngap.turn")
    assert not {"turngap.say", "turngap.reply", "turngap.transcript"} & set(quiet.attributes)
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    there.requests.clear()
    (open_,) = named(sent_of(there, turn), "turngap.turn")
    assert open_.attributes["turngap.reply"] == "Your code is 1234."


def test_no_secret_goes_out_though_an_agent_echoes_it(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(SECRET)
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    turn = make_turn(marks_ms=None, ended="timeout", error=f"401: bad key {SECRET}")
    call = ToolCall(SECRET, {SECRET: SECRET, "password": "Pl4nted00qZ7wK"}, error=SECRET)
    echo = make_turn(turn=2, reply=f"It is {SECRET}", transcript=SECRET, calls=(call,))
    telemetry = telemetry_to(there.url)
    record(telemetry, turn, echo, label=f"--token {SECRET}")
    telemetry.close()
    assert there.spans
    bodies = b"".join(body for _, _, body in there.requests)
    assert b"It is (removed)" in bodies
    assert SECRET.encode() not in bodies
    assert b"Pl4nted" not in bodies


def test_the_environment_names_where_it_goes_and_who_sends_it(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{there.url}/base")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-team={SECRET}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=ci")
    telemetry = telemetry_to(None)
    record(telemetry, make_turn())
    telemetry.close()
    assert {path for path, *_ in there.requests} == {"/base/v1/traces", "/base/v1/metrics"}
    assert {headers.get("x-team") for _, headers, _ in there.requests} == {SECRET}
    assert {span.service for span in there.spans} == {"nightly"}


def test_without_a_destination_nothing_is_made_and_no_header_sent() -> None:
    telemetry = telemetry_to(None)
    assert record(telemetry, make_turn()) == ()
    assert telemetry.close() is None


def test_a_sampler_that_keeps_nothing_tells_the_agent_so(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = telemetry_to(there.url)
    (header,) = record(telemetry, make_turn())
    telemetry.close()
    assert header.endswith("-00")
    assert not there.spans
    assert sum(p.as_int for n, _, _, p in there.points if n == TURNS) == 1  # figures count all


@pytest.mark.parametrize("refuses", ["", "/v1/metrics"], ids=["all", "histograms alone"])
async def test_a_collector_that_fails_is_left_alone_and_reported_once(
    refuses: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with collector(status=200 if refuses else 400) as failing:
        failing.refuses = refuses
        telemetry = telemetry_to(failing.url)
        record(telemetry, make_turn())
        await telemetry.between()
        record(telemetry, make_turn())
        await telemetry.between()
        words = telemetry.close()
        assert [path for path, *_ in failing.requests].count("/v1/metrics") <= 1
    assert telemetry.lost
    what, sent = ("histograms", 24) if refuses else ("spans and histograms", 0)
    assert str(words).startswith(
        f"telemetry: {what} could not be sent to {failing.url}, {sent} spans were sent: "
    )
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("opentelemetry").propagate


async def test_nothing_is_sent_before_a_flush(there: Collector) -> None:
    telemetry = telemetry_to(there.url)
    for _ in range(3):
        record(telemetry, *(make_turn(turn=n) for n in range(1, 100)))  # more than the SDK's batch
    assert not there.requests
    await telemetry.between()
    assert len(there.spans) == 3 * (1 + 99 * 11)
    telemetry.close()


def test_a_turn_that_cannot_be_traced_ends_nothing_and_is_logged(
    there: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = telemetry_to(there.url)
    record(telemetry, make_turn().model_copy(update={"marks": ()}))
    record(telemetry, make_turn())
    telemetry.close()
    assert "turn 1 has no mark user_end" in caplog.text
    assert len(named(there.spans, "turngap.turn")) == 1


def test_a_long_step_is_sent_whole_and_in_several_requests() -> None:
    with collector(holds=True) as there:
        sends = exporter.Exporter({"traces": f"{there.url}/v1/traces"})
        for _ in range(20_000):
            sends.span("turngap.turn", 1, {}).end(2)
        there.held.set()
        sends.close()
        assert (len(there.requests), sends.sent) == (3, 20_000)


async def test_what_is_sent_between_conversations_is_sent_once(there: Collector) -> None:
    telemetry = telemetry_to(there.url)
    for _ in range(3):
        record(telemetry, make_turn())
        await telemetry.between()
    telemetry.close()
    ids = [span.id for span in there.spans]
    assert len(ids) == len(set(ids)) == 3 * 12


# --- what fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [(AgentError("agent.line_lost", "gone"), "agent.line_lost"), (OSError("gone"), "OSError")],
)
def test_a_call_that_an_error_ended_says_of_which_kind(
    error: Exception, kind: str, there: Collector
) -> None:
    telemetry = telemetry_to(there.url)
    with pytest.raises(type(error)), begun(telemetry):
        raise error
    telemetry.close()
    (root,) = there.spans
    assert (root.failed, root.attributes["error.type"]) == ("gone", kind)


# --- a load test --------------------------------------------------------------------------------


@pytest.mark.parametrize(("calls", "traced"), [(5, 5), (20, 20), (1000, 20)])
async def test_of_a_step_a_few_calls_are_traced_and_all_turns_counted(
    calls: int, traced: int, there: Collector
) -> None:
    shape = Shape("made", (0.36,), 1.0)
    step = Step(
        1, 8, Window(0, 10, 0), tuple(Call(n, 0.0, 0, shape, (True,)) for n in range(1, calls + 1))
    )
    telemetry = telemetry_to(there.url)
    steps = TracedSteps(telemetry, "a-load", resolve(AgentChoice("ws://127.0.0.1:9/ws"), SCENARIOS))
    headers = steps.headers(step, Endpoint("ws://127.0.0.1:9/ws"))
    assert len(headers) == calls
    assert sum(header.endswith("-01") for (header,) in headers.values()) == traced
    turns = [
        load_turn(1, call, 1, Answered(make_turn(), waited_ms=100.0)) for call in step.calls[:-1]
    ]
    refused = load_turn(1, step.calls[-1], 1, None, missed="refused", why="HTTP 503")
    await steps.ended([*turns, refused])
    telemetry.close()
    roots = [span for span in there.spans if not span.parent]
    assert {f"traceparent: 00-{r.trace}-{r.id}-01" for r in roots} <= {
        h for (h,) in headers.values()
    }
    assert traced - 1 <= len(roots) <= traced
    assert {root.attributes["turngap.sessions"] for root in roots} == {8}
    counted = {a["turngap.outcome"]: p for n, _, a, p in there.points if n == TURNS}
    assert {outcome: p.as_int for outcome, p in counted.items()} == {
        "answered": calls - 1,
        "refused": 1,
    }
    (gap,) = (p for n, _, _, p in there.points if n == GAP)
    # Counted from the intended instant: a caller who waits for the line waits for the agent.
    assert gap.sum == pytest.approx((calls - 1) * 0.49825)


def test_of_callers_on_other_machines_no_call_is_traced(there: Collector) -> None:
    step = Step(1, 1, Window(0, 10, 0), (Call(1, 0.0, 0, Shape("made", (0.36,), 1.0), (True,)),))
    agent = resolve(AgentChoice("ws://127.0.0.1:9/ws"), SCENARIOS)
    steps = TracedSteps(telemetry_to(there.url), "a-load", agent, traces=False)
    ((header,),) = steps.headers(step, Endpoint("ws://127.0.0.1:9/ws")).values()
    assert header.endswith("-00")


async def test_every_call_that_was_to_be_traced_gets_its_root(there: Collector) -> None:
    shape = Shape("made", (0.36,), 1.0)
    step = Step(1, 2, Window(0, 10, 0), tuple(Call(n, 0.0, 0, shape, (True,)) for n in range(1, 4)))
    telemetry = telemetry_to(there.url)
    steps = TracedSteps(telemetry, "a-load", resolve(AgentChoice("ws://127.0.0.1:9/ws"), SCENARIOS))
    steps.headers(step, Endpoint("ws://127.0.0.1:9/ws"))
    await steps.ended([load_turn(1, step.calls[0], 1, Answered(make_turn(), waited_ms=0.0))])
    steps.headers(step, Endpoint("ws://127.0.0.1:9/ws"))
    steps.let_go(AgentError("load.worker", "a caller is lost"))
    steps.let_go()  # nothing is left
    telemetry.close()
    roots = [span for span in there.spans if not span.parent]
    assert [root.attributes["turngap.turns"] for root in roots] == [1, 0, 0, 0, 0, 0]
    assert [root.failed for root in roots] == [None] * 3 + ["a caller is lost"] * 3
