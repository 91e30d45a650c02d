"""The end of a server that does not cut calls off: it takes no new ones, and waits for the last."""

import signal
import sys
from types import FrameType

import uvicorn
from loguru import logger

from turngap.agent.connections import Config
from turngap.agent.seats import Seats
from turngap.core.clock import NS_PER_S, Clock

# As long as most calls last, and less than an hour, which is the longest. Orchestrators have a
# limit of their own (30 s in Kubernetes), after which they kill: docs/serving.md.
DRAIN_S = 300.0

# How soon the event loop hands the GIL to a thread that waits for it. The LLM and the voice in the
# process need it for each token and each piece of sound. With Python's 5 ms and an event loop that
# is half busy, a reply of 7 tokens took 50 ms (p90 118); with this 37 (p90 58): n=30 each.
SWITCH_S = 0.0005


class Drain:
    """Waits for the running calls of a server, but not for ever.

    Attributes:
        most_s: for how long; 0: not at all.
    """

    def __init__(self, seats: Seats, clock: Clock, most_s: float = 0.0) -> None:
        self.most_s = most_s
        self._seats = seats
        self._clock = clock
        self._until_ns: int | None = None
        self._told = False

    @property
    def begun(self) -> bool:
        return self._until_ns is not None

    def begin(self) -> bool:
        """Take no more calls; return False if that was so already, or nothing is waited for.

        Does nothing that a signal's handler may not do.
        """
        if self.begun or self.most_s <= 0:
            return False
        self._until_ns = self._clock.now_ns() + round(self.most_s * NS_PER_S)
        self._seats.drains = True
        return True

    def over(self) -> bool:
        """Whether the last call has come down since it began, or the time is up."""
        if self._until_ns is None:
            return False
        left = self._seats.taken + self._seats.coming_down
        if not self._told and left:
            logger.warning(
                f"shutting down: waiting up to {self.most_s:g} s for {_calls(left)} to end; new "
                "ones are refused. A second SIGTERM, or Ctrl-C, ends at once"
            )
        self._told = True
        if left and self._clock.now_ns() >= self._until_ns:
            logger.error(f"{_calls(left)} did not end within {self.most_s:g} s: cut off")
            return True
        return not left


def _calls(number: int) -> str:
    return f"{number} call" if number == 1 else f"{number} calls"


class Server(uvicorn.Server):
    """uvicorn's server, which drains at the first SIGTERM if it is told to."""

    def __init__(self, config: Config, drain: Drain | None = None) -> None:
        super().__init__(config)
        sys.setswitchinterval(SWITCH_S)
        self._drain = drain

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._drain is not None and self._drain.begin():
            return
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or (self._drain is not None and self._drain.over())
