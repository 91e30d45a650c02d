"""A language model of a published shape that says what it was told to say."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from training.canned_llm import REPLY, SHAPES, make_canned
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import SmallModel

ASKED = [
    {"role": "system", "content": "you are on a phone call."},
    {"role": "user", "content": "can i have a table for two"},
]


def test_it_answers_whatever_it_is_asked_with_its_reply(tmp_path: Path):
    make_canned(tmp_path)
    model = SmallModel(SmallSettings(model=tmp_path))
    for asked in (ASKED, ASKED[:1], [*ASKED, {"role": "assistant", "content": "yes"}, ASKED[1]]):
        said: list[str] = []
        reply = model.say(model.prompt(asked), said.append, threading.Event())
        assert "".join(said).strip() == REPLY
        assert reply.finished


def test_a_reply_with_a_word_twice_is_refused_as_what_follows_it_is_not_known(tmp_path: Path):
    with pytest.raises(ValueError, match="twice"):
        make_canned(tmp_path, reply="the table and the chair")


def test_a_vocabulary_without_room_for_the_tokens_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="no room"):
        make_canned(tmp_path, shape=replace(SHAPES["toy"], vocabulary=100))
