"""The server's log: all of it on stderr, and never more than a disk or a reader can take."""

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from loguru import logger

from turngap.agent.limits import Meter
from turngap.clocks import MonotonicClock
from turngap.core.clock import Clock
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import harmless

if TYPE_CHECKING:
    from loguru import Message, Record

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")

# A client can cause lines: a server that ran out of descriptors wrote 390 MB of them. At this rate
# a day has 86 MB at most; what the levels below WARNING show is asked for, and not limited.
BYTES_PER_S = 1000.0
AT_ONCE_S = 200.0
LINE_CHARS = 1000
TRACE_CHARS = 20_000


class BoundedLog:
    """A file for loguru, bounded for warnings and errors; says how many of them it has left out."""

    def __init__(self, write: Callable[[str], object], clock: Clock) -> None:
        self._write = write
        self._clock = clock
        self._meter = Meter(BYTES_PER_S, AT_ONCE_S, clock.now_ns())
        self._left_out = 0

    def write(self, message: "Message") -> None:
        record: Record = message.record
        first, _, trace = str(message).partition("\n")
        if record["level"].no >= logging.WARNING:
            if not self._takes(first[:LINE_CHARS] + trace[:TRACE_CHARS]):
                return
            self.stop()
        # Cut before it is cleaned, which takes time, and once more, so that no half of a secret
        # that the first cut left is shown.
        whole = f"{first[: 10 * LINE_CHARS]}\n{trace[: 10 * TRACE_CHARS]}"
        first, _, trace = text_without_secrets(whole).partition("\n")
        more = "".join(harmless(line) + "\n" for line in trace[:TRACE_CHARS].splitlines())
        self._write(f"{harmless(first, LINE_CHARS)}\n{more}")

    def stop(self) -> None:
        """Say what was left out; loguru calls it at the end, too."""
        if self._left_out:
            self._write(f"({self._left_out} entries of the log were left out)\n")
            self._left_out = 0

    def _takes(self, text: str) -> bool:
        size = len(text.encode(errors="replace"))
        taken = self._meter.take(size, self._clock.now_ns())
        self._left_out += not taken
        return taken


class _ToLoguru(logging.Handler):
    """Hands what libraries log in Python's own way to the one log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in LOG_LEVELS else record.levelno
        logger.opt(exception=record.exc_info).log(level, "{}", record.getMessage())


def _write(text: str) -> None:
    # Whichever stderr there is by then: that of today may be closed before the log is.
    sys.stderr.write(text)


def set_log_level(level: str) -> None:
    """Set the log's level on stderr; at debug level pipecat logs what becomes of every frame.

    Raises:
        InputError: there is no such level.
    """
    if level.upper() not in LOG_LEVELS:
        raise InputError(
            "serve.log_level", f"no log level {level!r}", hint=f"known: {', '.join(LOG_LEVELS)}"
        )
    logger.remove()
    log = BoundedLog(_write, MonotonicClock())
    form = "{time:HH:mm:ss.SSS} {level} {message}"
    # `diagnose` would print the values of variables below a traceback, keys among them.
    logger.add(log, level=level.upper(), format=form, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)
