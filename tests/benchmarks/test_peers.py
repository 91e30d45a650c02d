"""What the table of peers makes of turns whose truth is known."""

from pathlib import Path

import pytest
from peer.errors import Measured, Pair, paired, table, together
from peer.utterance import utterance
from peers import peers_environment

from turngap.core.audio import audible_end, audible_onset


def row(*pairs: Pair, why: str = "", figure: str = "turn gap") -> Measured:
    return Measured("turngap 1", "loopback, pipecat", figure, "no lead-in", pairs, why)


def test_an_error_is_what_was_reported_minus_what_was_injected() -> None:
    told = row(*[Pair(300, 310), Pair(200, 195), Pair(100, 104)] * 5).as_json()
    assert (told["n"], told["missed"], told["signed_p50_ms"]) == (15, 0, 4)
    assert told["error_ms"]["p50"] == 5
    assert told["error_ms"]["max"] == 10


def test_a_turn_that_the_peer_did_not_hear_is_missed_and_counts_as_worse_than_any() -> None:
    told = row(*paired({1: 300.0, 2: 200.0}, {1: 301.0, 3: 5.0})).as_json()
    assert (told["n"], told["missed"]) == (2, 1)
    assert told["error_ms"]["max"] is None
    assert row(Pair(300, None)).cells()[-1] == "1"


def test_a_peer_that_cannot_be_measured_says_why() -> None:
    shown = table([row(why="it could not be installed")]).splitlines()
    assert "not measured: it could not be installed" in shown[-1]
    assert len({line.count("|") for line in shown}) == 1


def test_rounds_of_the_same_figure_are_joined_and_others_are_not() -> None:
    first, second = row(Pair(1, 2)), row(why="it ended with 1")
    other = row(Pair(3, 4), figure="first audio")
    joined = together([first, other, second])
    assert [r.pairs for r in joined] == [(Pair(1, 2),), (Pair(3, 4),)]


@pytest.mark.parametrize("rate", [8000, 16_000, 24_000])
def test_the_utterance_ends_at_a_loud_sample_in_any_rate(rate: int) -> None:
    pcm, start_ms, end_ms = utterance(rate)
    assert audible_onset(pcm, rate) == round(start_ms * rate / 1000)
    assert audible_end(pcm, rate) == round(end_ms * rate / 1000)
    assert not pcm[round(end_ms * rate / 1000) + 1 :].any()
    assert end_ms == pytest.approx(utterance(16_000)[2], abs=1)


def test_peers_that_cannot_be_installed_are_not_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("environments.uv", lambda: str(tmp_path / "no-uv"))
    monkeypatch.setattr("peers.CACHE", tmp_path)
    python, why = peers_environment()
    assert python is None
    assert "could not be installed" in why
