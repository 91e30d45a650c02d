"""Clauses from tokens: nothing lost, nothing torn, nothing waited for."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.agent.speech_output import FIRST_MAX_WORDS, ClauseAggregator, WordAggregator
from turngap.core.voice import cuts, ends_clause, parted


async def clauses(*tokens: str) -> list[str]:
    """Return the pieces made of the tokens, with the rest at the reply's end."""
    aggregator = ClauseAggregator()
    found = await given_out(aggregator, *tokens)
    rest = await aggregator.flush()
    return [*found, *([rest.text] if rest else [])]


async def given_out(aggregator: ClauseAggregator, *tokens: str) -> list[str]:
    """Return the pieces handed over before the reply has ended."""
    return [c.text for token in tokens async for c in aggregator.aggregate(token)]


def spaced(text: str) -> list[str]:
    """Tokens as most models make them: each with the space before it, punctuation apart."""
    return re.findall(r"\s*\w+|\s*[^\w\s]", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's sunny, about twenty degrees.", ["It's sunny,", "about twenty degrees."]),
        ("Sure thing! What size?", ["Sure thing!", "What size?"]),
        ("Two things: milk; and bread.", ["Two things:", "milk; and bread."]),
        # One word alone is choppy, so it waits for more.
        ("Yes, from ten until five.", ["Yes, from ten until five."]),
        ("Fine. Bye.", ["Fine. Bye."]),
        ("Well, I mean… maybe not.", ["Well, I mean…", "maybe not."]),
    ],
)
async def test_a_clause_ends_with_its_punctuation(text: str, expected: list[str]) -> None:
    assert await clauses(*spaced(text)) == expected
    assert await clauses(*text) == expected
    assert await clauses(text) == expected


async def test_a_clause_is_there_with_the_token_that_ends_it() -> None:
    aggregator = ClauseAggregator()
    assert await given_out(aggregator, "It", "'s", " sunny") == []
    assert await given_out(aggregator, ",") == ["It's sunny,"]
    assert await given_out(aggregator, " about", " twenty", " degrees") == []
    assert await given_out(aggregator, ".") == ["about twenty degrees."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It costs 3.5 euros.", ["It costs 3.5 euros."]),
        ("That is 7,50 please.", ["That is 7,50 please."]),
        ("At 7:30, or 10,000 later.", ["At 7:30,", "or 10,000 later."]),
        ("Your total is 7.50. Anything else?", ["Your total is 7.50.", "Anything else?"]),
        ("It is 7. What else?", ["It is 7.", "What else?"]),
        ("Is it 7? Or 8!", ["Is it 7?", "Or 8!"]),
        ("My number is 555.", ["My number is 555."]),
    ],
)
async def test_numbers_stay_whole(text: str, expected: list[str]) -> None:
    assert await clauses(*spaced(text)) == expected
    assert await clauses(*text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I called Dr. Smith today.", ["I called Dr. Smith today."]),
        ("At 3 p.m. on Sunday.", ["At 3 p.m. on Sunday."]),
        ("In the U.S. of course.", ["In the U.S. of course."]),
        ("Take some, e.g. two.", ["Take some,", "e.g. two."]),
        ("So do I. Good night.", ["So do I.", "Good night."]),
    ],
)
async def test_abbreviations_end_nothing(text: str, expected: list[str]) -> None:
    assert await clauses(*spaced(text)) == expected
    assert await clauses(*text) == expected


async def test_words_in_pieces_stay_whole() -> None:
    tokens = ["One", " chocol", "ate", " milk", "sh", "ake", ",", " com", "ing", " up", "."]
    assert await clauses(*tokens) == ["One chocolate milkshake,", "coming up."]


async def test_without_punctuation_the_first_piece_ends_after_some_words() -> None:
    words = [f"word{i}" for i in range(20)]
    leading = [words[0], *(f" {w}" for w in words[1:])]
    trailing = [f"{w} " for w in words]
    expected = [" ".join(words[:FIRST_MAX_WORDS]), " ".join(words[FIRST_MAX_WORDS:])]
    assert await clauses(*leading) == expected
    assert await clauses(*trailing) == expected


async def test_the_first_piece_ends_between_words_and_not_in_one() -> None:
    tokens = ["a", " b", " c", " d", " e", " pine", "apple", " pie"]
    assert await clauses(*tokens) == ["a b c d e pineapple", "pie"]


async def test_a_token_may_hold_several_clauses() -> None:
    aggregator = ClauseAggregator()
    text = "Hello there. How are you? I was"
    assert await given_out(aggregator, text) == ["Hello there.", "How are you?"]
    assert aggregator.text.text == "I was"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["Well", " wait", ".", ".", ".", " and", " then", "."], ["Well wait.", "and then."]),
        (["She said", ' "', "hi", ".", '"', " I", " think", "."], ['She said "hi.', "I think."]),
        (['She said "hi."', " I think."], ['She said "hi."', "I think."]),
        (["Really now", "?", "!", " Yes", " indeed", "."], ["Really now?", "Yes indeed."]),
    ],
)
async def test_the_rest_of_an_ending_is_not_spoken(tokens: list[str], expected: list[str]) -> None:
    assert await clauses(*tokens) == expected


@pytest.mark.parametrize("tokens", [[], [""], ["", " ", "\n"], ["..."], [" - "], ["?!", "…"]])
async def test_where_there_is_nothing_to_say_nothing_is_handed_over(tokens: list[str]) -> None:
    assert await clauses(*tokens) == []


async def test_unicode() -> None:
    tokens = ["Él", " está", " ", "aquí", ",", " señor", " Núñez", "!", " Größe", " zwölf", "."]
    assert await clauses(*tokens) == ["Él está aquí,", "señor Núñez!", "Größe zwölf."]


async def test_an_interruption_drops_the_rest_and_the_next_reply_is_a_first_one() -> None:
    aggregator = ClauseAggregator()
    assert await given_out(aggregator, "Let me see, I was about") == ["Let me see,"]
    await aggregator.handle_interruption()
    assert aggregator.text.text == ""
    assert await aggregator.flush() is None
    words = ["a", *(f" w{i}" for i in range(7))]
    assert await given_out(aggregator, *words) == ["a w0 w1 w2 w3 w4"]


async def test_the_end_of_a_reply_begins_a_new_one() -> None:
    aggregator = ClauseAggregator()
    words = ["a", *(f" w{i}" for i in range(7))]
    for _ in range(2):
        assert len(await given_out(aggregator, *words)) == 1
        rest = await aggregator.flush()
        assert rest is not None


TEXTS = st.lists(
    st.one_of(
        st.text(alphabet="abcé 0123456789.,:;!?'\"…\n-", max_size=8),
        st.sampled_from(["Dr. ", " 3.5", " p.m.", " no.", "...", " ", " Hello", "ate"]),
    ),
    max_size=30,
)


@given(TEXTS)
async def test_no_word_is_lost_doubled_moved_or_torn(tokens: list[str]) -> None:
    spoken = " ".join(await clauses(*tokens))  # a clause's edge is a space, so a tear would show
    assert re.findall(r"\w+", spoken) == re.findall(r"\w+", "".join(tokens))


# --- words, and places to part text at ----------------------------------------------------------


async def words(*tokens: str) -> list[str]:
    aggregator = WordAggregator()
    found = [w.text for token in tokens async for w in aggregator.aggregate(token)]
    rest = await aggregator.flush()
    return [*found, *([rest.text] if rest else [])]


@pytest.mark.parametrize("cut_into", [list, spaced, lambda text: [text]])
async def test_words_come_one_by_one(cut_into: Callable[[str], list[str]]) -> None:
    text = "It costs 3.5 euros, Dr. Smith: chocolate milk!"
    assert await words(*cut_into(text)) == text.split()


async def test_a_word_in_pieces_is_one_word() -> None:
    assert await words(" chocol", "ate", " milk", ".", ".", ".") == ["chocolate", "milk."]


@given(TEXTS)
async def test_no_word_is_lost_between_words(tokens: list[str]) -> None:
    spoken = " ".join(await words(*tokens))
    assert re.findall(r"\w+", spoken) == re.findall(r"\w+", "".join(tokens))


async def test_an_interruption_drops_the_word_that_was_begun() -> None:
    aggregator = WordAggregator()
    assert [w.text async for w in aggregator.aggregate("One tw")] == ["One"]
    await aggregator.handle_interruption()
    assert aggregator.text.text == ""
    assert await aggregator.flush() is None


def test_text_is_parted_behind_whole_words() -> None:
    text = "The kitchen, Dr. Smith, is at 3."
    found = cuts(text, ended=False)
    assert [text[: c.end].rsplit(maxsplit=1)[-1] for c in found] == text.split()[:-1]
    assert [c.clause for c in found] == [False, True, False, True, False, False]
    assert [c.dangling for c in found] == [True, False, False, False, True, True]
    assert [c.words for c in found] == [1, 2, 3, 4, 5, 6]
    (*_, last) = cuts(text, ended=True)
    assert (last.end, last.clause, last.ends_reply) == (len(text), True, True)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("Hello there,", True),
        ('"Hi."', True),
        ("Dr.", False),
        ("the kitchen", False),
        ("p.m.", False),
    ],
)
def test_where_people_pause(text: str, ends: bool) -> None:
    assert ends_clause(text) == ends


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("A large oat latte, coming up.", ["A large oat latte,", "coming up."]),
        ("Yes, light rain tomorrow.", ["Yes, light rain tomorrow."]),
        ("It is done, sir", ["It is done,", "sir"]),
        ("Dr. Smith is here at 3.30 p.m. today.", ["Dr. Smith is here at 3.30 p.m. today."]),
        (" \n", []),
    ],
)
def test_a_whole_text_is_parted_where_people_pause(text: str, pieces: list[str]) -> None:
    assert parted(text) == pieces


@given(st.text(alphabet='ab.,;?!" 3\n', max_size=60))
def test_nothing_is_lost_where_a_text_is_parted(text: str) -> None:
    assert " ".join(parted(text)).split() == text.split()
