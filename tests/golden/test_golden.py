"""The figures and the documents are those that are frozen (tests/golden/freeze.py)."""

import pytest
from freeze import DIALECTS, current, differences, golden, played


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_played_is_measured_as_before(dialect: str) -> None:
    assert not "\n".join(differences(golden("played")[dialect], played(dialect)))


@pytest.mark.parametrize("name", ["stored", "printed"])
def test_a_document_has_the_keys_and_values_that_it_had(name: str) -> None:
    assert not "\n".join(differences(golden(name), current(name)))
