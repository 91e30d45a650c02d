"""What a step says beside its figures: how many calls ran at once, and if the caller was late."""

import os
import resource

import pytest
from made_calls import turn_of

from turngap.caller.conversation import Patience
from turngap.caller.endpoint import Endpoint
from turngap.core.secrets import text_without_secrets
from turngap.load.calls import Answered, CallMark, Share, load_turn, play_share
from turngap.load.figures import at_once, why_void
from turngap.load.record import LoadTurn
from turngap.load.schedule import Call, Shape, Window

WINDOW = Window(10.0, 20.0, 5.0)


def ran(*calls: tuple[float, float]) -> list[CallMark]:
    marks = [CallMark(n, begin, running=True) for n, (begin, _) in enumerate(calls)]
    return marks + [CallMark(n, end, running=False) for n, (_, end) in enumerate(calls)]


@pytest.mark.parametrize(
    ("calls", "mean", "most"),
    [
        ([], 0.0, 0),
        ([(0, 40)], 1.0, 1),
        ([(0, 5), (31, 40)], 0.0, 0),
        ([(0, 20), (20, 40)], 1.0, 1),
        ([(0, 20), (15, 40)], 1.25, 2),
        ([(12, 14), (12, 14), (12, 14)], 0.3, 3),
        ([(0, 20)], 0.5, 1),
    ],
)
def test_calls_at_once_are_those_of_the_measured_window(
    calls: list[tuple[float, float]], mean: float, most: int
) -> None:
    found = at_once(ran(*calls), WINDOW)
    assert found == (pytest.approx(mean), most)


CALL = Call(1, 0.0, 0, Shape("made", (2.0,), 3.0), (True,))


def told(late_ms: float) -> LoadTurn:
    return load_turn(1, CALL, 1, Answered(turn_of(1, 300.0, late_ms)))


def test_a_step_is_void_where_the_caller_was_late_in_one_packet_of_a_hundred() -> None:
    assert why_void([told(90.0)], 10.0, 10.0) is None
    assert "late by 10.1 ms (p99), over 10 ms" in (why_void([told(1.0)], 10.0, 10.1) or "")


def test_a_lost_caller_comes_before_a_late_one() -> None:
    lost = load_turn(1, CALL, 1, None, missed="worker_lost", why="its process ended")
    assert why_void([lost, told(90.0)], 10.0, 90.0) == "a caller was lost: its process ended"
    assert why_void([], 10.0, None) is None


def test_a_caller_gets_the_variables_of_the_endpoint_and_as_many_files_as_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "hush-4f9a77c1d2")
    monkeypatch.delenv("UNSET_TOKEN", raising=False)
    headers = ("Authorization: Bearer ${AGENT_TOKEN}", "X-Other: ${UNSET_TOKEN}")
    endpoint = Endpoint("ws://agent.example/${AGENT_TOKEN}", headers=headers)
    variables = endpoint.variables()
    assert variables == {"AGENT_TOKEN": "hush-4f9a77c1d2"}
    share = Share(1, (), endpoint, (), 800.0, 10.0, Patience(), 0.0, 0.0, variables)
    assert "hush" not in repr(share)
    monkeypatch.delenv("AGENT_TOKEN")  # another machine
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        play_share(share, lambda _: None)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert os.environ["AGENT_TOKEN"] == "hush-4f9a77c1d2"
        assert "hush" not in text_without_secrets("the token hush-4f9a77c1d2 is refused")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
