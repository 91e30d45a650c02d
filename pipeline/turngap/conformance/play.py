"""Plays the conversation that a server is checked with."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.ear import Heard
from turngap.caller.endpoint import Endpoint
from turngap.caller.line import Line
from turngap.clocks import MonotonicClock
from turngap.conformance.evidence import Evidence
from turngap.conformance.tap import Tap
from turngap.core.errors import AgentError
from turngap.play.cues import cues_of
from turngap.play.quiet import undisturbed
from turngap.play.run import GREETING_MS
from turngap.scenario.library import LoadedScenario, library_for, load_scenarios, scenario_paths

# Two questions, and between them one that is asked 1.5 s into the reply to the first.
SCENARIO = "soup-recipe"
# How long the caller listens after its goodbye.
LISTEN_S = 0.5


def scenario_played(library: Path | None = None) -> LoadedScenario:
    """Load the conversation.

    Raises:
        InputError: the library has none of this name.
    """
    folder = library_for([SCENARIO], library)
    (loaded,) = load_scenarios(scenario_paths(folder, [SCENARIO], None))
    return loaded


async def observe(endpoint: Endpoint, scenario: LoadedScenario) -> Evidence:
    """Play the conversation against a server, and return what it showed.

    Raises:
        InputError: the URL, a header, the dialect or one of its settings is wrong.
        AgentError: the server cannot be reached, or its opening failed.
    """
    clock = MonotonicClock(precise=True)
    tap = Tap(endpoint.spec().session(endpoint.settings()), clock)
    with undisturbed():
        async with endpoint.open(clock, session=tap) as line:
            cues = cues_of(scenario, rate=line.rate)
            offset = await line.clock_offset()
            patience = Patience(greeting_ms=GREETING_MS)
            played = Conversation(line, cues, clock, offset=offset, patience=patience)
            return await play_over(line, tap, played)


async def play_over(line: Line, tap: Tap, conversation: Conversation) -> Evidence:
    """Play the conversation over an open line whose session is `tap`, and say goodbye.

    A line that is lost ends it early.
    """
    turns: list[PlayedTurn] = []
    heard: dict[int, Heard] = {}
    async with aclosing(conversation.play()) as playing:
        async for turn in playing:
            turns.append(turn)
            heard.update((piece.start_ns, piece) for piece in conversation.heard)
    if conversation.failure is None:
        await _say_goodbye(line)
    return Evidence(tap.log, turns, list(heard.values()), conversation.failure)


async def _say_goodbye(line: Line) -> None:
    await line.hang_up()
    try:
        async with asyncio.timeout(LISTEN_S):
            while True:
                await line.next()
    except (TimeoutError, AgentError):  # it sends nothing more, or has closed the line
        pass
