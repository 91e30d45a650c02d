"""Endings of texts, and words said over the agent."""

import pytest

from turngap.core.counts import OUT_OF_DOMAIN
from turngap_services.turn.over import (
    Ending,
    asks,
    ending_of,
    is_backchannel,
    same_words,
    words_of,
)


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        ("", "nothing"),
        ("...", "nothing"),
        ("what time is it", "question"),
        ("Could you turn it on?", "question"),
        ("Set a timer for twelve minutes.", "statement"),
        ("please deliver to forty two", "statement"),
        ("turn it on", "statement"),
        ("put the light on", "preposition"),
        ("yes", "answer"),
        ("Hello!", "answer"),
        ("yes please", "polite"),
        ("that was all thank you", "polite"),
        ("five", "digit"),
        ("at six", "digit"),
        ("five five", "digits"),
        ("my number is five five five", "digits"),
        ("it's 4 7", "digits"),
        ("the name is L A W S", "digits"),
        ("my number is five five five zero one", "number"),
        ("four seven double three nine", "number"),
        ("the code is 4711", "digits"),
        ("the code is 471122", "number"),
        ("I'd like to book a table for", "preposition"),
        ("under the name of", "preposition"),
        ("two large pizzas and", "link"),
        ("I want to change my", "link"),
        ("it's", "link"),
        ("is there a train that", "link"),
        ("How much is that?", "question"),
        ("what are those", "question"),
        ("which one was this", "question"),
        ("what I mean is that", "link"),
        ("the reason is that", "link"),
        ("what you want is that", "link"),
        ("how much for that", "link"),
        ("I", "auxiliary"),
        ("I think they should", "auxiliary"),
        ("I would like to see", "reaching"),
        ("I would like um", "filler"),
        ("to the airport I mean", "filler"),
        ("Tuesday, no sorry", "correction"),
        ("a large one, no wait", "correction"),
        ("no", "answer"),
    ],
)
def test_the_end_of_the_words_is_told(text: str, ending: Ending) -> None:
    assert ending_of(words_of(text)) == ending


@pytest.mark.parametrize(
    "text",
    ["mm hmm", "Mm-hmm.", "yeah", "uh huh", "right, okay", "I see", "oh of course", "got it"],
)
def test_a_backchannel_asks_for_nothing(text: str) -> None:
    assert is_backchannel(text)


@pytest.mark.parametrize("text", ["", "wait", "no", "yeah but how much", "stop", "okay stop"])
def test_what_asks_for_something_is_none(text: str) -> None:
    assert not is_backchannel(text)


def test_marks_and_capitals_do_not_make_another_text() -> None:
    assert same_words("What’s the time?", "what's the time")
    assert not same_words("what's the time", "what's the time now")


@pytest.mark.parametrize("text", ["stop", "wait", "no", "how many", "yeah but wait", "five four"])
def test_words_that_want_to_be_heard(text: str) -> None:
    assert asks(text, 2)


@pytest.mark.parametrize("text", ["", "half", "five five", "mm hmm", "right okay", "for"])
def test_what_may_be_a_cough_does_not(text: str) -> None:
    assert not asks(text, 2)


def test_with_a_recogniser_that_rejects_noise_one_word_is_enough() -> None:
    assert asks("friday", 1)
    assert not asks("friday", 2)
    assert not asks("yeah", 1)
    assert not asks(OUT_OF_DOMAIN, 2)
