"""The server's log on stderr: without secrets, in printable lines, and bounded."""

import logging
import sys
from typing import TYPE_CHECKING

from loguru import logger

from turngap.agent.limits import Meter
from turngap.clocks import MonotonicClock
from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import harmless

if TYPE_CHECKING:
    from loguru import Message

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")

# A client can cause warnings: a server that ran out of descriptors wrote 390 MB of them. At this
# rate a day has 86 MB at most; what a lower level shows is asked for, and not limited.
BYTES_PER_S, AT_ONCE_S = 1000.0, 200.0
ENTRY_CHARS = 20_000


class BoundedLog:
    """A sink for loguru that leaves out warnings and errors beyond the bound."""

    def __init__(self) -> None:
        self._clock = MonotonicClock()
        self._meter = Meter(BYTES_PER_S, AT_ONCE_S, self._clock.now_ns())

    def __call__(self, message: "Message") -> None:
        text = str(message)[:ENTRY_CHARS]
        bounded = message.record["level"].no >= logging.WARNING
        if not bounded or self._meter.take(len(text), self._clock.now_ns()):
            lines = text_without_secrets(text).splitlines()
            sys.stderr.write("".join(harmless(line) + "\n" for line in lines))


class _ToLoguru(logging.Handler):
    """Hands what libraries log in Python's own way to the one log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in LOG_LEVELS else record.levelno
        logger.opt(exception=record.exc_info).log(level, "{}", record.getMessage())


def set_log_level(level: str) -> None:
    """Set the log's level; at debug level pipecat logs what becomes of every frame.

    Raises:
        InputError: there is no such level.
    """
    if level.upper() not in LOG_LEVELS:
        raise InputError(
            "serve.log_level", f"no log level {level!r}", hint=f"known: {', '.join(LOG_LEVELS)}"
        )
    logger.remove()
    form = "{time:HH:mm:ss.SSS} {level} {message}"
    # `diagnose` would print the values of variables below a traceback, keys among them.
    logger.add(BoundedLog(), level=level.upper(), format=form, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)
