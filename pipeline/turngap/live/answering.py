"""Agents behind the live page: a stack of our own, or a foreign agent at a URL."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI
from starlette.websockets import WebSocket

from turngap.agent.access import Seats
from turngap.agent.server import ServeSettings, create_app, plain_app
from turngap.agent.stack import Chosen, stand_ins_of
from turngap.caller.endpoint import Endpoint
from turngap.caller.identify import identify
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import text_without_secrets
from turngap.live.keeping import Held, Keeping
from turngap.live.relay import SEEN, Relay
from turngap.scenario.library import Domain

if TYPE_CHECKING:
    from turngap.agent.session import Assembly


# As many as fit a phone's first view.
MOST_TOPICS, MOST_EXAMPLES = 6, 5


class Answering(Protocol):
    """An agent that people talk to at the page.

    Attributes:
        name: what the page calls it.
        rates: of the person's audio and of the agent's, Hz; the latter is None where it may change.
        foreign: whether it is not ours, so that the page cannot type or switch its LLM.
        seen: the page's own messages that both the agent and the server get.
    """

    clock: Clock
    name: str
    rates: tuple[int, int | None]
    foreign: bool
    seen: Collection[str]

    def app(self, serve: ServeSettings, seats: Seats) -> FastAPI:
        """Make the application, with the routes of callers that are no page."""
        ...

    def sayable(self) -> dict[str, Any]:
        """Return what the page says of what can be said: `say` and `examples`."""
        ...

    def chosen(self) -> Chosen:
        """Return what was chosen when the agent was made ready."""
        ...

    def begin(self, keeping: Keeping) -> Held:
        """Begin a conversation."""
        ...

    async def converse(self, socket: WebSocket, held: Held) -> None:
        """Answer the page until it leaves.

        Raises:
            AgentError: the agent cannot be reached, or its line was lost.
        """
        ...


class OwnStack:
    """A stack of our own, in this process."""

    foreign = False
    seen: Collection[str] = ()

    def __init__(self, assembly: "Assembly") -> None:
        # The page draws a turn with its stages as soon as it is heard.
        self._assembly = dataclasses.replace(assembly, eager=True)
        self._callers = assembly
        audio = assembly.stack.audio
        self.clock = assembly.clock
        self.name = assembly.stack.name
        self.rates: tuple[int, int | None] = (audio.in_sample_rate, audio.out_sample_rate)

    def app(self, serve: ServeSettings, seats: Seats) -> FastAPI:
        return create_app(self._callers, serve, seats)

    def sayable(self) -> dict[str, Any]:
        closed, narrow = self._assembly.closed, self._assembly.offers.first.narrow
        domain = self._assembly.domain if closed or narrow else None
        examples = [] if domain is None else list(domain.examples[:MOST_EXAMPLES])
        return {"say": _introduction(domain, closed=closed), "examples": examples}

    def chosen(self) -> Chosen:
        return self._assembly.chosen()

    def begin(self, keeping: Keeping) -> Held:
        stack = self._assembly.stack
        return Held(
            keeping,
            name=f"{stack.name}-live",
            agent={"stack": stack.name, **stack.model_dump(exclude={"name"})},
            stand_ins=stand_ins_of(self._assembly.engines.values()),
            chosen=self.chosen(),
            simulated=self._assembly.offers.simulated,
            in_rate=self.rates[0],
        )

    async def converse(self, socket: WebSocket, held: Held) -> None:
        from turngap.agent.session import converse

        await converse(self._assembly, socket)


@dataclass(frozen=True, slots=True)
class Reached:
    """A foreign agent that has been reached: its dialect's name, and the rate of the line, Hz."""

    dialect: str
    rate: int


async def reach(endpoint: Endpoint, clock: Clock) -> Reached:
    """Open a line to a foreign agent and hang up, to know that it is there and what it speaks.

    Raises:
        InputError, AgentError: as `identify` and `Endpoint.open`.
    """
    named = await identify(endpoint, clock)
    if getattr(named.settings(), "commit_ms", None) is not None:
        raise InputError(
            "talk.commit",
            "this page does not know when you have ended, so it cannot commit your audio",
            hint="measure this server with turngap replay",
        )
    async with named.open(clock) as line:
        return Reached(line.dialect, line.rate)


class ForeignAgent:
    """An agent at a URL, to which each conversation has a line of its own."""

    foreign = True
    seen: Collection[str] = SEEN

    def __init__(self, endpoint: Endpoint, reached: Reached, clock: Clock) -> None:
        # What was found out once is not tried again for each conversation.
        dialect = endpoint.dialect or reached.dialect
        self._endpoint = dataclasses.replace(endpoint, dialect=dialect)
        self.clock = clock
        self.rates: tuple[int, int | None] = (reached.rate, None)
        self._url, self._dialect = text_without_secrets(endpoint.url), reached.dialect
        self.name = f"{self._url} ({self._dialect})"

    def app(self, serve: ServeSettings, seats: Seats) -> FastAPI:
        # Its health is open to everyone, so it does not name a host of our network.
        return plain_app(self._dialect, seats)

    def sayable(self) -> dict[str, Any]:
        words = "Say what this agent understands. No examples are known: it is not turngap’s own."
        return {"say": words, "examples": []}

    def chosen(self) -> Chosen:
        return Chosen()

    def begin(self, keeping: Keeping) -> Held:
        held = Held(
            keeping,
            name="remote-live",
            agent={"url": self._url, "dialect": text_without_secrets(self._endpoint.dialect)},
            in_rate=self.rates[0],
            flags=self._endpoint.flags,
        )
        session = self._endpoint.spec().create(self._endpoint.settings())
        held.conversation.connection.tracker.tells_flushes = getattr(session, "tells_flushes", True)
        return held

    async def converse(self, socket: WebSocket, held: Held) -> None:
        async with self._endpoint.open(self.clock) as line:
            if line.rate != self.rates[0]:
                raise AgentError(
                    "agent.rate",
                    f"the agent now wants audio at {line.rate:,} Hz, not {self.rates[0]:,}",
                    hint="start turngap talk again",
                )
            offset = await line.clock_offset()
            held.line_bound_ns = offset.bound_ns or 0
            await Relay(line, socket, self.clock, offset, held.delays).run()


def _introduction(domain: Domain | None, *, closed: bool) -> str:
    """Return in a sentence or two what the agent understands.

    `domain` is None where anything can be said, and `closed` is whether the recogniser knows
    nothing else; if not, it is the language model.
    """
    if domain is None:
        return (
            "Say anything, in English. A language model makes the answers, and some will be wrong."
        )
    named = ", ".join([*list(domain.topics)[:MOST_TOPICS], "and more"])
    topics = f" about {named}" if domain.topics else ""
    if closed:
        return f"This agent knows only some sentences{topics}. Read one aloud, for example:"
    return (
        "The project's own language model makes the answers, and it "
        f"knows only some sentences{topics}. Read one aloud, for example:"
    )
