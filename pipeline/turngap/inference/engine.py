"""The engine takes requests, runs steps and says when each token is out.

It is sans-I/O and has no clock. `advance(until)` runs every step that begins before `until`; its
caller decides whether that is virtual time (`turngap simulate`) or real time (the `sim` backends).
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from turngap.core.errors import InputError
from turngap.inference.server import PS_PER_MS, Server, StepCosts

PolicyName = Literal["continuous", "static", "immediate"]
POLICIES: tuple[PolicyName, ...] = ("continuous", "static", "immediate")


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule by which an engine forms its batch.

    `continuous` admits a request at the next step that has room for it (Orca, OSDI 2022; vLLM).
    `static` waits until the batch is full and runs it to its last reply. `immediate` takes the
    requests that wait when the engine is free, up to `max_batch`, and runs them to the last reply;
    with a `max_batch` of 1, each request has the engine to itself.

    Attributes:
        max_batch: the most sequences at once.
        chunk_tokens: the most tokens that a step computes, decoded ones included; a long prompt is
            cut into chunks. With None, a prompt is computed in one step.
        max_wait_ms: with `static`, start a batch that is not full when its oldest request has
            waited this long. With None, wait for ever.
    """

    name: PolicyName = "continuous"
    max_batch: int = 256
    chunk_tokens: int | None = None
    max_wait_ms: float | None = None

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise _bad("name", self.name, f"one of {', '.join(POLICIES)}")
        if self.max_batch < 1:
            raise _bad("max_batch", self.max_batch, "1 or more")
        if self.chunk_tokens is not None and self.chunk_tokens <= self.max_batch:
            raise _bad(
                "chunk_tokens",
                self.chunk_tokens,
                f"more than max_batch ({self.max_batch}), as prompts get only what is left over",
            )
        if self.max_wait_ms is not None:
            if self.name != "static":
                raise _bad("max_wait_ms", self.max_wait_ms, "none, because only `static` waits")
            if not 0 <= self.max_wait_ms < float("inf"):
                raise _bad("max_wait_ms", self.max_wait_ms, "0 or more")


def _bad(name: str, value: object, want: str) -> InputError:
    return InputError("inference.policy", f"policy: {name} is {value!r}, expected {want}")


class PrefixCache:
    """A store of the keys and values of conversations whose reply is done, while there is room.

    Args:
        shared: how many tokens at the start of every prompt are the same. They are computed once
            for all, but each conversation still takes room for them.
    """

    def __init__(self, shared: int = 0) -> None:
        self._shared = shared
        self._kept: OrderedDict[Hashable, int] = OrderedDict()
        self._tokens = 0

    def take(self, session: Hashable, prompt: int, spare: int) -> int:
        """Return how many tokens of a prompt are cached; the last one must always be computed.

        Other conversations may keep `spare` tokens; the least recently used are dropped.
        """
        hit = self._kept.pop(session, 0)
        self._tokens -= hit
        while self._tokens > spare:
            self._tokens -= self._kept.popitem(False)[1]  # the least recent
        hit = hit or self._shared
        return hit if hit < prompt else prompt - 1

    def keep(self, session: Hashable, tokens: int) -> None:
        """Keep a conversation of that many tokens; one without a name (None) is not kept."""
        if session is None:
            return
        # If two requests of one conversation run at once, the one that ends later is kept.
        self._tokens += tokens - self._kept.pop(session, 0)
        self._kept[session] = tokens


# Later than anything.
FOREVER_PS = 1 << 80


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one step: `sequences` decoded, and `prefill` prompt tokens were computed."""

    start_ps: int
    end_ps: int
    sequences: int
    prefill: int


class Request:
    """One prompt and its reply. The engine writes the instants.

    It has no slots on purpose: attributes that keep their default then cost nothing to make, and a
    simulation makes a hundred thousand requests a second.

    Attributes:
        prompt: tokens of the whole prompt, 1 or more.
        output: tokens of the reply, 1 or more.
        opening: the reply's token that the caller waits for, 1 to `output`; 1 is the first.
        tokens: tokens of the whole conversation, this reply included.
        session: the conversation, for the prefix cache; None if it belongs to none.
        tag: free for the engine's caller; with speculative decoding it seeds the reply's draws.
        arrived_ps, admitted_ps, first_ps, opening_ps, done_ps: when it arrived, when the engine
            admitted it, when its first token, its opening and its last token were out; -1 until
            then.
        hit: prompt tokens that came from the prefix cache.
        stopped: whether the request was cancelled.
    """

    arrived_ps: int = -1
    admitted_ps: int = -1
    first_ps: int = -1
    opening_ps: int = -1
    done_ps: int = -1
    hit: int = 0
    stopped: bool = False
    # For the engine: the steps of the first and last token; how much of the prompt is left and
    # where it continues; with speculative decoding, the tokens of each step to come, last first;
    # and the tokens that are out, if the step does not say.
    first_step: int = -1
    last_step: int = -1
    left: int = 0
    offset: int = 0
    yields: list[int]
    emitted: int = 0

    def __init__(
        self, prompt: int, output: int, opening: int = 1, session: Hashable = None, tag: int = 0
    ) -> None:
        self.prompt = prompt
        self.output = output
        self.tokens = prompt + output
        self.opening = opening
        self.session = session
        self.tag = tag

    def check(self, room: int) -> None:
        """Check that the request fits an engine with room for that many tokens.

        Raises:
            InputError: the conversation would never fit.
            ValueError: the request has no tokens, an opening outside the reply, or was submitted
                before.
        """
        if self.arrived_ps >= 0:
            raise ValueError("a request can be submitted only once")
        if self.prompt < 1 or not 1 <= self.opening <= self.output:
            raise ValueError(f"{self.prompt=}, {self.opening=}, {self.output=}")
        if self.tokens > room:
            raise InputError(
                "inference.too_long",
                f"a conversation of {self.tokens} tokens does not fit: the server has room for "
                f"{room}",
                hint="use more accelerators, fewer bits, or shorter prompts",
            )


class Engine:
    """One replica at work.

    Attributes:
        now_ps: the end of the last step; the next one begins no earlier.
        opened: requests whose opening token is out, in order; the caller takes them away.
        busy_ps: time spent in steps.
        steps, prefilled, emitted, replies: steps run, prompt tokens computed, tokens and replies
            given; `spared` counts prompt tokens that the prefix cache had.
        sequence_steps: sequences summed over all decode steps; divided by `steps`, the mean batch.
        room: the tokens of conversation that it can hold in all.

    Args:
        server: the hardware and the model.
        policy: how it forms batches.
        prefix_cache: keep conversations between their requests (`PrefixCache`).
        shared: how many tokens at the start of every prompt are the same, for that cache.
        trace: a list that gets each step.
    """

    def __init__(
        self,
        server: Server,
        policy: Policy,
        *,
        prefix_cache: bool = False,
        shared: int = 0,
        trace: list[Step] | None = None,
    ) -> None:
        self.costs = StepCosts(server)
        self.policy = policy
        self.room = server.kv_tokens
        self.now_ps = 0
        self.opened: list[Request] = []
        self.busy_ps = self.steps = self.prefilled = self.emitted = self.replies = 0
        self.sequence_steps = self.spared = 0
        self._speculation = server.speculation
        self._lets_in = policy.name == "continuous"
        self._trace = trace
        self._max_wait_ps = (
            None if policy.max_wait_ms is None else round(policy.max_wait_ms * PS_PER_MS)
        )
        # In order of arrival: requests to come, gathered for a batch, and with a prompt being read.
        self._coming: deque[Request] = deque()
        self._gathered: deque[Request] = deque()
        self._prefilling: list[Request] = []
        # How many more requests belong to the batch that left, if none may join it.
        self._gate = 0
        # Sequences that decode, and the tokens in their caches.
        self._running = 0
        self._looked_back = 0
        self._reserved = 0
        # For each step, the requests whose opening or last token comes out of it.
        self._due: dict[int, list[Request]] = {}
        self._speculating: list[Request] = []
        self._cache = PrefixCache(shared) if prefix_cache else None

    @property
    def idle(self) -> bool:
        """Return whether no step is due; requests may still wait for a batch to fill."""
        return not self._running and not self._prefilling

    @property
    def spent(self) -> tuple[int, int, int, int, int]:
        """Return busy time (ps), steps, sequences in them, prompt tokens computed and spared."""
        return self.busy_ps, self.steps, self.sequence_steps, self.prefilled, self.spared

    @property
    def load(self) -> int:
        inside = len(self._prefilling) + self._running
        return len(self._coming) + len(self._gathered) + inside

    def submit(self, request: Request, at_ps: int) -> None:
        """Take a request that arrives at `at_ps`, which may lie in the future.

        Raises:
            InputError: the conversation would never fit.
            ValueError: the request has no tokens, an opening outside the reply, was submitted
                before, or arrives before an earlier one.
        """
        request.check(self.room)
        if self._coming and self._coming[-1].arrived_ps > at_ps:
            raise ValueError("submit requests in the order in which they arrive")
        self.expect((request,), (at_ps,))

    def expect(self, requests: Sequence[Request], at_ps: Sequence[int]) -> None:
        """Submit several requests that the caller has already checked."""
        for request, arrives_ps in zip(requests, at_ps, strict=True):
            request.arrived_ps = arrives_ps
        self._coming.extend(requests)

    @property
    def next_ps(self) -> int:
        """Return when the next step begins, as far as known now; `FOREVER_PS` if there is none."""
        if self._running or self._prefilling or self._gate:
            return self.now_ps
        next_ps = self._ready_ps()
        if self._coming:
            next_ps = min(next_ps, self._coming[0].arrived_ps)
        return max(next_ps, self.now_ps)

    def advance(self, until_ps: int) -> None:
        coming = self._coming
        while self.now_ps < until_ps:
            if coming and coming[0].arrived_ps <= self.now_ps:
                if not self._lets_in:
                    self._gather()
                elif self._running + len(self._prefilling) < self.policy.max_batch:
                    self._mixed_step()
                    continue
            if self._prefilling or self._gate or (self._gathered and self._leaves()):
                self._mixed_step()
                continue
            next_ps = coming[0].arrived_ps if coming else FOREVER_PS
            if self._running:
                self._end_step(self.costs.step_ps(self._running, self._looked_back), 0)
                continue
            next_ps = min(next_ps, self._ready_ps())
            if next_ps >= until_ps:
                return
            self.now_ps = next_ps

    def cancel(self, request: Request, at_ps: int) -> None:
        """Drop a request at the end of the step that runs at `at_ps`; it then costs nothing.

        A request that is already done stays done.
        """
        self.advance(at_ps)
        if request.done_ps >= 0 or request.stopped or request.arrived_ps < 0:
            return
        request.emitted = self.tokens_out(request)
        request.stopped = True
        for line in (self._coming, self._gathered):
            if request in line:
                line.remove(request)
                self._gate = min(self._gate, len(self._gathered))
                return
        self._reserved -= request.tokens
        if request in self._prefilling:
            self._prefilling.remove(request)
            return
        self._running -= 1
        self._looked_back -= request.prompt + request.emitted
        if request in self._speculating:
            self._speculating.remove(request)

    def tokens_out(self, request: Request) -> int:
        """Return how many tokens of the reply are out at `now_ps`."""
        if request.first_step < 0:
            return 0
        if request.stopped or self._speculation is not None:
            return request.emitted
        return min(request.output, self.steps - request.first_step + 1)

    def unopened(self) -> list[Request]:
        """Return the requests whose opening is not out yet, in no particular order."""
        due = (r for requests in self._due.values() for r in requests)
        inside = (*self._coming, *self._gathered, *self._prefilling, *due, *self._speculating)
        return [r for r in dict.fromkeys(inside) if r.opening_ps < 0 and not r.stopped]

    # Admission

    def _gather(self) -> None:
        coming = self._coming
        while coming and coming[0].arrived_ps <= self.now_ps:
            self._gathered.append(coming.popleft())

    def _leaves(self) -> bool:
        """Start the gathered batch if it may leave now, and return whether it did."""
        if self._running or self._prefilling or self._ready_ps() > self.now_ps:
            return False
        self._gate = min(self.policy.max_batch, len(self._gathered))
        return True

    def _ready_ps(self) -> int:
        """Return when the gathered batch starts on a free engine, unless more requests come."""
        gathered = self._gathered
        if not gathered:
            return FOREVER_PS
        full = len(gathered) >= self.policy.max_batch or sum(r.tokens for r in gathered) > self.room
        if full or self.policy.name == "immediate":
            return self.now_ps
        timeout_ps = FOREVER_PS if self._max_wait_ps is None else self._max_wait_ps
        return max(self.now_ps, gathered[0].arrived_ps + timeout_ps)

    # Steps. These run for every request of a simulation, so they are written flat.

    def _mixed_step(self) -> None:
        """Compute as much of the prompts as fits, and a token for each sequence that decodes."""
        chunk, running = self.policy.chunk_tokens or FOREVER_PS, self._running
        budget = max(1, chunk - running * self.costs.checked)
        computed = read = pairs = 0
        through: list[Request] = []
        if self._prefilling:
            computed, read, pairs = self._go_on(budget, through)
        if computed < budget:
            came = self._let_in(budget - computed, through)
            computed, read, pairs = computed + came[0], read + came[1], pairs + came[2]
        prompts = len(through) + len(self._prefilling)  # read to the end, and one that was cut
        duration_ps = self.costs.step_ps(
            running, self._looked_back, computed, read, pairs, prompts=prompts
        )
        self.prefilled += computed
        self._end_step(duration_ps, computed)
        if through:
            self._first_tokens(through)

    def _let_in(self, budget: int, through: list[Request]) -> tuple[int, int, int]:
        """Admit the requests that may enter, and compute as much of their prompts as fits.

        Requests whose prompt is computed to its end go to `through`.

        Returns:
            Tokens computed, tokens read from caches, and pairs of a token and one before it.
        """
        line, gate = self._gathered, self._gate
        if self._lets_in:
            # A request whose cut prompt ends in this step is in the batch but not yet running.
            inside = self._running + len(self._prefilling) + len(through)
            line, gate = self._coming, self.policy.max_batch - inside
        cache, now_ps = self._cache, self.now_ps
        computed = read = pairs = hit = 0
        while gate > 0 and line and computed < budget and line[0].arrived_ps <= now_ps:
            spare = self.room - self._reserved - line[0].tokens
            if spare < 0:
                gate = 0  # the rest of the batch goes with the next one
                break
            request = line.popleft()
            gate -= 1
            self._reserved += request.tokens
            request.admitted_ps = now_ps
            if cache is not None:
                hit = request.hit = cache.take(request.session, request.prompt, spare)
                self.spared += hit
            take = request.prompt - hit
            if take <= budget - computed:
                through.append(request)
            else:
                request.left = take - (budget - computed)
                take = budget - computed
                request.offset = hit + take
                self._prefilling.append(request)
            computed += take
            read += hit
            # Each token attends to those before it and to itself.
            pairs += take * hit + take * (take + 1) // 2
        if not self._lets_in:
            self._gate = gate
        return computed, read, pairs

    def _go_on(self, budget: int, through: list[Request]) -> tuple[int, int, int]:
        """Continue prompts that were cut; returns what `_let_in` returns."""
        computed = read = pairs = 0
        for request in self._prefilling:
            take = min(request.left, budget - computed)
            if take == 0:
                break
            computed += take
            read += request.offset
            pairs += take * request.offset + take * (take + 1) // 2
            request.left -= take
            request.offset += take
            if not request.left:
                through.append(request)
        del self._prefilling[: len(through)]
        return computed, read, pairs

    def _end_step(self, duration_ps: int, computed: int) -> None:
        self.now_ps += duration_ps
        self.busy_ps += duration_ps
        self.steps += 1
        if self._trace is not None:
            start_ps = self.now_ps - duration_ps
            self._trace.append(Step(start_ps, self.now_ps, self._running, computed))
        self.sequence_steps += self._running
        if self._speculation is not None:
            self._accept()
            return
        self._looked_back += self._running
        self.emitted += self._running
        if due := self._due.pop(self.steps, None):
            self._come_due(due)

    def _come_due(self, due: list[Request]) -> None:
        """Record the requests that got their opening or last token in the step that just ended."""
        for request in due:
            if request.stopped:
                continue
            if request.opening_ps < 0:
                request.opening_ps = self.now_ps
                self.opened.append(request)
            if request.last_step == self.steps:
                self._done(request)

    def _first_tokens(self, requests: list[Request]) -> None:
        """Give out the first tokens of requests whose prompts have been read."""
        step, due = self.steps, self._due
        self.emitted += len(requests)
        self._running += len(requests)
        for request in requests:
            request.first_ps = self.now_ps
            request.first_step = step
            self._looked_back += request.prompt + 1
            opening, last = step + request.opening - 1, step + request.output - 1
            request.last_step = last
            if opening == step:
                request.opening_ps = self.now_ps
                self.opened.append(request)
            if last == step:
                request.emitted = 1
                self._done(request)
            elif self._speculation is not None:
                draws = self._speculation.steps(request.output - 1, str(request.tag))
                request.emitted, request.yields = 1, draws[::-1]
                self._speculating.append(request)
            else:
                for at in {opening, last} - {step}:
                    due.setdefault(at, []).append(request)

    def _accept(self) -> None:
        """Give each sequence the tokens of its draft that the model accepted."""
        for request in tuple(self._speculating):
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
        if self._cache is not None:
            self._cache.keep(request.session, request.tokens)
        self.replies += 1
        self._running -= 1
        self._looked_back -= request.tokens
        self._reserved -= request.tokens
