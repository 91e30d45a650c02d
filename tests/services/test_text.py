import pytest

from turngap_services.text import clauses, spoken_words, unspoken


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I'd like a large, oat-milk latte!", "i'd like a large oat milk latte"),
        ("it’s café Zoë", "it's cafe zoe"),
        ("table 4 at 7:30 p.m.", "table four at seven thirty pm"),
        ("it costs 7.5", "it costs seven point five"),
        ("42 Baker Street", "forty two baker street"),
        ("'quoted' words'", "quoted words"),
        ("", ""),
    ],
)
def test_words_as_they_are_spoken(text: str, words: str) -> None:
    assert " ".join(spoken_words(text)) == words


def test_clauses_are_what_lies_between_pauses() -> None:
    parts = [
        " ".join(part) for part in clauses("Tuesday, no sorry: Thursday — at 7:30 p.m., please.")
    ]
    assert parts == ["tuesday", "no sorry", "thursday", "at seven thirty pm", "please"]


def test_what_nobody_can_read_aloud_is_found() -> None:
    assert unspoken("that's $5, “да”") == {"$", "“", "”", "д", "а"}
    assert unspoken("I'd like 2 (or 3) — please…") == set()
