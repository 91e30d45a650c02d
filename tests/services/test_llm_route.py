"""`route`: what looks hard, and who is asked; in virtual time."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from combined_line import Actor, actors, ask, one_reply, passes, question, talk
from hypothesis import example, given
from hypothesis import strategies as st
from pipecat.frames.frames import (
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from running_line import Line

from turngap.core.clock import Clock
from turngap_services.llm.combine import RouteSettings
from turngap_services.llm.combine.part import difficulty
from turngap_services.llm.combine.service import NO_TIME, POINTS, TO_FULL, RouteLLMService

__all__ = ["actors"]

EASY = "what time is it"
HARD = "no, not two, I'd like 3"  # numbers and a negation


def route(**settings: Any) -> Callable[[Clock], RouteLLMService]:
    values: dict[str, Any] = {
        "fast": "quick",
        "full": "large",
        "fast_settings": {"text": "fast"},
        "full_settings": {"text": "full", "ttft_ms": 200},
    }
    for role in ("fast_settings", "full_settings"):
        values[role] |= settings.pop(role, {})
    made = RouteSettings.model_validate(values | settings)
    return lambda clock: RouteLLMService(settings=made, clock=clock)


def hard_turns(
    turns: int, *, ttft_ms: float = 200, of: RouteLLMService | None = None
) -> Callable[[Line, list[str]], Coroutine[Any, Any, list[str]]]:
    """Ask so often what looks hard, of a full model that takes so long; what was said."""

    async def asked(line: Line, errors: list[str]) -> list[str]:
        if of is not None:
            actor: Any = of._full.service
            actor._told = actor._told.model_copy(update={"ttft_ms": ttft_ms})
        return [(await ask(line, question(HARD), errors)).text for _ in range(turns)]

    return asked


@pytest.mark.parametrize(
    ("said", "before", "reasons"),
    [
        ("what time is it", (), ()),
        ("a table for four", (), ("numbers",)),
        ("room 12", (), ("numbers",)),
        ("I don’t want it", (), ("negation",)),
        ("word " * 13, (), ("long",)),
        ("word " * 26, (), ("long", "very_long")),
        ("and with onions", ("soup with onions", "Sure."), ()),
        ("any trains to Oakland", ("soup with onions", "Sure."), ("new_topic",)),
        ("why is that", ("soup with onions", "Sure."), ()),
        ("any trains to Oakland", (), ()),
        ("", (), ()),
    ],
)
def test_a_turn_is_as_hard_as_it_has_reasons(
    said: str, before: tuple[str, ...], reasons: tuple[str, ...]
):
    assert difficulty(said, before) == reasons
    assert difficulty(said, before, tools=True) == tuple(
        r for r in ("long", "very_long", "tools", "numbers", "negation", "new_topic")
        if r in reasons or r == "tools"
    )  # fmt: skip


@example("½ ٣ \ud800 no", ["\x00", "’"])
@given(st.text(st.characters()), st.lists(st.text(st.characters()), max_size=4))
def test_no_text_is_too_odd_to_be_scored(said: str, before: list[str]):
    reasons = difficulty(said, before)
    assert len(set(reasons)) == len(reasons) <= 6
    assert "tools" not in reasons


def test_easy_turns_go_to_the_fast_model_and_hard_ones_to_the_full(actors: dict[str, Actor]):
    easy, hard = one_reply(route(), question(EASY)), one_reply(route(), question(HARD))
    assert (easy.text, easy.counts[TO_FULL], easy.counts[POINTS]) == ("fast", 0, 0)
    assert (hard.text, hard.counts[TO_FULL], hard.counts[POINTS]) == ("full", 1, 2)
    assert (actors["quick"].asked, actors["large"].asked) == (1, 1)


def test_only_who_was_asked_is_paid(actors: dict[str, Actor]):
    said = one_reply(route(), question(EASY))
    prompt = -(-len("Be brief." + EASY) // 4)
    assert said.counts["combined_requests"] == 1
    assert said.counts["combined_usd"] == pytest.approx((prompt * 1 + 1 * 10) / 1e6)


def test_the_threshold_is_a_setting(actors: dict[str, Actor]):
    assert one_reply(route(threshold=0), question(EASY)).text == "full"
    assert one_reply(route(threshold=3), question(HARD)).text == "fast"


@pytest.mark.parametrize(
    ("waited_ms", "who"),
    [(100, "full"), (300, "fast")],  # of 800 - 150 - 200 (the VAD's own) there is 300 needed
)
def test_a_hard_turn_goes_to_the_fast_model_when_its_budget_is_nearly_spent(
    actors: dict[str, Actor], waited_ms: float, who: str
):
    async def after_silence(line: Line, errors: list[str]) -> Any:
        await passes(5000)
        await line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await line.until(lambda: bool(line.of(VADUserStoppedSpeakingFrame)))
        await passes(waited_ms)
        return await ask(line, question(HARD), errors)

    said = talk(route(), after_silence)
    assert said.text == who
    assert said.counts.get(NO_TIME, 0) == float(who == "fast")


def test_the_end_of_an_earlier_turn_does_not_count(actors: dict[str, Actor]):
    async def two_turns(line: Line, errors: list[str]) -> Any:
        await line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await ask(line, question(EASY), errors)
        await passes(3000)
        await line.send(UserStartedSpeakingFrame())
        await line.send(UserStoppedSpeakingFrame())
        await line.until(lambda: bool(line.of(UserStoppedSpeakingFrame)))
        return await ask(line, question(HARD), errors)

    assert talk(route(), two_turns).text == "full"


def test_what_the_full_model_needs_is_learnt_from_what_it_took(actors: dict[str, Actor]):
    # 650 ms is what the budget leaves: after a few turns it is seldom asked.
    texts = talk(route(full_settings={"ttft_ms": 1000}), hard_turns(38))
    assert texts[:3] == ["full", "full", "fast"]
    # About every fourth time is tried whether it still takes so long.
    assert 6 <= texts[-32:].count("full") <= 10


def test_one_slow_turn_does_not_keep_the_full_model_out_for_good(actors: dict[str, Actor]):
    made: list[RouteLLMService] = []

    def make(clock: Clock) -> RouteLLMService:
        made.append(route()(clock))
        return made[0]

    async def once_slow(line: Line, errors: list[str]) -> list[str]:
        slow = hard_turns(1, ttft_ms=2000, of=made[0])
        return [*await slow(line, errors), *await hard_turns(8, of=made[0])(line, errors)]

    texts = talk(make, once_slow)
    assert texts[:3] == ["full", "fast", "fast"]
    assert texts[-3:] == ["full"] * 3


def test_a_full_model_that_hangs_is_not_waited_for_in_every_turn(actors: dict[str, Actor]):
    texts = talk(route(full_settings={"hangs_at": 0}), hard_turns(18))
    assert texts == ["fast"] * 18
    # Waited for once, left alone while that is remembered, and tried again.
    assert actors["large"].asked == 2


@pytest.mark.parametrize(
    ("asked", "broken", "left"),
    [(EASY, "fast_settings", "full"), (HARD, "full_settings", "fast")],
)
def test_a_model_that_fails_is_replaced_by_the_other_and_this_is_said(
    actors: dict[str, Actor], asked: str, broken: str, left: str
):
    said = one_reply(route(**{broken: {"fails_after": 0}}), question(asked))
    assert (said.text, said.errors) == (left, [])
    assert said.counts["combined_fell_back"] == 1
    assert said.counts["combined_requests"] == 2
