"""What `turngap serve` and `turngap talk` do once their flags are read: in one process or several.

With several, this process is the front, which starts itself once more for each worker.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turngap.children import PARENT_HOLDS_STDIN, end_with_parent
from turngap.cli.shared import say
from turngap.cli.wanted import TOKEN_VARIABLE, Announce, Wanted, Where
from turngap.core.errors import InputError, TurngapError

if TYPE_CHECKING:
    from turngap.agent.access import Access
    from turngap.agent.drain import Drain
    from turngap.agent.metrics import Metrics
    from turngap.agent.seats import Places, Seats
    from turngap.agent.server import ServeSettings
    from turngap.core.clock import Clock
    from turngap.live.answering import Answering
    from turngap.live.app import LiveServer
    from turngap.live.keeping import Keeping
    from turngap.play.target import AgentChoice

# Set for a worker: the descriptor of its line to the front.
WORKER_VARIABLE = "TURNGAP_WORKER"


def host_agent(
    wanted: Wanted, keeping: "Keeping", library: Path | None, announce: Announce
) -> None:
    """Serve until a signal ends it.

    Raises:
        InputError, AgentError: it cannot listen, or the agent cannot be made ready.
    """
    from turngap.agent import server
    from turngap.agent.access import Access
    from turngap.agent.log import set_log_level

    set_log_level(wanted.log_level)
    host, port = wanted.address
    access = Access.for_host(host, wanted.token, wanted.origins)
    settings = server.ServeSettings(host, port, access)
    if (descriptor := os.environ.pop(WORKER_VARIABLE, None)) is not None:
        _work(socket.socket(fileno=int(descriptor)), wanted, settings, keeping, library)
        return
    with server.bind(settings) as listener, suppress(KeyboardInterrupt):  # the ordinary end
        if wanted.workers > 1:
            _lead(listener, wanted, settings, library, announce)
        else:
            _serve_alone(listener, wanted, settings, (keeping, library), announce)


def _serve_alone(
    listener: socket.socket,
    wanted: Wanted,
    settings: "ServeSettings",
    kept: tuple["Keeping", Path | None],
    announce: Announce,
) -> None:
    """Serve in this process."""
    from turngap.agent import server
    from turngap.agent.loading import answering_while_loading
    from turngap.clocks import MonotonicClock

    keeping, library = kept
    clock = MonotonicClock()
    seats, drain = _seats(wanted, settings, clock)
    with (
        _ended_by_sigterm(),
        answering_while_loading(listener, seats, settings.limits, clock, _name(wanted.choice)),
    ):
        live = _live(wanted, settings, (keeping, library), seats)

    def ready(bound: str, port: int) -> None:
        announce(Where(bound, port, settings.access.token), live.answering.chosen())

    running = server.create_server(live.app, settings.limits, seats, drain)
    server.serve(running, listener, ready, live.close)


def _lead(
    listener: socket.socket,
    wanted: Wanted,
    settings: "ServeSettings",
    library: Path | None,
    announce: Announce,
) -> None:
    """Be the front of several workers."""
    from turngap.agent.crew import Crew
    from turngap.agent.front import Front, Hand
    from turngap.agent.metrics import metrics, process_gone, shared_folder
    from turngap.agent.stack import Chosen
    from turngap.clocks import MonotonicClock
    from turngap.play.target import resolve
    from turngap.scenario.library import library_dir

    _require_shareable(wanted.choice, library_dir(library))
    resolve(wanted.choice, library_dir(library))  # what is wrong with it is said at once
    others = "one after the other" if wanted.workers == 2 else "in one first, then in the others"
    say(f"loading the models in {wanted.workers} workers, {others}")
    clock = MonotonicClock()
    seats, drain = _seats(wanted, settings, clock)
    hands = [Hand(number) for number in range(wanted.workers)]
    bound, port = listener.getsockname()[:2]

    def ready(said: dict[str, Any]) -> None:
        chosen = Chosen.model_validate(said["chosen"])
        announce(Where(bound, port, settings.access.token), chosen)

    with shared_folder() as shared:
        os.environ.update(shared)  # before prometheus_client is imported; workers inherit it
        counted = metrics(clock)
        front = Front(
            *(listener, hands, seats, settings.limits, clock),
            agent=_name(wanted.choice),
            refused=counted.refused if counted is not None else lambda reason: None,
        )

        def gone(pid: int) -> None:
            for folder in shared.values():
                process_gone(folder, pid)

        async def lead() -> None:
            crew = Crew(front, _starter(settings.access), drain, clock, gone)
            loop = asyncio.get_running_loop()
            for sign in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(sign, crew.end, sign)
            await crew.serve(ready)

        asyncio.run(lead())


def _name(choice: "AgentChoice") -> str:
    return choice.name if choice.is_url else choice.stack().name


def _require_shareable(choice: "AgentChoice", library: Path) -> None:
    """Refuse an agent whose every process would start a server of its own."""
    from turngap.agent.stack import resolved

    for spec, own in resolved(choice.stack(), library):
        if spec.starts_server(own):
            raise InputError(
                "serve.workers",
                f"{spec.kind} backend {spec.name!r} would start a server for each of the workers",
                hint=f"start one yourself, and name it: --set {spec.kind}.base_url=http://HOST:PORT/v1",
            )


def _starter(access: "Access") -> Callable[[int, socket.socket], Any]:
    """Return what starts a worker: this very command, told where its front is."""

    async def start(number: int, end: socket.socket) -> asyncio.subprocess.Process:
        told = {WORKER_VARIABLE: str(end.fileno()), PARENT_HOLDS_STDIN: "1"}
        if access.token is not None:
            told[TOKEN_VARIABLE] = access.token
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "turngap", *sys.argv[1:]),
            stdin=asyncio.subprocess.PIPE,  # held until this process ends, however it does
            stdout=sys.stderr.fileno(),  # ours is for the one line
            pass_fds=[end.fileno()],
            env={**os.environ, **told},
        )

    return start


def _work(
    end: socket.socket,
    wanted: Wanted,
    settings: "ServeSettings",
    keeping: "Keeping",
    library: Path | None,
) -> None:
    """Be a worker of the front at the other end."""
    from turngap.agent.crew import STOP_S
    from turngap.agent.worker import SharedSeats, Worker, tell_failure

    seats = SharedSeats(wanted.max_sessions)
    try:
        with _ended_by_sigterm():
            live = _live(wanted, settings, (keeping, library), seats)
    except TurngapError as e:
        tell_failure(end, e)
        return
    # A signal for the whole group is the front's to obey: in order, and calls may go on.
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL, after_s=STOP_S)  # if it has not ended with its line by then
    worker = Worker(live.app, settings.limits, seats, live.close)
    chosen = live.answering.chosen().model_dump(mode="json")

    async def work() -> None:
        await worker.serve(end, {"chosen": chosen})

    asyncio.run(work())


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


def _seats(wanted: Wanted, settings: "ServeSettings", clock: "Clock") -> tuple["Seats", "Drain"]:
    from turngap.agent.drain import Drain
    from turngap.agent.seats import Seats

    seats = Seats(wanted.max_sessions, settings.limits, clock)
    return seats, Drain(seats, clock, wanted.most_drain_s)


def _live(
    wanted: Wanted,
    settings: "ServeSettings",
    kept: tuple["Keeping", Path | None],
    seats: "Places",
) -> "LiveServer":
    from turngap.agent.metrics import metrics
    from turngap.agent.seats import CountedSeats
    from turngap.clocks import MonotonicClock
    from turngap.live.app import LiveServer

    keeping, library = kept
    clock = MonotonicClock()
    counted = metrics(clock)
    answering = _answering(wanted.choice, library, clock, counted, keeping.telemetry.untraced)
    if counted is not None:
        seats = CountedSeats(seats, counted)
    return LiveServer(answering, settings, keeping, seats, counted)


def _answering(
    choice: "AgentChoice",
    library: Path | None,
    clock: "Clock",
    metrics: "Metrics | None",
    untraced: tuple[str, ...],
) -> "Answering":
    """Make the agent ready: a stack loads its models, a foreign agent is reached once.

    `untraced` are the headers of that call, beside the user's own.
    """
    import asyncio

    from turngap.live.answering import ForeignAgent, OwnStack, reach
    from turngap.play.target import resolve
    from turngap.scenario.library import library_dir

    resolve(choice, library_dir(library))  # refuses what only a stack has, and engines not here
    if choice.is_url:
        reached = asyncio.run(reach(choice.endpoint.with_headers(untraced), clock))
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
    return OwnStack(replace(assembly, metrics=metrics))
