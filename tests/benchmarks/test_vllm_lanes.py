"""The lanes of benchmarks/vllm_lanes.py: who is asked beside which load, and what is made of it."""

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import vllm_lanes
from aiohttp import web
from fake_vllm import FakeVllm
from vllm_lanes import Phase, Replies, measure, worth
from vllm_load import Reply, Running

TOKENS = 4


class FakeSmall:
    """In place of the model in this process: three pieces, from a thread that is not the loop's."""

    def __init__(self) -> None:
        self.asked = 0

    def prompt(self, messages: list[dict[str, str]]) -> list[str]:
        assert [m["role"] for m in messages] == ["system", "user"]
        return ["x"]

    def say(self, prompt: list[str], hear: Callable[[str], None], stop: threading.Event) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.asked += 1
        for _ in range(3):
            hear("x")


@pytest.fixture
async def servers() -> AsyncIterator[dict[str, tuple[Running, FakeVllm]]]:
    found: dict[str, tuple[Running, FakeVllm]] = {}
    runners: list[web.AppRunner] = []
    for lane in ("shared", "low-batch"):
        fake, app = FakeVllm(), web.Application()
        app.router.add_get("/metrics", fake.metrics)
        app.router.add_post("/v1/chat/completions", fake.chat)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        port = runner.addresses[0][1]
        found[lane] = Running(f"http://127.0.0.1:{port}/v1", "m"), fake
    yield found
    for runner in runners:
        await runner.cleanup()


async def test_each_lane_is_measured_beside_the_same_load(
    servers: dict[str, tuple[Running, FakeVllm]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("BUILD_UP_MS", "SAMPLE_MS"):
        monkeypatch.setattr(vllm_lanes, name, 20.0)
    small: Any = FakeSmall()
    running = {lane: server for lane, (server, _) in servers.items()}
    await measure(running, small, (2,), TOKENS)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split()[:2] for line in lines if line[:7].strip().isdigit()]
    assert rows == [
        ["0", "small"],
        *(["2", n] for n in ("shared", "priority", "low-batch", "small")),
    ]
    assert all(int(line.split()[4]) >= vllm_lanes.LEAST_REPLIES for line in lines[3:7])
    assert small.asked >= 2
    shared, low_batch = servers["shared"][1], servers["low-batch"][1]
    assert set(shared.priorities) == {0, -1}
    assert set(low_batch.priorities) == {None}
    assert any(line.startswith("small path: ") for line in lines)


def test_a_rate_is_of_the_whole_reply_and_one_without_a_token_has_none() -> None:
    replies = Replies()
    for found in (
        Reply(20.0, 1e6, whole_per_s=31.0),  # all but the first of its tokens came at once
        Reply(None, None),
        Reply(30.0, None, whole_per_s=62.0),
    ):
        replies.add(found)
    assert (replies.first_ms, replies.per_s) == ([20.0, 30.0], [31.0, 62.0])


def phase(total_per_s: float = 1000.0, **per_s: list[float]) -> Phase:
    replies = {
        name.replace("_", "-"): Replies([20.0] * len(rates), rates) for name, rates in per_s.items()
    }
    return Phase(replies, total_per_s, 0.0, 64, 0, 0.03, None, None)


def test_what_a_lane_is_worth_is_its_median_to_the_loaded_shared_lanes() -> None:
    alone = phase(1100.0, shared=[20.0, 22.0, 90.0])
    beside = {
        "low-batch": phase(900.0, shared=[21.0], low_batch=[40.0, 44.0]),
        "small": phase(800.0, shared=[10.0], small=[330.0, 1e6, 330.0]),
    }
    low_batch, small, idle = worth(64, alone, beside, phase(small=[999.0]))
    assert "42 tokens/s (n=2), 1.9 times the 22 that each of 64 streams gets (n=3)" in low_batch
    assert "to reach: 2.5, NOT reached" in low_batch
    assert "900 of 1100 tokens/s" in low_batch
    assert "330 tokens/s (n=3), 15.0 times the 22" in small
    assert "to reach: 15, reached" in small
    assert "800 of 1100 tokens/s" in small
    assert "999 tokens/s (n=1); to reach: 1000, NOT reached" in idle


def test_a_lane_without_a_reply_has_no_ratio() -> None:
    beside = {"low-batch": phase(low_batch=[]), "small": phase(small=[1.0])}
    (line,) = worth(4, phase(shared=[1.0]), beside, phase(small=[1.0]))
    assert "nothing to compare" in line
