"""One message of a pipecat bot, read by itself."""

from turngap.caller.dialects.pipecat import PipecatSession
from turngap.caller.said import Incoming, Message


def decode(message: Message) -> Incoming | None:
    """Return what a message says; None if it says nothing that the caller needs.

    Raises: as `PipecatSession.receive_data`.
    """
    said = PipecatSession().receive_data(message)
    return said[0] if said else None
