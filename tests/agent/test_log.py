"""The server's log has a bound, whatever makes the server write."""

from io import StringIO
from types import SimpleNamespace

import pytest
from loguru import logger

from turngap.agent import log as logs
from turngap.agent.log import AT_ONCE_S, BYTES_PER_S, ENTRY_CHARS
from turngap.testing import ManualClock


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What is written to stderr at one instant."""
    written = StringIO()
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=written))
    monkeypatch.setattr(logs, "MonotonicClock", ManualClock)
    logs.set_log_level("DEBUG")
    return written


def test_a_server_that_warns_without_end_fills_no_disk(log: StringIO) -> None:
    for _ in range(20_000):
        logger.warning("x" * 20_000)
    assert 0 < len(log.getvalue()) < 1.1 * AT_ONCE_S * BYTES_PER_S


def test_what_is_asked_for_with_a_log_level_is_not_limited(log: StringIO) -> None:
    for _ in range(1000):
        logger.debug("x" * 1000)
    assert len(log.getvalue()) > 1000 * 1000


def test_no_escape_sequence_and_no_secret_reaches_the_terminal(log: StringIO) -> None:
    logger.warning("a\x1b[2Jb\u202ec api_key=sk-0123456789abcdef0123456789abcdef")
    said = log.getvalue()
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "0123456789abcdef" not in said


def test_tracebacks_have_the_same_bound(log: StringIO) -> None:
    def fails(depth: int) -> None:
        if depth:
            fails(depth - 1)
        raise RuntimeError("o" * 30_000)

    for _ in range(100):
        try:
            fails(20)
        except RuntimeError:
            logger.exception("it failed")
    assert 0 < len(log.getvalue()) < 1.1 * AT_ONCE_S * BYTES_PER_S


def test_a_message_without_end_is_cut_before_it_is_cleaned(
    log: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[int] = []

    def clean(text: str) -> str:
        cleaned.append(len(text))
        return text

    monkeypatch.setattr(logs, "text_without_secrets", clean)
    logger.warning("x" * 1_000_000)
    assert cleaned == [ENTRY_CHARS]
