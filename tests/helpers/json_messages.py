"""Exchange between a dialect's session and a server that speaks JSON."""

import json
from typing import Any

from turngap.caller.dialects.session import Session
from turngap.caller.said import Incoming


def hear(session: Session, event: Any) -> list[Incoming]:
    """Give it a message of the server."""
    return session.receive_data(json.dumps(event))


def sent(session: Session) -> list[Any]:
    """Return the waiting messages: bytes as they are, JSON parsed."""
    return [m if isinstance(m, bytes) else json.loads(m) for m in session.data_to_send()]
