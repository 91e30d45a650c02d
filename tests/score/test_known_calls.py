"""Calls of known truth, from their making to the figures of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from known_calls import (
    RATE,
    Format,
    MadeCall,
    made_call,
    synthetic,
    with_echo,
    with_noise,
    write_call,
)
from score_calls import Compared, compare, score


@pytest.fixture(scope="module")
def call() -> MadeCall:
    voices, hums = synthetic()
    return made_call("call", voices[5:8], voices, hums, 7, ending="no_answer")


def scored(call: MadeCall, folder: Path, format: Format) -> list[Compared]:
    return compare(call.name, call.turns, score(write_call(call, folder, format)))


def test_turns_of_a_made_call_are_where_it_says(call: MadeCall, tmp_path: Path) -> None:
    for format in (Format(8_000, subtype="ULAW"), Format(48_000, ".ogg", "OPUS")):
        compared = scored(call, tmp_path, format)
        assert len(compared) == len(call.turns) == 3
        assert all(each.same_outcome for each in compared)
        assert all(each.within for each in compared if each.off_ms is not None)


def test_noise_and_echo_lie_on_the_persons_side(call: MadeCall) -> None:
    for changed in (with_noise(call, 10), with_echo(call, -20)):
        assert (changed.pcm[:, 1] == call.pcm[:, 1]).all()
        assert (changed.pcm[RATE:, 0] != call.pcm[RATE:, 0]).any()


def test_a_wrong_gap_is_seen(call: MadeCall, tmp_path: Path) -> None:
    first = call.turns[0]
    assert first.gap_ms is not None
    late = replace(call, turns=[replace(first, gap_ms=first.gap_ms + 300), *call.turns[1:]])
    compared = scored(late, tmp_path, Format(16_000))[0]
    assert compared.wrong
    assert not compared.within
