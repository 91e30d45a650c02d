"""What turngap's logger warns of while a test plays, such as telemetry that could not be sent."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heard(warnings: list[str]) -> Iterator[None]:
    """Add to these what is warned of meanwhile."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    logger, handler = logging.getLogger("turngap"), Keep(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
