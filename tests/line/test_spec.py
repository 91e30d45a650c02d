"""What `--line` takes, and what it says about the rest."""

import pytest

from turngap.caller.line.spec import Way, parse_line, profiles
from turngap.core.clock import ms_to_ns
from turngap.core.errors import InputError


def test_a_line_names_faults_of_both_directions_or_of_one() -> None:
    line = parse_line("delay=80,jitter=20ms,loss=1%,rtt=120,down=300kbit,up.burst=60,seed=7")
    assert line.up == Way(delay_ms=80, jitter_ms=20, loss=0.01, burst_ms=60)
    assert line.down == Way(delay_ms=80, jitter_ms=20, loss=0.01, kbit=300)
    assert (line.rtt_ms, line.seed) == (120, 7)
    outage = parse_line("outage=400ms/60s,up=1.2Mbit,half-open=20,coalesce=40")
    assert (outage.up.outage_ms, outage.up.every_s, outage.up.kbit) == (400, 60, 1200)
    assert outage.half_open_s == 20 and outage.down.coalesce_ms == 40


def test_a_round_trip_alone_is_half_a_delay_each_way() -> None:
    assert parse_line("rtt=120").up.delay_ms == parse_line("rtt=120").down.delay_ms == 60


def test_a_profile_can_be_changed() -> None:
    name, plain = next(iter(profiles().items()))
    changed = parse_line(f"{name}, loss=2%")
    assert changed.name == name and changed.up.loss == 0.02
    assert changed.down.delay_ms == plain.down.delay_ms


@pytest.mark.parametrize("name", profiles())
def test_every_profile_says_what_it_is_and_where_its_numbers_are_from(name: str) -> None:
    line = profiles()[name]
    assert line.about and line.source and line.both_ms > 0
    assert parse_line(name) == line
    assert parse_line(name.upper()).down == line.down


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("lte-movin", "line.unknown", "did you mean lte-moving?"),
        ("", "line.unknown", "known: delay"),
        ("delay", "line.unknown", "unknown line"),
        ("dely=80", "line.unknown", "did you mean delay?"),
        ("sideways.delay=80", "line.unknown", "no fault"),
        ("up.up=80", "line.unknown", "no fault"),
        ("up.rtt=80", "line.unknown", "no fault"),
        ("lte,lte-bad", "line.unknown", "is a second profile"),
        ("delay=-1", "line.value", "expected 0 to 30000 ms, as 80ms"),
        ("delay=1e9", "line.value", "expected 0 to 30000 ms"),
        ("delay=99999", "line.value", "expected 0 to 30000 ms"),
        ("burst=0.01", "line.value", "1 to 30000 ms"),
        ("seed=1.5", "line.value", "whole number"),
        ("loss=1", "line.value", "0 to 50 %, as 1% or 0.01"),
        ("down=1kbit", "line.value", "8 to"),
        ("outage=400", "line.value", "how often"),
        ("outage=5s/3s", "line.value", "how often"),
        ("delay=20,rtt=120", "line.value", "longer than both delays"),
    ],
)
def test_a_wrong_line_is_one_clear_error(text: str, kind: str, says: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_line(text)
    assert raised.value.kind == kind
    assert says in f"{raised.value.message} {raised.value.hint}"


def test_a_link_fails_both_ways_at_once() -> None:
    legs = parse_line("delay=50,outage=400ms/5s").packet_legs("a", 0)
    sent = [ms_to_ns(20 * i) for i in range(1000)]
    for leg in legs:
        for at in sent:
            leg.send(at, bytes([1]))
    up, down = ([at for at, _ in leg.receive(sent[-1] * 2)] for leg in legs)
    assert up == down and len(up) < len(sent)
