"""Why a delivery failed: what OpenTelemetry's exporter logs of it, in a few words."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import MOST_SENTENCE, printable

_ERRNO = re.compile(r"\[Errno -?\d+\] ([^'\")]+)")
_REASON = re.compile(
    r"(?:Transient error |reason: )(.+?)(?: encountered while exporting.*)?$", re.S
)


@contextmanager
def told_why() -> Iterator[Sequence[str]]:
    """Take what the exporter complains of from the log, where it would be said again and again."""
    logger, said = logging.getLogger("opentelemetry"), list[str]()

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler, before = Keep(logging.WARNING), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def in_words(said: Sequence[str]) -> str:
    """Say why nothing was accepted: the SDK's first reason, or else its first words.

    Its last attempt may fail only because its time is over.
    """
    reasons = [found[1] for found in map(_REASON.search, said) if found is not None]
    why = (reasons or list(said))[0]
    if "timed out" in why.lower():
        why = "it did not answer in time"
    elif (found := _ERRNO.search(why)) is not None:
        why = found[1].lower()
    return printable(text_without_secrets(why), MOST_SENTENCE)
