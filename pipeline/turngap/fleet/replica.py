"""One replica of a fleet, told of calls' turns: by the engine that suits what is asked of it."""

from typing import Protocol

from turngap.fleet.workload import Calls, Ps
from turngap.inference.engine import Engine
from turngap.inference.flow import Flow
from turngap.inference.policy import Policy
from turngap.inference.request import Request
from turngap.inference.server import Server, whole

# Turns whose opening is out, in the order in which it came; when each one's request came, and when
# its opening did.
Opened = tuple[Ps, Ps, Ps]


def replica_of(
    server: Server, policy: Policy, calls: Calls, *, prefix_cache: bool, shared: int
) -> "Replica":
    """A replica, by the quickest engine that can play it."""
    if Flow.suits(server, policy):
        return FlowReplica(Flow(server, policy, prefix_cache=prefix_cache, shared=shared), calls)
    engine = Engine(server, policy, prefix_cache=prefix_cache, shared=shared)
    return EngineReplica(engine, calls)


class Replica(Protocol):
    """Takes turns as they are due, and says which were answered."""

    def expect(self, turns: Ps, at_ps: Ps) -> None:
        """Requests of these turns, in the order in which they come."""
        ...

    def advance(self, until_ps: int) -> None:
        """Play what begins before `until_ps`."""
        ...

    def take_opened(self) -> Opened:
        """Those since the last time."""
        ...

    def unopened_ps(self) -> list[int]:
        """When the requests came that have no opening yet."""
        ...

    @property
    def load(self) -> int:
        """Requests in it: to come, being read and being answered."""
        ...

    @property
    def spent(self) -> tuple[int, int, int, int, int]:
        """Busy time, steps, sequences in them, prompt tokens computed and spared."""
        ...


class FlowReplica:
    """The quick one: continuous batches without speculation."""

    def __init__(self, flow: Flow, calls: Calls) -> None:
        self._flow = flow
        self._calls = calls

    def expect(self, turns: Ps, at_ps: Ps) -> None:
        """See `Replica`."""
        calls = self._calls
        self._flow.expect(
            turns,
            at_ps,
            prompts=calls.prompt[turns],
            outputs=calls.output[turns],
            openings=calls.opening[turns],
            sessions=calls.call[turns],
        )

    def advance(self, until_ps: int) -> None:
        """See `Replica`."""
        self._flow.advance(until_ps)

    def take_opened(self) -> Opened:
        """See `Replica`."""
        return self._flow.take_opened()

    def unopened_ps(self) -> list[int]:
        """See `Replica`."""
        return self._flow.unopened_ps()

    @property
    def load(self) -> int:
        """See `Replica`."""
        return self._flow.load

    @property
    def spent(self) -> tuple[int, int, int, int, int]:
        """See `Replica`."""
        flow = self._flow
        return flow.busy_ps, flow.steps, flow.sequence_steps, flow.prefilled, flow.spared


class EngineReplica:
    """Any policy, and speculation."""

    def __init__(self, engine: Engine, calls: Calls) -> None:
        self._engine = engine
        self._calls = calls

    def expect(self, turns: Ps, at_ps: Ps) -> None:
        """See `Replica`."""
        calls = self._calls
        columns = (calls.prompt, calls.output, calls.opening, calls.call)
        rows = zip(*(column[turns].tolist() for column in columns), turns.tolist(), strict=True)
        self._engine.expect([Request(*row) for row in rows], at_ps.tolist())

    def advance(self, until_ps: int) -> None:
        """See `Replica`."""
        self._engine.advance(until_ps)

    def take_opened(self) -> Opened:
        """See `Replica`."""
        opened = self._engine.opened
        turns = whole([r.tag for r in opened])
        arrived_ps, opened_ps = (
            whole([r.arrived_ps for r in opened]),
            whole([r.opening_ps for r in opened]),
        )
        opened.clear()
        return turns, arrived_ps, opened_ps

    def unopened_ps(self) -> list[int]:
        """See `Replica`."""
        return [r.arrived_ps for r in self._engine.unopened()]

    @property
    def load(self) -> int:
        """See `Replica`."""
        return self._engine.load

    @property
    def spent(self) -> tuple[int, int, int, int, int]:
        """See `Replica`."""
        engine = self._engine
        return (
            engine.busy_ps, engine.steps, engine.sequence_steps, engine.prefilled, engine.spared
        )  # fmt: skip
