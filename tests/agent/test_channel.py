"""The line between a front and its workers: whole messages in order, and no descriptor is lost."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from descriptors import open_descriptors
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.agent.channel import Channel, packed
from turngap.clocks import MonotonicClock

CLOCK = MonotonicClock()

MESSAGES = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.text(max_size=3000)), st.booleans()),
    max_size=12,
)


@contextmanager
def line() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


@given(sent=MESSAGES)
@settings(max_examples=40, deadline=None)
def test_messages_come_whole_and_in_order_each_with_what_it_brings(
    sent: list[tuple[dict[str, str], bool]],
) -> None:
    async def pass_all() -> list[tuple[Any, bool]]:
        came: list[tuple[Any, bool]] = []
        with line() as (ours, theirs):
            for message, brings in sent:
                connection = socket.socket() if brings else None
                ours.send({"said": message, "brings": brings}, connection)
            for _ in sent:
                got = await theirs.receive()
                assert got is not None
                message, brought = got
                came.append((message["said"], brought is not None))
                if brought is not None:
                    brought.close()
        return came

    assert asyncio.run(pass_all()) == sent


async def test_a_message_that_comes_in_pieces_is_one() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    data = packed({"a": "b"}) + packed({"c": 1})
    for at in range(len(data)):
        ours.send(data[at : at + 1])
        await CLOCK.sleep_until_ns(CLOCK.now_ns())
    ours.close()
    assert await channel.receive() == ({"a": "b"}, None)
    assert await channel.receive() == ({"c": 1}, None)
    assert await channel.receive() is None
    channel.close()


async def test_what_was_on_its_way_is_closed_with_the_line() -> None:
    before = open_descriptors()
    with line() as (ours, theirs):
        for _ in range(100):  # more than the kernel takes at once
            ours.send({"brings": True, "begun": "x" * 16_000}, socket.socket())
        came = await theirs.receive()
        assert came is not None
        assert came[1] is not None
        came[1].close()
        theirs.close()
        ours.send({"brings": True}, socket.socket())
        assert await ours.receive() is None
    ours.send({"brings": True}, socket.socket())
    assert open_descriptors() == before


async def test_the_other_end_s_last_words_are_heard_after_it_is_gone() -> None:
    with line() as (ours, theirs):
        ours.send({"kind": "failed"})
        ours.close()
        assert await theirs.receive() == ({"kind": "failed"}, None)
        assert await theirs.receive() is None


async def test_of_states_that_wait_unsent_only_the_newest_is_told() -> None:
    with line() as (ours, theirs):
        while not ours._unsent:  # until the kernel takes no more
            ours.send({"kind": "seat"})
        for number in range(1000):
            ours.tell_state({"taken": number})
        assert len(ours._unsent) <= 3
        ours.send({"kind": "last"})
        came: list[Any] = []
        while not came or came[-1] != {"kind": "last"}:
            got = await theirs.receive()
            assert got is not None
            came.append(got[0])
        assert came[-2] == {"taken": 999}
        assert [said for said in came if "taken" in said] == [{"taken": 999}]


async def test_the_line_to_one_who_reads_nothing_has_ended() -> None:
    before, (ours, theirs) = open_descriptors(), socket.socketpair()
    with theirs:
        channel = Channel(ours, patience_s=0.05)
        while not channel._unsent:
            channel.send({"brings": True}, socket.socket())
        assert await channel.receive() is None
        channel.send({"brings": True}, socket.socket())
        channel.close()
    assert open_descriptors() == before


async def test_one_who_reads_slowly_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours, patience_s=30.0)
        for _ in range(100):
            channel.send({"begun": "x" * 16_000})
        theirs.setblocking(False)
        while channel._unsent:
            with suppress(BlockingIOError):
                while theirs.recv(1 << 16):
                    pass
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
        assert channel._giving_up is None
        assert not channel.ended
        channel.close()
