"""Conversations with a built-in agent in memory and virtual time: minutes of them in seconds.

Everything is as in a replay, pacing and turn-taking included, but no time passes while anything
computes. So a gap from here is a lower bound: it lacks the time that the event loop, the pipeline
and the socket take (about 6 ms with `embedded` on two quiet cores, up to 30 with pipecat's
defaults), that of Silero and of the engines in the process (pocketsphinx and espeak-ng take 2 ms
each for a sentence). The one computation long enough to be told apart is smart turn's, and it is
given `SMART_TURN_MS`.

Who the turns are over for is decided by the audio alone, so cut-ins and false endpoints are those
of a replay on a machine that keeps up.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

from turngap.agent.session import Assembly, assemble
from turngap.agent.stack import Stack
from turngap.caller.conversation import Conversation
from turngap.caller.stream import RATE
from turngap.core.clock import NS_PER_S
from turngap.core.results import Turn
from turngap.play.run import cues_of
from turngap.play.turn_record import turn_record
from turngap.scenario.library import LoadedScenario
from turngap.testing.memory import line_to_stack
from turngap.testing.virtual import LoopClock, in_virtual_time, virtual_clocks

# What smart turn v3.2 takes to judge a turn, on one core: 46 to 49 ms measured.
SMART_TURN_MS = 48.0

# Conversations begin at this instant: at zero, pipecat would take instants for "not yet".
_BEGIN_NS = NS_PER_S


def play_virtually(
    stack: Stack,
    library: Path,
    scenarios: Sequence[LoadedScenario],
    *,
    phases_ms: Sequence[float] = (0.0,),
    repeats: int = 1,
) -> list[Turn]:
    """Play every scenario `repeats` times at each position on the agent's 32 ms grid.

    The same arguments give the same turns. They name no recording, as none is kept. The engines
    know the sentences of `library`.

    Raises:
        InputError, AgentError: as `turngap.agent.session.assemble`, or an agent failed.
    """
    assembly = assemble(stack, library, LoopClock())
    assembly.prepare()
    turns: list[Turn] = []
    with virtual_clocks():
        for repeat, phase_ms, scenario in itertools.product(
            range(1, repeats + 1), phases_ms, scenarios
        ):
            phase = round(phase_ms * RATE / 1000)
            talk = _converse(assembly, scenario, repeat=repeat, phase=phase)
            turns += in_virtual_time(talk, _thread_ms)
    return turns


async def _converse(
    assembly: Assembly, scenario: LoadedScenario, *, repeat: int, phase: int
) -> list[Turn]:
    clock = assembly.clock
    await clock.sleep_until_ns(_BEGIN_NS)
    turns: list[Turn] = []
    async with line_to_stack(assembly) as line:
        offset = await line.clock_offset()
        conversation = Conversation(
            line, cues_of(scenario), clock, offset=offset, phase=phase, watch=clock
        )
        async with aclosing(conversation.play()) as played:
            async for turn in played:
                faults = tuple(conversation.faults)
                conversation.faults.clear()
                turns.append(
                    turn_record(
                        scenario.scenario,
                        turn,
                        repeat=repeat,
                        phase_ms=phase * 1000 / RATE,
                        file="",
                        faults=faults,
                        budget_ms=None,
                    )
                )
        if conversation.failure is not None:
            raise conversation.failure
    return turns


def _thread_ms(work: Callable[..., Any]) -> float:
    from pipecat.audio.turn.smart_turn.base_smart_turn import BaseSmartTurn

    judges = BaseSmartTurn._process_speech_segment  # pyright: ignore[reportPrivateUsage]
    return SMART_TURN_MS if getattr(work, "__func__", None) is judges else 0.0
