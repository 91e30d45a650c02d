"""Properties of every server, policy and course of arrivals."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_cases import (
    LONGEST_REPLY,
    SERVERS,
    Arrival,
    arrivals,
    play,
    policies,
    servers,
    speculations,
)

from turngap.inference.engine import FOREVER_PS, Engine, Policy, PrefixCache, Request
from turngap.inference.server import Server, Speculation, StepCosts

Speculations = Speculation | None


@given(servers, speculations, policies, arrivals(), st.booleans())
def test_no_token_comes_before_its_prompt_was_computed(
    server: Server, speculation: Speculations, policy: Policy, came: list[Arrival], cache: bool
) -> None:
    played = play(replace(server, speculation=speculation), policy, came, prefix_cache=cache)
    costs = played.engine.costs
    for request in played.requests:
        assert request.arrived_ps <= request.admitted_ps
        computed = request.prompt - request.hit
        assert computed >= 1
        least = costs.token_ps * computed + costs.overhead_ps
        assert request.first_ps - request.admitted_ps >= least
        assert request.first_ps <= request.opening_ps <= request.done_ps


@given(servers, speculations, policies, arrivals(), st.booleans())
def test_work_is_conserved(
    server: Server, speculation: Speculations, policy: Policy, came: list[Arrival], cache: bool
) -> None:
    played = play(replace(server, speculation=speculation), policy, came, prefix_cache=cache)
    engine, trace = played.engine, played.trace
    # Every token that was asked for is given once, every prompt token computed or spared once.
    assert engine.replies == len(came)
    assert engine.emitted == sum(a.output for a in came)
    assert engine.prefilled + engine.spared == sum(a.prompt for a in came)
    assert engine.prefilled == sum(step.prefill for step in trace)
    assert engine.spared == sum(r.hit for r in played.requests)
    assert engine.spared == 0 or cache
    # Steps follow one another, and their time is all that the engine worked.
    assert all(before.end_ps <= after.start_ps for before, after in pairwise(trace))
    assert engine.busy_ps == sum(step.end_ps - step.start_ps for step in trace)
    assert engine.steps == len(trace)
    # Nothing is left behind.
    assert engine.idle
    assert engine.load == 0
    assert engine.unopened() == []


@given(servers, speculations, policies, arrivals(), st.data())
def test_nobody_is_let_in_beyond_the_batch_or_the_memory(
    server: Server,
    speculation: Speculations,
    policy: Policy,
    came: list[Arrival],
    data: st.DataObject,
) -> None:
    server = replace(server, speculation=speculation)
    engine = Engine(server, policy, prefix_cache=data.draw(st.booleans()))
    requests = [Request(a.prompt, a.output, a.opening, a.session, n) for n, a in enumerate(came)]
    left_ps: dict[Request, int] = {}
    for request, a in zip(requests, came, strict=True):
        engine.submit(request, a.at_ps)
    for at_ps in sorted(data.draw(st.lists(st.integers(0, came[-1].at_ps + 10**12), max_size=3))):
        loser = data.draw(st.sampled_from(requests))
        engine.cancel(loser, at_ps)
        left_ps.setdefault(loser, engine.now_ps)
    engine.advance(FOREVER_PS)
    stays = [
        (r.admitted_ps, left_ps.get(r, FOREVER_PS) if r.stopped else r.done_ps, r.tokens)
        for r in requests
        if r.admitted_ps >= 0
    ]
    # The batch is largest when somebody has just come in; who is done makes room at that instant.
    for now_ps, _, _ in stays:
        inside = [tokens for began, ended, tokens in stays if began <= now_ps < ended]
        assert len(inside) <= policy.max_batch
        assert sum(inside) <= server.kv_tokens


# Few and small, so that the room is often full to the last token.
@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(1, 3)), max_size=30))
def test_what_is_kept_of_conversations_leaves_the_room_to_whoever_is_let_in(
    came: list[tuple[int, int, int]],
) -> None:
    room, cache = 12, PrefixCache()
    inside: list[tuple[int, int]] = []
    for session, tokens, ended in came:
        for conversation in inside[:ended]:
            cache.keep(*conversation)
        del inside[:ended]
        spare = room - tokens - sum(held for _, held in inside)
        if spare >= 0:
            cache.take(session, tokens, spare)
            inside.append((session, tokens))
    # What it gives back of each conversation is what it has kept of it.
    kept = sum(cache.take(session, room, room) for session in range(4))
    assert kept + sum(tokens for _, tokens in inside) <= room


@given(servers, speculations, policies, arrivals())
def test_the_engine_rests_only_when_it_may(
    server: Server, speculation: Speculations, policy: Policy, came: list[Arrival]
) -> None:
    played = play(replace(server, speculation=speculation), policy, came)
    for before, after in pairwise(played.trace):
        if before.end_ps == after.start_ps:
            continue
        open_ = [r for r in played.requests if r.arrived_ps <= before.end_ps < r.done_ps]
        # Whoever is there is waiting for company, which only `static` makes them do.
        assert all(r.admitted_ps >= after.start_ps for r in open_)
        assert len(open_) < policy.max_batch if policy.name == "static" else not open_


@given(servers, policies, arrivals(), st.booleans())
def test_requests_are_taken_in_the_order_in_which_they_came(
    server: Server, policy: Policy, came: list[Arrival], cache: bool
) -> None:
    played = play(server, policy, came, prefix_cache=cache)
    for before, after in pairwise(played.requests):
        assert before.admitted_ps <= after.admitted_ps
        assert before.first_ps <= after.first_ps


@given(servers, speculations, policies, arrivals(8))
def test_each_reply_comes_token_by_token_in_order(
    server: Server, speculation: Speculations, policy: Policy, came: list[Arrival]
) -> None:
    engine = Engine(replace(server, speculation=speculation), policy)
    requests: list[Request] = []
    out: list[list[int]] = []

    def run(until_ps: int) -> None:
        while engine.next_ps < until_ps:
            engine.advance(engine.next_ps + 1)
            for request, seen in zip(requests, out, strict=True):
                seen.append(engine.tokens_out(request))

    for number, a in enumerate(came):
        run(a.at_ps)
        requests.append(Request(a.prompt, a.output, a.opening, tag=number))
        out.append([0])
        engine.submit(requests[-1], a.at_ps)
    run(FOREVER_PS)
    at_once = 1 + (speculation.draft_tokens if speculation else 0)
    for request, seen in zip(requests, out, strict=True):
        assert seen[-1] == request.output
        assert all(0 <= b - a <= at_once for a, b in pairwise(seen))


@given(servers, speculations, policies, arrivals(), st.booleans())
def test_the_same_requests_take_the_same_course(
    server: Server, speculation: Speculations, policy: Policy, came: list[Arrival], cache: bool
) -> None:
    server = replace(server, speculation=speculation)
    first = play(server, policy, came, prefix_cache=cache)
    again = play(server, policy, came, prefix_cache=cache)
    assert first.instants == again.instants
    assert first.trace == again.trace


@given(servers, st.integers(1, 64), st.integers(0, 200_000))
def test_a_decode_step_is_longer_the_more_it_looks_back(
    server: Server, sequences: int, looked_back: int
) -> None:
    costs = StepCosts(server)
    each = [costs.step_ps(sequences, looked_back + n * sequences) for n in range(3)]
    assert each == sorted(each)
    assert each[0] == costs.decode_ps(sequences, looked_back)


@given(servers, speculations, st.sampled_from(["continuous", "immediate", "static"]), arrivals())
def test_nobody_is_answered_slower_alone_than_in_a_batch_of_eight(
    server: Server, speculation: Speculations, name: str, came: list[Arrival]
) -> None:
    server = replace(server, speculation=speculation)
    wait = 50.0 if name == "static" else None
    alone = play(server, Policy("immediate", 1), came)
    batched = play(server, Policy(name, 8, max_wait_ms=wait), came)  # type: ignore[arg-type]
    for one, of_eight in zip(alone.requests, batched.requests, strict=True):
        assert one.done_ps - one.first_ps <= of_eight.done_ps - of_eight.first_ps


@settings(max_examples=80)
@given(servers, st.integers(1, 8), st.integers(1, 5), arrivals(16))
def test_waiting_for_a_full_batch_gains_a_step_at_most_by_luck(
    server: Server, batch: int, batches: int, came: list[Arrival]
) -> None:
    came = (came * batch * batches)[: batch * batches]
    came = sorted(came, key=lambda a: a.at_ps)
    if max(a.prompt + a.output for a in came) * batch > server.kv_tokens:
        return  # memory, not the policy, would make the batches
    waiting = play(server, Policy("static", batch), came)
    joining = play(server, Policy("continuous", batch), came)
    longest = max(s.end_ps - s.start_ps for s in joining.trace)
    assert joining.mean_ttft_ps <= waiting.mean_ttft_ps + longest


def test_that_luck_is_two_requests_within_one_step() -> None:
    # The first leaves at once and the second has to wait for its step to end, where a batch of two
    # would have taken both: so "static never beats continuous" does not hold for any arrivals.
    came = [Arrival(0, 10, 5, 1, None), Arrival(1000, 10, 5, 1, None)]
    waiting = play(SERVERS["gpu"], Policy("static", 2), came)
    joining = play(SERVERS["gpu"], Policy("continuous", 2), came)
    assert waiting.mean_ttft_ps < joining.mean_ttft_ps < 2 * waiting.mean_ttft_ps


@settings(max_examples=40)
@given(
    st.integers(2, 16), st.floats(0.05, 0.8), st.integers(0, 10**6), st.integers(8, LONGEST_REPLY)
)
def test_at_random_arrivals_a_full_batch_is_never_quicker(
    batch: int, usage: float, seed: int, output: int
) -> None:
    server, random = SERVERS["gpu"], Random(seed)
    step_s = StepCosts(server).step_ps(batch, batch * 200) / 1e12
    # So many a second keep that share of the batch busy, each prompt taking a step of its own.
    rate = usage * batch / ((output + batch) * step_s)
    at_ps = 0
    came: list[Arrival] = []
    for _ in range(40 * batch):
        at_ps += round(random.expovariate(rate) * 1e12)
        came.append(Arrival(at_ps, random.randint(1, 200), output, 1, None))
    waiting = play(server, Policy("static", batch), came)
    joining = play(server, Policy("continuous", batch), came)
    assert joining.mean_ttft_ps <= waiting.mean_ttft_ps


@given(servers, speculations, policies, arrivals(10), st.data())
def test_a_cancelled_request_costs_nothing_after_its_step(
    server: Server,
    speculation: Speculations,
    policy: Policy,
    came: list[Arrival],
    data: st.DataObject,
) -> None:
    if policy.name == "static":
        policy = replace(policy, max_wait_ms=0.0)
    server = replace(server, speculation=speculation)
    engine = Engine(server, policy, prefix_cache=True)
    requests = [Request(a.prompt, a.output, a.opening, session=n) for n, a in enumerate(came)]
    for request, a in zip(requests, came, strict=True):
        engine.submit(request, a.at_ps)
    loser = data.draw(st.sampled_from(requests))
    at_ps = came[-1].at_ps + round(data.draw(st.floats(0, 1)) * 1e12)
    engine.cancel(loser, at_ps)
    given_out = engine.tokens_out(loser)
    was_done = loser.done_ps >= 0
    assert loser.stopped is not was_done
    engine.advance(FOREVER_PS)
    assert engine.tokens_out(loser) == given_out
    assert engine.emitted == given_out + sum(r.output for r in requests if r is not loser)
    assert all(r.done_ps >= 0 for r in requests if r is not loser)
    assert engine.idle
    assert engine.load == 0


@given(
    servers,
    speculations,
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30), st.floats(0, 1)), max_size=4),
)
def test_who_comes_after_dropped_requests_is_served_as_by_a_new_server(
    server: Server, speculation: Speculations, dropped: list[tuple[int, int, float]]
) -> None:
    server = replace(server, speculation=speculation)
    engine, fresh = (Engine(server, Policy("continuous", 4)) for _ in range(2))
    at_ps = 0
    for prompt, output, share in dropped:
        loser = Request(prompt, output)
        engine.submit(loser, at_ps)
        # Within its reply, of which the whole takes at most so long.
        at_ps += round(share * output * StepCosts(server).step_ps(1, 100, 40, 0, 820))
        engine.cancel(loser, at_ps)
        at_ps += 10**13
    late, same = Request(30, 20), Request(30, 20)
    engine.submit(late, at_ps)
    fresh.submit(same, at_ps)
    engine.advance(at_ps + 10**13)
    fresh.advance(at_ps + 10**13)
    assert same.done_ps >= 0
    assert (late.first_ps, late.done_ps) == (same.first_ps, same.done_ps)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
def test_speculation_yields_as_many_tokens_a_step_as_the_formula_says(acceptance: float) -> None:
    speculation = Speculation(acceptance, draft_tokens=4)
    yields = [n for key in range(40) for n in speculation.steps(200, str(key))]
    assert sum(yields) == 40 * 200
    # 8,000 tokens; the ends of replies, which cut a step short, cost less than 1 %.
    assert sum(yields) / len(yields) == pytest.approx(speculation.tokens_per_step, rel=0.04)
