"""Texts that cannot be what was said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap_services.stt.readings import doubt

LOOPS = [
    ("no no no no", 3),
    ("Turn it. Turn it. Turn it.", 3),
    ("turn off the lights turn off the lights", 4),
    ("I would like a table I would like a table for two", 5),
    ("thank you very much, thank you very much", 6),
]
SAID = [
    "no no no",
    "turn it off, off!",
    "to the left and to the right",
    "very very good",
    "what's the weather like in Berlin tomorrow",
    "a table for two at seven, and a table for four at eight",
    "four seven one, four seven two",
    "",
]


@pytest.mark.parametrize(("text", "seconds"), LOOPS)
def test_a_text_that_says_once_more_what_it_has_just_said_is_doubtful(
    text: str, seconds: float
) -> None:
    assert doubt(text, seconds) == "it repeats its last words"


@pytest.mark.parametrize("text", SAID)
def test_what_people_say_is_believed(text: str) -> None:
    assert doubt(text, 2.6) is None


@given(
    st.lists(st.sampled_from(["alpha", "bravo", "charlie", "delta"]), min_size=1, max_size=6),
    st.integers(4, 30),
    st.lists(st.sampled_from(["then", "so", "well"]), max_size=3, unique=True),
)
def test_a_loop_is_found_whatever_repeats_and_wherever_it_begins(
    phrase: list[str], times: int, before: list[str]
) -> None:
    text = " ".join(before + phrase * times)
    assert doubt(text, 1000) is not None


@given(
    st.lists(st.text("abcdefghij", min_size=1, max_size=8), unique=True, max_size=12),
    st.floats(2.4, 30),
)
def test_different_words_at_a_pace_that_people_have_are_believed(
    words: list[str], seconds: float
) -> None:
    assert doubt(" ".join(words), seconds) is None


def test_more_words_than_anybody_says_are_doubtful() -> None:
    words = " ".join(f"word{chr(97 + n)}" for n in range(14))
    assert doubt(words, 2) == "it has more words than fit the time"
    assert doubt(words, 4) is None


def test_a_text_that_repeats_itself_with_small_changes_is_doubtful() -> None:
    text = " ".join(f"I think that we should go {n}" for n in range(20))
    assert doubt(text, 60) == "it repeats itself"


def test_a_text_of_which_the_model_was_unsure_is_doubtful() -> None:
    assert doubt("turn off the lights", 2, logprob=-1.1) == "the model was unsure"
    assert doubt("turn off the lights", 2, logprob=-0.9) is None
