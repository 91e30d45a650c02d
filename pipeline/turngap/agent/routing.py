"""Which worker a connection belongs to, from the first bytes of its request. No I/O."""

import re
from enum import Enum, auto
from urllib.parse import unquote

from turngap.agent.connections import HEAD_BYTES, LINE_BYTES
from turngap.agent.server import OPENAI_PATH, PATH, TWILIO_PATH

LIVE_PATH = "/live"
_END_OF_HEAD = re.compile(rb"\n\r?\n")


class Route(Enum):
    """Where a connection goes: a call to any worker, all others to the one that has the page.

    A conversation of the page is in its worker's memory: to come back to it after a lost line, and
    for its download. So is what a connection may ask for after its first request.
    """

    CALL = auto()
    LIVE = auto()
    PAGE = auto()


def route(head: bytes) -> Route | None:
    """Return where a connection goes that begins with these bytes; None: more of them are needed.

    What is no request that we would take goes to the page's worker, whose server says so.
    """
    line, newline, _ = head.partition(b"\n")
    if not newline:
        return None if len(head) <= LINE_BYTES else Route.PAGE
    path = path_of(line)
    if path == LIVE_PATH:
        return Route.LIVE
    if path not in (PATH, TWILIO_PATH, OPENAI_PATH) and not path.startswith(f"{TWILIO_PATH}/"):
        return Route.PAGE
    end = _END_OF_HEAD.search(head)
    if end is None:
        return None if len(head) < HEAD_BYTES else Route.PAGE
    return Route.CALL if _opens_websocket(head[: end.start()]) else Route.PAGE


def path_of(line: bytes) -> str:
    """Return the path that a request line asks for, as the server will read it; else nothing."""
    words = line.split(b" ")
    if len(words) != 3:
        return ""
    try:
        return unquote(words[1].partition(b"?")[0].decode("ascii"))
    except UnicodeDecodeError:
        return ""


def _opens_websocket(head: bytes) -> bool:
    wanted = {b"connection": b"", b"upgrade": b""}
    for line in head.split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() in wanted:
            wanted[name.lower()] = value.strip().lower()
    tokens = [token.strip() for token in wanted[b"connection"].split(b",")]
    return b"upgrade" in tokens and wanted[b"upgrade"] == b"websocket"
