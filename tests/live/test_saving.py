"""A conversation saved as a scenario: what the library's reader makes of it."""

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from helpers.made_speech import spoken
from turngap.caller.stream import RATE
from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.live.conversation import KeptTurn
from turngap.live.keeping import Held, Keeping
from turngap.live.saving import save
from turngap.live.wire import TurnReport, parsed
from turngap.scenario.label import label_file
from turngap.scenario.library import load_scenario
from turngap.store.runs import read_run

_, START_MS, END_MS = spoken(before_ms=1000)


def voice(ms: float = 3500.0) -> Pcm:
    """A room's noise with a voice in it from START_MS to END_MS."""
    return spoken(before_ms=START_MS, after_ms=ms - END_MS).pcm


class Conversation:
    """Turns of one connection, each 4 s after the one before."""

    def __init__(self, out: Path | None, agent: dict[str, Any] | None = None) -> None:
        agent = agent or {"stack": "made"}
        self.run = Held(Keeping(out), name="made-live", agent=agent, in_rate=RATE)
        self.live = self.run.conversation
        self.connection = self.live.connection

    def add(self, say: str = "hello", reply: str = "Good morning.", **more: Any) -> Turn:
        """A turn in which the agent answers 300 ms after the user's end."""
        n = self.live.turns
        begun_ns = round(n * 3.5e9)
        self.connection.hear(voice())
        start_ns, end_ns = begun_ns + round(START_MS * 1e6), begun_ns + round(END_MS * 1e6)
        onset_ns = end_ns + 300_000_000
        stretch = {"onset_ns": onset_ns, "received_ns": onset_ns, "end_ns": onset_ns + 10**9}
        values: dict[str, Any] = {
            "turn": n + 1,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "agent": [stretch],
            "ended_ns": onset_ns + 1_200_000_000,
            "ended": "reply_done",
            "offset": {"offset_ns": 0, "bound_ns": 1, "n": 1},
        }
        kept = self.live.report(parsed(TurnReport, values | more))
        texts = {"say": say, "transcript": say, "reply": reply}
        record = kept.record.model_copy(update=texts)
        turn = KeptTurn(record, kept.user, kept.pieces, kept.window)
        return asyncio.run(self.run.keep(turn, None))

    def finish(self, how: str, failure: str | None = None) -> None:
        asyncio.run(self.run.finish(how, failure))

    def save(self, folder: Path, name: str = "mine") -> Any:
        return save(self.run.stored(), self.run.turns, name, folder)


@contextmanager
def conversation(out: Path | None, agent: dict[str, Any] | None = None) -> Iterator[Conversation]:
    talk = Conversation(out, agent)
    try:
        yield talk
    finally:
        talk.finish("the test ended it")
        talk.run.forget()


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Conversation]:
    with conversation(tmp_path / "runs") as made:
        yield made


def test_what_was_said_heard_and_answered_is_read_back(talk: Conversation, tmp_path: Path) -> None:
    talk.add("two coffees please", "Two coffees, right away.")
    talk.add("make it three", "Three, then.")
    saved = talk.save(tmp_path / "out")
    loaded = load_scenario(saved.path)
    assert (saved.turns, saved.left_out) == (2, ())
    assert [t.say for t in loaded.scenario.turns] == ["two coffees please", "make it three"]
    first = loaded.scenario.turns[0]
    assert first.reply == "Two coffees, right away."
    assert first.expect.reply is not None
    assert first.expect.reply.any_of == ("Two coffees, right away.",)
    clip = loaded.clips["mine/1.flac"]
    assert clip.rate == RATE
    assert clip.speech is not None
    # 300 ms of the room before the voice.
    assert abs(clip.speech.start_ms - 300) < 15
    assert abs(clip.speech.end_ms - (300 + END_MS - START_MS)) < 15
    assert first.pauses == ()


def test_the_proposed_labels_are_those_that_label_would_write(
    talk: Conversation, tmp_path: Path
) -> None:
    talk.add()
    (label,) = label_file(talk.save(tmp_path / "out").path)
    assert not label.changed


def test_a_barge_in_is_saved_as_one(talk: Conversation, tmp_path: Path) -> None:
    playing = {"onset_ns": 2_200_000_000, "received_ns": 2_200_000_000}
    own = {"onset_ns": 5_700_000_000, "received_ns": 5_700_000_000, "end_ns": 6_500_000_000}
    talk.add(agent=[playing], ended="interrupted")
    cut_ns = 4_680_000_000
    talk.add(agent=[playing | {"end_ns": cut_ns}, own], over_reply=True, flushed_ns=[cut_ns])
    talk.add(ended="interrupted")  # by a switch to another LLM, say
    talk.add()
    turns = load_scenario(talk.save(tmp_path / "out").path).scenario.turns
    # The reply began at 2200 ms, the next turn at 4500.
    assert turns[1].when.barge_in_ms == pytest.approx(2300, abs=0.1)
    assert [t.when.barge_in_ms for t in turns[2:]] == [None, None]


def test_what_cannot_be_played_is_left_out_with_its_reason(
    talk: Conversation, tmp_path: Path
) -> None:
    talk.add()
    talk.add(input="typed", end_ns=3_500_000_000, start_ns=3_500_000_000)
    talk.add(say=" ")
    saved = talk.save(tmp_path / "out")
    assert saved.turns == 1
    assert [(x.turn, x.why) for x in saved.left_out] == [
        (2, "typed"),
        (3, "nothing was transcribed"),
    ]


def test_where_nothing_can_be_played_nothing_is_written(talk: Conversation, tmp_path: Path) -> None:
    talk.add(say="")
    with pytest.raises(InputError) as raised:
        talk.save(tmp_path / "out")
    assert raised.value.kind == "live.nothing_to_save"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "../a", "a.b", "ä", "x" * 81])
def test_a_name_that_cannot_be_one_is_refused(
    name: str, talk: Conversation, tmp_path: Path
) -> None:
    talk.add()
    with pytest.raises(InputError) as raised:
        talk.save(tmp_path / "out", name)
    assert raised.value.kind == "scenario.name"


def test_a_scenario_that_is_there_is_not_written_over(talk: Conversation, tmp_path: Path) -> None:
    talk.add()
    path = talk.save(tmp_path / "out").path
    before = path.read_bytes()
    with pytest.raises(InputError) as raised:
        talk.save(tmp_path / "out")
    assert raised.value.kind == "scenario.exists"
    assert path.read_bytes() == before
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["mine", "mine.yaml"]


# --- the run ----------------------------------------------------------------------------------


def test_a_run_that_is_not_to_be_kept_lives_until_it_is_forgotten(tmp_path: Path) -> None:
    with conversation(None) as talk:
        talk.add()
        path = talk.run.stored()
        talk.finish("the page ended it")
        assert len(read_run(path).turns) == 1
        assert not list(tmp_path.iterdir())
    assert not path.exists()


def test_a_run_in_progress_says_so_and_a_finished_one_does_not(talk: Conversation) -> None:
    talk.add()
    assert read_run(talk.run.stored()).record.why_invalid == ("unfinished: 1 turn was played",)
    talk.run.settings["page_loopback"] = {"round_trip_ms": 41.0, "n": 5}
    talk.finish("the line was lost")
    run = read_run(talk.run.stored())
    assert run.problems == ()
    assert run.record.valid
    assert run.record.settings["ended"] == "the line was lost"
    assert run.record.settings["page_loopback"]["round_trip_ms"] == 41.0


def test_a_conversation_that_failed_is_not_valid(talk: Conversation) -> None:
    talk.add()
    talk.finish("failed", "the agent went away")
    run = read_run(talk.run.stored())
    assert not run.valid
    assert run.record.why_invalid == ("ended early: the agent went away",)


def test_a_conversation_that_lacks_a_turn_is_not_valid(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.add()
    real = os.write
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", Mock(side_effect=full))
        with pytest.raises(InputError, match="No space left"):
            talk.add()
    assert os.write is real
    talk.add()
    talk.finish("the page ended it")
    run = read_run(talk.run.stored())
    assert len(run.turns) == 2
    assert run.record.why_invalid == ("1 turn could not be stored",)


def test_secrets_of_the_stack_stay_out_of_the_run(tmp_path: Path) -> None:
    with conversation(tmp_path, {"llm": {"settings": {"api_key": "s3cret"}}}) as talk:
        talk.add()
        assert "s3cret" not in (talk.run.stored() / "run.json").read_text()


@pytest.mark.parametrize("off_ms", [0.0, 150.0])
def test_a_turn_says_how_far_off_the_page_may_be(talk: Conversation, off_ms: float) -> None:
    turn = talk.add(end_ns=round((END_MS + off_ms) * 1e6))
    assert turn.audio is not None
    assert turn.audio.label_error_ms is not None
    assert off_ms + 15 < turn.audio.label_error_ms < off_ms + 100
