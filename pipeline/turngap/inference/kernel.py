"""The compiled steps of continuous batches, in which `Flow` spends most of its time.

Every step is played: as machine code it takes some tens of nanoseconds. Everything that a step
calls is in this file, because numba decides by a file's date whether its compiled code is stale.
"""

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]

from turngap.inference.server import Whole

P = ParamSpec("P")
R = TypeVar("R")

# A reply's end is one number: the step of its last token, then the request's place in the line.
# This leaves room for 3 * 10^10 steps and 2 * 10^8 requests at once.
PLACES = 28
PLACE = (1 << PLACES) - 1


class Rules(NamedTuple):
    """What a step costs and what it may hold, from `StepCosts`, `Policy` and `PrefixCache`.

    `moved_ps` has an entry for each number of tokens in a step, as far as it makes a difference.
    """

    moved_ps: Whole
    kv_ps: int
    token_ps: int
    attention_ps: int
    link_ps: int
    overhead_ps: int
    sequence_ps: int
    prompt_ps: int
    room: int
    most: int
    chunk: int
    keeps: bool
    shared: int


class Arrivals(NamedTuple):
    """Requests in the order in which they arrive and are admitted.

    `slot` is the conversation, from 1; `first` is the step of the first token, once it is known.
    """

    at_ps: Whole
    prompt: Whole
    output: Whole
    slot: Whole
    first: Whole


class Kept(NamedTuple):
    """Conversations in the prefix cache, by slot: their tokens, 0 if a slot is not kept.

    The kept ones form a ring with the least recent first; it begins and ends at slot 0.
    """

    tokens: Whole
    older: Whole
    newer: Whole


class State(NamedTuple):
    """The state between two steps.

    Attributes:
        place: the request that is admitted next.
        left, offset: tokens to come and tokens done of the prompt that is cut. There is at most
            one: it fills the step, and continues before any other request is admitted.
        decoding: sequences that decode; `looked_back` are the tokens in their caches.
        reserved: tokens for which room is kept; `held` are those of conversations that are over.
        noted: steps whose end was noted.
    """

    now_ps: int = 0
    step: int = 0
    place: int = 0
    left: int = 0
    offset: int = 0
    decoding: int = 0
    looked_back: int = 0
    reserved: int = 0
    held: int = 0
    noted: int = 0
    busy_ps: int = 0
    prefilled: int = 0
    spared: int = 0
    sequence_steps: int = 0


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile at the first call, and keep the result on disk for the next process.

    If neither the package's folder nor the user's cache is writable, each process compiles anew;
    `NUMBA_CACHE_DIR` names another folder.
    """
    jit = cast(Callable[..., Callable[P, R]], numba.njit)  # pyright: ignore[reportUnknownMemberType]
    try:
        return jit(function, cache=True)
    except RuntimeError:  # no place for a cache
        return jit(function)


@compiled
def forget(kept: Kept, slot: int) -> int:
    """Drop a conversation; returns how many tokens that frees."""
    tokens = int(kept.tokens[slot])
    if tokens:
        kept.tokens[slot] = 0
        kept.newer[kept.older[slot]] = kept.newer[slot]
        kept.older[kept.newer[slot]] = kept.older[slot]
    return tokens


@compiled
def keep(kept: Kept, slot: int, tokens: int) -> int:
    """Keep a conversation as the most recent; returns how many more tokens that takes."""
    before = forget(kept, slot)
    last = kept.older[0]
    kept.tokens[slot], kept.older[slot], kept.newer[slot] = tokens, last, 0
    kept.newer[last] = kept.older[0] = slot
    return tokens - before


@compiled
def begin(line: Arrivals, place: int, step: int, ends: Whole, decoding: int) -> int:
    """Note a request's first token, and put its end among those of `decoding` sequences.

    Returns:
        The tokens in its cache.
    """
    line.first[place] = step
    end = step - 1 + line.output[place] << PLACES | place
    while decoding and ends[decoding - 1] < end:
        ends[decoding] = ends[decoding - 1]
        decoding -= 1
    ends[decoding] = end
    return line.prompt[place] + 1


@compiled
def pairs_of(tokens: int, before: int) -> int:
    """Count the pairs of each token of a prompt with those before it and with itself."""
    return tokens * (2 * before + tokens + 1) >> 1


@compiled
def step_ps(  # noqa: PLR0917 -- numba
    rules: Rules, decoding: int, looked_back: int, computed: int, read: int, pairs: int,
    prompts: int,
) -> int:  # fmt: skip
    """Return the duration of a step, as `StepCosts.step_ps` does."""
    tokens = decoding + computed
    moved_ps = rules.moved_ps[min(tokens, rules.moved_ps.size - 1)]
    moved_ps += rules.kv_ps * (looked_back + read)
    arithmetic_ps = rules.token_ps * tokens + rules.attention_ps * (looked_back + pairs)
    fixed_ps = rules.overhead_ps + rules.link_ps * tokens
    fixed_ps += rules.sequence_ps * decoding + rules.prompt_ps * prompts
    return max(moved_ps, arithmetic_ps) + fixed_ps


@compiled
def play(  # noqa: PLR0912, PLR0915, PLR0917 -- one loop over numbers that live in registers
    until_ps: int, known: int, rules: Rules, rows: Whole, slots: Whole, ends: Whole,
    ended_ps: Whole, state: State,
) -> State:  # fmt: skip
    """Run every step that begins before `until_ps`, or as many as `ended_ps` can note.

    Args:
        until_ps: see above.
        known: how many requests are in the line.
        rules: what a step costs and what it may hold.
        rows: the rows of `Arrivals`, of which `first` is written, and maybe more rows.
        slots: the rows of `Kept`; written.
        ends: the ends of the sequences that decode, the latest first; written.
        ended_ps: when each step ended, from `state.noted` on; written.
        state: the state before.

    Returns:
        The state afterwards.
    """
    (now_ps, step, place, left, offset, decoding, looked_back, reserved, held, noted, busy_ps,
     prefilled, spared, sequence_steps) = state  # fmt: skip
    # Passing an array takes a tenth of the time that passing a tuple of its rows takes.
    line = Arrivals(rows[0], rows[1], rows[2], rows[3], rows[4])
    kept = Kept(slots[0], slots[1], slots[2])
    while now_ps < until_ps and noted < ended_ps.size:
        if not decoding and not left:
            if place == known or line.at_ps[place] >= until_ps:
                break
            now_ps = max(now_ps, line.at_ps[place])
        # Prompts: first the one that was cut. Those read to the end decode from the next step on.
        inside = through = decoding
        computed = read = pairs = prompts = grown = 0
        budget = rules.chunk - decoding
        if left:
            computed, read = min(left, budget), offset
            pairs = pairs_of(computed, offset)
            left -= computed
            offset += computed
            inside += 1
            prompts = 1
            if not left:
                grown = begin(line, place - 1, step + 1, ends, through)
                through += 1
        while (
            place < known
            and line.at_ps[place] <= now_ps
            and inside < rules.most
            and computed < budget
        ):
            prompt = line.prompt[place]
            spare = rules.room - reserved - prompt - line.output[place]
            if spare < 0:
                break
            hit = 0
            if rules.keeps:
                hit = forget(kept, line.slot[place])
                held -= hit
                while held > spare:
                    held -= forget(kept, kept.newer[0])
                # A prompt's last token always has to be computed.
                hit = min(hit or rules.shared, prompt - 1)
            take = min(prompt - hit, budget - computed)
            left = prompt - hit - take
            if left:
                offset = hit + take
            else:
                grown += begin(line, place, step + 1, ends, through)
                through += 1
            reserved += prompt + line.output[place]
            computed += take
            spared += hit
            read += hit
            pairs += pairs_of(take, hit)
            inside += 1
            prompts += 1
            place += 1
        took_ps = step_ps(rules, decoding, looked_back, computed, read, pairs, prompts)
        now_ps += took_ps
        busy_ps += took_ps
        step += 1
        ended_ps[noted] = now_ps
        noted += 1
        prefilled += computed
        sequence_steps += decoding
        looked_back += decoding + grown
        decoding = through
        while decoding and ends[decoding - 1] >> PLACES == step:
            decoding -= 1
            ended = int(ends[decoding] & PLACE)
            tokens = int(line.prompt[ended] + line.output[ended])
            looked_back -= tokens
            reserved -= tokens
            if rules.keeps:
                held += keep(kept, line.slot[ended], tokens)
    return State(
        now_ps, step, place, left, offset, decoding, looked_back, reserved, held, noted, busy_ps,
        prefilled, spared, sequence_steps,
    )  # fmt: skip
