"""What is read of a session's audio, and when, without a model and without a pipeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap_services.stt.sherpa.utterances import MOST_MS, STEP_MS, Piece, Utterances, samples

PACKET_MS = 20


def packet(value: int) -> bytes:
    return np.full(samples(PACKET_MS), value, np.int16).tobytes()


def hear(utterances: Utterances, values: range) -> None:
    for value in values:
        utterances.audio(packet(value))


def values(piece: Piece) -> list[int]:
    return [int(value) for value in piece.pcm[:: samples(PACKET_MS)]]


def due(utterances: Utterances) -> Piece:
    found = utterances.due()
    assert found is not None
    return found[1]


def test_an_utterance_begins_with_the_pre_roll_and_goes_on_from_there() -> None:
    utterances = Utterances(pre_roll_ms=100)
    hear(utterances, range(50))
    assert utterances.due() is None
    utterances.start()
    utterance, piece = utterances.due() or pytest.fail("nothing is due")
    assert values(piece) == [45, 46, 47, 48, 49]
    assert list(utterance.known) == list(piece.pcm)
    hear(utterances, range(50, 60))
    assert utterances.due() is None  # something is read already
    utterance.read("so far")
    assert values(due(utterances)) == list(range(50, 60))


def test_while_a_person_speaks_small_pieces_wait_and_the_end_does_not() -> None:
    utterances = Utterances(pre_roll_ms=0)
    utterances.start()
    utterances.audio(packet(1))
    assert PACKET_MS < STEP_MS
    assert utterances.due() is None
    utterances.stop()
    piece = due(utterances)
    assert piece.is_last
    assert values(piece) == [1]


def test_an_utterance_is_over_once_its_last_piece_was_read() -> None:
    utterances = Utterances(pre_roll_ms=0)
    utterances.start()
    hear(utterances, range(5))
    utterance, piece = utterances.due() or pytest.fail("nothing is due")
    utterances.stop()
    assert not piece.is_last
    utterance.read("half")
    assert utterances.concluded() is None
    assert not utterances.settled
    assert due(utterances).is_last
    assert utterances.concluded() is None
    utterance.read("all of it")
    assert utterances.concluded() is utterance
    assert utterance.text == "all of it"
    assert utterances.concluded() is None
    assert utterances.settled


def test_what_is_said_meanwhile_is_the_next_utterance_and_waits_for_its_turn() -> None:
    utterances = Utterances(pre_roll_ms=100)
    utterances.start()
    hear(utterances, range(5))
    first, _ = utterances.due() or pytest.fail("nothing is due")
    utterances.stop()
    hear(utterances, range(5, 8))
    utterances.start()
    hear(utterances, range(8, 12))
    first.read("one")
    of, last = utterances.due() or pytest.fail("nothing is due")
    assert (of, last.is_last) == (first, True)
    first.read("one.")
    assert utterances.concluded() is first
    second, piece = utterances.due() or pytest.fail("nothing is due")
    assert second is not first
    assert values(piece) == list(range(5, 12))


def test_starts_and_stops_that_come_twice_change_nothing() -> None:
    utterances = Utterances(pre_roll_ms=0)
    utterances.stop()
    assert utterances.settled
    utterances.start()
    opened = utterances.open
    utterances.start()
    assert utterances.open is opened
    utterances.stop()
    utterances.stop()
    assert utterances.open is None


def test_on_a_machine_that_is_too_slow_what_waits_is_known_and_bounded() -> None:
    utterances = Utterances(pre_roll_ms=0)
    utterances.start()
    hear(utterances, range(4))
    utterance, _ = utterances.due() or pytest.fail("nothing is due")  # and it takes for ever
    hear(utterances, range(100))
    assert utterance.behind_ms == 100 * PACKET_MS
    assert utterance.lost_ms == 0
    hear(utterances, range(2000))
    assert utterance.behind_ms == MOST_MS
    assert utterance.lost_ms == 2100 * PACKET_MS - MOST_MS


@given(st.lists(st.sampled_from(["audio", "audio", "audio", "start", "stop", "read"]), max_size=80))
def test_no_sample_of_an_utterance_is_read_twice_or_left_out(steps: list[str]) -> None:
    utterances = Utterances(pre_roll_ms=0)
    said: list[list[int]] = []
    read: dict[int, list[int]] = {}
    order: list[object] = []
    value, is_open = 0, False
    for step in [*steps, "stop", *["read"] * 100]:
        match step:
            case "audio":
                value += 1
                utterances.audio(packet(value))
                if is_open:
                    said[-1].append(value)
            case "start":
                utterances.start()
                if not is_open:
                    said.append([])
                    order.append(utterances.open)
                is_open = True
            case "stop":
                utterances.stop()
                is_open = False
            case _:
                if found := utterances.due():
                    of, piece = found
                    read.setdefault(order.index(of), []).extend(values(piece))
                    of.read("")
                    utterances.concluded()
    assert [read.get(n, []) for n in range(len(said))] == said
    assert utterances.settled
