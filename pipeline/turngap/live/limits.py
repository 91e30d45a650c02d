"""What one conversation may take of the server, and the meter that says when it has."""

from dataclasses import asdict, dataclass
from typing import Any

from turngap.core.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Limits:
    """A live conversation's bounds; the page is told them.

    Attributes:
        message_bytes: of one message; 20 ms of audio take 700.
        messages_per_s: in the long run; a page sends 50 packets of audio and a ping now and then.
        burst_s: how many seconds' worth may come at once, as after a network that stood still.
        audio_rate: seconds of microphone a second, in the long run: more is no person speaking.
        idle_s: without speech or text from either side.
        vanished_s: without any message; the page sends audio, or a ping each 5 s.
        warn_s: so long before it closes an idle or overlong conversation, the server says so.
        session_s: the longest conversation.
        resume_s: how long a lost line may come back.
        download_s: how long a conversation that is over can be downloaded.
        text_chars: of one typed turn.
    """

    message_bytes: int = 64 * 1024
    messages_per_s: float = 200.0
    burst_s: float = 15.0
    audio_rate: float = 1.25
    idle_s: float = 300.0
    vanished_s: float = 15.0
    warn_s: float = 30.0
    session_s: float = 3600.0
    resume_s: float = 60.0
    download_s: float = 600.0
    text_chars: int = 2000

    def as_json(self) -> dict[str, Any]:
        """For the page."""
        return asdict(self)


class Meter:
    """A token bucket: `rate` a second in the long run, `rate * burst_s` at once."""

    def __init__(self, rate: float, burst_s: float, now_ns: int) -> None:
        self._rate = rate
        self._most = rate * burst_s
        self._left = self._most
        self._at_ns = now_ns

    def take(self, amount: float, now_ns: int) -> bool:
        """Use up `amount`; False when there is not so much left."""
        gained = max(0, now_ns - self._at_ns) / NS_PER_S * self._rate
        self._left = min(self._most, self._left + gained)
        self._at_ns = now_ns
        if amount > self._left:
            return False
        self._left -= amount
        return True
