"""Parts of the combined backends that fall silent: how long they are waited for; virtual time."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from combined_line import (
    TOKEN_MS,
    Actor,
    Said,
    actors,
    ask,
    counted,
    one_reply,
    passes,
    question,
    talk,
)
from combined_line import combined as made_of
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import PATIENCE_S, Line, running

from turngap.backends import find
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import InputError
from turngap.testing import LoopClock, ManualClock
from turngap_services.llm.combine import SPECS
from turngap_services.llm.combine.service import OPENER_MS, CombinedLLMService, create

__all__ = ["actors"]

NAMES = tuple(spec.name for spec in SPECS)
Made = Callable[[Clock], CombinedLLMService]
FIRST_MS, STALL_MS = 1000.0, 500.0  # as `made_of` sets them
HARD = "no, not two, I'd like 3"  # what `route` asks the full model
HANGS: dict[str, Any] = {"hangs_at": 0}


def combined(which: str, full: dict[str, Any], fast: dict[str, Any], **values: Any) -> Made:
    """One of them, of `large` and `quick`."""
    full = {"text": "the full answer", "ttft_ms": 200, **full}
    fast = {"text": "the fast answer", "ttft_ms": 50, **fast}
    return made_of(which, full, fast, **values)


def over_ms(make: Made) -> tuple[Said, float]:
    """A hard question's reply, and when it was over."""

    async def timed(line: Line, errors: list[str]) -> tuple[Said, float]:
        begun_ns = LoopClock().now_ns()
        said = await ask(line, question(HARD), errors)
        return said, (LoopClock().now_ns() - begun_ns) / 1e6

    return talk(make, timed)


def test_a_full_model_that_hangs_is_given_up_and_the_fast_one_answers(actors: dict[str, Actor]):
    said = one_reply(combined("route", HANGS, {}), question(HARD))
    assert (said.text, said.errors) == ("the fast answer", [])
    assert said.first_ms == FIRST_MS + 50
    assert said.counts["combined_fell_back"] == said.counts["combined_given_up"] == 1
    # It is paid for what it has read.
    assert said.counts["combined_requests"] == 2
    assert said.counts["combined_prompt_tokens"] == 2 * -(-len("Be brief." + HARD) // 4)
    assert actors["large"].running == 0


def test_a_fast_model_that_hangs_is_given_up_and_the_full_one_answers(actors: dict[str, Actor]):
    said = one_reply(combined("route", {}, HANGS))
    assert (said.text, said.first_ms, said.errors) == ("the full answer", FIRST_MS + 200, [])
    assert said.counts["combined_fell_back"] == 1


@pytest.mark.parametrize(("told", "first_ms"), [(True, FIRST_MS + 200), (False, FIRST_MS)])
def test_an_opening_that_does_not_come_is_done_without(
    actors: dict[str, Actor], told: bool, first_ms: float
):
    said = one_reply(combined("opener", {}, HANGS, told=told))
    assert (said.text, said.first_ms, said.errors) == ("the full answer", first_ms, [])
    assert said.counts["combined_fell_back"] == 1
    assert OPENER_MS not in said.counts


def test_an_opening_that_nobody_goes_on_from_is_gone_on_from_by_its_own_model(
    actors: dict[str, Actor],
):
    long = "Oh yes, it is " + "very " * 20 + "good."
    said, ms = over_ms(combined("opener", HANGS, {"text": long}))
    assert (" ".join(said.text.split()), said.errors) == (long, [])
    assert said.counts["combined_fell_back"] == 1
    opened_ms = 50 + 1 * TOKEN_MS  # "Oh yes,"; the rest is there when it is asked for
    assert ms == pytest.approx(opened_ms + FIRST_MS)


def test_whoever_wins_a_race_wins_it_by_being_there(actors: dict[str, Actor]):
    hung = one_reply(combined("race", HANGS, {}, deadline_ms=300))
    # Lost, and not failed: the deadline is before the limit.
    assert (hung.text, hung.first_ms) == ("the fast answer", 300)
    assert "combined_given_up" not in hung.counts
    late = one_reply(combined("race", HANGS, {"ttft_ms": 900}, deadline_ms=5000))
    assert (late.text, late.first_ms) == ("the fast answer", FIRST_MS)
    assert late.counts["combined_fell_back"] == 1


@pytest.mark.parametrize(
    ("which", "ms"),
    [("route", 2 * FIRST_MS), ("opener", 2 * FIRST_MS), ("race", FIRST_MS), ("best-of", FIRST_MS)],
)
def test_where_all_hang_the_turn_fails_when_the_limits_are_over(
    actors: dict[str, Actor], which: str, ms: float
):
    said, over = over_ms(combined(which, HANGS, HANGS))
    assert said.text == ""
    (error,) = said.errors
    assert "large: no first token for 1000 ms" in error
    assert "quick: no first token for 1000 ms" in error
    assert over == pytest.approx(ms)
    assert said.counts["combined_given_up"] == 2
    assert all(actor.running == 0 for actor in actors.values())


@pytest.mark.parametrize("which", NAMES)
def test_where_all_fail_the_turn_fails_with_all_reasons(actors: dict[str, Actor], which: str):
    broken = {"fails_after": 0}
    said = one_reply(combined(which, broken, broken))
    assert said.text == ""
    (error,) = said.errors
    assert "large: out of order" in error
    assert "quick: out of order" in error


@pytest.mark.parametrize("which", NAMES)
def test_a_reply_that_stalls_when_it_is_heard_fails_the_turn(actors: dict[str, Actor], which: str):
    stalls = {"text": "one two, three four", "hangs_at": 3}
    said, over = over_ms(combined(which, stalls, stalls))
    assert said.text.startswith("one two,")
    assert len(said.errors) == 1
    assert "nothing more for 500 ms" in said.errors[0]
    assert over < 450 + 2 * (FIRST_MS + STALL_MS)
    assert all(actor.running == 0 for actor in actors.values())


@pytest.mark.parametrize("which", NAMES)
def test_a_slow_part_is_no_silent_one(actors: dict[str, Actor], which: str):
    # Longer than either limit, without a pause of its length.
    long = " ".join(["word"] * 200)
    said = one_reply(combined(which, {"text": long}, {"text": long}), question(HARD))
    assert (len(said.text.split()) >= 200, said.errors) == (True, [])
    assert "combined_given_up" not in said.counts


def test_who_was_given_up_is_asked_again_in_the_next_turn(actors: dict[str, Actor]):
    async def twice(line: Line, errors: list[str]) -> list[Said]:
        first = await ask(line, question(HARD), errors)
        await passes(100)
        return [first, await ask(line, question(HARD), errors)]

    first, second = talk(combined("route", {**HANGS, "text": "x"}, {}), twice)
    assert first.text == second.text == "the fast answer"
    assert actors["large"].asked == 2
    assert actors["large"].running == 0


def test_an_interruption_ends_the_wait_as_well(actors: dict[str, Actor]):
    async def interrupted(line: Line, errors: list[str]) -> None:
        await line.send(question(HARD))
        await passes(FIRST_MS / 2)
        await line.send(InterruptionFrame())
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        await passes(5 * FIRST_MS)
        assert (actors["large"].running, actors["quick"].asked) == (0, 0)
        assert errors == []

    talk(combined("route", HANGS, {}), interrupted)


@pytest.mark.parametrize("name", ["first_token_ms", "stall_ms"])
def test_a_limit_of_nothing_is_refused(name: str):
    with pytest.raises(InputError, match=name):
        find("llm", "route").settings({name: 0})


class Held(threading.Semaphore):
    """Says when the server has a request, and lets it say nothing."""

    def __init__(self) -> None:
        super().__init__(0)
        self.has_one = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        self.has_one.set()
        return super().acquire(blocking, timeout)


async def test_a_server_that_takes_the_request_and_says_nothing_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    held, clock = Held(), ManualClock()
    silent = FakeOpenAI(go=held, words=["word "] * 10_000)
    with serving(silent), serving(FakeOpenAI()) as well:
        full, fast = ({"base_url": s.base_url, "model": "m"} for s in (silent, well))
        values = {"full": "openai", "full_settings": full, "fast": "openai", "fast_settings": fast}
        settings = find("llm", "route").settings(values | {"threshold": 0})
        service = create("route", settings, clock)
        async with running(service, params=PipelineParams()) as line:
            messages: Any = [{"role": "user", "content": HARD}]
            await line.send(LLMContextFrame(LLMContext(messages)))
            assert await asyncio.to_thread(held.has_one.wait, PATIENCE_S)
            await clock.advance(ms_to_ns(3000))
            await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        # A server finds out when it writes.
        held.release(10_000)
        assert silent.hung_up.wait(PATIENCE_S)
    assert "".join(frame.text for frame in line.of(LLMTextFrame)) == "Two pizzas."
    assert counted(line.frames)["combined_given_up"] == 1
    assert (len(silent.chats), len(well.chats)) == (1, 1)
