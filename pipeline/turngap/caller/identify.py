"""Find out which dialect an agent speaks, by trying the dialects that an agent answers at once."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit, urlunsplit

from websockets.exceptions import ConnectionClosed

from turngap.caller.connection import NOT_READY, Line
from turngap.caller.dialects.registry import (
    DialectSpec,
    dialect_of_host,
    dialects,
    transport_of,
)
from turngap.caller.endpoint import NO_TRANSPORT, PIPECAT, RUNNER_PATH, Endpoint, runner_at
from turngap.caller.opening import LINE_LOST
from turngap.caller.starting import is_start
from turngap.caller.stream import PACKET_MS, UserStream
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.errors import AgentError
from turngap.core.untrusted import MOST_SENTENCE, printable

# How long each dialect's handshake may take. Most servers that speak another protocol hang up or
# object at once. The one tried first has the usual time, because a bot that was just started may
# still be loading its VAD.
TRY_S = 5.0

# It took a dialect's opening, which asks for no answer, and said nothing.
SILENT = "agent.silent"

# It closes a line with one of these codes, and says why: it restarts, or is full (RFC 6455). That
# is so in whatever dialect it is spoken to.
_TURNS_AWAY = (1012, 1013)

# What says that the server is another one than was tried; any other error ends the search.
_NOT_THIS = (NOT_READY, "agent.other_protocol", "agent.refused", LINE_LOST)


async def identify(
    endpoint: Endpoint, clock: Clock, on_try: Callable[[str], None] = lambda name: None
) -> Endpoint:
    """Return the endpoint with its dialect named.

    Each dialect is tried on a connection of its own, so an agent that counts its calls sees a few
    short ones. `on_try` receives the name of each dialect.

    Raises:
        InputError: as `Endpoint.open`.
        AgentError: nothing listens there, or no known dialect matches its answer.
    """
    if endpoint.dialect:
        return endpoint
    endpoint.check()
    known = dialect_of_host(endpoint.url)
    if known or transport_of(endpoint.url) == "webrtc":
        return replace(endpoint, dialect=endpoint.spec().name)
    errors: dict[str, AgentError] = {}
    for spec in _tried():
        on_try(spec.name)
        named = replace(endpoint, dialect=spec.name)
        patience_s = TRY_S if errors else None
        if (error := await _fails(named, clock, patience_s)) is None:
            return named
        errors[spec.name] = error
    raise await _unknown(endpoint, clock, errors)


def _tried() -> list[DialectSpec]:
    usable = [spec for spec in dialects().values() if not spec.missing()]
    return sorted((s for s in usable if s.tried is not None), key=lambda s: s.tried or 0)


async def _fails(endpoint: Endpoint, clock: Clock, timeout_s: float | None) -> AgentError | None:
    """Return why the agent does not speak this dialect; None if it does.

    Raises:
        AgentError: the connection fails for a reason that no other dialect would change.
    """
    try:
        async with endpoint.open(clock, timeout_s=timeout_s) as line:
            if await _answers(line, clock):
                return None
    except AgentError as e:
        if e.kind not in _NOT_THIS:
            raise
        if said := _turned_away(e):
            raise AgentError(
                "agent.takes_no_calls", f"the agent at {endpoint.url} takes no new calls: {said}"
            ) from e
        return e
    return AgentError(SILENT, f"it took {line.dialect}'s messages and did not answer")


def _turned_away(error: AgentError) -> str:
    """Return why the agent takes no new calls, in its own words; empty if it does not say."""
    closed = error.__cause__
    frame = closed.rcvd if isinstance(closed, ConnectionClosed) else None
    if frame is None or frame.code not in _TURNS_AWAY:
        return ""
    return printable(frame.reason, MOST_SENTENCE)


async def _answers(line: Line, clock: Clock) -> bool:
    """Return whether the agent sends anything in the dialect, if its opening needs no answer.

    The person is silent here, so an agent answers only if it greets or sends silence.

    Raises:
        AgentError: the line was lost.
    """
    silence = UserStream(0, line.rate)
    listening = asyncio.create_task(_first_answer(line))
    begun_ns = clock.now_ns()
    try:
        for number in itertools.count(1):
            due_ns = begun_ns + number * ms_to_ns(PACKET_MS)
            if line.answered or listening.done() or due_ns > begun_ns + TRY_S * NS_PER_S:
                break
            await clock.sleep_until_ns(due_ns)
            await line.send_audio(silence.read(0, silence.packet))
    finally:
        listening.cancel()
        await asyncio.wait({listening})
    if not listening.cancelled() and (error := listening.exception()) is not None:
        raise error
    return line.answered


async def _first_answer(line: Line) -> None:
    while not line.answered:
        await line.next()


async def _unknown(
    endpoint: Endpoint, clock: Clock, errors: Mapping[str, AgentError]
) -> AgentError:
    whys = {name: error.message for name, error in errors.items()}
    if runner := await _runner_beside(endpoint, clock, ", ".join(whys)):
        return runner
    if len(set(whys.values())) == 1:
        (why,) = set(whys.values())
        tried = f"{', '.join(whys)}: each time, {why}"
    else:
        tried = "; ".join(f"{name}: {why}" for name, why in whys.items())
    waiting = [name for name, error in errors.items() if error.kind == SILENT]
    others = [spec.name for spec in dialects().values() if spec.tried is None]
    hint = f"name the protocol, if you know it; not tried: --dialect {'|'.join(others)}"
    if waiting:
        hint = (
            f"an agent of this protocol that waits for the person to speak looks like this, so try "
            f"--dialect {'|'.join(waiting)}; or {hint}"
        )
    return AgentError(
        "agent.unknown_protocol",
        f"cannot find out which protocol {endpoint.url} speaks. Tried {tried}",
        hint=hint,
    )


async def _runner_beside(endpoint: Endpoint, clock: Clock, tried: str) -> AgentError | None:
    """Return advice if pipecat's runner is there, which serves protobuf at another path."""
    parts = urlsplit(endpoint.url)
    if is_start(endpoint.url) or parts.path.rstrip("/").endswith(RUNNER_PATH):
        return None
    url = urlunsplit(parts._replace(path=RUNNER_PATH))
    beside = replace(endpoint, url=url, dialect=PIPECAT)
    try:
        async with beside.open(clock, timeout_s=TRY_S):
            return AgentError(
                "agent.path",
                f"{endpoint.url} speaks none of {tried}, but a pipecat bot answers at {url}",
                hint=f"give that URL: --agent {url}",
            )
    except AgentError as e:
        # A server that takes every path in silence does not count.
        return e if e.kind == NO_TRANSPORT and await runner_at(url) else None
