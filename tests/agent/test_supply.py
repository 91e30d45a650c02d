"""Speech that never runs dry: in virtual time, with engines of every speed, on the real feed."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from speech_simulation import Engines, Heard, Turn, tokens_of, warmed

from turngap.agent.feed import FIRST_MIN_WORDS, SpeechFeed
from turngap.core.clock import ms_to_ns
from turngap.core.voice import Request, TextSpeed, VoiceSpeed

NS_PER_S = 1_000_000_000

REPLIES = (
    "A large oat latte, coming up.",
    "It's ten past nine now.",
    "Sure, which day suits you?",
    "Four seven one nine two arrives today.",
    "Yes.",
    "Okay, what's your order number?",
    "The science museum is on River Street, next to the station, and it has a planetarium and a "
    "robot hall.",
    "Fry chopped onions in butter, add a pound of ripe tomatoes and a little stock, cook it "
    "slowly, then blend it until smooth.",
    "I can offer you Tuesday at three, Wednesday at half past ten, or Friday in the afternoon. If "
    "none of those is any good, I can put you on the waiting list and call you back tomorrow "
    "morning, which would also be possible for the other doctor who is here twice a week.",
)

# As fast as the shipped `sim` and `espeak` are, and slower by the engine that is named.
SPEEDS = {
    "as shipped": Engines(15.4, 0.2, 0.002, 60),
    "a small voice, clause at a time": Engines(15.4, 20, 0.1, None),
    "a medium voice": Engines(15.4, 20, 0.3, None),
    "a large voice": Engines(15.4, 30, 0.6, None),
    "a voice in the cloud": Engines(15.4, 250, 0.1, 40),
    "a slow one": Engines(15.4, 500, 0.3, 40),
    "a voice hardly faster than speech": Engines(15.4, 20, 0.95, 60),
    "a voice slower than speech": Engines(15.4, 20, 1.3, 60),
    "and a clause at a time": Engines(15.4, 20, 1.3, None),
    "an LLM at 10 tokens a second": Engines(100, 20, 0.1, 60),
    "an LLM as fast as speech": Engines(200, 20, 0.1, 60),
    "an LLM slower than speech": Engines(333, 20, 0.3, None),
}


def conversation(
    engines: Engines, seed: int, turns: int, replies: tuple[str, ...] = REPLIES
) -> Iterator[Heard]:
    """Play this many turns with one feed, which learns from each."""
    rng = random.Random(seed)
    feed = SpeechFeed(warmed(engines, rng))
    at_ns = 0
    for _ in range(turns):
        turn = Turn(feed, engines, rng, at_ns, rng.choice(replies))
        yield turn.play()
        at_ns = turn.silent_ns + NS_PER_S


@pytest.mark.parametrize("name", SPEEDS)
def test_speech_never_runs_dry(name: str) -> None:
    heard = [h for seed in range(10) for h in conversation(SPEEDS[name], seed, 10)]
    assert len(heard) == 100
    assert [h for h in heard if h.dry_ms] == []


def test_speech_never_runs_dry_with_engines_of_any_speed() -> None:
    """Together with the test above over 1000 turns: LLMs of 3 to 1000 tokens a second, TTS of all
    kinds up to 1.6 times as slow as speech, each with its own voice and jitter."""
    dry: list[tuple[Engines, Heard]] = []
    turns = 0
    for seed in range(40):
        rng = random.Random(seed)
        engines = Engines(
            token_ms=1000 / 10 ** rng.uniform(0.5, 3),
            request_ms=10 ** rng.uniform(-0.5, 2.8),
            factor=10 ** rng.uniform(-2.5, 0.2),
            chunk_ms=rng.choice([None, 20, 60, 200]),
            char_ms=rng.uniform(45, 70),
            jitter=rng.choice([0.0, 0.1, 0.2]),
        )
        for heard in conversation(engines, seed, 10):
            turns += 1
            if heard.dry_ms:
                dry.append((engines, heard))
    assert turns == 400
    assert dry == []


@pytest.mark.parametrize("name", ["as shipped", "a small voice, clause at a time"])
def test_fast_engines_begin_with_two_words_or_three(name: str) -> None:
    long = REPLIES[6:]
    heard = list(conversation(SPEEDS[name], 1, 20, long))[1:]
    first = [len(h.pieces[0].split()) for h in heard]
    assert min(first) >= FIRST_MIN_WORDS
    assert max(first) <= 3


def test_a_slower_voice_is_given_more_words_first() -> None:
    def words(name: str) -> float:
        heard = list(conversation(SPEEDS[name], 1, 20, REPLIES[6:]))
        return sum(len(h.pieces[0].split()) for h in heard) / len(heard)

    assert words("as shipped") < words("a large voice")
    assert words("a voice in the cloud") < words("a slow one")


def test_the_same_engines_would_run_dry_by_words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a feed that does not calculate does what the tests above rule out."""
    monkeypatch.setattr("turngap.agent.feed.Pace.lasts", lambda *_: True)
    slow = (SPEEDS["a slow one"], SPEEDS["and a clause at a time"])
    heard = [h for engines in slow for h in conversation(engines, 1, 10)]
    assert any(h.dry_ms for h in heard)


ENGINES = st.builds(
    Engines,
    token_ms=st.floats(0.5, 400),
    request_ms=st.floats(0, 600),
    factor=st.floats(0.002, 1.5),
    chunk_ms=st.sampled_from([None, 20.0, 200.0]),
    jitter=st.just(0.5),
)


@given(st.lists(st.sampled_from(REPLIES), min_size=1, max_size=3), ENGINES, st.integers(0, 1000))
def test_every_word_is_spoken_once_and_in_order(
    replies: list[str], engines: Engines, seed: int
) -> None:
    rng, feed, at_ns = random.Random(seed), SpeechFeed(), 0
    for reply in replies:
        turn = Turn(feed, engines, rng, at_ns, reply)
        heard = turn.play()
        assert " ".join(heard.pieces) == reply
        assert heard.onset_ms is not None
        at_ns = turn.silent_ns + rng.choice([0, NS_PER_S])


def test_an_interrupted_reply_is_forgotten() -> None:
    feed = SpeechFeed()
    feed.start(0)
    for number, token in enumerate(tokens_of(REPLIES[6])):
        feed.text(ms_to_ns(number), token)
        feed.take(ms_to_ns(number))
    feed.reset()
    assert feed.waiting == ""
    assert feed.due_ns(0) is None
    feed.end()
    assert feed.take(ms_to_ns(100)) == []


def test_text_that_waits_goes_when_its_time_has_come() -> None:
    """The LLM stalls: what there is goes before the speech runs dry, not when more comes."""
    feed = SpeechFeed(voice_of(0.1))
    feed.start(0)
    for token in ["The", " kitchen", " lights", " are"]:
        feed.text(0, token)
    assert feed.take(0) == ["The kitchen"]
    feed.asked(0, 11)
    feed.audio(ms_to_ns(60), 700)
    feed.made()
    feed.begin(ms_to_ns(60))
    assert feed.take(ms_to_ns(61)) == []
    due_ns = feed.due_ns(ms_to_ns(61))
    assert due_ns is not None
    assert ms_to_ns(200) < due_ns < ms_to_ns(760)
    assert feed.take(due_ns + 1_000_000) == ["lights"]


def voice_of(factor: float) -> VoiceSpeed:
    """A voice that was measured to take so long for a ms of speech, a piece at a time."""
    voice = VoiceSpeed()
    for chars in (10, 20, 30, 40) * 4:
        audio_ms = 128 + 49.0 * chars
        voice.add(Request(chars, audio_ms, factor * audio_ms, factor * audio_ms, audio_ms))
    return voice


# --- the speeds -----------------------------------------------------------------------------------


def test_what_is_measured_is_found_again() -> None:
    voice = VoiceSpeed()
    assert not voice.known
    for chars in (8, 60, 20, 33) * 4:
        audio_ms = 128 + 49.0 * chars
        voice.add(Request(chars, audio_ms, 100 + 0.3 * audio_ms, 100 + 0.3 * 60, 60))
    assert voice.known
    assert 100 + 300 <= voice.make_ms(1000) <= 1.15 * (100 + 300)
    assert 118 <= voice.first_ms(1000) <= 130
    least_ms, most_ms = voice.speech_ms(40)
    assert least_ms < 128 + 49 * 40 < most_ms


def test_an_engine_that_makes_pieces_whole_is_heard_when_it_is_done() -> None:
    voice = voice_of(0.5)
    assert voice.first_ms(1000) == voice.make_ms(1000)


def test_a_voice_of_which_nothing_is_known_is_given_a_clause_or_six_words_and_not_held() -> None:
    for text, first in (
        ("One more thing, as you asked.", "One more thing,"),
        ("I was about to say that it is late.", "I was about to say that"),
    ):
        feed = SpeechFeed()
        feed.start(0)
        pieces = []
        for token in tokens_of(text):
            feed.text(0, token)
            pieces += feed.take(0)
        assert pieces[0] == first
        feed.asked(0, len(first))
        feed.audio(0, 20)
        assert feed.may_begin(0)


def test_without_measurement_the_voice_is_taken_for_a_slow_one() -> None:
    assert VoiceSpeed().make_ms(1000) > voice_of(0.3).make_ms(1000)


def test_requests_that_made_nothing_tell_nothing() -> None:
    voice = VoiceSpeed()
    voice.add(Request(10, 0.0, 0.0, 0.0, 0.0))
    voice.add(Request(0, 500.0, 10.0, 10.0, 500.0))
    assert not voice.known


def test_text_is_as_slow_as_of_late_or_as_in_this_reply() -> None:
    text = TextSpeed()
    for at_ms in range(0, 1000, 10):
        text.text(at_ms, 5)
    fast = text.char_ms
    assert 2 <= fast <= 2.5
    text.reply_started()
    for at_ms in range(5000, 5500, 100):
        text.text(at_ms, 5)
    assert text.char_ms > 20
    assert text.late_ms >= 0


def test_the_wait_for_a_replys_first_text_is_not_its_pace() -> None:
    text = TextSpeed()
    text.text(0, 5)
    text.reply_started()
    text.text(10_000, 5)
    text.text(10_010, 5)
    assert text.char_ms <= 20
