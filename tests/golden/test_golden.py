"""Figures, documents and words are those that are frozen (freeze.py, report_words.py)."""

import pytest
from freeze import DIALECTS, current, differences, golden, played
from report_words import HERE, REPORTS, words_of


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_played_is_measured_as_before(dialect: str) -> None:
    assert not "\n".join(differences(golden("played")[dialect], played(dialect)))


@pytest.mark.parametrize("name", ["stored", "printed"])
def test_a_document_has_the_keys_and_values_that_it_had(name: str) -> None:
    assert not "\n".join(differences(golden(name), current(name)))


@pytest.mark.parametrize("kind", REPORTS)
def test_a_report_says_what_it_said(kind: str) -> None:
    assert words_of(kind) == (HERE / f"{kind}.txt").read_text(encoding="utf-8")
