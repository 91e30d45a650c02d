"""docs/line.md: its table of profiles is that of the profiles, and it explains every fault."""

from line_page import PAGE, table

from turngap.caller.line.spec import KEYS


def test_the_table_of_profiles_is_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page, "run: python tools/line_page.py"
    assert [key for key in KEYS if f"`{key}`" not in page] == []
