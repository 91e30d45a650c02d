"""docs/data.md says what the columns and metrics are, since it is made from them."""

import re
from pathlib import Path

import data_page
import pytest

from turngap.store.tables import text_of_cell


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert data_page.main(["--check"]) == 0, capsys.readouterr().err


def test_a_page_that_is_out_of_date_is_told_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = data_page.PAGE.read_text(encoding="utf-8")
    old = tmp_path / "data.md"
    old.write_text(page.replace("| `gap_ns` |", "| `gap` |"), encoding="utf-8")
    monkeypatch.setattr(data_page, "PAGE", old)
    assert data_page.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert data_page.main([]) == 0
    assert old.read_text(encoding="utf-8") == page


def test_a_page_without_a_table_is_refused() -> None:
    page = data_page.PAGE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="expected"):
        data_page.made(page.replace("data_page.py: turns -->", "data_page.py: turn -->"))


def test_the_expression_on_the_page_gives_back_the_text() -> None:
    page = data_page.PAGE.read_text(encoding="utf-8")
    (shown,) = re.findall(r"`(\(\^\|.*)`", page)
    for cell in ("'=1", "''=1", "a;'=1", "'Tis so", "x\n' -1"):
        assert re.sub(shown, "", cell) == text_of_cell(cell)
