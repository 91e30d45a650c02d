"""Thoughts are cut out of a reply, in whichever pieces the reply comes."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turngap import thoughts
from turngap.thoughts import Cut, ThoughtCut, without_thoughts

TAGS = [
    ("<think>", "</think>"),
    ("<Thinking>", "</Thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<think:opensource>", "</think:opensource>"),
]
PAIRS = [
    *TAGS,
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
]
# Lower case is for the voice, upper case and digits are thought, in what follows.
FRAGMENTS = st.sampled_from(
    [marker for pair in PAIRS for marker in pair]
    + ["a < b", "hello ", "you", "\n\n", " ", "<", "[", "</", "<thi", "nk>", "1 < 2", "<|", "◁"]
)
TEXTS = st.lists(FRAGMENTS, max_size=12).map("".join)


def cut(pieces: Iterable[str], *, begun: bool = False) -> tuple[str, str, bool]:
    """Spoken, thought, and whether a thought leaked."""
    cutting = ThoughtCut(begun=begun)
    cuts = [*map(cutting.feed, pieces), cutting.finish()]
    return "".join(c.spoken for c in cuts), "".join(c.thought for c in cuts), cutting.leaked


def in_pieces(text: str, cuts: Iterable[int]) -> list[str]:
    at = [0, *sorted({c % (len(text) + 1) for c in cuts}), len(text)]
    return [text[a:b] for a, b in pairwise(at)]


@given(TEXTS, st.lists(st.integers(0, 300)), st.booleans())
@example("<think>a</think>b", list(range(20)), False)
def test_every_tokenisation_of_a_text_has_the_outcome_of_the_whole(
    text: str, cuts: list[int], begun: bool
) -> None:
    assert cut(in_pieces(text, cuts), begun=begun) == cut([text], begun=begun)
    assert cut(text, begun=begun) == cut([text], begun=begun)


SPEECH = st.lists(st.sampled_from(["well", "a < b", "so [sic]", "x <y> z"]), max_size=2)
INNER = st.lists(st.sampled_from(["HM", "1 < 2", "<b>", "\n", "</", "OK <thi"]), max_size=3)


@given(
    st.lists(st.tuples(SPEECH.map(" ".join), st.sampled_from(PAIRS), INNER.map(" ".join))),
    st.lists(st.integers(0, 600)),
)
def test_what_stands_between_markers_is_not_spoken_and_everything_else_is(
    parts: list[tuple[str, tuple[str, str], str]], cuts: list[int]
) -> None:
    text = "".join(f"{words}{start}{inner}{end}\n" for words, (start, end), inner in parts)
    spoken, _, leaked = cut(in_pieces(text, cuts))
    assert spoken.split() == " ".join(words for words, _, _ in parts).split()
    assert not leaked


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_half_a_thought_is_not_spoken_wherever_the_reply_stops(start: str, end: str) -> None:
    whole = f"{start}SECRET{end}"
    for stop in range(2, len(whole) + 1):
        assert cut(whole[:stop])[0] == "", whole[:stop]


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("<think>A</think>\n\nhello", "hello"),
        ("well. <think>A</think> so", "well. so"),
        ("well.<think>A</think>so", "well. so"),
        ("\n <think>A<think>B</think>C</think>hello", "hello"),
        ("<think>A</think>one <think>B</think>two", "one two"),
        ("<think></think>hello", "hello"),
        ("hello <think>A", "hello "),
        ("<thinking>A</think>B</thinking>hello", "hello"),
        ("<answer>hello</answer>", "hello"),
        ("<|channel|>final<|message|>hello<|return|>", "hello"),
        ('<|channel|>commentary to=functions.x<|message|>{"A":1}<|call|>', ""),
        ("a < b, a<b and a <", "a < b, a<b and a <"),
        ("<thinker> [THIN] <b>", "<thinker> [THIN] <b>"),
        ("  hello there ", "hello there "),
        ("", ""),
    ],
)
def test_what_is_left_of_a_text(text: str, spoken: str) -> None:
    assert cut(text)[::2] == (spoken, False)


def test_no_more_is_held_back_than_what_may_become_a_marker() -> None:
    cutting = ThoughtCut()
    pieces = [
        "a",
        " <",
        " b <",
        "t",
        "able> ",
        "[",
        "T",
        "HX]",
        "<thin",
        "k>A",
        "B</",
        "thin",
        "k>",
    ]
    assert [cutting.feed(piece) for piece in pieces] == [
        Cut("a", ""),
        Cut(" ", ""),
        Cut("< b ", ""),
        Cut("", ""),
        Cut("<table> ", ""),
        Cut("", ""),
        Cut("", ""),
        Cut("[THX]", ""),
        Cut("", ""),
        Cut("", "A"),
        Cut("", "B"),
        Cut("", ""),
        Cut("", ""),
    ]


@pytest.mark.parametrize("begins_again", ["", "<think>", "\n<think>\n"])
def test_a_thought_that_the_prompt_began(begins_again: str) -> None:
    text = f"{begins_again}A, B</think>\n\nhello"
    assert cut(text, begun=True)[::2] == ("hello", False)
    assert without_thoughts(text) == "hello"


def test_a_thought_that_ends_without_having_begun_is_told_after_words_alone() -> None:
    assert cut("A, B</think>hello") == ("A, B hello", "", True)
    assert cut("\n</think>hello") == ("hello", "", False)
    assert without_thoughts("hello") == "hello"


def test_no_marker_is_the_beginning_of_another() -> None:
    every = {marker.lower() for marker in (*thoughts._OPENS, *thoughts._FRAMES)} | thoughts._CLOSES
    assert not thoughts._OUTSIDE._begun & every
