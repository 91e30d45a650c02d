"""The server's log is clean, and so is each of its entries bounded."""

from io import StringIO
from types import SimpleNamespace

import pytest
from loguru import logger

from turngap.agent import server
from turngap.agent.server import ENTRY_CHARS
from turngap.core.secrets import remember


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Return the text written to stderr."""
    written = StringIO()
    monkeypatch.setattr(server, "sys", SimpleNamespace(stderr=written))
    server.set_log_level("DEBUG")
    return written


def test_no_escape_sequence_and_no_secret_reaches_the_terminal(log: StringIO) -> None:
    logger.warning("a\x1b[2Jb\u202ec api_key=sk-0123456789abcdef0123456789abcdef")
    said = log.getvalue()
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "0123456789abcdef" not in said


def test_a_message_without_end_is_cut_before_it_is_cleaned(
    log: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[int] = []

    def clean(text: str) -> str:
        cleaned.append(len(text))
        return text

    monkeypatch.setattr(server, "text_without_secrets", clean)
    logger.warning("x" * 1_000_000)
    assert cleaned == [ENTRY_CHARS]


def test_the_cut_leaves_no_first_part_of_a_secret(log: StringIO) -> None:
    remember("Xq7zW2pLm9")
    logger.warning(("x" * 99 + "\n") * (ENTRY_CHARS // 100 - 1) + "x" * 60 + "Xq7zW2pLm9" * 9)
    assert "Xq" not in log.getvalue()
