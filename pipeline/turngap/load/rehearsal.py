"""One turn alone, before anything is measured: is there an agent, and does it speak first?"""

from contextlib import aclosing
from dataclasses import dataclass

from turngap.caller.conversation import Conversation, Patience
from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.load.plan import LoadPlan
from turngap.load.schedule import SETUP_S
from turngap.load.share import NOT_COMPARED
from turngap.play.cues import cues_of
from turngap.play.run import GREETING_MS


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What one turn showed.

    Attributes:
        dialect, rate: of the line; the rate of the person's audio, Hz.
        greeting_ms: how long the agent is given to greet in each call.
        greeted_s: how much later the person begins for it.
    """

    dialect: str
    rate: int
    greeting_ms: float
    greeted_s: float


async def rehearse(plan: LoadPlan, endpoint: Endpoint) -> Rehearsed:
    """Play the first turn of the first scenario.

    Raises:
        AgentError: the agent cannot be reached, or hangs up.
    """
    greeting_ms = plan.greeting_ms
    if greeting_ms is None:
        greeting_ms = GREETING_MS if plan.agent.choice.is_url else 0.0
    greeted_s = 0.0
    clock = MonotonicClock(precise=True)
    async with endpoint.open(clock) as line:
        conversation = Conversation(
            line,
            cues_of(plan.scenarios[0], rate=line.rate)[:1],
            clock,
            offset=NOT_COMPARED,
            patience=Patience(greeting_ms=greeting_ms),
        )
        async with aclosing(conversation.play()) as turns:
            async for played in turns:
                began_ns = played.window[0] - conversation.stream.t0_ns
                greeted_s = began_ns / NS_PER_S - SETUP_S
    if conversation.failure is not None:
        raise conversation.failure
    # Who does not greet now will not later; somebody who says how long it may take knows better.
    given_ms = greeting_ms if conversation.greeted else plan.greeting_ms or 0.0
    greeted_s = max(0.0, greeted_s) if given_ms else 0.0
    return Rehearsed(line.dialect, line.rate, given_ms, greeted_s)
