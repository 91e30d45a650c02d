"""Every shipped dialect reads its agent's messages with other values in them."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from turngap.caller.dialects import SPECS
from turngap.caller.dialects.session import Session
from turngap.caller.said import Message, NotSpokenError
from turngap.testing.dialects import AgentHalf, make_half

VALUES = (None, True, 5, -1.5, 2**70, math.nan, "", "x", [], [5], [{}], {}, {"x": 5})
BY_NAME = {spec.name: spec for spec in SPECS if spec.transport == "websocket"}


def conversation(half: AgentHalf, session: Session) -> list[Message]:
    """Return all that an agent sends in a short conversation."""
    session.open()
    sent = answers = half.opens()
    while True:
        for answer in answers:
            session.receive_data(answer)
        asked = session.data_to_send()
        answers = [each for message in asked for each in half.receive_data(message)[1]]
        sent = [*sent, *answers]
        if not answers:
            break
    sent += half.ready() + half.turn_over("hello") + half.reply_text("hi")
    sent += half.audio(bytes(640)) + half.flush() + half.audio(bytes(640)) + half.reply_done()
    return sent


def altered(message: Message) -> Iterator[Message]:
    """Yield the message with each of `VALUES` in each of its places."""
    try:
        said: Any = json.loads(message)
    except ValueError:  # audio, or protobuf, which `test_caller_fuzz` alters
        yield from (b"", b"\xff", message[:-1], "", "x")
        return
    yield from map(json.dumps, VALUES)
    for *path, last in places(said):
        at = said
        for key in path:
            at = at[key]
        kept = at[last]
        for value in VALUES:
            at[last] = value
            yield json.dumps(said)
        at[last] = kept


def places(said: Any) -> Iterator[tuple[Any, ...]]:
    keys = list(said) if isinstance(said, dict) else range(len(said))
    for key in keys:
        yield (key,)
        if isinstance(said[key], dict | list):
            yield from ((key, *rest) for rest in places(said[key]))


@pytest.mark.parametrize("name", BY_NAME)
def test_an_agents_messages_with_another_value_in_them_are_read_or_refused(name: str) -> None:
    sent = conversation(make_half(name), BY_NAME[name].session())
    for number, message in enumerate(sent):
        for other in altered(message):
            session = BY_NAME[name].session()
            session.open()
            for each in (*sent[:number], other, *sent[number + 1 :]):
                try:
                    session.receive_data(each)
                except (NotSpokenError, ValueError) as e:
                    assert str(e), other
            session.audio_dropped(320)
            session.audio_played(320)
            session.send_audio(bytes(640))
            session.close()
            assert all(isinstance(up, str | bytes) for up in session.data_to_send()), other
