"""The engine once more, for requests that are known beforehand: the same instants, in less time.

`turngap simulate` plays hundreds of thousands of requests in a second, and an object with a dozen
attributes for each, an entry in a table for its opening and one for its end were most of that. Here
a request is a row of columns; openings are not waited for but looked up afterwards, all at once, in
what was noted of the steps.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from turngap.core.inference.policy import Policy
from turngap.core.inference.prefix import PrefixCache
from turngap.core.inference.request import FOREVER_PS
from turngap.core.inference.server import Server, StepCosts, Whole, whole

# A reply's end is one number: the step of its last token, then the request's place in the line.
_PLACES = 32
_PLACE = (1 << _PLACES) - 1
# The line is no shorter than so many before its front is dropped.
_KEPT = 10_000


class Flow:
    """One replica at work: what `Engine` does, where nothing else is asked of it.

    That is: continuous batches without speculation, and nobody cancelled. What has no comment
    here is as it is there; that both agree to the picosecond is a property test.

    Attributes:
        busy_ps, steps, prefilled, spared, sequence_steps: as of `Engine`.

    Raises:
        ValueError: another policy, or speculation.
    """

    def __init__(
        self, server: Server, policy: Policy, *, prefix_cache: bool = False, shared: int = 0
    ) -> None:
        if not self.suits(server, policy):
            raise ValueError(f"a flow is of continuous batches without speculation, not {policy}")
        self._costs = StepCosts(server)
        self._most = policy.max_batch
        self._chunk = policy.chunk_tokens or FOREVER_PS
        self._cache = PrefixCache(shared) if prefix_cache else None
        self.busy_ps = self.steps = self.prefilled = self.spared = self.sequence_steps = 0
        # All requests in the order in which they arrive, which is that in which they are let in.
        self._tag: list[int] = []
        self._at_ps: list[int] = []
        self._prompt: list[int] = []
        self._output: list[int] = []
        self._opening: list[int] = []
        self._session: list[int] = []
        self._next = 0
        # Of the prompt that is cut, tokens to come and tokens done. There is one at most: whoever
        # is cut fills the step, and goes on before anybody else is let in.
        self._left = self._offset = 0
        self._now_ps = self._running = self._looked_back = 0
        self._room = server.kv_tokens
        # The replies that end next, as a heap with one that never ends.
        self._ends: list[int] = [FOREVER_PS << _PLACES | _PLACE]
        # Since openings were looked up last, four numbers for each leap: its last step, when that
        # ended, and the batch and its caches' tokens at its beginning.
        self._leaps: list[int] = [0, 0, 0, 0]
        # And the steps in which requests had their first tokens, from the `_begun`-th request on.
        self._firsts: list[int] = []
        self._begun = 0
        self._unopened = self._opens_at = np.empty(0, dtype=np.int64)

    @staticmethod
    def suits(server: Server, policy: Policy) -> bool:
        """Whether such a replica can be played so."""
        return policy.name == "continuous" and server.speculation is None

    @property
    def load(self) -> int:
        """Requests in it: to come, being read and being answered."""
        return len(self._at_ps) - self._next + (self._left > 0) + self._running

    def expect(
        self,
        tags: Sequence[int],
        at_ps: Sequence[int],
        *,
        prompts: Sequence[int],
        outputs: Sequence[int],
        openings: Sequence[int],
        sessions: Sequence[int],
    ) -> None:
        """Requests to come, in order; good ones, and none before one that is known already."""
        self._tag += tags
        self._at_ps += at_ps
        self._prompt += prompts
        self._output += outputs
        self._opening += openings
        self._session += sessions

    def advance(self, until_ps: int) -> None:  # noqa: PLR0912, PLR0915
        """Run every step that begins before `until_ps`."""
        # One loop over plain numbers: with its parts as methods it takes 1.4 times as long.
        at_ps, prompts, outputs, sessions = self._at_ps, self._prompt, self._output, self._session
        costs, cache, most, chunk = self._costs, self._cache, self._most, self._chunk
        ends, leaps, firsts = self._ends, self._leaps, self._firsts
        now_ps, step, place, left, offset = (
            self._now_ps, self.steps, self._next, self._left, self._offset
        )  # fmt: skip
        running, looked_back, room = self._running, self._looked_back, self._room
        dense, kv_grows = costs.dense, costs.kv_ps >= costs.attention_ps
        weights_ps, kv_ps, overhead_ps = costs.weights_ps, costs.kv_ps, costs.overhead_ps
        token_ps, attention_ps, link_ps = costs.token_ps, costs.attention_ps, costs.link_ps
        sequence_ps, prompt_ps = costs.sequence_ps + link_ps, costs.prompt_ps
        busy_ps = prefilled = spared = sequence_steps = hit = 0
        at_ps.append(FOREVER_PS)
        next_ps = at_ps[place]
        while now_ps < until_ps:
            if left or (next_ps <= now_ps and running < most):
                # What fits of the prompts, and a token for each sequence that decodes.
                computed = read = pairs = grown = 0
                first, budget = place, chunk - running
                budget = max(budget, 1)
                if left:
                    first -= 1
                    computed, read = min(left, budget), offset
                    pairs = computed * read + computed * (computed + 1) // 2
                    left -= computed
                    offset += computed
                    if not left:
                        grown = prompts[first] + 1
                        heappush(ends, (step + outputs[first]) << _PLACES | first)
                free = most - running - (place - first)
                while next_ps <= now_ps and free > 0 and computed < budget:
                    prompt, output = prompts[place], outputs[place]
                    spare = room - prompt - output
                    if spare < 0:
                        break
                    room = spare
                    if cache is not None:
                        hit = cache.take(sessions[place], prompt, spare)
                        spared += hit
                    take = prompt - hit
                    if take <= budget - computed:
                        grown += prompt + 1
                        heappush(ends, (step + output) << _PLACES | place)
                    else:
                        left = take - (budget - computed)
                        take -= left
                        offset = hit + take
                    computed += take
                    read += hit
                    pairs += take * hit + take * (take + 1) // 2
                    free -= 1
                    place += 1
                    next_ps = at_ps[place]
                tokens = running + computed
                moved = weights_ps if dense else costs.moved_ps(tokens)
                moved += kv_ps * (looked_back + read)
                arithmetic = token_ps * tokens + attention_ps * (looked_back + pairs)
                took_ps = moved if moved > arithmetic else arithmetic
                took_ps += overhead_ps + link_ps * computed + sequence_ps * running
                took_ps += prompt_ps * (place - first)
                steps = 1
                prefilled += computed
                joined = place - first - (left > 0)
                if joined:
                    firsts += [step + 1] * joined
            elif running:
                moved = weights_ps if dense else costs.moved_ps(running)
                moved += kv_ps * looked_back
                arithmetic = token_ps * running + attention_ps * looked_back
                by_memory = moved >= arithmetic
                took_ps = (moved if by_memory else arithmetic) + overhead_ps
                took_ps += sequence_ps * running
                within_ps = (next_ps if now_ps < next_ps < until_ps else until_ps) - now_ps
                # Steps only get longer: at the first one's pace there are no fewer in that time.
                more = (within_ps - 1) // took_ps
                most_more = (ends[0] >> _PLACES) - step - 1
                more = min(more, most_more)
                steps = more + 1
                if more:
                    slope = (kv_ps if by_memory else attention_ps) * running
                    before_last_ps = more * took_ps + slope * (more * (more - 1) // 2)
                    if by_memory == kv_grows and before_last_ps < within_ps:
                        took_ps += before_last_ps + slope * more
                    else:
                        steps, took_ps = costs.leap(running, looked_back, within_ps, most_more + 1)
                joined = grown = 0
            elif next_ps < until_ps:
                now_ps = next_ps
                continue
            else:
                break
            now_ps += took_ps
            busy_ps += took_ps
            step += steps
            leaps += (step, now_ps, running, looked_back)
            tokens = running * steps
            sequence_steps += tokens
            looked_back += tokens + grown
            running += joined
            later = (step + 1) << _PLACES
            while ends[0] < later:
                ended = heappop(ends) & _PLACE
                tokens = prompts[ended] + outputs[ended]
                running -= 1
                looked_back -= tokens
                room += tokens
                if cache is not None:
                    cache.keep(sessions[ended], tokens)
        at_ps.pop()
        self._now_ps, self.steps, self._next, self._left, self._offset = (
            now_ps, step, place, left, offset
        )  # fmt: skip
        self._running, self._looked_back, self._room = running, looked_back, room
        self.busy_ps += busy_ps
        self.prefilled += prefilled
        self.spared += spared
        self.sequence_steps += sequence_steps

    def take_opened(self) -> tuple[Whole, Whole, Whole]:
        """Those whose opening came out since the last time, in the order in which they came out.

        Returns their tags, when they arrived and when their opening was out, in ps.
        """
        begun = self._begun + len(self._firsts)
        places = np.arange(self._begun, begun)
        steps = whole(self._firsts) + whole(self._opening[self._begun : begun]) - 1
        if len(self._unopened):
            places = np.concatenate((self._unopened, places))
            steps = np.concatenate((self._opens_at, steps))
        self._begun = begun
        self._firsts.clear()
        out = steps <= self.steps
        self._unopened, self._opens_at = places[~out], steps[~out]
        places, steps = places[out], steps[out]
        order = np.argsort(steps, kind="stable")
        opened_ps = self._ended_ps(steps[order])
        self._leaps = [self.steps, self._now_ps, 0, 0]
        # They lie near each other in the line.
        first, beyond = (int(places.min()), int(places.max()) + 1) if len(places) else (0, 0)
        order = places[order] - first
        tags, arrived_ps = whole(self._tag[first:beyond]), whole(self._at_ps[first:beyond])
        self._forget()
        return tags[order], arrived_ps[order], opened_ps

    def unopened_ps(self) -> list[int]:
        """When those arrived whose opening was not out when it was asked for last."""
        known = [self._at_ps[place] for place in self._unopened.tolist()]
        return known + self._at_ps[self._begun :]

    def _forget(self) -> None:
        """Drop the front of the line, where everything is over: an hour has millions of requests.

        Only where that is most of it, so that what stays is seldom moved.
        """
        in_use: list[int] = [end & _PLACE for end in self._ends]
        in_use += self._unopened.tolist()
        over = min(self._begun, *in_use)
        if over < max(_KEPT, len(self._at_ps) // 2):
            return
        for column in (self._tag, self._at_ps, self._prompt, self._output, self._opening,
                       self._session):  # fmt: skip
            del column[:over]
        self._ends = [end - over for end in self._ends]
        self._unopened = self._unopened - over
        self._begun -= over
        self._next -= over

    def _ended_ps(self, steps: Whole) -> Whole:
        """When steps ended, none of them before the first leap that is noted."""
        leaps = whole(self._leaps).reshape(-1, 4)
        within = np.searchsorted(leaps[:, 0], steps)
        before = leaps[within - 1]
        last, end_ps, sequences, looked_back = leaps[within].T
        inside = last != steps
        taken_ps = self._costs.leaps_ps(
            sequences[inside], looked_back[inside], steps[inside] - before[inside, 0]
        )
        # A leap of several steps begins where the one before it ended: there is a batch.
        end_ps[inside] = before[inside, 1] + taken_ps
        return end_ps
