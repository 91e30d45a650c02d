"""The agent remembers of a broken-off reply what was heard of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.frames.frames import InterruptionFrame, OutputAudioRawFrame
from scripted_line import conversing

from turngap.agent.output import Ledger
from turngap.core.voice import HEARD_PART, LETTER_MS, letters, words_heard

TEXT = "Fry chopped onions in butter, add a pound of ripe tomatoes and blend it."


@pytest.mark.parametrize(
    ("part", "heard"),
    [(0.0, ""), (0.01, ""), (0.5, "Fry chopped onions in butter, add a"), (1.0, TEXT)],
)
def test_as_many_words_as_the_audio_has_room_for(part: float, heard: str) -> None:
    assert words_heard(TEXT, 1000 * part, 1000) == heard


def test_a_word_that_is_mostly_said_was_heard() -> None:
    whole = letters("one") + letters("two")
    most = (letters("one") + letters("two") * (HEARD_PART + 0.1)) / whole
    less = (letters("one") + letters("two") * (HEARD_PART - 0.1)) / whole
    assert words_heard("one two", most * 1000, 1000) == "one two"
    assert words_heard("one two", less * 1000, 1000) == "one"


@given(st.text("ab ,.", max_size=30), st.floats(0, 2000), st.floats(0, 2000))
def test_more_audio_never_means_fewer_words(text: str, one: float, other: float) -> None:
    less, more = sorted((one, other))
    assert words_heard(text, more, 1500).startswith(words_heard(text, less, 1500))
    assert " ".join(text.split()).startswith(words_heard(text, more, 1500))


def test_nothing_is_heard_of_no_audio() -> None:
    assert words_heard("", 10, 10) == ""
    assert words_heard("hello", 0, 0) == ""


# --- which clause the audio is ----------------------------------------------------------------


def test_a_clause_that_is_not_all_made_is_measured_by_the_voices_pace() -> None:
    ledger = Ledger()
    ledger.announced(1, "one two three four")
    ledger.made(100)
    ledger.begins(1)
    ledger.played(letters("one two") * LETTER_MS)
    assert ledger.broken_off() == "one two"


def test_the_voices_pace_is_learned() -> None:
    ledger = Ledger()
    ledger.announced(1, "one two three four")
    ledger.made(letters("one two three four") * 20)
    ledger.finished(1)
    ledger.begins(1)
    ledger.remembered(1)
    ledger.announced(2, "five six seven eight")
    ledger.begins(2)
    ledger.played(letters("five six") * 20)
    assert ledger.broken_off() == "five six"


def test_of_a_clause_that_the_memory_has_nothing_is_added() -> None:
    ledger = Ledger()
    ledger.announced(1, "one two")
    ledger.made(1000)
    ledger.finished(1)
    ledger.begins(1)
    ledger.played(1000)
    ledger.remembered(1)
    assert ledger.broken_off() == ""
    assert Ledger().broken_off() == ""


# --- in the pipeline --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "remembered"),
    [
        (1, "You"),
        (2, "You said"),
        (3, "You said hello,"),
        (5, "You said hello, and that is"),
    ],
)
async def test_the_memory_keeps_what_was_played(chunks: int, remembered: str) -> None:
    # A letter sounds 20 ms here, and a chunk of audio holds five.
    async with conversing() as c:
        await c.begins()
        await c.is_read("hello")
        c.output.let_through = chunks
        await c.ends(confirmed=False)
        await c.until(lambda: len(c.of(OutputAudioRawFrame)) == chunks + 1)
        await c.begins(interrupt=True)
        await c.until(lambda: len(c.memory) == 2)
        assert c.memory == [("user", "hello"), ("assistant", remembered)]


async def test_before_a_reply_is_heard_there_is_nothing_to_remember() -> None:
    async with conversing() as c:
        await c.begins()
        await c.is_read("hello")
        c.output.let_through = 0
        await c.ends(confirmed=False)
        await c.until(lambda: len(c.of(OutputAudioRawFrame)) == 1)
        await c.begins(interrupt=True)
        await c.until(lambda: bool(c.of(InterruptionFrame)))
        c.output.let_through = None
        await c.is_read("never mind")
        await c.ends(confirmed=False)
        await c.answered()
        assert [text for role, text in c.memory if role == "assistant"] == [
            "You said never mind, and that is that."
        ]


async def test_a_reply_that_is_heard_out_is_remembered_once() -> None:
    async with conversing() as c:
        await c.begins()
        await c.is_read("hello")
        await c.ends(confirmed=False)
        await c.answered()
        await c.begins(interrupt=True)
        await c.is_read("thanks")
        await c.ends(confirmed=False)
        await c.answered(2)
        assert c.memory[1] == ("assistant", "You said hello, and that is that.")
