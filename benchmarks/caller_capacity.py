"""Measure how many sessions one caller process carries on one core, and how well.

At each level so many conversations run in this process, on one core. They talk to scripted agents
in other processes, on the other cores, over loopback. The agents know to a few microseconds which
gap they injected, so the error of what the caller measured is known for every turn. The goal:
at 100 sessions p99 of the pacing lateness under 5 ms, the error at most 0.5 ms (p50) and 5 ms
(p99), and every turn heard. It ends with 1 where a level of at most 100 sessions does not reach it.

    python benchmarks/caller_capacity.py
    python benchmarks/caller_capacity.py --levels 1 25 100 --seconds 60 --dialect twilio

A session is a person who says 1.5 s and then hears 1.5 s, every 4 s, in messages of 10 to 60 ms, in
real time or at once. While no one speaks the person's line is sent on, as it always is.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
import psutil
from capacity_agents import cpu_s, pin, serving
from endings import errors_told

from turngap.caller.conversation import Conversation, Patience
from turngap.caller.endpoint import PIPECAT, Endpoint
from turngap.clocks import MonotonicClock, undisturbed
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.cue import Cue, SpeechBounds
from turngap.core.run_record import OffsetRecord, Quantiles
from turngap.core.stats import percentile
from turngap.play.calibrate import absolute_quantiles, utterance
from turngap.testing.dialects import require_half

NO_OFFSET = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
# What the loopback agent of another session takes to begin, and the callers to be all there.
SETTLING_MS = 2000.0
PATIENCE = Patience(quiet_ms=500)
# Before the short tone whose end calibration knows to the sample.
LEAD_MS = 1300

GOAL_SESSIONS, GOAL_LATE_MS, GOAL_ERROR_P50_MS, GOAL_ERROR_P99_MS = 100, 5.0, 0.5, 5.0


@dataclass(slots=True)
class Measured:
    """Figures of the sessions of one level in their measured window, in ms."""

    late_ms: list[float] = field(default_factory=list[float])
    lag_ms: list[float] = field(default_factory=list[float])
    errors_ms: list[float] = field(default_factory=list[float])
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Level:
    """One row: times in ms, processor time in cores."""

    sessions: int
    turns: int
    missed: int
    cores: float
    ms_per_session_second: float
    agent_cores: float
    late_ms: Quantiles
    lag_ms: Quantiles
    error_ms: Quantiles

    @property
    def holds(self) -> bool | None:
        """Check whether every figure meets the goal; None if there are too few turns."""
        goals = (
            (self.late_ms.p99, GOAL_LATE_MS),
            (self.error_ms.p50, GOAL_ERROR_P50_MS),
            (self.error_ms.p99, GOAL_ERROR_P99_MS),
        )
        if self.missed or any(v is not None and v > most for v, most in goals):
            return False
        return None if any(v is None for v, _ in goals) else True


def question(rate: int) -> Cue:
    """Return the utterance of `turngap calibrate`, after a silence as long as a reply."""
    cue = utterance(rate)
    lead = np.zeros(rate * LEAD_MS // 1000, dtype=np.int16)
    start_ms, end_ms = cue.speech.start_ms + LEAD_MS, cue.speech.end_ms + LEAD_MS
    speech = SpeechBounds(start_ms=start_ms, end_ms=end_ms)
    return replace(cue, pcm=np.concatenate((lead, cue.pcm)), speech=speech)


# --- the caller


async def session(
    endpoint: Endpoint, begin_ns: int, window: tuple[int, int], into: Measured
) -> dict[int, float]:
    """Play one conversation until the window is over; return its gaps by the turn's number, ms."""
    clock = MonotonicClock(precise=True)
    gaps: dict[int, float] = {}
    await clock.sleep_until_ns(begin_ns)
    async with endpoint.open(clock) as line:
        cues = [question(line.rate)] * 10_000
        talk = Conversation(line, cues, clock, offset=NO_OFFSET, patience=PATIENCE)
        async with aclosing(talk.play()) as turns:
            async for played in turns:
                if played.turn.user_start_ns >= window[1]:
                    break
                if played.turn.user_start_ns >= window[0]:
                    into.lag_ms += [ns_to_ms(played.lag_ns)] if played.lag_ns is not None else []
                    if played.turn.gap_ns is None:
                        into.missed += 1
                    else:
                        gaps[played.turn.turn] = ns_to_ms(played.turn.gap_ns)
        if talk.failure is not None:
            raise talk.failure
        first, last = (max(0, talk.stream.sample_at(at_ns)) for at_ns in window)
        packets = slice(first // talk.stream.packet, last // talk.stream.packet)
        into.late_ms += map(ns_to_ms, talk.late_ns[packets])
    return gaps


async def one_level(sessions: int, arguments: argparse.Namespace, other_cores: set[int]) -> Level:
    into = Measured()
    dialect, seed = arguments.dialect, arguments.seed
    async with serving(sessions, arguments.agents, dialect, other_cores, seed) as agents:
        clock, caller = MonotonicClock(), psutil.Process()
        # Sessions begin at equal distances, as the lines of a load test do.
        dialling_ms = max(SETTLING_MS, 20.0 * sessions)
        start_ns = clock.now_ns()
        begins = [
            start_ns + ms_to_ns(dialling_ms * i / sessions + 7.3 * i % 20) for i in range(sessions)
        ]
        from_ns = start_ns + ms_to_ns(dialling_ms + SETTLING_MS)
        window = (from_ns, from_ns + ms_to_ns(arguments.seconds * 1000))
        with undisturbed():
            tasks = [
                asyncio.create_task(session(Endpoint(url, dialect), begin_ns, window, into))
                for url, begin_ns in zip(agents.urls, begins, strict=True)
            ]
            await clock.sleep_until_ns(window[0])
            before_ns, before = clock.now_ns(), (cpu_s(caller), agents.cpu_s())
            await clock.sleep_until_ns(window[1])
            seconds = (clock.now_ns() - before_ns) / 1e9
            cores, agent_cores = (
                (now - then) / seconds
                for now, then in zip((cpu_s(caller), agents.cpu_s()), before, strict=True)
            )
            heard = await asyncio.gather(*tasks)
        for gaps, truths in zip(heard, await agents.truths(), strict=True):
            into.errors_ms += [
                gap - ns_to_ms(truths[turn].gap_ns or 0) for turn, gap in gaps.items()
            ]
    return Level(
        sessions,
        len(into.errors_ms) + into.missed,
        into.missed,
        cores,
        cores / sessions * 1000,
        agent_cores,
        quantiles(into.late_ms),
        quantiles(into.lag_ms),
        absolute_quantiles(into.errors_ms, missed=into.missed),
    )


def quantiles(values: Sequence[float]) -> Quantiles:
    p50, p95, p99 = (percentile(values, q).value for q in (0.5, 0.95, 0.99))
    return Quantiles(n=len(values), p50=p50, p95=p95, p99=p99, max=max(values, default=None))


# --- what is shown

HEADER = (
    f"{'sessions':>8}{'cores':>7}{'ms/s':>7}{'agents':>8}   {'late p50':>8}{'p99':>7}{'max':>7}"
    f"   {'lag p99':>7}   {'|error| p50':>11}{'p99':>7}   {'turns':>5}{'missed':>7}"
)

VERDICTS = {True: "holds", False: "does not hold", None: "too few turns to tell"}


def row(level: Level) -> str:
    late, lag, error = level.late_ms, level.lag_ms, level.error_ms
    return (
        f"{level.sessions:>8}{level.cores:>7.2f}{level.ms_per_session_second:>7.2f}"
        f"{level.agent_cores:>8.2f}   {ms(late.p50):>8}{ms(late.p99):>7}{ms(late.max):>7}"
        f"   {ms(lag.p99):>7}   {ms(error.p50):>11}{ms(error.p99):>7}"
        f"   {level.turns:>5}{level.missed:>7}   {VERDICTS[level.holds]}"
    )


def ms(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


async def measure(arguments: argparse.Namespace) -> int:
    everywhere = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    mine = {min(everywhere)} if len(everywhere) > 1 else set[int]()
    pin(mine)
    print(f"{arguments.dialect}, {arguments.seconds:g} s a level; times in ms, cores by CPU time")
    print(HEADER)
    levels: list[Level] = []
    for sessions in arguments.levels:
        level = await one_level(sessions, arguments, everywhere - mine)
        levels.append(level)
        print(row(level), flush=True)
    held = max((level.sessions for level in levels if level.holds), default=0)
    print(f"the most sessions that hold: {held}; the goal is {GOAL_SESSIONS}")
    # A level with too few turns to tell decides nothing, unless it is the last that was asked for.
    asked = [level for level in levels if level.sessions <= GOAL_SESSIONS] or levels
    return 0 if asked[-1].holds and all(level.holds is not False for level in asked) else 1


def positive(text: str) -> int:
    """Read a number of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, not {number}")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--levels", type=positive, nargs="+", default=[1, 10, 25, 50, 100])
    parser.add_argument("--seconds", type=float, default=25.0, help="measured, of each level")
    parser.add_argument("--dialect", default=PIPECAT)
    parser.add_argument(
        "--agents", type=positive, default=2, help="processes that serve the agents"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with errors_told():
        require_half(arguments.dialect)
        return asyncio.run(measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
