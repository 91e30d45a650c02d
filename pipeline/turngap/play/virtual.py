"""Conversations with a built-in agent in memory and virtual time: minutes of speech in seconds.

Everything is as in a replay, pacing and turn-taking included, but no time passes while anything
computes. So a gap from here is a lower bound: it lacks the time of the event loop, the pipeline,
Silero, the engines in the process and the socket. Only smart turn computes long enough to be
noticed, so it is given `SMART_TURN_MS`. Compared with a replay of the same turns on a quiet machine
of two cores, with engines of known speed, the median lacks 6 ms with `embedded`, 33 ms with
pipecat's defaults without smart turn, and 54 ms with smart turn (n=24 each).

The audio alone decides whether a turn is over, so cut-ins and false endpoints are those of a replay
on a machine that keeps up. Where smart turn is in doubt, one packet more or less before the turn
changes its verdict: over sockets that is chance, here it is the same each time.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from turngap.agent.session import Assembly, assemble, converse
from turngap.agent.stack import Stack
from turngap.caller.connection import Line
from turngap.caller.dialects.session import Session
from turngap.caller.line.spec import LineSpec
from turngap.caller.stream import RATE
from turngap.core.clock import NS_PER_S
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.play.plan import SILENT, PlayPlan, Progress
from turngap.play.run import RunInProgress, all_kept
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import LoadedScenario
from turngap.testing.memory import End, accepted, line_from, two_ends
from turngap.testing.virtual import LoopClock, in_virtual_time, virtual_clocks

# What smart turn v3.2 takes to judge a turn, on one core: 46 to 49 ms measured.
SMART_TURN_MS = 48.0

# How long a built-in agent may take to close down once the caller has hung up.
HANGING_UP_S = 10.0

# Conversations begin at this instant: at zero, pipecat would take instants for "not yet".
_BEGIN_NS = NS_PER_S


def play_in_virtual_time(
    runs: Sequence[RunInProgress], plan: PlayPlan, progress: Progress = SILENT
) -> TurngapError | None:
    """Play every scenario against each run's agent, as `turngap.play.rounds.play_in_turns` does.

    Nothing is calibrated: there is no instrument between caller and agent. Call it in a thread
    where an event loop runs. Returns the error that ended it, if any; what was finished is stored.
    """
    try:
        with all_kept(runs):
            agents = [(run, _assembled(run.target)) for run in runs]
            for number, scenario in itertools.product(range(plan.rounds), plan.scenarios):
                progress.on_step(scenario.scenario.name)
                for run, agent in agents:
                    _play(run, agent, scenario, number + 1, plan.phase_of(number), over=plan.line)
    except TurngapError as e:
        return e
    return None


def play_virtually(
    stack: Stack,
    library: Path,
    scenarios: Sequence[LoadedScenario],
    *,
    phases_ms: Sequence[float] = (0.0,),
    repeats: int = 1,
) -> list[Turn]:
    """Play every scenario `repeats` times at each position on the agent's 32 ms grid; keep no run.

    The same arguments give the same turns. The engines know the sentences of `library`.

    Raises:
        InputError, AgentError: as `turngap.agent.session.assemble`, or the agent failed.
    """
    target = Target(AgentChoice(), library, stack)
    assembly = _assembled(target)
    with TemporaryDirectory(prefix="turngap-virtual-") as folder:
        plan = PlayPlan(scenarios=scenarios, out=Path(folder))
        run = RunInProgress(plan, target, stack.name)
        try:
            for repeat, phase_ms, scenario in itertools.product(
                range(1, repeats + 1), phases_ms, scenarios
            ):
                _play(run, assembly, scenario, repeat, round(phase_ms * RATE / 1000))
        finally:
            run.finish()
        return run.turns


def _assembled(target: Target) -> Assembly:
    if target.stack is None:
        raise InputError(
            "virtual.not_ours",
            f"{target.choice.agent} is no built-in agent, and only these keep virtual time",
            hint="name a stack or a stack file",
        )
    choice = target.choice
    offer = choice.offers or None
    assembly = assemble(
        target.stack, target.library, LoopClock(), traced=choice.traced, offer=offer
    )
    assembly.prepare()
    return assembly


def _play(
    run: RunInProgress,
    assembly: Assembly,
    scenario: LoadedScenario,
    repeat: int,
    phase: int,
    *,
    over: LineSpec | None = None,
) -> None:
    async def call() -> None:
        clock = assembly.clock
        await clock.sleep_until_ns(_BEGIN_NS)
        there = line_to_stack(assembly, line=over, call=f"{scenario.scenario.name}/{repeat}")
        async with there as line:
            await run.play_over(line, clock, scenario, repeat=repeat, phase=phase, watch=clock)

    with virtual_clocks():
        in_virtual_time(call(), _thread_ms)


@asynccontextmanager
async def line_to_stack(
    assembly: Assembly,
    session: Session | None = None,
    line: LineSpec | None = None,
    call: str = "",
) -> AsyncIterator[Line]:
    """Open a line to one session of a built-in agent without a socket, its handshake done.

    With a `LineSpec`, its messages cross that line, as it is for this `call`.
    When the context ends, the agent has received the hang-up and has finished.

    Raises:
        AgentError: as `turngap.caller.connection.open_line` does.
    """
    caller, end = two_ends(assembly.clock, line, call)
    agent = asyncio.create_task(_serve(assembly, end))
    async with line_from(caller, agent, session, assembly.clock) as opened:
        try:
            yield opened
        finally:
            caller.die()
            await asyncio.wait([agent], timeout=HANGING_UP_S)


async def _serve(assembly: Assembly, end: End) -> None:
    """Serve as the server of `turngap serve` does, with queues where it has a socket."""
    await converse(assembly, await accepted(end))


def _thread_ms(work: Callable[..., Any]) -> float:
    from pipecat.audio.turn.smart_turn.base_smart_turn import BaseSmartTurn

    judges = BaseSmartTurn._process_speech_segment  # pyright: ignore[reportPrivateUsage]
    return SMART_TURN_MS if getattr(work, "__func__", None) is judges else 0.0
