"""Another LLM in mid-conversation: the old one falls silent, the new one answers from then on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_engines import FakeLLM
from pipecat.frames.frames import (
    CancelFrame,
    ControlFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from turngap.agent.switching import LlmSwitch, Offers, offers_of
from turngap.backends import BackendSettings, BackendSpec, ConfiguredBackend, Need, find
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.core.errors import AgentError, InputError


async def pause(ms: float) -> None:
    clock = MonotonicClock()
    await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(ms))


class CountingLLM(FakeLLM):
    """Says its name again and again until it is interrupted; a stubborn one goes on all the same.

    pipecat #5337: what a service pushes from a task of its own is not stopped by an interruption.
    """

    def __init__(self, name: str, *, stubborn: bool = False) -> None:
        super().__init__(MonotonicClock())
        self.said, self.stubborn, self.cancelled = name, stubborn, 0
        self.requests = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, InterruptionFrame | CancelFrame):
            self.cancelled += 1
            if isinstance(frame, CancelFrame):
                for task in self._tasks:
                    task.cancel()
        if not isinstance(frame, LLMContextFrame):
            await super().process_frame(frame, direction)
            return
        self.requests += 1
        if self.stubborn:
            task = asyncio.create_task(self._talk())
            self._tasks.add(task)
            return
        await self._talk()

    async def _talk(self) -> None:
        await self.push_frame(LLMFullResponseStartFrame())
        for _ in range(1000):
            await self.push_frame(LLMTextFrame(self.said))
            await pause(2)
        await self.push_frame(LLMFullResponseEndFrame())


class Sink(FrameProcessor):
    """Keeps what comes down, with a way to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self.came = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM:
            self.frames.append(frame)
            self.came.set()
        await self.push_frame(frame, direction)

    @property
    def texts(self) -> list[str]:
        return [f.text for f in self.frames if isinstance(f, LLMTextFrame)]

    async def until(self, there: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not there():
                self.came.clear()
                await self.came.wait()


def spec(name: str, create: Callable[[Any, Any], Any], **more: Any) -> BackendSpec:
    return BackendSpec(name, "llm", BackendSettings, create, **more)


def offer(name: str, service: FrameProcessor, **more: Any) -> ConfiguredBackend:
    return ConfiguredBackend(
        name, spec(name, lambda settings, clock: service, **more), BackendSettings()
    )


@asynccontextmanager
async def running(*offers: ConfiguredBackend) -> AsyncIterator[Any]:
    """A pipeline of a switch and a sink: (switch, sink, ask)."""
    switch = LlmSwitch(Offers(offers), MonotonicClock())
    sink = Sink()
    worker = PipelineWorker(Pipeline([switch, sink]), enable_rtvi=False, idle_timeout_secs=None)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    task = asyncio.create_task(runner.run())
    await sink.until(lambda: any(isinstance(f, StartFrame) for f in sink.frames))

    async def ask() -> None:
        await worker.queue_frame(LLMContextFrame(LLMContext([{"role": "user", "content": "?"}])))

    try:
        yield switch, sink, ask
    finally:
        await worker.cancel()
        await task


@pytest.mark.parametrize("stubborn", [False, True])
async def test_nothing_of_the_old_one_comes_through_after_the_switch(stubborn: bool) -> None:
    old, new = CountingLLM("old", stubborn=stubborn), CountingLLM("new")
    async with running(offer("old", old), offer("new", new)) as (switch, sink, ask):
        await ask()
        await sink.until(lambda: len(sink.texts) > 3)
        assert await switch.use("new") is True
        old.said = "late"  # what was on its way before the switch may still arrive
        await sink.until(lambda: any(isinstance(f, InterruptionFrame) for f in sink.frames))
        await ask()
        await sink.until(lambda: sink.texts.count("new") > 3)
        assert "late" not in sink.texts
        assert set(sink.texts[sink.texts.index("new") :]) == {"new"}
        assert old.cancelled
        assert (old.requests, new.requests) == (1, 1)
        assert switch.current == "new"
        assert switch.service is new


async def test_what_flows_downstream_begins_once_and_is_interrupted_once() -> None:
    async with running(offer("a", CountingLLM("a")), offer("b", CountingLLM("b"))) as (
        switch,
        sink,
        ask,
    ):
        await ask()
        await sink.until(lambda: len(sink.texts) > 1)
        await switch.use("b")
        await ask()
        await sink.until(lambda: "b" in sink.texts)
        kinds = [type(f) for f in sink.frames]
        assert kinds.count(StartFrame) == 1
        assert kinds.count(InterruptionFrame) == 1
        # The reply that was broken off is not called complete.
        assert LLMFullResponseEndFrame not in kinds


async def test_a_switch_while_nobody_speaks_interrupts_nobody() -> None:
    async with running(offer("a", CountingLLM("a")), offer("b", CountingLLM("b"))) as (
        switch,
        sink,
        ask,
    ):
        assert await switch.use("b") is False
        await ask()
        await sink.until(lambda: len(sink.texts) > 1)
        assert not any(isinstance(f, InterruptionFrame) for f in sink.frames)
        assert set(sink.texts) == {"b"}


async def test_there_and_back_again_says_nothing_of_the_first_reply() -> None:
    first = CountingLLM("first", stubborn=True)
    async with running(offer("a", first), offer("b", CountingLLM("b"))) as (switch, sink, ask):
        await ask()
        await sink.until(lambda: len(sink.texts) > 1)
        await switch.use("b")
        await switch.use("a")
        said = len(sink.texts)
        first.said = "second"  # of the stubborn first reply, which goes on unheard
        await pause(50)
        assert len(sink.texts) == said
        first.stubborn = False
        await ask()
        await sink.until(lambda: len(sink.texts) > said)


async def test_there_and_back_again_what_is_no_reply_still_passes_through() -> None:
    first, passed = CountingLLM("first"), list[Frame]()
    async with running(offer("a", first), offer("b", CountingLLM("b"))) as (switch, _, __):
        await switch.use("b")
        await switch.use("a")
        push = switch.push_frame

        async def noted(frame: Frame, *more: Any) -> None:
            passed.append(frame)
            await push(frame, *more)

        switch.push_frame = noted  # pyright: ignore[reportAttributeAccessIssue]
        probe = ControlFrame()  # as the one that a typed turn waits for
        await first.push_frame(probe)
        await pause(50)
        assert probe in passed


async def test_the_one_that_answers_already_is_not_switched_to() -> None:
    async with running(offer("a", CountingLLM("a"))) as (switch, sink, ask):
        await ask()
        await sink.until(lambda: len(sink.texts) > 1)
        assert await switch.use("a") is None
        assert not any(isinstance(f, InterruptionFrame) for f in sink.frames)


async def test_one_that_is_not_offered_is_refused_with_those_that_are() -> None:
    async with running(offer("a", CountingLLM("a"))) as (switch, _, _):
        with pytest.raises(InputError) as raised:
            await switch.use("c")
        assert raised.value.kind == "llm.not_offered"
        assert "offered: a" in raised.value.hint
        assert switch.current == "a"


# --- what is offered, and loading it ----------------------------------------------------------


async def test_one_is_loaded_when_it_is_first_chosen_and_only_once() -> None:
    loaded: list[str] = []
    lazy = offer("lazy", CountingLLM("lazy"), prepare=lambda settings: loaded.append("lazy"))
    offers = Offers([offer("a", CountingLLM("a")), lazy])
    offers.prepare()
    assert (offers.state("a"), offers.state("lazy"), loaded) == ("ready", "unloaded", [])
    first = asyncio.create_task(offers.load("lazy"))
    second = asyncio.create_task(offers.load("lazy"))
    await asyncio.gather(first, second)
    assert loaded == ["lazy"]
    assert offers.state("lazy") == "ready"


async def test_one_that_cannot_be_loaded_says_why_and_may_be_tried_again() -> None:
    fails = [True]

    def prepare(settings: BackendSettings) -> None:
        if fails:
            raise RuntimeError("no weights in /models")

    offers = Offers([offer("a", CountingLLM("a")), offer("b", CountingLLM("b"), prepare=prepare)])
    with pytest.raises(RuntimeError):
        await offers.load("b")
    assert offers.as_json()[1] == {"name": "b", "state": "failed", "why": "no weights in /models"}
    fails.clear()
    await offers.load("b")
    assert offers.as_json()[1] == {"name": "b", "state": "ready"}


def test_those_asked_for_by_name_are_loaded_at_the_start() -> None:
    loaded: list[str] = []
    b = offer("b", CountingLLM("b"), prepare=lambda settings: loaded.append("b"))
    Offers([offer("a", CountingLLM("a")), b], preload=True).prepare()
    assert loaded == ["b"]


def sim(tmp_path: Path) -> tuple[BackendSpec, BackendSettings]:
    found = find("llm", "sim")
    return found, found.settings({"library": tmp_path})


def test_an_offer_has_a_label_and_settings_of_its_own(tmp_path: Path) -> None:
    offers = offers_of(sim(tmp_path), ["slow=sim,ttft_ms=600", "sim,seed=7"], tmp_path)
    assert offers.names == ("sim", "slow", "sim,seed=7")
    slow: Any = offers.get("slow").settings
    assert (slow.ttft_ms, slow.library) == (600, tmp_path)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        ("nonesuch", "backend.unknown"),
        ("slow=sim,ttft_ms", "backend.unreadable"),
        ("slow=sim,ttft_ms=fast", "backend.settings"),
        ("slow=sim,speed=3", "backend.settings"),
        ("sim", "offer.twice"),
    ],
)
def test_a_wrong_offer_is_one_clear_error(wanted: str, kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        offers_of(sim(tmp_path), [wanted], tmp_path)
    assert raised.value.kind == kind


def test_by_default_all_that_run_here_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Demanding(BackendSettings):
        url: str

    def make(settings: Any, clock: Any) -> CountingLLM:
        return CountingLLM("x")

    known = (
        sim(tmp_path)[0],
        spec("another", make),
        spec("elsewhere", make, requires=(Need("module", "no_such_module", "pip install it"),)),
        BackendSpec("demanding", "llm", Demanding, make),
        BackendSpec("voice", "tts", BackendSettings, make),
    )
    monkeypatch.setattr("turngap.agent.switching.specs", lambda: known)
    assert offers_of(sim(tmp_path), None, tmp_path).names == ("sim", "another")


def test_where_there_are_tools_only_those_that_call_them_are_offered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = tuple(find("llm", name) for name in ("sim", "small", "sim:full", "race"))
    monkeypatch.setattr("turngap.agent.switching.specs", lambda: known)
    offered = offers_of(sim(tmp_path), None, tmp_path, tools=True).names
    assert {"sim", "sim:full"} <= set(offered)
    assert "small" not in offered
    assert "small" in offers_of(sim(tmp_path), None, tmp_path).names


def test_one_asked_for_that_calls_no_tools_is_refused_where_there_are_some(tmp_path: Path) -> None:
    offers_of(sim(tmp_path), ["small"], tmp_path)
    with pytest.raises(InputError, match="'small' calls no tools") as raised:
        offers_of(sim(tmp_path), ["small"], tmp_path, tools=True)
    assert raised.value.kind == "tools.not_called"


def test_one_asked_for_that_lacks_something_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lacking = spec(
        "elsewhere",
        lambda settings, clock: CountingLLM("x"),
        requires=(Need("module", "no_such_module", "pip install it"),),
    )
    monkeypatch.setattr("turngap.backends.find", lambda kind, name: lacking)
    with pytest.raises(AgentError) as raised:
        offers_of(sim(tmp_path), ["elsewhere"], tmp_path)
    assert "pip install it" in raised.value.hint
