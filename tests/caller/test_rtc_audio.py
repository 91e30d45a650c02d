"""RTP by arrival: order, loss, jitter, playout buffers, and the ear on packets."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.ear import Ear
from turngap.caller.rtc.playout import AdaptiveBuffer, FixedBuffer, buffer_named
from turngap.caller.rtc.rtp import (
    FRAME,
    FRAME_MS,
    RATE,
    Piece,
    RtpPacket,
    RtpReader,
    opus_samples,
)
from turngap.caller.said import Packet
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.events import AgentSpeech
from turngap.testing.agent import voice

MUSIC_20_MS = b"\xf8" + bytes(9)  # CELT, one frame of 20 ms
T0 = ms_to_ns(1000)


def packet(number: int, payload: bytes = MUSIC_20_MS) -> RtpPacket:
    return RtpPacket(96, (65_530 + number) % 65_536, number * FRAME, 7, payload)


def read(arrivals: Sequence[tuple[int, float]]) -> tuple[list[Piece], RtpReader]:
    """Read packets, each with the ms of its arrival."""
    reader = RtpReader()
    pieces = [p for n, ms in arrivals for p in reader.read(packet(n), T0 + ms_to_ns(ms))]
    return pieces, reader


@given(st.binary(max_size=40))
def test_a_packet_is_read_as_it_was_written_and_nothing_else_crashes(data: bytes) -> None:
    written = RtpPacket(111, 5, 2**32 - 1, 2**31, data, marker=True)
    assert RtpPacket.parse(written.pack()) == written
    with suppress(ValueError):
        RtpPacket.parse(data)


def test_sources_and_extensions_of_a_header_are_skipped() -> None:
    header = bytes([0xB1, 96]) + bytes(10) + bytes(4) + b"\xbe\xde\x00\x01" + bytes(4)
    assert RtpPacket.parse(header + b"sound" + b"\x00\x02").payload == b"sound"


def test_packets_in_time_come_in_order_without_a_hole_over_the_wrap() -> None:
    pieces, reader = read([(n, n * 20) for n in range(20)])
    assert [p.goes_on for p in pieces] == [False] + [True] * 19
    assert all(p.jitter_ns == 0 and p.payload for p in pieces)
    assert not reader.counts


def test_a_packet_out_of_order_is_put_back_with_its_own_arrival() -> None:
    pieces, reader = read([(0, 0), (2, 40), (1, 45), (3, 60)])
    assert [ns_to_ms(p.arrived_ns - T0) for p in pieces] == [0, 45, 40, 60]
    assert [p.jitter_ns and ns_to_ms(p.jitter_ns) for p in pieces] == [0, 25, 0, 0]
    assert reader.counts == {"reordered": 1}


def test_a_lost_packet_is_given_up_after_60_ms_and_is_silence_of_its_length() -> None:
    pieces, reader = read([(n, n * 20) for n in range(8) if n != 2])
    assert [p.payload is None for p in pieces] == [False, False, True, *[False] * 5]
    assert pieces[2].samples == FRAME
    assert all(p.goes_on for p in pieces[1:])
    assert reader.counts == {"lost": 1}


def test_a_packet_after_it_was_given_up_is_late_and_no_sound() -> None:
    pieces, reader = read([*((n, n * 20) for n in range(8) if n != 2), (2, 170), (1, 171)])
    assert len(pieces) == 8
    assert reader.counts == {"lost": 1, "late": 2}


def test_a_stream_that_pauses_begins_anew() -> None:
    reader = RtpReader()
    assert len(reader.read(packet(0), T0)) == 1
    assert reader.read(packet(1, b"\xf8"), T0) == []  # discontinuous transmission
    after = RtpPacket(96, 65_530 + 2, 500 * FRAME, 7, MUSIC_20_MS)
    (piece,) = reader.read(after, T0 + ms_to_ns(500 * FRAME_MS))
    assert not piece.goes_on
    assert reader.counts == {"comfort noise": 1}


def test_a_backlog_after_a_stop_is_played_in_order_a_quarter_faster() -> None:
    stopped = [(n, max(n * 20.0, 1080)) for n in range(4, 60)]
    pieces, reader = read([*((n, n * 20.0) for n in range(4)), *stopped])
    assert [p.goes_on for p in pieces] == [False, True, True, True, False, *[True] * 55]
    played = [ns_to_ms(p.arrived_ns - T0) for p in pieces[4:]]
    assert played[:3] == [1080, 1096, 1112]
    assert played == sorted(played)
    # Two packets are still to come when the last of the backlog has been played.
    assert played[-1] == pytest.approx(1080 + 55 * 16)
    assert all(p.jitter_ns is None for p in pieces[4:])
    assert reader.counts == {"stalled": 1}


def test_the_lost_start_of_a_stretch_after_silence_is_as_long_as_its_packets() -> None:
    reader = RtpReader()
    reader.read(packet(0), T0)
    reader.read(packet(1, b"\xf8"), T0 + ms_to_ns(20))
    pieces: list[Piece] = []
    for n in range(5, 10):  # 2 to 4 began the reply, after a second of comfort noise
        sent = RtpPacket(96, (65_530 + n) % 65_536, (n + 50) * FRAME, 7, MUSIC_20_MS)
        pieces += reader.read(sent, T0 + ms_to_ns((n + 50) * 20))
    assert (pieces[0].payload, pieces[0].samples, pieces[0].goes_on) == (None, 3 * FRAME, False)
    assert all(p.goes_on for p in pieces[1:])


def test_another_source_is_heard_once_the_first_is_silent() -> None:
    reader = RtpReader()
    other = [RtpPacket(96, n, n * FRAME, 9, MUSIC_20_MS) for n in range(3)]
    assert reader.read(packet(0), T0)
    assert not reader.read(other[0], T0 + ms_to_ns(10))
    assert reader.read(packet(1), T0 + ms_to_ns(20))
    assert reader.read(other[1], T0 + ms_to_ns(1100))
    assert reader.counts == {"another source": 1}


@pytest.mark.parametrize("by", [-1000, 30_000])
def test_numbers_that_begin_anew_cost_one_packet(by: int) -> None:
    reader = RtpReader()
    assert reader.read(packet(5000), T0)
    again = [
        RtpPacket(96, (65_530 + 5000 + by + n) % 65_536, n * FRAME, 7, b"\xf8xx") for n in (1, 2)
    ]
    assert reader.read(again[0], T0) == []
    assert len(reader.read(again[1], T0)) == 1
    assert reader.counts == {"restarted": 1}


def test_a_packet_of_another_kind_has_a_number_and_no_sound() -> None:
    reader = RtpReader()
    assert len(reader.read(packet(0), T0)) == 1
    assert reader.read(RtpPacket(101, 65_531, 7, 7, b""), T0) == []
    after = RtpPacket(96, 65_532, FRAME, 7, MUSIC_20_MS)
    (piece,) = reader.read(after, T0 + ms_to_ns(20))
    assert piece.goes_on
    assert not reader.counts


@given(
    st.permutations(range(12)), st.sets(st.integers(1, 11), max_size=4), st.integers(0, 2**32 - 1)
)
def test_no_sound_is_made_up_and_none_comes_twice(
    order: list[int], lost: set[int], origin: int
) -> None:
    """In any order, what was sent comes out at most once, in order, with its own arrival."""
    reader, sent = RtpReader(), {}
    pieces: list[Piece] = []
    for at, n in enumerate(order):
        if n in lost:
            continue
        payload = MUSIC_20_MS + bytes([n])
        sent[payload] = T0 + ms_to_ns(at * 20)
        timestamp = (origin + n * FRAME) % 2**32
        pieces += reader.read(RtpPacket(96, n, timestamp, 7, payload), sent[payload])
    heard = [p for p in pieces if p.payload is not None]
    assert [p.payload for p in heard] == sorted({p.payload or b"" for p in heard})
    assert all(p.arrived_ns == sent[p.payload or b""] for p in heard)
    assert all((p.jitter_ns or 0) >= 0 for p in pieces)
    assert sum(p.samples for p in pieces) <= 12 * FRAME


@pytest.mark.parametrize(
    ("payload", "ms"),
    [(b"\xf8", 20), (b"\x08", 20), (b"\x18", 60), (b"\x79\0", 40), (b"\xe3\x03", 7.5), (b"", 0)],
)
def test_the_length_of_an_opus_packet_is_in_its_first_bytes(payload: bytes, ms: float) -> None:
    assert opus_samples(payload) == ms * RATE / 1000


def test_a_fixed_buffer_plays_what_comes_within_it_at_one_delay() -> None:
    buffer = FixedBuffer(60)
    assert buffer.behind_ns(T0, ms_to_ns(15)) == ms_to_ns(45)
    assert buffer.behind_ns(T0, ms_to_ns(61)) == 0


def test_the_adaptive_buffer_shrinks_on_a_calm_line_and_grows_with_jitter() -> None:
    buffer = AdaptiveBuffer()
    for n in range(4000):
        buffer.behind_ns(T0 + ms_to_ns(n * 20), 0)
    assert buffer.delay_ms == 20
    for n in range(4000, 12_000):  # a packet in each second is late
        buffer.behind_ns(T0 + ms_to_ns(n * 20), ms_to_ns(100 if n % 50 == 0 else 0))
    assert buffer.delay_ms == 120
    for n in range(12_000, 40_000):
        buffer.behind_ns(T0 + ms_to_ns(n * 20), 0)
    assert buffer.delay_ms == 40  # the target, 20, and 20 more from which playout is hastened


def test_a_buffer_has_a_name() -> None:
    assert isinstance(buffer_named("adaptive"), AdaptiveBuffer)
    assert buffer_named("40").behind_ns(T0, 0) == ms_to_ns(40)
    with pytest.raises(ValueError):
        buffer_named("-1")


def heard(pcm: np.ndarray, jitter_ms: Sequence[float], lost: int = -1) -> AgentSpeech:
    """Play a stream in packets, each late by its jitter; return the only onset."""
    ear, events, before = Ear(), [], 0
    for n, jitter in enumerate(jitter_ms):
        piece = pcm[n * FRAME : (n + 1) * FRAME]
        arrived = T0 + ms_to_ns(n * 20 + jitter)
        if n == lost:
            piece, arrived = np.zeros_like(piece), arrived - ms_to_ns(20)
        placed = Packet(arrived, ms_to_ns(jitter), ms_to_ns(60 - jitter), n > 0, n == lost)
        before = max(before, arrived)
        events += ear.receive(before, piece, RATE, placed)
    events += ear.advance(before + ms_to_ns(500))
    assert [h.start_ns for h in ear.heard] == sorted(h.start_ns for h in ear.heard)
    (onset,) = [e for e in events if isinstance(e, AgentSpeech)]
    return onset


def test_a_word_sounds_at_its_packets_arrival_plus_its_place_in_the_packet() -> None:
    at = 10 * FRAME + 240  # 5 ms into its packet
    pcm = np.concatenate((np.zeros(at, np.int16), voice(400, RATE), np.zeros(15 * FRAME, np.int16)))
    calm = heard(pcm, [0.0] * 40)
    assert ns_to_ms(calm.onset_ns - T0) == pytest.approx(205, abs=0.1)
    jitter = [float(n * 7 % 15) for n in range(40)]
    jittery = heard(pcm, jitter)
    assert ns_to_ms(jittery.onset_ns - T0) == pytest.approx(205 + jitter[10], abs=0.1)
    assert jittery.playout_ns == ms_to_ns(60 - jitter[10])
    # Behind the buffer both sound at the same instant.
    assert calm.playout_ns == ms_to_ns(60)


def test_a_word_right_after_lost_audio_says_how_much_earlier_it_may_have_begun() -> None:
    pcm = np.concatenate(
        (np.zeros(10 * FRAME, np.int16), voice(400, RATE), np.zeros(9600, np.int16))
    )
    assert heard(pcm, [0.0] * 35, lost=9).spread_ns == ms_to_ns(20)
    assert (heard(pcm, [0.0] * 35, lost=5).spread_ns or 0) < ms_to_ns(20)
    cut = heard(pcm, [0.0] * 35, lost=10)
    assert ns_to_ms(cut.onset_ns - T0) == pytest.approx(220, abs=1)
    assert cut.spread_ns == ms_to_ns(20)
