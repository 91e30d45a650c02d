"""Several agents over the same recordings, in turns, so that a slow spell hits them all alike."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from turngap.harness.run import RunInProgress
from turngap.harness.target import Target
from turngap.library import LoadedScenario

# Samples of a voice-activity window at 16 kHz: the grid that phases are positions on.
VAD_WINDOW = 512


async def play_interleaved(
    sides: Sequence[tuple[Target, RunInProgress]],
    scenarios: Sequence[LoadedScenario],
    *,
    rounds: int = 1,
    phases: int = 1,
    on_step: Callable[[str], None] = lambda _: None,
) -> None:
    """Play every scenario against each agent in turn, the next round in the opposite order.

    The rounds go through so many `phases`: positions on the agents' 32 ms grid.

    Raises:
        TurngapError: an agent does not start, cannot be reached, or the line was lost; what was
            finished before is stored.
    """
    async with AsyncExitStack() as stack:
        on_step("starting the agents")
        served = [
            (run, await stack.enter_async_context(target.serving(run.folder / "agent.log")))
            for target, run in sides
        ]
        for number in range(rounds):
            phase = (number % phases) * VAD_WINDOW // phases
            for scenario in scenarios:
                on_step(scenario.scenario.name)
                for run, url in served if number % 2 == 0 else reversed(served):
                    await run.play(scenario, url, repeat=number + 1, phase=phase)
