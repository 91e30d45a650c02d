"""The server's log has a bound, whatever makes the server write."""

import sys
from collections.abc import Iterator
from io import StringIO

import pytest
from loguru import logger

from turngap.agent import log as logs
from turngap.agent.log import AT_ONCE_S, BYTES_PER_S, LINE_CHARS, BoundedLog
from turngap.testing import ManualClock


class Written:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.texts: list[str] = []
        self.sink = logger.add(BoundedLog(self.texts.append, self.clock), format="{message}")

    @property
    def size(self) -> int:
        return sum(map(len, self.texts))


@pytest.fixture
def log() -> Iterator[Written]:
    written = Written()
    yield written
    logger.remove(written.sink)


def test_a_server_that_warns_without_end_fills_no_disk(log: Written) -> None:
    for _ in range(20_000):
        logger.warning("x" * 20_000)
    assert len(log.texts) == AT_ONCE_S
    assert log.size < 250_000


async def test_what_was_left_out_is_counted(log: Written) -> None:
    for _ in range(1000):
        logger.error("x" * LINE_CHARS)
    await log.clock.advance(2 * 10**9)
    logger.error("at last")
    assert log.texts[-2:] == ["(800 entries of the log were left out)\n", "at last\n"]


def test_what_is_asked_for_with_a_log_level_is_not_limited(log: Written) -> None:
    for _ in range(1000):
        logger.debug("x")
    assert len(log.texts) == 1000


def test_no_escape_sequence_reaches_the_terminal(log: Written) -> None:
    logger.warning("a\x1b[2Jb\u202ec")
    assert "\x1b" not in log.texts[0]
    assert "\u202e" not in log.texts[0]


def test_tracebacks_have_the_same_bound(log: Written) -> None:
    def fails(depth: int) -> None:
        if depth:
            fails(depth - 1)
        raise RuntimeError("ö" * 30_000)

    for _ in range(100):
        try:
            fails(20)
        except RuntimeError:
            logger.exception("it failed")
    assert 0 < sum(len(text.encode()) for text in log.texts) < 1.1 * AT_ONCE_S * BYTES_PER_S


def test_what_was_left_out_is_counted_at_the_end() -> None:
    written = Written()
    for _ in range(1000):
        logger.error("x" * LINE_CHARS)
    logger.remove(written.sink)
    assert written.texts[-1] == "(800 entries of the log were left out)\n"


def test_a_message_without_end_is_cut_before_it_is_cleaned(
    log: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[int] = []

    def clean(text: str) -> str:
        cleaned.append(len(text))
        return text

    monkeypatch.setattr(logs, "text_without_secrets", clean)
    logger.warning("x" * 1_000_000)
    assert cleaned[0] <= 10 * LINE_CHARS + 2
    assert len(log.texts[0]) <= LINE_CHARS + 2


def test_a_log_whose_stderr_is_closed_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = StringIO(), StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    logs.set_log_level("WARNING")
    for _ in range(1000):
        logger.warning("x" * LINE_CHARS)
    first.close()
    monkeypatch.setattr(sys, "stderr", second)
    logs.set_log_level("WARNING")
    assert "entries of the log were left out" in second.getvalue()
    logger.remove()
