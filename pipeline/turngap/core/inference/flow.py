"""The engine once more, for requests that are known beforehand: the same instants, in less time.

`turngap simulate` plays hundreds of thousands of requests in a second, and an object with a dozen
attributes for each, an entry in a table for its opening and one for its end were most of that. Here
a request is a row of columns; openings are not waited for but looked up afterwards, all at once, in
what was noted of the steps.
"""

from collections import OrderedDict
from heapq import heappop, heappush

import numpy as np

from turngap.core.inference.policy import Policy
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
        # What `PrefixCache` has: conversations that are kept, the least recent first, their tokens
        # in all, and what every prompt begins with.
        self._keeps = prefix_cache
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._held = 0
        self._shared = shared if prefix_cache else 0
        self.busy_ps = self.steps = self.prefilled = self.spared = self.sequence_steps = 0
        # All requests in the order in which they arrive, which is that in which they are let in:
        # of each what the steps depend on, `_total` being the tokens of prompt and reply.
        self._at_ps: list[int] = []
        self._prompt: list[int] = []
        self._output: list[int] = []
        self._total: list[int] = []
        self._session: list[int] = []
        self._next = 0
        # Of the prompt that is cut, tokens to come and tokens done. There is one at most: whoever
        # is cut fills the step, and goes on before anybody else is let in.
        self._left = self._offset = 0
        self._now_ps = self._looked_back = 0
        self._room = server.kv_tokens
        # The replies that end next, as a heap with one that never ends.
        self._ends: list[int] = [FOREVER_PS << _PLACES | _PLACE]
        # Since openings were looked up last, four numbers for each leap: its last step, when that
        # ended, and the batch and its caches' tokens at its beginning.
        self._leaps: list[int] = [0, 0, 0, 0]
        # And the steps in which requests had their first tokens.
        self._firsts: list[int] = []
        # Tags, arrivals and openings of those whose first token was not looked up yet, and tags,
        # arrivals and steps of their openings of those whose opening is not out: a row of each.
        self._asked = [np.empty((3, 0), dtype=np.int64)]
        self._unopened = np.empty((3, 0), dtype=np.int64)

    @staticmethod
    def suits(server: Server, policy: Policy) -> bool:
        """Whether such a replica can be played so."""
        return policy.name == "continuous" and server.speculation is None

    @property
    def load(self) -> int:
        """Requests in it: to come, being read and being answered."""
        return len(self._at_ps) - self._next + (self._left > 0) + len(self._ends) - 1

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
        """Requests to come, in order; good ones, and none before one that is known already."""
        self._at_ps += at_ps.tolist()
        self._prompt += prompts.tolist()
        self._output += outputs.tolist()
        self._total += (prompts + outputs).tolist()
        self._session += sessions.tolist()
        self._asked.append(np.stack((tags, at_ps, openings)))

    def advance(self, until_ps: int) -> None:  # noqa: PLR0912, PLR0915
        """Run every step that begins before `until_ps`."""
        # One loop over plain numbers: with its parts as methods it takes 1.4 times as long.
        at_ps, prompts, outputs = self._at_ps, self._prompt, self._output
        totals, sessions = self._total, self._session
        costs, most, chunk = self._costs, self._most, self._chunk
        keeps, kept, held, shared = self._keeps, self._kept, self._held, self._shared
        ends, leaps, firsts = self._ends, self._leaps, self._firsts
        now_ps, step, place, left, offset = (
            self._now_ps, self.steps, self._next, self._left, self._offset
        )  # fmt: skip
        running, looked_back, room = len(ends) - 1, self._looked_back, self._room
        dense, kv_grows = costs.dense, costs.kv_ps >= costs.attention_ps
        weights_ps, kv_ps, overhead_ps = costs.weights_ps, costs.kv_ps, costs.overhead_ps
        token_ps, attention_ps, link_ps = costs.token_ps, costs.attention_ps, costs.link_ps
        sequence_ps, prompt_ps = costs.sequence_ps + link_ps, costs.prompt_ps
        began_ps = now_ps
        prefilled = spared = sequence_steps = rested_ps = 0
        at_ps.append(FOREVER_PS)
        next_ps = at_ps[place]
        next_end = ends[0] >> _PLACES
        while now_ps < until_ps:
            if left or (next_ps <= now_ps and running < most):
                # What fits of the prompts, and a token for each sequence that decodes.
                computed = read = pairs = grown = 0
                # A chunk is larger than any batch (`Policy`), so that something is left of it.
                first, budget = place, chunk - running
                if left:
                    first -= 1
                    computed, read = min(left, budget), offset
                    pairs = computed * (2 * read + computed + 1) >> 1
                    left -= computed
                    offset += computed
                    if not left:
                        grown = prompts[first] + 1
                        heappush(ends, (step + outputs[first]) << _PLACES | first)
                        firsts.append(step + 1)
                full = first + most - running
                while next_ps <= now_ps and place < full and computed < budget:
                    spare = room - totals[place]
                    if spare < 0:
                        break
                    room = spare
                    prompt = prompts[place]
                    # What the prefix cache spares; as calls of its methods it took a sixth of all.
                    hit, session = shared, sessions[place]
                    if session in kept:
                        hit = kept.pop(session)
                        held -= hit
                    while held > spare:
                        held -= kept.popitem(False)[1]
                    if hit >= prompt:
                        hit = prompt - 1
                    take = prompt - hit
                    if take <= budget - computed:
                        grown += prompt + 1
                        heappush(ends, (step + outputs[place]) << _PLACES | place)
                        firsts.append(step + 1)
                    else:
                        left = take - (budget - computed)
                        take -= left
                        offset = hit + take
                    computed += take
                    spared += hit
                    read += hit
                    # Each token attends to those before it and to itself.
                    pairs += take * (2 * hit + take + 1) >> 1
                    place += 1
                    next_ps = at_ps[place]
                tokens = running + computed
                moved = weights_ps if dense else costs.moved_ps(tokens)
                moved += kv_ps * (looked_back + read)
                arithmetic = token_ps * tokens + attention_ps * (looked_back + pairs)
                took_ps = moved if moved > arithmetic else arithmetic
                took_ps += overhead_ps + link_ps * computed + sequence_ps * running
                took_ps += prompt_ps * (place - first)
                now_ps += took_ps
                step += 1
                next_end = ends[0] >> _PLACES
                prefilled += computed
                leaps += (step, now_ps, running, looked_back)
                sequence_steps += running
                looked_back += running + grown
            elif running:
                moved = weights_ps if dense else costs.moved_ps(running)
                moved += kv_ps * looked_back
                arithmetic = token_ps * running + attention_ps * looked_back
                by_memory = moved >= arithmetic
                took_ps = (moved if by_memory else arithmetic) + overhead_ps + sequence_ps * running
                within_ps = (next_ps if now_ps < next_ps < until_ps else until_ps) - now_ps
                most_more = next_end - step - 1
                steps, tokens = 1, running
                if most_more and took_ps < within_ps:
                    # Steps only get longer: at the first one's pace there are no fewer in time.
                    more = (within_ps - 1) // took_ps
                    more = min(more, most_more)
                    slope = (kv_ps if by_memory else attention_ps) * running
                    before_last_ps = more * took_ps + slope * (more * (more - 1) >> 1)
                    if by_memory == kv_grows and before_last_ps < within_ps:
                        took_ps += before_last_ps + slope * more
                        steps = more + 1
                    else:
                        steps, took_ps = costs.leap(running, looked_back, within_ps, most_more + 1)
                    tokens *= steps
                now_ps += took_ps
                step += steps
                leaps += (step, now_ps, running, looked_back)
                sequence_steps += tokens
                looked_back += tokens
            elif next_ps < until_ps:
                rested_ps += next_ps - now_ps
                now_ps = next_ps
                continue
            else:
                break
            if step == next_end:
                while ends[0] >> _PLACES == step:
                    ended = heappop(ends) & _PLACE
                    tokens = totals[ended]
                    looked_back -= tokens
                    room += tokens
                    if keeps:
                        session = sessions[ended]
                        if session in kept:
                            held -= kept.pop(session)
                        kept[session] = tokens
                        held += tokens
                next_end = ends[0] >> _PLACES
            running = len(ends) - 1
        at_ps.pop()
        self._now_ps, self.steps, self._next, self._left, self._offset = (
            now_ps, step, place, left, offset
        )  # fmt: skip
        self._looked_back, self._room, self._held = looked_back, room, held
        self.busy_ps += now_ps - began_ps - rested_ps
        self.prefilled += prefilled
        self.spared += spared
        self.sequence_steps += sequence_steps

    def take_opened(self) -> tuple[Whole, Whole, Whole]:
        """Those whose opening came out since the last time, in the order in which they came out.

        Returns their tags, when they arrived and when their opening was out, in ps.
        """
        asked, begun = np.concatenate(self._asked, axis=1), len(self._firsts)
        self._asked = [asked[:, begun:]]
        asked = asked[:, :begun]
        asked[2] += whole(self._firsts) - 1
        self._firsts.clear()
        asked = np.concatenate((self._unopened, asked), axis=1)
        out = asked[2] <= self.steps
        self._unopened = asked[:, ~out]
        asked = asked[:, out]
        tags, arrived_ps, steps = asked[:, np.argsort(asked[2], kind="stable")]
        opened_ps = self._ended_ps(steps)
        self._leaps = [self.steps, self._now_ps, 0, 0]
        self._forget()
        return tags, arrived_ps, opened_ps

    def unopened_ps(self) -> list[int]:
        """When those arrived whose opening was not out when it was asked for last."""
        return np.concatenate((self._unopened, *self._asked), axis=1)[1].tolist()

    def _forget(self) -> None:
        """Drop the front of the line, where everything is over: an hour has millions of requests.

        Only where that is most of it, so that what stays is seldom moved.
        """
        over = min(self._next - (self._left > 0), *(end & _PLACE for end in self._ends))
        if over < max(_KEPT, len(self._at_ps) // 2):
            return
        for column in (self._at_ps, self._prompt, self._output, self._total, self._session):
            del column[:over]
        self._ends = [end - over for end in self._ends]
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
