"""Somebody else's pipecat bot, started by its command: as it is, with marks, by phone, WebRTC."""

import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import pytest
import quiet
from commandline import ROOT, turngap
from otlp_collector import Collector, Span, collector
from reserved_ports import reserved_port
from shortened import first_turns

from turngap.core.stages import UNATTRIBUTED, USUAL_MARKS

pytestmark = pytest.mark.realtime


# How each is started, where it listens, and how it is called.
BOTS: dict[str, tuple[list[str], str, list[str]]] = {
    "plain": ([], "ws://127.0.0.1:{}/ws", []),
    "marks": (["--marks"], "ws://127.0.0.1:{}/ws", []),
    "phone": ([], "ws://127.0.0.1:{}/phone", ["--dialect", 'twilio,parameters={lang="en"}']),
}
if find_spec("aiortc"):
    BOTS["webrtc"] = (["--marks"], "http://127.0.0.1:{}", [])


@pytest.fixture(scope="module")
def there() -> Iterator[Collector]:
    with collector() as kept:
        yield kept


@pytest.fixture(scope="module")
def replayed(
    tmp_path_factory: pytest.TempPathFactory, there: Collector
) -> dict[str, list[dict[str, Any]]]:
    """The turns of each bot, all played at the same time; that with marks is traced, too."""

    def replay(name: str, port: int) -> list[dict[str, Any]]:
        out = tmp_path_factory.mktemp("runs")
        library = first_turns(tmp_path_factory.mktemp("library"), {"quick-questions": 2})
        options, at, called = BOTS[name]
        if name == "marks":
            options, called = [*options, "--otlp", there.url], [*called, "--otlp", there.url]
        bot = [sys.executable, str(ROOT / "examples" / "pipecat_bot.py"), "--port", str(port)]
        done = turngap(
            "replay", library, "--start", shlex.join([*bot, *options]),
            "--agent", at.format(port), *called,
            "--calibration", "0", "--out", out, "--json",
        )  # fmt: skip
        quiet.exited(done.code, done.err, *quiet.PLAYED)
        return done.document()["turns"]

    with ThreadPoolExecutor() as pool, ExitStack() as stack:
        played = pool.map(replay, BOTS, [stack.enter_context(reserved_port()) for _ in BOTS])
        return dict(zip(BOTS, played, strict=True))


def test_a_bot_is_measured_as_it_is_and_explained_with_marks(
    replayed: dict[str, list[dict[str, Any]]],
) -> None:
    for name, turns in replayed.items():
        are_measured(name, turns)


def are_measured(name: str, turns: list[dict[str, Any]]) -> None:
    assert len(turns) == 2
    # A phone company waits for nobody: a bot may still load its models in the first turn.
    for turn in turns[1:] if name == "phone" else turns:
        with quiet.measured():
            assert turn["outcome"] in ("answered", "late")
            assert turn["gap_ms"] > 300  # 200 of VAD and 100 of hold lie in it
        assert sum(s["ns"] for s in turn["stages"]) == turn["gap_ns"]
        names = [stage["name"] for stage in turn["stages"]]
        if "--marks" in BOTS[name][0]:
            with quiet.measured():  # the caller waits half a second for them
                assert names == list(USUAL_MARKS[1:])
                assert turn["stages"][0]["ms"] > 150
        else:
            assert names == [UNATTRIBUTED, "agent_onset"]
            with quiet.measured():
                assert turn["stages"][0]["ms"] > 300


def test_what_a_bot_traces_hangs_under_the_heard_turns_beside_what_it_claims(
    replayed: dict[str, list[dict[str, Any]]], there: Collector
) -> None:
    spans = there.spans
    root = next(span for span in spans if span.name.startswith("invoke_agent"))
    tree = [span for span in spans if span.trace == root.trace]
    by_id = {span.id: span for span in tree}

    def above(span: Span) -> list[str]:
        return [] if not span.parent else [span.parent, *above(by_id[span.parent])]

    # One tree: whatever has the trace hangs under the one root, the bot's spans, too.
    assert all(span is root or above(span)[-1] == root.id for span in tree)
    (conversation,) = (span for span in tree if span.name == "conversation")
    assert (conversation.service, conversation.parent) == ("pipecat-bot", root.id)
    latency = "turn.user_bot_latency_seconds"
    claimed = [
        span.attributes[latency] * 1000
        for span in sorted(tree, key=lambda span: span.start_ns)
        if span.name == "turn" and latency in span.attributes
    ]
    turns = sorted((s for s in tree if s.name == "turngap.turn"), key=lambda span: span.start_ns)
    heard = [span.attributes.get("turngap.gap_ms") for span in turns]
    assert heard == [turn["gap_ms"] for turn in replayed["marks"]]
    # What pipecat says in its own span stands beside what was heard, and is shorter.
    about = {
        name: [span.attributes.get(f"turngap.{name}") for span in turns]
        for name in ("agent.gap_ms", "agent.gap_source", "gap_difference_ms")
    }
    # A bot without time says nothing of a turn, or takes one for two.
    with quiet.measured():
        assert None not in heard
        assert None not in about["agent.gap_ms"]
        assert about["agent.gap_ms"] == pytest.approx(claimed)
        assert set(about["agent.gap_source"]) == {"pipecat"}
        assert all(difference and difference > 0 for difference in about["gap_difference_ms"])
