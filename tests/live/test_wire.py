"""The page's messages: whatever is in them, they are taken or refused."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.core.errors import InputError
from turngap.live import wire
from turngap.live.conversation import LiveConversation

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)
INSTANT = st.integers(-(10**10), 10**12) | st.integers() | st.floats()
STRETCH = st.fixed_dictionaries(
    {"onset_ns": INSTANT, "received_ns": INSTANT}, optional={"lead_ns": INSTANT, "end_ns": INSTANT}
)
REPORT = st.fixed_dictionaries(
    {
        "turn": st.integers(-1, 30) | JSON,
        "start_ns": INSTANT,
        "end_ns": INSTANT,
        "ended_ns": INSTANT,
        "ended": st.sampled_from(["reply_done", "timeout", "interrupted", "line_lost", "x"]),
        "offset": st.fixed_dictionaries({"offset_ns": INSTANT, "bound_ns": INSTANT, "n": INSTANT}),
    },
    optional={
        "input": st.sampled_from(["voice", "typed"]) | JSON,
        "over_reply": JSON,
        "agent": st.lists(STRETCH, max_size=4) | JSON,
        "flushed_ns": st.lists(INSTANT, max_size=4) | JSON,
        "stall_ms": JSON,
        "text": JSON,
        "view": JSON,
    },
)
# A report that is taken: its instants are in order and not far apart.
TAKEN = st.builds(
    lambda turn, start, *more: {
        "turn": turn,
        "start_ns": start,
        "end_ns": start + more[0],
        "ended_ns": start + more[0] + more[1],
        "ended": more[2],
        "offset": {"offset_ns": 0, "bound_ns": 1, "n": 1},
        "agent": more[3],
        "flushed_ns": more[4],
    },
    st.integers(1, 9),
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
    st.sampled_from(["reply_done", "timeout", "interrupted", "line_lost"]),
    st.lists(
        st.fixed_dictionaries(
            {"onset_ns": st.integers(0, 2**53), "received_ns": st.integers(0, 2**53)},
            optional={"lead_ns": st.integers(0, 2**53), "end_ns": st.integers(-(2**53), 2**53)},
        ),
        max_size=4,
    ),
    st.lists(st.integers(-(2**53), 2**53), max_size=4),
)


@settings(deadline=None)
@given(st.sampled_from([wire.TurnReport, wire.Played, wire.Calibrated]), JSON | REPORT)
def test_a_message_is_read_or_refused(model: Any, data: Any) -> None:
    try:
        wire.parsed(model, data)
    except InputError as e:
        assert e.kind == "live.message"
        assert len(e.message) < 2000


@settings(deadline=None, max_examples=60)
@given(st.lists(TAKEN | REPORT, max_size=4))
def test_whatever_turns_a_page_reports_each_is_kept_or_refused(reports: list[Any]) -> None:
    conversation = LiveConversation("fuzz", 16_000)
    for data in reports:
        try:
            kept = conversation.report(wire.parsed(wire.TurnReport, data))
            assert kept.record.outcome
            assert len(kept.heard()) <= 16 * 660_000
        except InputError:
            continue


def test_a_number_that_no_clock_shows_is_refused() -> None:
    with pytest.raises(InputError):
        wire.parsed(wire.Calibrated, {"round_trip_ms": float("nan")})
