"""What the end of a text says about whether the person has finished."""

import pytest

from turngap.scenario.library import library_dir, load_scenario, scenario_paths
from turngap_services.text import spoken_words
from turngap_services.turn.adaptive.phrasing import (
    Phrase,
    asks,
    is_backchannel,
    phrase_of,
    same_words,
)

SENTENCES = [
    turn.say
    for path in scenario_paths(library_dir())
    for turn in load_scenario(path, need_labels=False).scenario.turns
]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "nothing"),
        ("...", "nothing"),
        ("what time is it", "complete"),
        ("Set a timer for twelve minutes.", "complete"),
        ("turn it on", "complete"),
        ("no", "complete"),
        ("yes please", "complete"),
        ("five", "complete"),
        ("at six", "complete"),
        ("please deliver to forty two", "complete"),
        ("what is that for", "complete"),
        ("where are you from", "complete"),
        ("what's the weather like", "complete"),
        ("I'd like to book a table for", "open"),
        ("two large pizzas and", "open"),
        ("I want to change my", "open"),
        ("under the name of", "open"),
        ("it's", "open"),
        ("I", "open"),
        ("is there a train that", "open"),
        ("how much is that", "complete"),
        ("tell me about that", "complete"),
        ("that", "complete"),
        ("I'd like to order", "unsure"),
        ("yes I do", "unsure"),
        ("can you tell me where it is", "unsure"),
        ("no sorry", "unsure"),
        ("five five", "open"),
        ("my number is five five five", "open"),
        ("my number is five five five zero", "number"),
        ("it's 4 7", "open"),
        ("the code is 4711", "number"),
        ("four seven double three", "number"),
        ("I would like um", "hesitation"),
        ("let me see", "hesitation"),
        ("Tuesday, no sorry", "hesitation"),
        ("a large one, no wait", "hesitation"),
        ("to the airport I mean", "hesitation"),
    ],
)
def test_the_end_of_the_text_decides(text: str, phrase: Phrase) -> None:
    assert phrase_of(text) == phrase


@pytest.mark.parametrize("said", SENTENCES)
def test_nothing_that_people_say_in_the_library_is_taken_for_half_of_it(said: str) -> None:
    assert phrase_of(" ".join(spoken_words(said))) in ("complete", "number")


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
