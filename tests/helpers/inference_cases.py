"""Servers, policies and arrivals for tests of the inference engine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from turngap.inference.engine import FOREVER_PS, Engine, Policy, Request, Step
from turngap.inference.server import H100, PS_PER_MS, WAFER, Model, Server, Speculation, find_model

MIXTURE = Model(
    "mixture", params_b=8.0, layers=8, heads=16, kv_heads=4, head_dim=64,
    active_b=2.0, experts=8, experts_per_token=1,
)  # fmt: skip
SERVERS = {
    "gpu": Server(H100, find_model("llama-3.1-8b"), weights="fp8", kv="fp8"),
    "split": Server(H100, find_model("llama-3.3-70b"), 4, weights="fp8", kv="fp8"),
    "wafer": Server(WAFER, find_model("8b"), weights="fp16", kv="fp16"),
    "experts": Server(H100, MIXTURE, weights="fp8"),
    # Whose steps cost the more, the more decode in them and the more prompts they read.
    "talkative": Server(
        replace(H100, sequence_us=130, prompt_us=1900), find_model("llama-3.1-8b"), weights="fp8"
    ),
    # Room for 2,482 tokens: the longest request fits, a few of them together do not.
    "cramped": Server(H100, find_model("35.7b"), context=2048),
}
LONGEST_PROMPT, LONGEST_REPLY = 1500, 60


@dataclass(frozen=True, slots=True)
class Arrival:
    at_ps: int
    prompt: int
    output: int
    opening: int
    session: int | None


@st.composite
def arrivals(draw: st.DrawFn, most: int = 16) -> list[Arrival]:
    """Requests at any pace, bursts at one instant included."""
    found: list[Arrival] = []
    at_ps = 0
    pace_ms = draw(st.sampled_from([0.01, 1.0, 20.0, 400.0]))
    for _ in range(draw(st.integers(1, most))):
        at_ps += int(draw(st.floats(0, 3)) * pace_ms * PS_PER_MS) if draw(st.booleans()) else 0
        output = draw(st.integers(1, LONGEST_REPLY))
        found.append(
            Arrival(
                at_ps=at_ps,
                prompt=draw(st.integers(1, LONGEST_PROMPT)),
                output=output,
                opening=draw(st.integers(1, output)),
                session=draw(st.none() | st.integers(0, 3)),
            )
        )
    return found


policies = st.one_of(
    st.builds(
        Policy,
        st.just("continuous"),
        st.integers(1, 16),
        chunk_tokens=st.none() | st.integers(17, 600),
    ),
    st.builds(Policy, st.just("immediate"), st.integers(1, 8)),
    st.builds(Policy, st.just("static"), st.integers(1, 8), max_wait_ms=st.floats(0, 300)),
)
servers = st.sampled_from(sorted(SERVERS)).map(SERVERS.__getitem__)
speculations = st.none() | st.builds(
    Speculation, st.floats(0, 1), st.integers(1, 6), st.floats(0, 0.3)
)


@dataclass(frozen=True, slots=True)
class Played:
    engine: Engine
    requests: Sequence[Request]
    trace: Sequence[Step]

    @property
    def instants(self) -> list[tuple[int, ...]]:
        return [
            (r.arrived_ps, r.admitted_ps, r.first_ps, r.opening_ps, r.done_ps)
            for r in self.requests
        ]

    @property
    def mean_ttft_ps(self) -> float:
        return sum(r.first_ps - r.arrived_ps for r in self.requests) / len(self.requests)


def play(
    server: Server,
    policy: Policy,
    came: Sequence[Arrival],
    *,
    prefix_cache: bool = False,
) -> Played:
    """Submit them all and run until nothing is left to do."""
    trace: list[Step] = []
    engine = Engine(server, policy, prefix_cache=prefix_cache, trace=trace)
    requests: list[Request] = []
    for number, arrival in enumerate(came):
        request = Request(
            arrival.prompt, arrival.output, arrival.opening, session=arrival.session, tag=number
        )
        engine.submit(request, arrival.at_ps)
        requests.append(request)
    engine.advance(FOREVER_PS)
    return Played(engine, requests, trace)
