"""The server's log on stderr: without secrets, and in printable lines."""

import logging
import sys
from typing import TYPE_CHECKING

from loguru import logger

from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import harmless

if TYPE_CHECKING:
    from loguru import Message

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")

ENTRY_CHARS = 20_000


def _write(message: "Message") -> None:
    lines = text_without_secrets(str(message)[:ENTRY_CHARS]).splitlines()
    sys.stderr.write("".join(harmless(line) + "\n" for line in lines))


class _ToLoguru(logging.Handler):
    """The way from Python's own log to the one log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in LOG_LEVELS else record.levelno
        logger.opt(exception=record.exc_info).log(level, "{}", record.getMessage())


def set_log_level(level: str) -> None:
    """Set the log's level; at debug level pipecat logs what becomes of every frame.

    Raises:
        InputError: there is no such level.
    """
    if level.upper() not in LOG_LEVELS:
        known = f"known: {', '.join(LOG_LEVELS)}"
        raise InputError("serve.log_level", f"no log level {level!r}", hint=known)
    logger.remove()
    # `diagnose` would print the values of variables below a traceback, keys among them.
    form = "{time:HH:mm:ss.SSS} {level} {message}"
    logger.add(_write, level=level.upper(), format=form, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)
