"""What `turngap serve` and `turngap talk` are asked for by their flags."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from turngap.children import PARENT_HOLDS_STDIN

if TYPE_CHECKING:
    from turngap.agent.stack import Chosen
    from turngap.play.target import AgentChoice

TOKEN_VARIABLE = "TURNGAP_TOKEN"

# More processes than any machine of today has cores for calls: a bound for what is typed.
MOST_WORKERS = 128


@dataclass(frozen=True, slots=True)
class Where:
    """Where a server listens, and how its page is reached."""

    host: str
    port: int
    token: str | None

    @property
    def page(self) -> str:
        query = f"/?token={quote(self.token)}" if self.token else ""
        return f"http://{self.reachable}:{self.port}{query}"

    def socket(self, path: str) -> str:
        query = f"?token={quote(self.token)}" if self.token else ""
        return f"ws://{self.reachable}:{self.port}{path}{query}"

    @property
    def reachable(self) -> str:
        """A name for what listens on every address: this machine's own."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the flags of both commands say of the server.

    Attributes:
        drain_s: how long SIGTERM lets calls go on; None: as long as suits who started this.
    """

    choice: "AgentChoice"
    address: tuple[str, int]
    max_sessions: int
    token: str | None
    origins: tuple[str, ...]
    workers: int = 1
    drain_s: float | None = 0.0
    log_level: str = "WARNING"

    @property
    def most_drain_s(self) -> float:
        """Seconds; none where turngap started this for itself, which ends it when it is done."""
        from turngap.agent.drain import DRAIN_S

        if self.drain_s is not None:
            return self.drain_s
        return 0.0 if os.environ.get(PARENT_HOLDS_STDIN) else DRAIN_S


Announce = Callable[[Where, "Chosen"], None]
