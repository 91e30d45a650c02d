"""The probability that a turn is over, and the hold that follows from it."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.errors import InputError
from turngap_services.turn.over import (
    ENDINGS,
    FEATURES,
    STEADY_MS,
    Evidence,
    Over,
    Pauses,
    shipped,
)
from turngap_services.turn.voice import Melody

PAUSES = Pauses(median_ms=300, sigma=1.0, least_ms=100, most_ms=3000)
SHARES = st.floats(0, 1)
TEXT = shipped().model_dump_json()


def said(text: str, **known: object) -> Evidence:
    return Evidence(tuple(text.split()), **known)  # type: ignore[arg-type]


def over(**log_odds: float) -> Over:
    return Over(about="", pauses=PAUSES, log_odds=dict.fromkeys(FEATURES, 0.0) | log_odds)


# --- silence ----------------------------------------------------------------------------------


@given(st.floats(100, 3000))
def test_a_length_and_the_share_of_pauses_that_exceed_it_tell_each_other(ms: float) -> None:
    assert PAUSES.exceeded_by(PAUSES.longer(ms)) == pytest.approx(ms, rel=1e-4)


def test_all_pauses_are_as_long_as_the_least_and_none_as_the_most() -> None:
    assert (PAUSES.longer(0), PAUSES.longer(100), PAUSES.longer(3000)) == (1, 1, 0)
    assert (PAUSES.exceeded_by(2), PAUSES.exceeded_by(0)) == (100, 3000)
    # Half of those from 100 ms on, of which none is longer than 3 s.
    assert 300 < PAUSES.exceeded_by(0.5) < 400


@given(SHARES, st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)))
def test_more_certainty_holds_longer(p: float, two: tuple[float, float]) -> None:
    holds = [over().hold_ms(p, certainty) for certainty in sorted(two)]
    assert 0 <= holds[0] <= holds[1] <= PAUSES.most_ms


@given(st.floats(0, 0.999), st.tuples(SHARES, SHARES))
def test_the_likelier_the_end_the_shorter_the_hold(
    certainty: float, two: tuple[float, float]
) -> None:
    holds = [over().hold_ms(p, certainty) for p in sorted(two)]
    assert holds[0] >= holds[1]


def test_the_hold_is_the_silence_after_which_it_is_certain() -> None:
    p, certainty = 0.4, 0.9
    longer = PAUSES.longer(over().hold_ms(p, certainty))
    assert p / (p + (1 - p) * longer) == pytest.approx(certainty)


# --- evidence ---------------------------------------------------------------------------------


def test_what_is_not_known_says_nothing() -> None:
    assert over(bias=1).probability(said("")) == pytest.approx(1 / (1 + math.exp(-1)))
    assert {name for name, value in said("a nice day").features().items() if value} == {"bias"}


@pytest.mark.parametrize("text", ["a table for", "two and", "the um"])
def test_words_that_others_follow_make_the_end_less_likely(text: str) -> None:
    assert shipped().probability(said(text)) < shipped().probability(said("a nice day"))


def test_a_word_that_has_just_changed_says_less() -> None:
    fitted = over(bias=1, preposition=-2)
    steps = [
        fitted.probability(said("a table for", steady_ms=ms)) for ms in (0, 100, STEADY_MS, 900)
    ]
    assert steps[0] == fitted.probability(said("a table"))
    assert steps[0] > steps[1] > steps[2] == steps[3]


def test_smart_turn_is_believed_more_the_surer_it_is() -> None:
    steps = [shipped().probability(said("a nice day", complete=p)) for p in (0.0, 0.3, 0.9, 1.0)]
    assert steps == sorted(steps)
    assert steps[0] < shipped().probability(said("a nice day")) < steps[-1]


@given(*[st.floats(-1e6, 1e6)] * 4, st.one_of(st.none(), SHARES))
def test_whatever_the_voice_does_it_is_a_probability(
    pitch: float, falls: float, loudness: float, voiced_ms: float, complete: float | None
) -> None:
    melody = Melody(pitch, falls, loudness, voiced_ms)
    p = shipped().probability(Evidence(("yes",), melody=melody, complete=complete))
    assert 0 < p < 1


# --- the file ---------------------------------------------------------------------------------


def test_what_ships_says_on_what_it_was_fitted() -> None:
    assert "turns" in shipped().about
    assert set(ENDINGS[:-1]) < set(shipped().log_odds)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"log_odds": {"bias": 1.0}}, "filler"),
        ({"log_odds": {**shipped().log_odds, "mood": 1.0}}, "mood"),
        ({"log_odds": {**shipped().log_odds, "bias": "high"}}, "log_odds.bias"),
        ({"pauses": {**PAUSES.model_dump(), "most_ms": 50}}, "least_ms must be less"),
        ({"pauses": {**PAUSES.model_dump(), "sigma": 0}}, "pauses.sigma"),
        ({"smart": 1}, "smart"),
    ],
)
def test_a_file_that_was_not_fitted_is_refused(change: dict[str, object], says: str) -> None:
    text = json.dumps(json.loads(TEXT) | change)
    with pytest.raises(InputError, match=says) as refused:
        Over.read(text, "over.json")
    assert refused.value.kind == "turn.fitted_file"
    assert "turn_over.fit" in refused.value.hint


@pytest.mark.parametrize("text", ["", "{", TEXT.replace("1", "NaN", 1), "[]"])
def test_a_file_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"over\.json"):
        Over.read(text, "over.json")
