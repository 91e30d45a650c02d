"""Each fault of a packet's way, by its properties."""

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.line.faults import (
    Coalescing,
    Delay,
    Fault,
    HalfOpen,
    Jitter,
    Loss,
    Outage,
    Path,
    Rate,
)
from turngap.core.clock import NS_PER_MS, NS_PER_S, ms_to_ns

PACKET_NS = 20 * NS_PER_MS
instants = st.lists(st.integers(0, 60 * NS_PER_S), min_size=1, max_size=200).map(sorted)


def made(seed: str) -> dict[str, Fault]:
    """Return one of each fault."""
    return {
        "delay": Delay(80),
        "jitter": Jitter(30, Random(seed)),
        "loss": Loss(0.05, 0, Random(seed)),
        "fades": Loss(0.05, 60, Random(seed)),
        "rate": Rate(300, 500),
        "outage": Outage(400, 10, Random(seed)),
        "half-open": HalfOpen(20 * NS_PER_S),
    }


@given(instants, st.text(max_size=5))
def test_packets_keep_their_order_and_never_arrive_before_they_are_sent(
    sent: list[int], seed: str
) -> None:
    again = made(seed)
    for name, fault in made(seed).items():
        arrives = [fault.carry(at, 700) for at in sent]
        there = [at for at in arrives if at is not None]
        assert there == sorted(there), name
        assert all(to is None or to >= at for at, to in zip(sent, arrives, strict=True)), name
        assert arrives == [again[name].carry(at, 700) for at in sent], f"{name}: another line"


def shares(fault: Fault, n: int = 50_000) -> list[bool]:
    """Return for each packet of 20 ms whether it is lost."""
    return [fault.carry(i * PACKET_NS, 700) is None for i in range(n)]


def test_losses_have_their_share_and_bursts_their_length() -> None:
    alone, fades = (shares(Loss(0.05, ms, Random("a"))) for ms in (0, 200))
    assert 0.04 < sum(alone) / len(alone) < 0.06
    assert 0.04 < sum(fades) / len(fades) < 0.06
    follows = [after for lost, after in pairwise(fades) if lost]
    assert 0.85 < sum(follows) / len(follows) < 0.95, "packets of 20 ms in fades of 200 ms"


def test_fades_are_at_the_same_times_for_every_agent() -> None:
    often, seldom = (Loss(0.1, 100, Random("a")) for _ in range(2))
    times = range(0, 30 * NS_PER_S, PACKET_NS)
    lost = {at for at in times if often.carry(at, 100) is None}
    assert {at for at in times[::7] if seldom.carry(at, 900) is None} == lost & set(times[::7])


def test_a_link_takes_its_time_and_its_queue_is_bounded() -> None:
    link = Rate(100, 200)  # 12.5 bytes a millisecond
    arrives = [link.carry(0, 1250) for _ in range(10)]
    assert arrives[:3] == [ms_to_ns(ms) for ms in (100, 200, 300)]
    assert arrives[3:] == [None] * 7
    assert link.carry(ms_to_ns(150), 1250) == ms_to_ns(400)


def test_an_outage_comes_back_and_a_half_open_line_does_not() -> None:
    lost = shares(Outage(400, 10, Random("a")), 5000)
    assert sum(lost) == 20 * 10
    assert shares(HalfOpen(NS_PER_S), 100) == [False] * 50 + [True] * 50


def test_a_path_adds_its_faults_up() -> None:
    path = Path([Rate(1000, 500), Delay(50)])
    assert path.carry(0, 1250) == ms_to_ns(60)
    assert Path([HalfOpen(0), Delay(50)]).carry(0, 1) is None


def test_a_hop_that_collects_passes_on_what_it_has_at_once() -> None:
    hop = Coalescing(40)
    held = [hop.hold(ms_to_ns(ms)) for ms in (0, 20, 40, 60, 150)]
    assert held == [ms_to_ns(ms) for ms in (40, 40, 40, 100, 190)]
