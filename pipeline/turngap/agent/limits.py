"""What a client may do to a served agent: one set of limits for all endpoints.

docs/security.md has them as a table, with what happens beyond each.
"""

from dataclasses import dataclass

from turngap.core.clock import NS_PER_S

# Codes with which the server closes a WebSocket. Those below 4000 are RFC 6455's; the others are
# our own, after the HTTP status that says the same where there is one.
CODE_DONE = 1000
CODE_NO_TEXT = 1003
CODE_MALFORMED = 1007
CODE_NOT_ALLOWED = 1008
CODE_TOO_BIG = 1009
CODE_FAILED = 1011
CODE_RESTART = 1012
CODE_FULL = 1013
CODE_TOKEN = 4401
CODE_ORIGIN = 4403
CODE_IDLE = 4408
CODE_TOO_LONG = 4410
CODE_TOO_FAST = 4429

# A page of text, of one typed turn; nobody gains from an LLM's answer to more.
TEXT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server, which the page gets too. Rates are averages, a second."""

    connections: int = 64  # open at once, beside the seats; one address gets half of them
    request_s: float = 10.0  # for a whole request, and for a page's first message
    first_s: float = 60.0  # for another client's first message: a person allows the microphone
    message_bytes: int = 64 * 1024  # 20 ms of audio take 700
    messages_per_s: float = 400.0  # pings and fragments too; an AudioWorklet's blocks come at 375
    audio_rate: float = 1.25  # seconds of audio: nobody speaks faster than real time
    asks_per_s: float = 1.0  # typed turns and switches of the LLM
    burst_s: float = 15.0  # so much of each may come at once, as after a stall of the network
    idle_s: float = 300.0  # without speech or text from either side
    vanished_s: float = 15.0  # without taking what is written, and without a page's message
    pong_s: float = 25.0  # between pings, and for the answer to one
    warn_s: float = 30.0  # a page is warned so long before a conversation is ended
    session_s: float = 3600.0  # the longest conversation


class HangUpError(Exception):
    """An act of a client for which its connection is closed, by code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)


class Meter:
    """A token bucket: `rate` a second on average, and `rate * burst_s` at once."""

    def __init__(self, rate: float, burst_s: float, now_ns: int) -> None:
        self._rate = rate
        self._most = self._left = rate * burst_s
        self._at_ns = now_ns

    def take(self, amount: float, now_ns: int) -> bool:
        """Take that much; return whether there was enough."""
        gained = max(0, now_ns - self._at_ns) / NS_PER_S * self._rate
        self._left = min(self._most, self._left + gained)
        self._at_ns = now_ns
        if amount > self._left:
            return False
        self._left -= amount
        return True
