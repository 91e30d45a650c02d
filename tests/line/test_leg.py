"""A TCP connection over a faulty path: nothing is lost, and losses become stalls and bursts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.caller.line.faults import Delay
from turngap.caller.line.leg import Leg, TcpLeg
from turngap.caller.line.spec import parse_line
from turngap.core.clock import NS_PER_S, ms_to_ns, ns_to_ms

LINES = (
    "delay=50",
    "delay=50,jitter=40",
    "delay=50,loss=2%",
    "delay=30,loss=10%,burst=60",
    "delay=80,jitter=20,loss=1%,rtt=120,down=300kbit",
    "delay=20,rate=64kbit,queue=100ms",
    "delay=40,outage=3s/20s",
    "delay=30,coalesce=100",
)
MESSAGE = 640


def drain(leg: Leg, until_ns: int) -> list[tuple[int, bytes]]:
    """Return all that comes out until an instant."""
    pieces: list[tuple[int, bytes]] = []
    while (next_ns := leg.next_ns) is not None and next_ns <= until_ns:
        pieces += leg.receive(next_ns)
    return pieces


def delays(line: str, messages: int = 3000, call: str = "a", way: int = 1) -> list[float]:
    """Send a message of 640 bytes each 20 ms; return how long each took, in ms."""
    leg = parse_line(line).legs(call, 0)[way]
    sent = [i * ms_to_ns(20) for i in range(messages)]
    pieces: list[tuple[int, bytes]] = []
    for at in sent:
        pieces += drain(leg, at)
        leg.send(at, bytes(MESSAGE))
    pieces += drain(leg, sent[-1] + 3600 * NS_PER_S)
    arrived: list[float] = []
    size = 0
    for at, data in pieces:
        size += len(data)
        while len(arrived) < size // MESSAGE:
            arrived.append(ns_to_ms(at - sent[len(arrived)]))
    return arrived


writes = st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=5000)), max_size=60)


@settings(max_examples=60, deadline=None)
@given(writes, st.sampled_from(LINES), st.integers(0, 5))
def test_bytes_keep_their_order_and_none_is_lost_or_early(
    writes: list[tuple[int, bytes]], line: str, seed: int
) -> None:
    spec = parse_line(f"{line},seed={seed}")
    again = spec.legs("call", 0)[1]
    leg, at = spec.legs("call", 0)[1], 0
    pieces, entered, sent = [], [], b""
    for wait_ms, data in writes:
        at += ms_to_ns(wait_ms)
        pieces += drain(leg, at)
        leg.send(at, data)
        again.send(at, data)  # asked only at the end, which must not change anything
        entered += [at] * len(data)
        sent += data
    leg.finish(at)
    again.finish(at)
    pieces += drain(leg, at + 3600 * NS_PER_S)
    assert b"".join(data for _, data in pieces) == sent
    assert pieces[-1][1] == b"" and all(data for _, data in pieces[:-1])
    instants = [out for out, _ in pieces]
    assert instants == sorted(instants)
    place = 0
    for out, data in pieces[:-1]:
        place += len(data)
        assert out >= entered[place - 1] + ms_to_ns(spec.down.delay_ms)
    assert leg.waiting == 0
    assert drain(again, at + 3600 * NS_PER_S) == pieces, "the same seed is not the same line"


def test_without_losses_every_message_takes_the_delay() -> None:
    assert set(delays("delay=50", 100)) == {50}
    late = delays("delay=50,jitter=40", 1000)
    assert 50 <= min(late) < 55 and 85 < max(late) <= 90


def test_a_lost_packet_stalls_the_stream_for_more_than_a_round_trip() -> None:
    took = delays("delay=50,loss=1%")
    stalled = [ms for ms in took if ms > 50]
    # It is repaired once three later packets have arrived, or is lost again.
    assert 0.02 < len(stalled) / len(took) < 0.3
    assert 150 <= max(took) <= 600
    assert sorted(took)[len(took) // 2] == 50


class LosesFirst:
    """A path of 50 ms that loses so many packets, and then no more."""

    def __init__(self, losses: int) -> None:
        self.left = losses

    def carry(self, at_ns: int, size: int) -> int | None:
        self.left -= 1
        return None if self.left >= 0 else at_ns + ms_to_ns(50)


@pytest.mark.parametrize(
    ("losses", "packets", "took_ms"),
    [
        (0, 1, 50),
        # A timeout of a round trip and 200 ms, and the way.
        (1, 1, 300 + 50),
        # That was a probe, after which the timeout begins anew, and doubles.
        (2, 1, 300 + 300 + 50),
        (3, 1, 300 + 300 + 600 + 50),
        # The next packet's round trip, and a quarter of one for mere disorder.
        (1, 2, 100 + 25 + 50),
        (1, 4, 100 + 25 + 50),
        # The end is lost: a probe after two round trips, whose answer shows what is missing.
        (0, 2, 50),
    ],
)
def test_a_lost_packet_is_repaired_as_linux_repairs_it(
    losses: int, packets: int, took_ms: float
) -> None:
    leg = TcpLeg(LosesFirst(losses), back=Delay(50), rtt_ns=ms_to_ns(100))
    for i in range(packets):
        drain(leg, i * ms_to_ns(20))
        leg.send(i * ms_to_ns(20), b"x")
    pieces = drain(leg, 60 * NS_PER_S)
    assert abs(ns_to_ms(pieces[0][0]) - took_ms) < 10
    assert len(pieces) == packets


def test_lost_acknowledgements_delay_only_what_finds_the_window_full() -> None:
    took = delays("delay=50,down.outage=400ms/20s", way=0)
    late = [ms for ms in took if ms > 50]
    # The timeout was in vain, and the window is as before: it is not an outage of the data.
    assert max(late) < 600 and 0 < len(late) / len(took) < 0.04


def test_small_segments_are_sent_again_as_one() -> None:
    path = LosesFirst(4)
    leg = TcpLeg(path, back=Delay(50), rtt_ns=ms_to_ns(100))
    for i in range(4):
        leg.send(i * ms_to_ns(20), b"x")
    pieces = drain(leg, 60 * NS_PER_S)
    # A probe sends the last one again, and its acknowledgement shows that three are missing.
    assert len({at for at, _ in pieces}) == 1 and -path.left == 2


def test_after_an_outage_the_backlog_comes_at_once() -> None:
    took = delays("delay=20,outage=3s/30s", 3000)
    worst = max(took)
    assert 3000 <= worst <= 7000, "the timeout has doubled meanwhile"
    at = took.index(worst)
    assert took[at + 300] == 20, "and the line is as before"


def test_a_rate_below_the_audio_makes_the_lag_grow() -> None:
    took = delays("delay=20,down=200kbit", 1500)
    assert took[200] < took[700] < took[1400]
    assert took[1400] > 5000


def test_a_full_window_says_that_there_is_no_room() -> None:
    leg = parse_line("delay=50,down=64kbit").legs("a", 0)[1]
    leg.send(0, bytes(100_000))
    assert leg.room <= 0
    drain(leg, 60 * NS_PER_S)
    assert leg.room > 0 and leg.waiting == 0


def test_nothing_comes_out_of_a_half_open_line_and_its_timers_are_few() -> None:
    leg = parse_line("delay=50,half-open=1").legs("a", 0)[0]
    leg.send(ms_to_ns(900), b"before")
    leg.send(ms_to_ns(1100), b"after")
    pieces, steps = [], 0
    while (next_ns := leg.next_ns) is not None and next_ns < 600 * NS_PER_S:
        pieces += leg.receive(next_ns)
        steps += 1
    assert b"".join(data for _, data in pieces) == b"before"
    assert steps < 40 and leg.waiting == len(b"after")


def test_packets_of_a_call_stay_whole_and_lost() -> None:
    up, _ = parse_line("delay=50,jitter=10,loss=20%").packet_legs("a", 0)
    for i in range(500):
        up.send(i * ms_to_ns(20), bytes([i % 256]) * 100)
    pieces = up.receive(3600 * NS_PER_S)
    assert 350 < len(pieces) < 450 and up.waiting == 0
    assert {len(data) for _, data in pieces} == {100}
    assert [at for at, _ in pieces] == sorted(at for at, _ in pieces)
