"""What a client may do to a served agent: one set of limits for all endpoints.

docs/security.md has them as a table, with what happens beyond each.
"""

from collections import OrderedDict
from dataclasses import dataclass

from starlette.types import Scope

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
CODE_IDLE = 4408
CODE_TOO_LONG = 4410
CODE_TOO_FAST = 4429


# A page of text, of one typed turn; nobody gains from an LLM's answer to more.
TEXT_CHARS = 2000

# Addresses whose use is remembered; the one that came longest ago begins anew.
ADDRESSES = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server. The page is told them too.

    Attributes:
        connections: open at once, beside those that have a seat. Each takes a descriptor, of which
            a process commonly has 1,024. One address gets half of them.
        request_s: for a request to come completely, and for the first message of a page.
        first_s: for the first message of another client, whose person may first have to allow the
            microphone.
        requests_per_s: HTTP requests of one address, on average. The page needs 16 at once.
        begins_per_s: new conversations of one address, on average. To set one up takes 20 ms of a
            core with engines that do nothing.
        message_bytes: size of one message; 20 ms of audio take 700 bytes.
        speed: how many seconds of audio may be taken in a second. More waits in the line's buffers.
        packets_per_s: likewise for messages with audio. A page sends 50, a client that sends each
            128 samples of an AudioWorklet at 48 kHz sends 375.
        messages_per_s: likewise for other messages.
        burst_s: for how long a client may send faster than that before it is closed, as after a
            stall of the network.
        audio_rate: average seconds of audio a second; nobody speaks faster than real time.
        asks_per_s: typed turns and switches of the LLM, on average.
        idle_s: time without speech or text from either side.
        vanished_s: time without taking anything of ours, and for a page without any message; it
            sends audio, or a ping every 5 s.
        pong_s: after so long the server pings, and so long the answer may take. Other clients send
            nothing while they are muted.
        warn_s: how long before it closes a conversation the server says so to the page.
        session_s: the longest conversation.
    """

    connections: int = 64
    request_s: float = 10.0
    first_s: float = 60.0
    requests_per_s: float = 50.0
    begins_per_s: float = 5.0
    message_bytes: int = 64 * 1024
    speed: float = 4.0
    packets_per_s: float = 500.0
    messages_per_s: float = 200.0
    burst_s: float = 15.0
    audio_rate: float = 1.25
    asks_per_s: float = 1.0
    idle_s: float = 300.0
    vanished_s: float = 15.0
    pong_s: float = 25.0
    warn_s: float = 30.0
    session_s: float = 3600.0


class HangUpError(Exception):
    """A client did something for which its connection is closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Meter:
    """A token bucket: `rate` a second on average, and `rate * burst_s` at once."""

    def __init__(self, rate: float, burst_s: float, now_ns: int) -> None:
        self._rate = rate
        self._most = rate * burst_s
        self._left = self._most
        self._at_ns = now_ns

    def take(self, amount: float, now_ns: int) -> bool:
        gained = max(0, now_ns - self._at_ns) / NS_PER_S * self._rate
        self._left = min(self._most, self._left + gained)
        self._at_ns = now_ns
        if amount > self._left:
            return False
        self._left -= amount
        return True


class Meters:
    """A meter for each address, so that nobody is refused for what another does."""

    def __init__(self, rate: float, burst_s: float) -> None:
        self._rate = rate
        self._burst_s = burst_s
        self._of: OrderedDict[str, Meter] = OrderedDict()

    def take(self, address: str, now_ns: int) -> bool:
        meter = self._of.pop(address, None) or Meter(self._rate, self._burst_s, now_ns)
        self._of[address] = meter
        if len(self._of) > ADDRESSES:
            self._of.popitem(last=False)
        return meter.take(1, now_ns)


def address_of(scope: Scope) -> str:
    """Return from which address a request comes."""
    return (scope.get("client") or ("", 0))[0]


# How far a client may be ahead before it has to wait, so that nobody waits for packets that came
# a little early.
_SLACK_NS = NS_PER_S // 4


class Throttle:
    """Says when the next message of a client is taken.

    A line that stalled brings its audio at once, and it is taken faster than it was spoken, but
    not so fast that other conversations have to wait.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free_ns = 0
        self._behind_ns: int | None = None

    def next_ns(self, audio_s: float, now_ns: int) -> int:
        """Return when a message with so much audio is taken; not later than now if it may be now.

        Raises:
            HangUpError: the client has sent too fast for too long.
        """
        limits = self._limits
        per_s = limits.packets_per_s if audio_s else limits.messages_per_s
        cost_s = max(1 / per_s, audio_s / limits.speed)
        due_ns = self._free_ns - _SLACK_NS
        self._free_ns = max(self._free_ns, now_ns) + round(cost_s * NS_PER_S)
        if due_ns <= now_ns:
            self._behind_ns = None
            return now_ns
        if self._behind_ns is None:
            self._behind_ns = now_ns
        if now_ns - self._behind_ns > limits.burst_s * NS_PER_S:
            raise HangUpError(
                CODE_TOO_FAST,
                f"more than {limits.messages_per_s:g} messages, or {limits.packets_per_s:g} "
                f"packets or {limits.speed:g} s of audio, a second for {limits.burst_s:g} s",
            )
        return due_ns
