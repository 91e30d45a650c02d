"""`opener`: a clause at once, and an answer that does not contradict it unsaid; in virtual time."""

from collections.abc import Callable
from typing import Any

import pytest
from combined_line import TOKEN_MS, Actor, actors, one_reply

from turngap.core.clock import Clock
from turngap.core.voice import LETTER_MS, letters
from turngap_services.llm.combine import OpenerSettings
from turngap_services.llm.combine.service import CORRECTED, OPENER_MS, OpenerLLMService

__all__ = ["actors"]

SAID = "A large latte, coming up at once."
OPENING = "A large latte,"


def opener(
    fast: str = SAID, full: str = "coming up at once.", *, told: bool = True, **settings: Any
) -> Callable[[Clock], OpenerLLMService]:
    values: dict[str, Any] = {
        "fast": "quick",
        "full": "large",
        "told": told,
        "fast_settings": {"text": fast, "ttft_ms": 20},
        "full_settings": {"text": full, "ttft_ms": 200},
    }
    for role in ("fast_settings", "full_settings"):
        values[role] |= settings.pop(role, {})
    made = OpenerSettings.model_validate(values | settings)
    return lambda clock: OpenerLLMService(settings=made, clock=clock)


def test_the_first_clause_is_said_at_once_and_the_full_model_goes_on(actors: dict[str, Actor]):
    said = one_reply(opener())
    assert said.text == SAID
    assert said.first_ms == 20 + 2 * TOKEN_MS
    assert CORRECTED not in said.counts
    told = actors["large"].contexts[0][-2:]
    assert told[0] == {"role": "assistant", "content": OPENING}
    assert OPENING in told[1]["content"]


def test_what_the_full_model_says_again_is_not_said_twice(actors: dict[str, Actor]):
    assert one_reply(opener(full=SAID)).text == SAID
    assert one_reply(opener(full="a LARGE latte coming up")).text == f"{OPENING} coming up"
    assert one_reply(opener(full="A large latte.")).text == OPENING


@pytest.mark.parametrize("letters", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("full", "text"),
    [
        ("Yes, light rain tomorrow. Take a coat.", "Yes, light rain tomorrow. Take a coat."),
        ("Yes, light rain tomorrow.", "Yes, light rain tomorrow."),
        ("Yes, lightning.", "Yes, light rain tomorrow. No, sorry. Yes, lightning."),
        ("Yes", "Yes, light rain tomorrow. No, sorry. Yes"),
    ],
)
def test_words_are_compared_when_they_are_whole(
    actors: dict[str, Actor], letters: int, full: str, text: str
):
    parts = {"letters": letters}
    made = opener(
        "Yes, light rain tomorrow.", full, told=False, fast_settings=parts, full_settings=parts
    )
    assert one_reply(made).text == text


def test_a_model_that_was_told_takes_the_opening_back_itself(actors: dict[str, Actor]):
    said = one_reply(opener(full="No, sorry. A small one."))
    assert said.text == f"{OPENING} No, sorry. A small one."


@pytest.mark.parametrize(
    ("full", "text", "corrected"),
    [
        (SAID, SAID, False),
        ("A small one.", f"{OPENING} No, sorry. A small one.", True),
        ("A large pizza, then.", f"{OPENING} No, sorry. A large pizza, then.", True),
        ("A large.", f"{OPENING} No, sorry. A large.", True),
    ],
)
def test_an_answer_anew_that_differs_takes_the_opening_back(
    actors: dict[str, Actor], full: str, text: str, corrected: bool
):
    said = one_reply(opener(full=full, told=False))
    assert said.text == text
    assert said.counts.get(CORRECTED, 0) == float(corrected)
    assert len(actors["large"].contexts[0]) == 2  # it knows nothing of the opening


def test_a_filler_cannot_win_by_talking(actors: dict[str, Actor]):
    said = one_reply(opener())
    assert said.counts[OPENER_MS] == pytest.approx(max(200, LETTER_MS * letters(OPENING)))
    late = one_reply(opener(full_settings={"ttft_ms": 5000}, first_token_ms=6000))
    assert late.counts[OPENER_MS] == pytest.approx(5000)


def test_a_long_clause_is_cut_to_whole_words(actors: dict[str, Actor]):
    said = one_reply(opener(fast="one two three four five six seven", full="and on", most_words=3))
    assert said.text == "one two three and on"


def test_a_mark_within_a_number_ends_no_clause(actors: dict[str, Actor]):
    said = one_reply(opener(fast="At half 9: 30 sharp, then.", full="bring two."))
    assert said.text == "At half 9: 30 sharp, bring two."


def test_the_fast_model_is_cancelled_and_paid_for(actors: dict[str, Actor]):
    long = "Yes, sure. " + "word " * 500
    said = one_reply(opener(fast=long))
    made = actors["quick"].made[1]
    assert made < 30
    assert actors["quick"].running == 0
    assert said.counts["combined_requests"] == 2
    assert said.counts["combined_completion_tokens"] == made + actors["large"].made[1]


@pytest.mark.parametrize("told", [True, False])
def test_where_the_full_model_fails_the_fast_one_goes_on(actors: dict[str, Actor], told: bool):
    said = one_reply(opener(told=told, full_settings={"fails_after": 0}))
    assert (said.text, said.errors) == (SAID, [])
    assert said.counts["combined_fell_back"] == 1
    assert OPENER_MS not in said.counts


@pytest.mark.parametrize("letters", [None, 1, 3])
def test_the_fast_one_goes_on_without_leaving_out_a_word(
    actors: dict[str, Actor], letters: int | None
):
    long = "We have it in nine sizes and they are all the same to me."
    fast = {"text": long, "letters": letters}
    said = one_reply(opener(fast_settings=fast, full_settings={"fails_after": 0}))
    assert (" ".join(said.text.split()), said.errors) == (long, [])


def test_an_opening_that_breaks_off_is_finished_by_the_full_model_and_this_is_said(
    actors: dict[str, Actor],
):
    breaks = {"text": "We have it in nine sizes.", "fails_after": 2}
    said = one_reply(opener(full="it in nine sizes.", fast_settings=breaks))
    assert (said.text, said.errors) == ("We have it in nine sizes.", [])
    assert said.counts["combined_fell_back"] == 1


def test_an_opening_that_breaks_off_and_that_nobody_finishes_is_a_failure(
    actors: dict[str, Actor],
):
    breaks = {"text": "We have it in nine sizes.", "fails_after": 2}
    said = one_reply(opener(fast_settings=breaks, full_settings={"fails_after": 0}))
    assert said.text == "We have"
    (error,) = said.errors
    assert "quick: out of order; large: out of order" in error


@pytest.mark.parametrize("told", [True, False])
def test_where_the_fast_model_fails_the_full_one_answers(actors: dict[str, Actor], told: bool):
    said = one_reply(opener(full=SAID, told=told, fast_settings={"fails_after": 0}))
    assert (said.text, said.errors) == (SAID, [])
    assert said.counts["combined_fell_back"] == 1
