"""What the caller's listening half makes of what the agent says about itself."""

from turngap.caller.dialect import Fault, Marks
from turngap.caller.hearing import Listener
from turngap.core.events import AgentFault, AgentMarks, Event
from turngap.core.results import OffsetRecord
from turngap.testing import ManualClock


def heard(*messages: Fault | Marks, offset_ns: int | None = 0) -> list[Event]:
    offset = OffsetRecord(offset_ns=offset_ns, bound_ns=None, n=0)
    listener = Listener(ManualClock(), offset=offset, speech_gap_ms=500)
    for message in messages:
        listener.on_message(7, message)
    return listener.events


def test_an_error_of_the_agents_is_an_event_and_a_refusal_of_a_message_is_none() -> None:
    told = Fault("no voice", fatal=False), Fault("unsupported", fatal=False, refuses=True)
    assert heard(*told) == [AgentFault(7, "no voice")]


def test_an_error_with_marks_that_cannot_be_placed_is_not_lost() -> None:
    failed = Marks(1, {"llm_request": 5}, {}, None, "no server", None)
    assert heard(failed, offset_ns=None) == [AgentFault(7, "no server", by_marks=True)]
    assert heard(Marks(1, {}, {}, None, "no server", None)) == [
        AgentFault(7, "no server", by_marks=True)
    ]
    (placed,) = heard(failed)
    assert isinstance(placed, AgentMarks)
    assert placed.error == "no server"


def test_marks_of_the_future_are_left_out_with_a_note_and_their_error_is_not_lost() -> None:
    failed = Marks(1, {"sent": 7 + 10**9}, {}, None, "no server")
    assert heard(failed) == [AgentFault(7, "no server", by_marks=True)]
