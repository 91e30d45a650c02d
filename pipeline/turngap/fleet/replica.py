"""One replica of a fleet, told of calls' turns: by the engine that suits what is asked of it."""

from turngap.fleet.workload import Calls, Ps
from turngap.inference.engine import Engine
from turngap.inference.flow import Flow
from turngap.inference.policy import Policy
from turngap.inference.request import Request
from turngap.inference.server import Server, whole


class Replica:
    """Takes turns as they are due, and says which were answered, by the quickest engine."""

    def __init__(
        self, server: Server, policy: Policy, calls: Calls, *, prefix_cache: bool, shared: int
    ) -> None:
        kind = Flow if Flow.suits(server, policy) else Engine
        self._engine = kind(server, policy, prefix_cache=prefix_cache, shared=shared)
        self._calls = calls
        self.advance = self._engine.advance

    def expect(self, turns: Ps, at_ps: Ps) -> None:
        """Take requests of these turns, in the order in which they come."""
        calls = self._calls
        columns = [c[turns] for c in (calls.prompt, calls.output, calls.opening, calls.call)]
        if isinstance(self._engine, Flow):
            prompts, outputs, openings, sessions = columns
            self._engine.expect(
                turns,
                at_ps,
                prompts=prompts,
                outputs=outputs,
                openings=openings,
                sessions=sessions,
            )
        else:
            rows = zip(*(column.tolist() for column in (*columns, turns)), strict=True)
            self._engine.expect([Request(*row) for row in rows], at_ps.tolist())

    def take_opened(self) -> tuple[Ps, Ps, Ps]:
        """Return the turns opened since the last call, in order, with their arrivals and openings.

        The instants are in ps.
        """
        if isinstance(self._engine, Flow):
            return self._engine.take_opened()
        opened = self._engine.opened.copy()
        self._engine.opened.clear()
        return (
            whole([r.tag for r in opened]),
            whole([r.arrived_ps for r in opened]),
            whole([r.opening_ps for r in opened]),
        )

    def unopened_ps(self) -> list[int]:
        """Return when the requests came that have no opening yet."""
        if isinstance(self._engine, Flow):
            return self._engine.unopened_ps()
        return [r.arrived_ps for r in self._engine.unopened()]

    @property
    def load(self) -> int:
        """Requests in it: to come, being read and being answered."""
        return self._engine.load

    @property
    def spent(self) -> tuple[int, int, int, int, int]:
        return self._engine.spent
