"""What is read of a session's audio, and when, without a model and without a pipeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap_services.stt.sherpa.utterances import (
    LATE_MS,
    MOST_MS,
    STEP_MS,
    Piece,
    Utterance,
    Utterances,
)
from turngap_services.stt.sound import samples

PACKET_MS = 20


PAUSE_MS = 120
# Of the VAD's stops here.
SILENCE_MS = 200


def packet(value: int) -> bytes:
    """Each packet can be told from the others, and is loud."""
    return np.full(samples(PACKET_MS), 3000 + value, np.int16).tobytes()


def silence(ms: float) -> bytes:
    return bytes(2 * samples(ms))


def hear(utterances: Utterances, values: range) -> None:
    for value in values:
        utterances.audio(packet(value))


def values(piece: Piece) -> list[int]:
    return [int(value) - 3000 for value in piece.pcm[:: samples(PACKET_MS)]]


def due(utterances: Utterances) -> Piece:
    found = utterances.due()
    assert found is not None
    return found[1]


def test_an_utterance_begins_with_the_pre_roll_and_goes_on_from_there() -> None:
    utterances = Utterances(pre_roll_ms=100, pause_ms=PAUSE_MS)
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
    utterances = Utterances(pre_roll_ms=0, pause_ms=PAUSE_MS)
    utterances.start()
    utterances.audio(packet(1))
    assert PACKET_MS < STEP_MS
    assert utterances.due() is None
    utterances.stop(SILENCE_MS)
    piece = due(utterances)
    assert piece.is_last
    assert values(piece) == [1]


def test_an_utterance_is_over_once_its_last_piece_was_read() -> None:
    utterances = Utterances(pre_roll_ms=0, pause_ms=PAUSE_MS)
    utterances.start()
    hear(utterances, range(5))
    utterance, piece = utterances.due() or pytest.fail("nothing is due")
    utterances.stop(SILENCE_MS)
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
    utterances = Utterances(pre_roll_ms=100, pause_ms=PAUSE_MS)
    utterances.start()
    hear(utterances, range(5))
    first, _ = utterances.due() or pytest.fail("nothing is due")
    utterances.stop(SILENCE_MS)
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
    utterances = Utterances(pre_roll_ms=0, pause_ms=PAUSE_MS)
    utterances.stop(SILENCE_MS)
    assert utterances.settled
    utterances.start()
    opened = utterances.open
    utterances.start()
    assert utterances.open is opened
    utterances.stop(SILENCE_MS)
    utterances.stop(SILENCE_MS)
    assert utterances.open is None


def test_on_a_machine_that_is_too_slow_what_waits_is_known_and_bounded() -> None:
    utterances = Utterances(pre_roll_ms=0, pause_ms=PAUSE_MS)
    utterances.start()
    hear(utterances, range(4))
    utterance, _ = utterances.due() or pytest.fail("nothing is due")  # and it takes for ever
    hear(utterances, range(100))
    assert utterance.behind_ms == 100 * PACKET_MS
    assert utterance.lost_ms == 0
    hear(utterances, range(2000))
    assert utterance.behind_ms == MOST_MS
    assert utterance.lost_ms == 2100 * PACKET_MS - MOST_MS


def test_the_backlogs_of_several_utterances_are_bounded_together() -> None:
    utterances = Utterances(pre_roll_ms=100, pause_ms=PAUSE_MS)
    utterances.start()
    hear(utterances, range(4))
    first, _ = utterances.due() or pytest.fail("nothing is due")  # and it takes for ever
    half = round(MOST_MS / PACKET_MS / 2)
    hear(utterances, range(half))
    utterances.stop(SILENCE_MS)
    utterances.start()
    second = utterances.open or pytest.fail("nothing is open")
    hear(utterances, range(half + 10))
    assert (second.behind_ms, second.lost_ms) == (MOST_MS, 10 * PACKET_MS)
    assert first.behind_ms == MOST_MS / 2
    utterances.stop(SILENCE_MS)
    hear(utterances, range(10))
    utterances.start()
    third = utterances.open or pytest.fail("nothing is open")
    assert (len(third.known), third.waiting) == (0, 0)


def spoken(ms: float, silence_ms: float) -> tuple[Utterances, Utterance]:
    """Somebody has said something, all of which was read, and is silent now."""
    utterances = Utterances(pre_roll_ms=0, pause_ms=PAUSE_MS)
    utterances.start()
    hear(utterances, range(round(ms / PACKET_MS)))
    utterance, _ = utterances.due() or pytest.fail("nothing is due")
    utterance.read("I said")
    for _ in range(round(silence_ms / PACKET_MS)):
        utterances.audio(silence(PACKET_MS))
    return utterances, utterance


def test_in_a_pause_everything_said_until_then_is_wanted_once() -> None:
    utterances, utterance = spoken(400, PAUSE_MS)
    piece = due(utterances)
    assert piece.rests
    assert not piece.is_last
    assert len(piece.pcm) == samples(PAUSE_MS)
    utterance.read("I said so")
    for _ in range(20):
        utterances.audio(silence(PACKET_MS))
        assert utterances.due() is None
    utterances.audio(packet(1))  # and goes on
    piece = due(utterances)
    assert not piece.rests
    assert len(piece.pcm) == samples(21 * PACKET_MS)  # the silence was not left out


def test_after_a_pause_that_was_read_the_end_has_nothing_left_to_read() -> None:
    utterances, utterance = spoken(400, PAUSE_MS)
    assert due(utterances).rests
    utterance.read("I said so")
    utterances.audio(silence(SILENCE_MS - PAUSE_MS))
    utterances.stop(SILENCE_MS)
    assert utterances.concluded() is utterance
    assert utterances.due() is None
    assert utterance.text == "I said so"


def test_an_end_during_the_reading_of_the_pause_waits_for_that_and_for_no_more() -> None:
    utterances, utterance = spoken(400, PAUSE_MS)
    assert due(utterances).rests
    utterances.stop(SILENCE_MS)
    assert utterances.concluded() is None
    utterance.read("I said so")
    assert utterances.due() is None
    assert utterances.concluded() is utterance


def test_a_voice_that_only_the_vad_heard_after_the_pause_is_read() -> None:
    utterances, utterance = spoken(400, PAUSE_MS)
    assert due(utterances).rests
    utterance.read("I said")
    utterances.audio(silence(1000))  # too soft to be heard here
    utterances.stop(SILENCE_MS)
    assert utterances.concluded() is None
    piece = due(utterances)
    assert piece.is_last
    assert len(piece.pcm) == samples(1000)


def test_a_long_pause_is_no_sign_of_a_slow_machine() -> None:
    utterances, utterance = spoken(400, PAUSE_MS)
    assert due(utterances).rests
    utterance.read("I said")
    utterances.audio(silence(2 * LATE_MS))
    assert utterance.behind_ms == 0


@given(st.lists(st.sampled_from(["audio", "audio", "audio", "start", "stop", "read"]), max_size=80))
def test_no_sample_of_an_utterance_is_read_twice_or_left_out(steps: list[str]) -> None:
    utterances = Utterances(pre_roll_ms=0, pause_ms=PAUSE_MS)
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
                utterances.stop(SILENCE_MS)
                is_open = False
            case _:
                if found := utterances.due():
                    of, piece = found
                    read.setdefault(order.index(of), []).extend(values(piece))
                    of.read("")
                    utterances.concluded()
    assert [read.get(n, []) for n in range(len(said))] == said
    assert utterances.settled
