"""`best-of`: what most candidates agree on, chosen at the window's end; in virtual time."""

from collections.abc import Callable
from typing import Any

import pytest
from combined_line import TOKEN_MS, Actor, actors, one_reply
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from turngap.core.clock import Clock
from turngap.scenario.phrases import tokens
from turngap_services.llm.combine import BestOfSettings
from turngap_services.llm.combine.service import CHOSEN, IN_TIME, BestOfLLMService, best

__all__ = ["actors"]

RIGHT, ALSO, WRONG = "It is ten past nine.", "It's 10 past 9 now.", "Two pizzas then."


def best_of(*candidates: tuple[str, str, float], **settings: Any) -> Callable[[Clock], Any]:
    """Candidates as name, text and time to the first token."""
    made = BestOfSettings.model_validate(
        {
            "candidates": [name for name, *_ in candidates],
            "candidate_settings": [{"text": t, "ttft_ms": ms} for _, t, ms in candidates],
            "window_ms": 300,
        }
        | settings
    )
    return lambda clock: BestOfLLMService(settings=made, clock=clock)


def test_what_two_of_three_say_is_said(actors: dict[str, Actor]):
    said = one_reply(best_of(("quick", WRONG, 10), ("large", RIGHT, 20), ("free", ALSO, 30)))
    assert said.text == RIGHT
    assert (said.counts[CHOSEN], said.counts[IN_TIME]) == (1, 3)
    assert said.counts["combined_requests"] == 3


def test_nobody_is_waited_for_beyond_the_window(actors: dict[str, Actor]):
    said = one_reply(best_of(("quick", WRONG, 10), ("large", RIGHT, 900), ("free", ALSO, 900)))
    assert (said.text, said.first_ms, said.counts[IN_TIME]) == (WRONG, 300, 1)
    assert actors["large"].made[1] == actors["free"].made[1] == 0
    assert all(actor.running == 0 for actor in actors.values())


def test_nobody_waits_when_all_have_said_everything(actors: dict[str, Actor]):
    said = one_reply(best_of(("quick", RIGHT, 10), ("large", RIGHT, 20)))
    assert said.first_ms == 20 + (len(RIGHT.split()) - 1) * TOKEN_MS


def test_after_an_empty_window_the_first_to_speak_is_heard(actors: dict[str, Actor]):
    said = one_reply(best_of(("quick", WRONG, 800), ("large", RIGHT, 500)))
    assert (said.text, said.first_ms) == (RIGHT, 500)


def test_losers_are_paid_for_and_cost_nothing_more(actors: dict[str, Actor]):
    long = "word " * 500
    said = one_reply(best_of(("quick", long, 10), ("large", long, 10)))
    assert said.counts[CHOSEN] == 0
    assert actors["large"].made[1] <= (300 - 10) / TOKEN_MS + 2
    made = actors["quick"].made[1] + actors["large"].made[1]
    assert said.counts["combined_completion_tokens"] == made


def test_who_fails_is_left_out_and_this_is_said(actors: dict[str, Actor]):
    parts = [{"text": WRONG, "fails_after": 1}, {"text": RIGHT}, {"text": "", "ttft_ms": 0}]
    made = best_of(("quick", "", 0), ("large", "", 0), ("free", "", 0), candidate_settings=parts)
    said = one_reply(made)
    assert (said.text, said.errors) == (RIGHT, [])
    assert said.counts["combined_fell_back"] == 1


def test_where_all_fail_the_turn_fails(actors: dict[str, Actor]):
    said = one_reply(best_of(("quick", "", 0), ("large", "", 0)))
    assert said.text == ""
    assert said.errors == ["quick said nothing; large said nothing"]


@given(st.lists(st.text(), min_size=1, max_size=5))
@example(["", "B0C", "0:1A", "0:1A"])
def test_there_is_a_best_of_any_texts(texts: list[str]):
    words = [tokens(text) for text in texts]
    assert 0 <= best(words) < len(texts)
    assert best([*words, *words[:1]] * 2) < len(texts) + 1


@pytest.mark.parametrize(
    "settings",
    [
        {"candidates": ["quick"]},
        {"candidate_settings": [{}, {}, {}]},
        {"candidate_prices": [[1, 1]] * 4},
    ],
)
def test_what_is_no_choice_is_refused(actors: dict[str, Actor], settings: dict[str, Any]):
    with pytest.raises(ValidationError):
        BestOfSettings.model_validate({"candidates": ["quick", "large"]} | settings)
