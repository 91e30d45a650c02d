"""A faster engine for requests that are known beforehand, with the same instants.

`turngap simulate` plays hundreds of thousands of requests in a second. Here requests are columns of
arrays, the steps are compiled (`kernel`), and openings are looked up afterwards, all at once, in
the ends of the steps.
"""

import numpy as np

from turngap.inference.kernel import PLACE, Rules, State, play
from turngap.inference.policy import Policy
from turngap.inference.server import Server, StepCosts, Whole

# The front of the line is dropped only when the line is longer than this.
_KEPT = 10_000
# The first length of the columns, which then double.
_ROWS = 64
# All 64-bit counts stay below this.
_MOST = 1 << 62


class Flow:
    """One replica at work, with continuous batches, no speculation and no cancellation.

    A property test shows that it agrees with `Engine` to the picosecond.

    Raises:
        ValueError: it has another policy, speculation, or costs that do not fit into 64 bits.
    """

    def __init__(
        self, server: Server, policy: Policy, *, prefix_cache: bool = False, shared: int = 0
    ) -> None:
        if not self.suits(server, policy):
            raise ValueError(f"expected continuous batches without speculation, got {policy}")
        self._rules = _rules(server, policy, prefix_cache, shared if prefix_cache else 0)
        # Requests: the rows of `Arrivals`, then each one's tag and opening.
        self._rows = np.empty((7, _ROWS), dtype=np.int64)
        self._known = 0
        # Slots of conversations in the prefix cache, from 1, and their contents (`Kept`).
        self._slots: dict[int, int] = {}
        self._kept = np.zeros((3, _ROWS), dtype=np.int64)
        self._ends = np.empty(_ROWS, dtype=np.int64)
        # When the steps since the last look-up of openings ended.
        self._ended_ps = np.empty(_ROWS, dtype=np.int64)
        self._state = State()
        # Places of requests that had their first token but not their opening at the last look-up,
        # and how many had their first token then.
        self._unopened = np.empty(0, dtype=np.int64)
        self._begun = 0

    @staticmethod
    def suits(server: Server, policy: Policy) -> bool:
        if policy.name != "continuous" or server.speculation is not None:
            return False
        return _longest_step_ps(server, policy) < _MOST

    @property
    def load(self) -> int:
        state = self._state
        return self._known - state.place + (state.left > 0) + state.decoding

    @property
    def spent(self) -> tuple[int, int, int, int, int]:
        """Busy time (ps), steps, sequences in them, prompt tokens computed and spared."""
        state = self._state
        return state.busy_ps, state.step, state.sequence_steps, state.prefilled, state.spared

    def expect(
        self,
        tags: Whole,
        at_ps: Whole,
        *,
        prompts: Whole,
        outputs: Whole,
        openings: Whole,
        sessions: Whole,
    ) -> None:
        """Take requests in order of arrival, which the caller has already checked."""
        begin, end = self._known, self._known + len(tags)
        if end > self._rows.shape[1]:
            self._rows = _longer(self._rows, end)
            # Each request has at most one end.
            self._ends = _longer(self._ends, end)
        of = self._slots
        slots = [of.setdefault(session, len(of) + 1) for session in sessions.tolist()]
        rows = (at_ps, prompts, outputs, slots, np.zeros_like(tags), tags, openings)
        self._rows[:, begin:end] = rows
        if len(of) >= self._kept.shape[1]:
            self._kept = _longer(self._kept, len(of) + 1)
        self._known = end

    def advance(self, until_ps: int) -> None:
        # Checked here too, because calling `play` takes longer than most steps.
        if self._state.now_ps >= until_ps or not self.load:
            return
        while True:
            self._state = play(
                until_ps, self._known, self._rules, self._rows, self._kept, self._ends,
                self._ended_ps, self._state,
            )  # fmt: skip
            if self._state.noted < len(self._ended_ps):
                return
            self._ended_ps = _longer(self._ended_ps, len(self._ended_ps) + 1)

    def take_opened(self) -> tuple[Whole, Whole, Whole]:
        """Return tag, arrival and opening (ps) of requests opened since the last call, in order."""
        state, begun = self._state, self._read
        places = np.concatenate((self._unopened, np.arange(self._begun, begun)))
        at_ps, _, _, _, first, tags, openings = self._rows[:, places]
        steps = first + openings - 1
        out = steps <= state.step
        self._unopened, self._begun = places[~out], begun
        order = np.argsort(steps[out], kind="stable")
        # The first noted step has this number.
        opened_ps = self._ended_ps[steps[out][order] - (state.step - state.noted) - 1]
        self._state = state._replace(noted=0)
        self._forget()
        return tags[out][order], at_ps[out][order], opened_ps

    def unopened_ps(self) -> list[int]:
        """Return the arrivals (ps) of requests whose opening was not out at the last look-up."""
        at_ps = self._rows[0]
        return [*at_ps[self._unopened].tolist(), *at_ps[self._begun : self._known].tolist()]

    @property
    def _read(self) -> int:
        return self._state.place - (self._state.left > 0)

    def _forget(self) -> None:
        """Drop the requests at the front that are over, since an hour has millions of requests.

        Does so only when they are most of the line, so that the rest is seldom moved.
        """
        ends = self._ends[: self._state.decoding]
        over = min(self._read, int((ends & PLACE).min(initial=self._read)))
        if over < max(_KEPT, self._known // 2):
            return
        self._known -= over
        self._rows[:, : self._known] = self._rows[:, over : over + self._known].copy()
        ends -= over
        self._unopened -= over
        self._begun -= over
        self._state = self._state._replace(place=self._state.place - over)


def _rules(server: Server, policy: Policy, keeps: bool, shared: int) -> Rules:
    costs = StepCosts(server)
    return Rules(
        moved_ps=_moved_ps(costs, _most_tokens(server, policy)),
        kv_ps=costs.kv_ps,
        token_ps=costs.token_ps,
        attention_ps=costs.attention_ps,
        link_ps=costs.link_ps,
        overhead_ps=costs.overhead_ps,
        sequence_ps=costs.sequence_ps,
        prompt_ps=costs.prompt_ps,
        room=server.kv_tokens,
        most=min(policy.max_batch, server.kv_tokens),
        chunk=policy.chunk_tokens or _MOST,
        keeps=keeps,
        shared=shared,
    )


def _most_tokens(server: Server, policy: Policy) -> int:
    """Return the most tokens that a step can compute: each needs room for its keys and values."""
    return min(server.kv_tokens, policy.chunk_tokens or _MOST)


def _longest_step_ps(server: Server, policy: Policy) -> int:
    """Return a bound for every step and for every product in its computation."""
    costs, room = StepCosts(server), server.kv_tokens
    # The cache of a prompt holds what the prefix cache spared, and what is computed comes on top.
    looks = room + _most_tokens(server, policy) * room
    each = costs.token_ps + 2 * costs.kv_ps + costs.link_ps + costs.sequence_ps + costs.prompt_ps
    moved_ps = costs.moved_ps(_most_tokens(server, policy))
    return moved_ps + costs.overhead_ps + room * each + max(1, costs.attention_ps) * looks


def _moved_ps(costs: StepCosts, most: int) -> Whole:
    """Return the time to move the weights by tokens in a step, until more make no difference."""
    all_ps = costs.moved_ps(most)
    found = [costs.moved_ps(0)]
    while found[-1] < all_ps:
        found.append(costs.moved_ps(len(found)))
    return np.array(found, dtype=np.int64)


def _longer(columns: Whole, least: int) -> Whole:
    """Append zeros to columns, to twice their length or at least `least`."""
    length = max(least, 2 * columns.shape[-1])
    grown = np.zeros((*columns.shape[:-1], length), dtype=np.int64)
    grown[..., : columns.shape[-1]] = columns
    return grown
