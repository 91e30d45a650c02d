"""What a call takes of the processors: of an agent that is a child of ours, and of ourselves."""

import time
from dataclasses import dataclass, field

import psutil

from turngap.core.errors import InconclusiveError
from turngap.core.results import Turn
from turngap.fleet.record import AgentCpu

# An agent whose CPU is nearly all one thread's has one core at most, however many there are.
ONE_THREAD = 0.9


@dataclass(frozen=True)
class Spent:
    """CPU seconds until an instant."""

    at_s: float
    agent_s: float
    caller_s: float
    threads_s: dict[int, float]


@dataclass
class Watch:
    """Reads the processors' time after each turn of a replay whose agent is a child of ours."""

    read: list[Spent] = field(default_factory=list[Spent])

    def __call__(self, turn: Turn) -> None:
        here = psutil.Process()
        agent = next(c for c in here.children(recursive=True) if "serve" in c.cmdline())
        each = {thread.id: thread.user_time + thread.system_time for thread in agent.threads()}
        self.read.append(Spent(time.monotonic(), _cpu_s(agent), _cpu_s(here), each))

    def taken(self) -> "Taken":
        """What a call takes, from the end of the first turn to that of the last.

        Raises:
            InconclusiveError: there were not two turns.
        """
        if len(self.read) < 2:
            raise InconclusiveError("simulator_check.turns", "fewer than two turns were played")
        first, last = self.read[0], self.read[-1]
        seconds = last.at_s - first.at_s
        busiest = max(cpu - first.threads_s.get(i, 0.0) for i, cpu in last.threads_s.items())
        return Taken(
            agent=(last.agent_s - first.agent_s) / seconds,
            thread=busiest / seconds,
            caller=(last.caller_s - first.caller_s) / seconds,
            turns=len(self.read) - 1,
        )


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@dataclass(frozen=True)
class Taken:
    """Cores that one call takes, in the mean: of the agent, its busiest thread and the caller."""

    agent: float
    thread: float
    caller: float
    turns: int

    def bound(self, cores: float) -> AgentCpu:
        """What carries the fewest calls: the machine, or the one core of the busiest thread."""
        machine = AgentCpu(cores, self.agent + self.caller)
        if self.thread < ONE_THREAD * self.agent:
            return machine
        return min(machine, AgentCpu(1, self.thread), key=lambda found: found.most_calls)
