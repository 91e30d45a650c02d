"""A load test while it happens: steps are played one after the other, and turns stored as they end.

The agent is started, or reached, once; the caller processes live through all steps.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from turngap.caller.arrival import is_of_this_machine
from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError, TurngapError
from turngap.core.wording import several
from turngap.load.calls import News, Played, PlayStep
from turngap.load.confirm import Evidence
from turngap.load.export import read_load_turns
from turngap.load.figures import (
    at_once,
    cut_short,
    enough,
    evidence_of,
    evidence_so_far,
    figures_of,
    why_void,
)
from turngap.load.keeping import Keeper, LoadProgress
from turngap.load.plan import SETTLE_S, LoadPlan, require_turns
from turngap.load.schedule import Step
from turngap.load.search import to_come
from turngap.load.steps import Callers, TracedSteps, callers_for, rehearse, sessions_over
from turngap.play.rounds import calibrated, identified
from turngap.play.run import kept
from turngap.store.documents import git_commit
from turngap.store.loads import Certificate, LoadRecord, LoadTurn, StepFigures
from turngap.workers import executor
from turngap.workers.pool import Executor

SILENT = LoadProgress()

# An agent of ours takes more calls than planned: if it is slow, the calls of a line overlap, and a
# refusal would hide that. A foreign server has its own limit.
SEATS_PER_SESSION, SPARE_SEATS = 2, 8
# How often a step is checked for whether its rest would change nothing.
LOOK_EVERY_S = 1.0
# A bot that is restarted is back by then.
GONE_S = 10.0
GONE = "nothing listened at the agent's URL any more when the step was over"
# A lost caller voids a step: a search plays it again, at most this often.
MOST_LOST = 2


@dataclass(frozen=True, slots=True)
class Loaded:
    """A finished load test: its folder, and its record as in `load.json`."""

    record: LoadRecord
    path: Path
    failure: TurngapError | None = None

    @property
    def capacity(self) -> Certificate | None:
        """Return the certificate of a search; None for a level or a rate."""
        return self.record.capacity

    @property
    def turns(self) -> tuple[LoadTurn, ...]:
        """Return every turn from the folder, including warm-up and missed ones.

        Raises:
            InputError: the folder is gone, or damaged.
        """
        return tuple(read_load_turns(self.path))

    def __repr__(self) -> str:
        if self.capacity is not None:
            sessions = self.capacity.sessions
            what = "nothing certified" if sessions is None else f"{sessions} sessions certified"
        else:
            what = f"{len(self.record.steps)} steps"
        return f"<Loaded {str(self.path)!r}: {what}>"


async def load(
    plan: LoadPlan, progress: LoadProgress = SILENT, callers: Executor | None = None
) -> Loaded:
    """Play the load test and store it. An agent that fails ends it; what was played is kept.

    Args:
        plan: the plan to play.
        progress: receives its progress.
        callers: where the callers run, instead of the plan's.

    Raises:
        InputError: the folder cannot be made, or written to; or Ray is not installed.
    """
    callers = callers or executor(plan.on, callers_for(plan), plan.ray_address)
    keeper = Keeper(plan, callers, progress)
    progress.on_folder(keeper.folder)
    failure = None
    try:
        with kept(keeper.finish):
            await _LoadTest(plan, callers, keeper).run()
    except TurngapError as e:
        failure = e
    return Loaded(keeper.finish(str(failure) if failure else None), keeper.folder, failure)


class _LoadTest:
    """A load test that is being played."""

    def __init__(self, plan: LoadPlan, executor: Executor, keeper: Keeper) -> None:
        self._plan = plan
        self._executor = executor
        self._keeper = keeper
        self._clock = MonotonicClock()
        self._endpoint: Endpoint | None = None
        self._so_far = Played()  # of the step that is played
        self._traced = TracedSteps(
            plan.telemetry,
            keeper.folder.name,
            plan.agent,
            traces=plan.on == "local",
            label=plan.label,
            commit=git_commit(),
        )

    async def run(self) -> None:
        """Start the agent and the callers, and play all steps.

        Raises:
            TurngapError: the agent, a caller or the disk failed; what was played is stored.
        """
        async with self._keeper.ticking(), AsyncExitStack() as stack:
            endpoint = self._endpoint = await self._serving(stack)
            greeting_ms = await self._rehearsed(endpoint)
            await stack.enter_async_context(self._executor)
            play = Callers(
                self._plan,
                endpoint,
                self._executor,
                greeting_ms,
                self._take,
                lambda step: self._traced.headers(step, endpoint),
            ).play
            if self._plan.mode == "search":
                await self._find(play)
            elif self._plan.mode == "rate":
                await self._played(self._plan.rate_step(1), play)
            else:
                await self._hold(play)

    async def _serving(self, stack: AsyncExitStack) -> Endpoint:
        """Start the agent, or identify the dialect of a running one, and calibrate."""
        plan, keeper = self._plan, self._keeper
        keeper.phase("start")
        sessions = SEATS_PER_SESSION * plan.most_sessions + SPARE_SEATS
        serving = plan.agent.serving(
            keeper.folder / "agent.log",
            lambda chosen: keeper.note_agent(found=chosen.found) if chosen.found else None,
            max_sessions=sessions,
        )
        endpoint = await stack.enter_async_context(serving)
        endpoint = await identified(plan.agent, endpoint, plan.telemetry)
        if plan.calibration_turns:
            keeper.phase("calibration")
            record = await calibrated(endpoint.dialect, plan.calibration_turns, keeper.folder)
            keeper.note(calibration=record)
        return endpoint

    async def _rehearsed(self, endpoint: Endpoint) -> float:
        """Play calls alone; return how long to wait for the agent's greeting in each call, ms."""
        self._keeper.phase("start")
        alone = endpoint.with_headers(self._plan.telemetry.untraced)
        opens = partial(alone.open, line=self._plan.line, call="rehearsal")
        rehearsed = await rehearse(self._plan, opens)
        self._keeper.note_agent(dialect=rehearsed.dialect, line_rate_hz=rehearsed.rate)
        self._plan = replace(self._plan, greeted_s=rehearsed.greeted_s, waits=rehearsed.waits)
        require_turns(self._plan)
        return rehearsed.greeting_ms

    async def _hold(self, play: PlayStep) -> None:
        """Hold one level after the other; stop at a void step, because more load would not help."""
        plan = self._plan
        for number, level in enumerate(plan.levels, start=1):
            left_s = sum(plan.between_s + plan.level_s(n) for n in plan.levels[number:])
            figures = await self._played(plan.level_step(number, level), play, left_s=left_s)
            if figures.void is not None:
                return

    async def _find(self, play: PlayStep) -> None:
        """Search for the most sessions.

        A step whose callers were late does not measure the agent. If it was to explore, the search
        continues with fewer sessions; if it was to confirm, the search ends.
        """
        search = self._keeper.search = self._plan.search()
        number = lost = 0
        asked, steps = self._plan.min_sessions, list[StepFigures]()
        while (probe := search.next()) is not None:
            number += 1
            figures = await self._played(
                self._plan.level_step(number, probe.sessions, probe.turns),
                play,
                left_s=sum(to_come(search).seconds) / 2 - search.pace.seconds(probe),
                confirms=probe.confirms,
                decided=partial(search.decided, probe),
            )
            steps.append(figures)
            if figures.void is None:
                search.observe(probe, evidence_of(figures))
                certified = search.certificate().sessions
                self._keeper.certified(certified)
                if asked is not None and enough(certified, steps, asked) is False:
                    sessions = several(asked, "session")
                    search.stop(f"{sessions} certainly {'does' if asked == 1 else 'do'} not hold")
            elif figures.outcomes.get("worker_lost"):
                lost += 1
                if lost > MOST_LOST:
                    search.stop(figures.void)
            elif probe.confirms or probe.sessions == 1:
                search.stop(figures.void)
            else:  # as if none were on time: this only keeps it from looking higher
                search.observe(probe, Evidence(figures.turns, 0, figures.turns, figures.seconds))

    async def _played(
        self,
        step: Step,
        play: PlayStep,
        *,
        left_s: float = 0.0,
        confirms: bool = False,
        decided: Callable[[Evidence], bool] = lambda _: False,
    ) -> StepFigures:
        """Play a step until its evidence decides, and store its figures.

        Raises:
            AgentError: the agent is gone; the played part of the step is stored as void.
        """
        try:
            if step.number > 1:
                await self._settled()
            self._keeper.begin(step, left_s, confirms=confirms)
            self._so_far = Played()
            played = await until_decided(
                play(step),
                self._so_far,
                lambda: decided(evidence_so_far(step, self._so_far.turns, self._plan.pass_ms)),
            )
            gone = await self._gone(played)
            figures = replace(self._figures(step, played, gone and GONE), confirms=confirms)
            await self._keeper.end(figures)
            await self._traced.ended(played.turns)
            if gone is not None:
                raise gone
            return figures
        except BaseException as e:
            self._traced.let_go(e)
            raise

    async def _gone(self, played: Played) -> AgentError | None:
        """Return why the agent cannot be reached for `GONE_S`, if calls of a step failed."""
        failed = any(turn.missed in ("refused", "dropped") for turn in played.turns)
        until_ns = self._clock.now_ns() + round(GONE_S * NS_PER_S)
        while failed and self._endpoint is not None:
            try:
                await self._endpoint.knock()
                return None
            except AgentError as e:
                busy = isinstance(e.__cause__, TimeoutError) or is_of_this_machine(e.__cause__)
                if busy or e.kind != "agent.unreachable":
                    return None
                if self._clock.now_ns() >= until_ns:
                    return e
            await self._clock.sleep_until_ns(self._clock.now_ns() + round(LOOK_EVERY_S * NS_PER_S))
        return None

    def _take(self, news: News) -> None:
        self._keeper.take(news)
        self._so_far.take(news)

    def _figures(self, step: Step, played: Played, gone: str | None) -> StepFigures:
        plan = self._plan
        counted = [turn for turn in played.turns if turn.counted]
        measured = cut_short(step, counted)
        figures = figures_of(
            measured,
            counted,
            budget_ms=plan.pass_ms,
            target=plan.target,
            at_once=at_once(played.marks, measured.window),
            caller_late_ms=played.late.p99_ms,
        )
        void = gone or why_void(counted, plan.starved_ms, figures.caller_late_ms)
        return replace(figures, void=void)

    async def _settled(self) -> None:
        """Give the agent time to end the sessions of the previous step."""
        await self._clock.sleep_until_ns(self._clock.now_ns() + round(SETTLE_S * NS_PER_S))
        if not self._plan.agent.choice.is_url and self._endpoint is not None:
            await sessions_over(self._endpoint, self._clock)


async def until_decided(
    playing: Awaitable[Played], so_far: Played, is_decided: Callable[[], bool]
) -> Played:
    """Play a step to its end, or until the rest of it would change nothing."""
    task = asyncio.ensure_future(playing)
    try:
        while not task.done() and not is_decided():
            await asyncio.wait({task}, timeout=LOOK_EVERY_S)
        return await task if task.done() else so_far
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
