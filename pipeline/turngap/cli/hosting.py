"""What `turngap serve` and `turngap talk` do once their flags are read."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from turngap.children import PARENT_HOLDS_STDIN

if TYPE_CHECKING:
    from turngap.agent.stack import Chosen
    from turngap.core.clock import Clock
    from turngap.live.answering import Answering
    from turngap.live.keeping import Keeping
    from turngap.play.target import AgentChoice

TOKEN_VARIABLE = "TURNGAP_TOKEN"


@dataclass(frozen=True, slots=True)
class Where:
    """The address at which a server listens, and how its page is reached."""

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
        """Return a name for what listens on every address: this machine's own."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


@dataclass(frozen=True, slots=True)
class Wanted:
    """The server as the flags of both commands describe it.

    Attributes:
        drain_s: how long SIGTERM lets calls go on; None: as long as suits who started this.
    """

    choice: "AgentChoice"
    address: tuple[str, int]
    max_sessions: int
    token: str | None
    origins: tuple[str, ...]
    drain_s: float | None = 0.0
    log_level: str = "WARNING"

    @property
    def most_drain_s(self) -> float:
        """Seconds; none where turngap started this for itself, which ends it when it is done."""
        from turngap.agent.server import DRAIN_S

        if self.drain_s is not None:
            return self.drain_s
        return 0.0 if os.environ.get(PARENT_HOLDS_STDIN) else DRAIN_S


Announce = Callable[[Where, "Chosen"], None]


def host_agent(
    wanted: Wanted, keeping: "Keeping", library: Path | None, announce: Announce
) -> None:
    """Serve until a signal ends it.

    Raises:
        InputError, AgentError: it cannot listen, or the agent cannot be made ready.
    """
    from turngap.agent import server
    from turngap.agent.access import Access, Seats
    from turngap.clocks import MonotonicClock
    from turngap.live.app import LiveServer

    server.set_log_level(wanted.log_level)
    host, port = wanted.address
    access = Access.for_host(host, wanted.token, wanted.origins)
    settings = server.ServeSettings(host, port, access)
    clock = MonotonicClock()
    with server.bind(settings) as listener, suppress(KeyboardInterrupt):  # the ordinary end
        with _ended_by_sigterm():
            answering = _answering(wanted.choice, library, clock)
        seats = Seats(wanted.max_sessions)
        live = LiveServer(answering, settings, keeping, seats)
        bound, port = listener.getsockname()[:2]
        announce(Where(bound, port, access.token), answering.chosen())
        running = server.Server(live.app, settings.limits, seats, wanted.most_drain_s)
        server.serve(running, listener, live.close)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process at once while it loads: there is nothing to keep yet.

    As an interrupt, which it is elsewhere, it would be lost in a script's background process, whose
    shell has interrupts ignored.
    """
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _answering(choice: "AgentChoice", library: Path | None, clock: "Clock") -> "Answering":
    """Make the agent ready: a stack loads its models, a foreign agent is reached once."""
    import asyncio

    from turngap.live.answering import ForeignAgent, OwnStack, reach
    from turngap.play.target import resolve
    from turngap.scenario.library import library_dir

    resolve(choice, library_dir(library))  # refuses what only a stack has, and engines not here
    if choice.is_url:
        reached = asyncio.run(reach(choice.endpoint, clock))
        return ForeignAgent(choice.endpoint, reached, clock)
    from turngap.agent.session import assemble

    assembly = assemble(
        choice.stack(),
        library_dir(library),
        clock,
        traced=choice.traced,
        offer=list(choice.offers) or None,
    )
    assembly.prepare()
    return OwnStack(assembly)
