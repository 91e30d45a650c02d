import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turngap.scenario.phrases import says, tokens

WORD = st.sampled_from(["a", "table", "seven", "thirty", "four", "it's", "7", "30", "twelfth"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It's TEN past nine, now!", ["its", "9:10", "now"]),
        ("at 9:10 a.m. and 10am", ["at", "9:10", "am", "and", "10:00", "am"]),
        ("the twenty-first, or the 2nd", ["the", "21", "or", "the", "2"]),
        ("a hundred and five", ["105"]),
        ("one thousand two hundred is 1,200", ["1200", "is", "1200"]),
        ("1,20 is no group", ["1.20", "is", "no", "group"]),
        ("Café “Zoë”", ["cafe", "zoe"]),
        ("five eight oh six", ["5", "8", "0", "6"]),
        ("oh, five: oh", ["oh", "5", "oh"]),
        ("?! …", []),
    ],
)
def test_tokens_are_what_is_said(text: str, found: list[str]):
    assert tokens(text) == found


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("A table at seven thirty, then.", "7:30"),
        ("A table at 7.30, then.", "seven thirty"),
        ("Four seven one nine two arrives today.", "47192"),
        ("47192 arrives today", "four seven one nine two"),
        ("It's 555-014-27.", "five five five zero one four two seven"),
        ("That makes $7.50.", "seven fifty"),
        ("Forty-two Baker Street", "42 baker street"),
        ("On the 12th.", "twelfth"),
        ("half past seven", "7:30"),
        ("one for you", "1"),
        ("It is o'clock", "O’Clock"),
    ],
)
def test_a_number_is_the_same_in_words_and_in_digits(text: str, phrase: str):
    assert says(text, phrase)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("forty seven", "7"),
        ("47192", "471"),
        ("seventy", "seven"),
        ("larger", "large"),
        ("large oat", "oat large"),
        ("", "x"),
        ("anything", "?!"),
        ("seven", "seven thirty"),
    ],
)
def test_what_is_not_said_is_not_found(text: str, phrase: str):
    assert not says(text, phrase)


@example("½ ² ٣ Ⅷ one²")
@given(st.text())
def test_any_text_has_tokens(text: str):
    assert all(token and not token.isspace() for token in tokens(text))
    assert says(text, text) == bool(tokens(text))


@given(st.lists(WORD), st.lists(WORD, min_size=1), st.lists(WORD))
def test_a_text_says_what_stands_in_it_between_marks(
    before: list[str], phrase: list[str], after: list[str]
):
    inside = " ".join(phrase)
    # A mark on either side: without, "thirty" before "four" is another number, 34.
    text = f"{' '.join(before)} ; {inside} ; {' '.join(after)}"
    assert says(text, inside)
