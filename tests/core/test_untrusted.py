"""Texts, numbers and JSON of a peer, and the values made of them."""

import json
import math
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.untrusted import (
    MOST_DEPTH,
    MOST_ITEMS,
    MOST_TEXT,
    finite,
    harmless,
    parse_json,
    plain,
    printable,
    text_of,
    whole,
    xml_text,
)

# As a JSON parser may give it, with what Python's takes beyond the standard.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "[31mred [0m"),
        ("\x9b31mC1", "31mC1"),
        ("one\r\ntwo\u2028three", "one two three"),
        ("\ud83d half a pair", "\ufffd half a pair"),
        ("twelve\u00a0o\u2019clock", "twelve o\u2019clock"),
        ("\u202eturned round", "turned round"),
        ("\U000e0041\U000e0042 tagged", "tagged"),
    ],
)
def test_a_text_is_one_line_that_a_terminal_may_show(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_pieces_of_a_text_keep_the_spaces_at_their_ends() -> None:
    assert [harmless(piece) for piece in (" two", " three ", "\n")] == [" two", " three ", " "]


def test_a_text_is_cut_where_it_is_too_long() -> None:
    assert harmless("abcdef", 3) == "abc…"
    assert printable("abcdef", 6) == "abcdef"
    assert len(text_of("x" * 10**6)) == MOST_TEXT + 1


@given(st.text(st.characters(exclude_categories=[]), max_size=50), st.integers(0, 60))
def test_any_text_becomes_printable_and_utf_8(text: str, most: int) -> None:
    shown = printable(text, most)
    assert shown.isprintable()
    assert len(shown) <= most + 1
    assert printable(shown) == shown
    shown.encode()
    ElementTree.fromstring(f"<a>{xml_text(harmless(text)).replace('&', '').replace('<', '')}</a>")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**63, 10**400, "5", None, True])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    for read in (finite, whole):
        with pytest.raises(ValueError, match="expected a"):
            read(value)


def test_whole_numbers_may_be_written_as_floats_and_others_not() -> None:
    assert (whole(5.0), whole(-7), finite(5)) == (5, -7, 5.0)
    with pytest.raises(ValueError, match=r"got 1\.5"):
        whole(1.5)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, "9" * 5_000, "", "{", "[" + "1," * 2**20]
)
def test_json_that_is_too_deep_or_too_long_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # json's own words for some of them
        parse_json(text)


@given(JSON)
def test_any_value_can_be_stored(value: Any) -> None:
    copy, changed = plain(value)
    again = json.loads(json.dumps(copy, allow_nan=False, ensure_ascii=False).encode())
    assert again == copy
    assert changed or copy == value
    assert plain(copy) == (copy, 0)


def test_a_value_is_cut_in_depth_and_number() -> None:
    deep: Any = "bottom"
    for _ in range(300):
        deep = {"in": deep}
    copy, changed = plain(deep)
    assert changed == 1
    assert json.dumps(copy).count("in") == MOST_DEPTH
    copy, changed = plain(list(range(10 * MOST_ITEMS)))
    assert (len(copy), changed) == (MOST_ITEMS - 1, 1)
