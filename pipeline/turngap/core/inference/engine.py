"""The engine: takes requests, runs steps, says when each token is out.

Sans-I/O: it has no clock. `advance(until)` runs every step that begins before `until`; whoever
drives it decides whether that is virtual time (`turngap simulate`) or the real one (the `sim`
backends).
"""

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from turngap.core.errors import InputError
from turngap.core.inference.policy import Policy
from turngap.core.inference.request import Request
from turngap.core.inference.server import Server, StepCosts

FOREVER_PS = 1 << 80
PS_PER_MS = 10**9


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, or several equal ones in a row (`steps`).

    `sequences` decoded, `prefill` prompt tokens were computed beside them.
    """

    start_ps: int
    end_ps: int
    steps: int
    sequences: int
    prefill: int


class Engine:
    """One replica at work.

    Attributes:
        now_ps: the end of the last step; the next one begins no earlier.
        opened: requests whose opening token is out, in order; whoever drives takes them away.
        busy_ps: time spent in steps.
        steps, prefilled, emitted, replies: steps run, prompt tokens computed, tokens and whole
            replies given.
        spared: prompt tokens that the prefix cache had.
        sequence_steps: sequences over all decode steps; with `steps` the mean batch.

    Args:
        server: what it runs on.
        policy: how it forms batches.
        prefix_cache: keep a conversation's keys and values when its reply is done, as long as no
            request needs the room; the conversation used least recently goes first.
        stepwise: never leap over several steps at once. The outcome is the same.
        trace: where to note each step.
    """

    def __init__(
        self,
        server: Server,
        policy: Policy,
        *,
        prefix_cache: bool = False,
        stepwise: bool = False,
        trace: list[Step] | None = None,
    ) -> None:
        self.costs = StepCosts(server)
        self.policy = policy
        self.now_ps = 0
        self.opened: list[Request] = []
        self.busy_ps = self.steps = self.prefilled = self.emitted = self.replies = 0
        self.sequence_steps = self.spared = 0
        self._room = server.kv_tokens
        self._speculation = server.speculation
        self._one_by_one = stepwise or self._speculation is not None
        self._trace = trace
        self._max_wait_ps = (
            None if policy.max_wait_ms is None else round(policy.max_wait_ms * PS_PER_MS)
        )
        self._waiting: deque[Request] = deque()
        self._prefilling: list[Request] = []
        # Sequences that decode, and the tokens in their caches.
        self._running = 0
        self._looked_back = 0
        self._reserved = 0
        # By step: whose opening or whose last token comes out of it.
        self._due: dict[int, list[Request]] = {}
        self._speculating: list[Request] = []
        self._next_due = FOREVER_PS
        self._cache: OrderedDict[Hashable, int] | None = OrderedDict() if prefix_cache else None
        self._cached = 0

    @property
    def idle(self) -> bool:
        """Whether no step is due, though requests may wait for a batch to fill."""
        return not self._running and not self._prefilling

    @property
    def load(self) -> int:
        """Requests in it: waiting, being read and being answered."""
        return len(self._waiting) + len(self._prefilling) + self._running

    @property
    def room(self) -> int:
        """Tokens of conversation that it can hold in all."""
        return self._room

    def submit(self, request: Request, at_ps: int) -> None:
        """Take a request that arrives at `at_ps`, after running all that begins before that.

        Raises:
            InputError: the conversation would never fit.
            ValueError: no tokens, an opening outside the reply, or submitted before.
        """
        if request.arrived_ps >= 0:
            raise ValueError("a request is submitted once")
        if request.prompt < 1 or not 1 <= request.opening <= request.output:
            raise ValueError(f"{request.prompt=}, {request.opening=}, {request.output=}")
        if request.tokens > self._room:
            raise InputError(
                "inference.too_long",
                f"a conversation of {request.tokens} tokens does not fit: the server has room for "
                f"{self._room}",
                hint="more accelerators, fewer bits, or shorter prompts",
            )
        self.enter(request, at_ps)

    def enter(self, request: Request, at_ps: int) -> None:
        """As `submit`, for a caller that makes sure itself that the request is a good one."""
        if self.now_ps < at_ps:
            self.advance(at_ps)
            if self.now_ps < at_ps and not self._running and not self._prefilling:
                self.now_ps = at_ps
        request.arrived_ps = at_ps
        self._waiting.append(request)

    def advance(self, until_ps: int) -> None:
        """Run every step that begins before `until_ps`."""
        while self.now_ps < until_ps:
            if self._waiting:
                self._admit()
            if self._prefilling:
                self._mixed_step()
            elif self._running:
                self._decode(until_ps)
            else:
                wake_ps = self._wake_ps()
                if wake_ps >= until_ps:
                    return
                self.now_ps = wake_ps

    def cancel(self, request: Request, at_ps: int) -> None:
        """Drop a request at the end of the step that runs at `at_ps`: it costs nothing from there.

        One that is done already stays done.
        """
        self.advance(at_ps)
        if request.done_ps >= 0 or request.stopped or request.arrived_ps < 0:
            return
        request.emitted = self.tokens_out(request)
        request.stopped = True
        if request.admitted_ps < 0:
            self._waiting.remove(request)
            return
        self._reserved -= request.tokens
        if request in self._prefilling:
            self._prefilling.remove(request)
            return
        self._running -= 1
        self._looked_back -= request.prompt + request.emitted
        if request.yields is not None:
            self._speculating.remove(request)

    def tokens_out(self, request: Request) -> int:
        """Tokens of the reply that are out at `now_ps`."""
        if request.first_step < 0:
            return 0
        if request.stopped or request.yields is not None:
            return request.emitted
        return min(request.output, self.steps - request.first_step + 1)

    def unopened(self) -> list[Request]:
        """Requests whose opening is not out yet, in no order."""
        due = (r for requests in self._due.values() for r in requests)
        inside = (*self._waiting, *self._prefilling, *due, *self._speculating)
        return [r for r in dict.fromkeys(inside) if r.opening_ps < 0 and not r.stopped]

    # Admission

    # What follows runs for every request of a simulation, so it is written flat: a call for each
    # request and a sum for each field cost as much again as the rest.

    def _admit(self) -> None:
        """Let in whom the policy lets in, in the order in which they came."""
        policy = self.policy
        if not policy.lets_in and not self._leaves():
            return
        waiting, prefilling, cache, now_ps = (
            self._waiting,
            self._prefilling,
            self._cache,
            self.now_ps,
        )
        free = policy.max_batch - self._running - len(prefilling)
        room = self._room - self._reserved
        while waiting and free > 0:
            request = waiting[0]
            room -= request.tokens
            if room < 0:
                break
            del waiting[0]
            free -= 1
            self._reserved += request.tokens
            request.admitted_ps = now_ps
            if cache is None:
                request.left = request.prompt
            else:
                held = cache.pop(request.session, 0)
                self._cached -= held
                if self._cached > room:
                    self._evict(room)
                hit = held or request.shared
                if hit >= request.prompt:
                    hit = request.prompt - 1
                request.hit = request.offset = hit
                request.left = request.prompt - hit
                self.spared += hit
            prefilling.append(request)

    def _leaves(self) -> bool:
        """Whether a batch that nobody may join later leaves now."""
        if self._running or self._prefilling:
            return False
        return self.policy.name == "immediate" or self._full() or self.now_ps >= self._wake_ps()

    def _evict(self, spare: int) -> None:
        """Forget the conversations used least recently, until the rest takes no more than that."""
        assert self._cache is not None
        while self._cached > spare:
            self._cached -= self._cache.popitem(last=False)[1]

    def _full(self) -> bool:
        """Whether no more requests fit into the batch that waits."""
        if len(self._waiting) >= self.policy.max_batch:
            return True
        return sum(r.tokens for r in self._waiting) > self._room

    def _wake_ps(self) -> int:
        """When an engine without work begins to work, unless more requests come."""
        if not self._waiting or self._max_wait_ps is None:
            return FOREVER_PS
        return max(self.now_ps, self._waiting[0].arrived_ps + self._max_wait_ps)

    # Steps

    def _mixed_step(self) -> None:
        """Compute what fits of the prompts, and a token for each sequence that decodes."""
        chunk = self.policy.chunk_tokens
        budget = FOREVER_PS
        if chunk is not None:
            budget = max(1, chunk - self._running * self.costs.checked)
        computed = read = pairs = 0
        through = 0
        for request in self._prefilling:
            take, offset = request.left, request.offset
            if take > budget - computed:
                take = budget - computed
                if take == 0:
                    break
                request.left -= take
                request.offset += take
            else:
                through += 1
            computed += take
            read += offset
            # Each token attends to those before it and to itself.
            pairs += take * offset + take * (take + 1) // 2
        duration = self.costs.step_ps(self._running, self._looked_back, computed, read, pairs)
        self.prefilled += computed
        self._end_step(duration, 1, computed)
        if through == len(self._prefilling):
            finished, self._prefilling = self._prefilling, []
        else:
            finished = self._prefilling[:through]
            del self._prefilling[:through]
        if finished:
            self._first_tokens(finished)

    def _decode(self, until_ps: int) -> None:
        """Decode up to the next step with which something ends, or to `until_ps`."""
        running, looked_back = self._running, self._looked_back
        if self._one_by_one:
            self._end_step(self.costs.step_ps(running, looked_back), 1, 0)
            return
        steps = self._next_due - self.steps
        one_ps = self.costs.decode_ps(running, looked_back)
        # Steps only get longer, so no more of them begin in time than at the first one's pace.
        steps = min(steps, (until_ps - self.now_ps - 1) // one_ps + 1)
        if steps == 1:
            self._end_step(one_ps, 1, 0)
            return
        steps = self._begun_before(until_ps - self.now_ps, steps)
        self._end_step(self.costs.leap_ps(running, looked_back, steps), steps, 0)

    def _begun_before(self, within_ps: int, most: int) -> int:
        """How many decode steps, 2 to `most`, begin within that time from now."""
        running, looked_back = self._running, self._looked_back
        leap_ps = self.costs.leap_ps
        low, high = 1, most
        # Steps grow slowly: the first guess is nearly always right.
        middle = high
        while low < high:
            if leap_ps(running, looked_back, middle - 1) < within_ps:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low

    def _end_step(self, duration_ps: int, steps: int, computed: int) -> None:
        running = self._running
        self.now_ps += duration_ps
        self.busy_ps += duration_ps
        self.steps += steps
        if self._trace is not None:
            start_ps = self.now_ps - duration_ps
            self._trace.append(Step(start_ps, self.now_ps, steps, running, computed))
        if not running:
            return
        tokens = running * steps
        self.sequence_steps += tokens
        if self._speculation is not None:
            self._accept()
            return
        self._looked_back += tokens
        self.emitted += tokens
        if self.steps == self._next_due:
            self._come_due()

    def _come_due(self) -> None:
        """Give out the openings and the ends of the step that is over."""
        due, step, now_ps, cache = self._due, self.steps, self.now_ps, self._cache
        ended = tokens = kept = 0
        for request in due.pop(step):
            if request.stopped:
                continue
            if request.opening_ps < 0:
                request.opening_ps = now_ps
                self.opened.append(request)
            if request.last_step == step:
                request.done_ps = now_ps
                ended += 1
                tokens += request.tokens
                if cache is not None and request.session is not None:
                    # Of two requests of one conversation at once the later end is what is kept.
                    kept += request.tokens - cache.pop(request.session, 0)
                    cache[request.session] = request.tokens
        if ended:
            self._release(ended, tokens, kept)
        if not due:
            self._next_due = FOREVER_PS
            return
        step += 1
        while step not in due:
            step += 1
        self._next_due = step

    def _release(self, ended: int, tokens: int, kept: int) -> None:
        """So many replies are done; of their tokens the prefix cache keeps some."""
        self.replies += ended
        self._running -= ended
        self._looked_back -= tokens
        self._reserved -= tokens
        self._cached += kept

    def _first_tokens(self, requests: list[Request]) -> None:
        """Their prompts are through, and with that come their first tokens."""
        step, now_ps, due = self.steps, self.now_ps, self._due
        next_due = self._next_due
        at_once: list[Request] = []
        for request in requests:
            request.first_ps = now_ps
            request.first_step = step
            self._looked_back += request.prompt + 1
            last = request.last_step = step + request.output - 1
            first = step + request.opening - 1
            if first == step:
                request.opening_ps = now_ps
                self.opened.append(request)
            if last == step:
                at_once.append(request)
                continue
            if self._speculation is not None:
                self._speculate(request)
                continue
            if step < first < last:
                due.setdefault(first, []).append(request)
                next_due = min(next_due, first)
            else:
                next_due = min(next_due, last)
            due.setdefault(last, []).append(request)
        self._next_due = next_due
        self.emitted += len(requests)
        self._running += len(requests)
        for request in at_once:
            self._done(request)

    def _speculate(self, request: Request) -> None:
        assert self._speculation is not None
        request.emitted = 1
        request.yields = self._speculation.steps(request.output - 1, str(request.tag))[::-1]
        self._speculating.append(request)

    def _accept(self) -> None:
        """With speculative decoding: each sequence takes what was kept of its draft."""
        for request in tuple(self._speculating):
            assert request.yields is not None
            got = request.yields.pop()
            request.emitted += got
            self._looked_back += got
            self.emitted += got
            if request.opening_ps < 0 and request.emitted >= request.opening:
                request.opening_ps = self.now_ps
                self.opened.append(request)
            if not request.yields:
                self._speculating.remove(request)
                self._done(request)

    def _done(self, request: Request) -> None:
        request.done_ps = self.now_ps
        kept = 0
        if self._cache is not None and request.session is not None:
            kept = request.tokens - self._cache.pop(request.session, 0)
            self._cache[request.session] = request.tokens
        self._release(1, request.tokens, kept)
