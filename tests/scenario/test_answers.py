"""Right or wrong, from the events of a conversation: what was heard, and what of it counts."""

from collections.abc import Sequence

import pytest

from turngap.core.budget import TurnEnd
from turngap.core.clock import ms_to_ns
from turngap.core.events import (
    AgentSilence,
    AgentSpeech,
    Event,
    Flush,
    Marks,
    ReplyText,
    ToolCall,
    TrackedTurn,
    TurnEnded,
    UserSpeech,
)
from turngap.core.stored import NO_TEXT, AnswerRecord
from turngap.core.turns import TurnTracker
from turngap.core.voice import LETTER_MS, letters
from turngap.scenario.answers import (
    ABANDONED,
    BROKEN_OFF,
    NO_CALLS,
    NO_REPLY,
    NOTHING_EXPECTED,
    STOPPED,
    TOO_LONG,
    Hearing,
    answer_of,
    heard_of,
    judge,
)
from turngap.scenario.expectation import MOST_SEARCHED, Expectation, ReplyExpectation

TEXT = "Fry onions in butter, then add tomatoes."


def expects(**what: object) -> ReplyExpectation:
    return ReplyExpectation.model_validate(what)


def whole(text: str) -> Hearing:
    return Hearing(text, whole=True)


def broken(text: str) -> Hearing:
    return Hearing(text, whole=False)


@pytest.mark.parametrize(
    ("expected", "said", "failed"),
    [
        (expects(any_of=["ten", "eleven"]), "At 11.", ()),
        (
            expects(any_of=["ten", "eleven"]),
            "At 12.",
            ('expected one of: "ten", "eleven"',),
        ),
        (expects(all_of=["small", "latte"]), "A small oat latte.", ()),
        (expects(all_of=["small", "latte"]), "A latte.", ('not said: "small"',)),
        (expects(forbid=["large"]), "A small one.", ()),
        (expects(forbid=["large"]), "A large one.", ('said, but forbidden: "large"',)),
        (expects(regex=r"^it's (ten|10)\b"), "It's ten past nine", ()),
        (expects(regex=r"^ten"), "It's ten", ("regex: ^ten does not match",)),
        (
            expects(any_of=["a"], all_of=["b", "c"], forbid=["d"], regex="e"),
            "d",
            (
                'expected one of: "a"',
                'not said: "b", "c"',
                "regex: e does not match",
                'said, but forbidden: "d"',
            ),
        ),
    ],
)
def test_a_reply_heard_to_its_end_is_right_or_wrong_and_says_why(
    expected: ReplyExpectation, said: str, failed: tuple[str, ...]
):
    record = judge(expected, whole(said))
    assert (record.verdict, record.failed) == ("wrong" if failed else "right", failed)
    assert record.heard == said
    assert record.why is None


def test_what_is_missing_from_a_reply_that_was_broken_off_is_nobodys_fault():
    expected = expects(all_of=["onions", "tomatoes"], forbid=["garlic"])
    assert judge(expected, broken("Fry onions in")).verdict == "not_judged"
    assert judge(expected, broken("Fry onions in")).why == BROKEN_OFF
    assert judge(expected, broken("onions and tomatoes")).verdict == "right"
    assert judge(expected, broken("Fry garlic")).verdict == "wrong"
    assert judge(expected, broken("Fry onions in"), own_fault=True).verdict == "wrong"


def turns(events: Sequence[Event]) -> dict[int, tuple[TrackedTurn, list[Event]]]:
    """Each turn and its events, cut where the next one was announced."""
    tracker = TurnTracker()
    finished: dict[int, tuple[TrackedTurn, list[Event]]] = {}
    mine: dict[int, list[Event]] = {}
    latest = 0
    for event in events:
        if isinstance(event, UserSpeech):
            latest = event.turn
        mine.setdefault(latest, []).append(event)
    for event in events:
        for turn in tracker.feed(event):
            finished[turn.turn] = (turn, mine[turn.turn])
    return finished


def user(turn: int, start_ms: float, *, over: bool = False) -> UserSpeech:
    return UserSpeech(turn, ms_to_ns(start_ms), ms_to_ns(start_ms + 1000), over)


def speaks(from_ms: float, to_ms: float) -> list[Event]:
    onset = ms_to_ns(from_ms)
    return [AgentSpeech(onset, onset), AgentSilence(ms_to_ns(to_ms))]


def text(at_ms: float, said: str = TEXT) -> ReplyText:
    return ReplyText(said, at_ns=ms_to_ns(at_ms))


def over(turn: int, at_ms: float, reason: TurnEnd = "reply_done") -> TurnEnded:
    return TurnEnded(turn, ms_to_ns(at_ms), reason)


def answered(
    expected: ReplyExpectation | Expectation | None, events: Sequence[Event], upto_ms: float
):
    turn, mine = turns(events)[1]
    if not isinstance(expected, Expectation):
        expected = Expectation(reply=expected)
    return answer_of(expected, turn, mine, ms_to_ns(upto_ms))


def test_a_reply_played_to_its_end_was_heard_whole_however_its_text_came():
    flush = Flush(at_ns=ms_to_ns(300))  # the agent hears the person begin; nothing is dropped
    pieces = [text(1300, "Fry onions in butter,"), text(1400, " then add tomatoes.")]
    events = [user(1, 0), flush, *pieces, *speaks(1500, 3500), over(1, 4500)]
    turn, mine = turns(events)[1]
    assert heard_of(turn, mine, ms_to_ns(4500)) == whole(TEXT)


def test_of_a_reply_that_the_person_broke_off_the_words_count_that_had_time():
    said = "Fry onions in"
    ms = LETTER_MS * letters(said)
    speech = speaks(1500, 1500 + ms + 600)  # it goes on while the person speaks already
    # When the next turn is announced, its silence is still to come.
    events = [
        user(1, 0), text(1300), speech[0], user(2, 1500 + ms, over=True), speech[1],
        Flush(at_ns=ms_to_ns(1500 + ms + 600)), over(1, 9000, "interrupted"),
    ]  # fmt: skip
    turn, mine = turns(events)[1]
    assert heard_of(turn, mine, ms_to_ns(1500 + ms)) == broken(said)


def test_what_a_reply_lacks_that_stopped_for_a_cough_is_the_agents_fault():
    events = [
        user(1, 0), text(1300), *speaks(1500, 2300), Flush(at_ns=ms_to_ns(2300)), over(1, 4500)
    ]  # fmt: skip
    turn, mine = turns(events)[1]
    expected = Expectation(reply=expects(all_of=["onions", "tomatoes"]))
    broken_off = answer_of(expected, turn, mine, ms_to_ns(4500))
    assert (broken_off.verdict, broken_off.why) == ("not_judged", BROKEN_OFF)
    stopped = answer_of(expected, turn, mine, ms_to_ns(4500), stopped=True)
    assert (stopped.verdict, stopped.failed) == ("wrong", ('not said: "tomatoes"',))


def test_a_reply_that_began_again_was_broken_all_the_same():
    told = expects(all_of=["onions"])
    assert judge(told, whole("Fry Fry onions"), stopped=True).verdict == "right"
    unbroken = expects(all_of=["onions"], unbroken=True)
    assert judge(unbroken, whole("Fry Fry onions")).verdict == "right"
    record = judge(unbroken, whole("Fry Fry onions"), stopped=True)
    assert (record.verdict, record.failed) == ("wrong", (STOPPED,))


def test_what_was_dropped_before_it_was_played_was_not_heard():
    first, second = text(700, "Five onions, finely chopped."), text(2300, "Two onions.")
    said_ms = LETTER_MS * letters("Five")
    events = [
        user(1, 0), first, *speaks(800, 800 + said_ms), Flush(at_ns=ms_to_ns(800 + said_ms)),
        second, *speaks(2400, 3400), over(1, 4000),
    ]  # fmt: skip
    turn, mine = turns(events)[1]
    assert heard_of(turn, mine, ms_to_ns(4000)) == whole("Five … Two onions.")
    record = answered(expects(any_of=["two onions"], forbid=["chopped"]), events, 4000)
    assert record.verdict == "right"
    assert answered(expects(any_of=["three"]), events, 4000).verdict == "wrong"


def test_the_reply_to_the_turn_before_is_not_judged_as_this_ones():
    events = [
        user(1, 0), text(1300, "Large."), AgentSpeech(ms_to_ns(1500), ms_to_ns(1500)),
        user(2, 2000, over=True), text(2100, " It is large."), Flush(at_ns=ms_to_ns(2300)),
        over(1, 2400, "interrupted"), text(3200, "Small."), *speaks(3300, 3900), over(2, 4900),
    ]  # fmt: skip
    turn, mine = turns(events)[2]
    assert turn.reply == "Small."
    expected = Expectation(reply=expects(any_of=["small"], forbid=["large"]))
    record = answer_of(expected, turn, mine, ms_to_ns(4900))
    assert (record.verdict, record.heard) == ("right", "Small.")


def test_events_that_were_not_kept_leave_the_text_as_it_is():
    turn, _ = turns([user(1, 0), text(1300), *speaks(1500, 3500), over(1, 4500)])[1]
    assert heard_of(turn, [], ms_to_ns(4500)) == whole(TEXT)


def test_who_hears_nothing_has_no_right_answer_unless_they_did_not_wait():
    expected = expects(any_of=["x"])
    silent = answered(expected, [user(1, 0), text(1300), over(1, 9000, "timeout")], 9000)
    assert silent == AnswerRecord(verdict="wrong", failed=(NO_REPLY,))
    impatient = answered(expected, [user(1, 0), over(1, 1500, "interrupted")], 1500)
    assert impatient == AnswerRecord(verdict="not_judged", why=ABANDONED)


def test_a_line_that_is_lost_excuses_nothing():
    events = [user(1, 0), text(1300), *speaks(1500, 1900), over(1, 2000, "line_lost")]
    record = answered(expects(all_of=["tomatoes"]), events, 2000)
    assert record.verdict == "wrong"
    assert "tomatoes" not in record.heard


def test_without_an_expectation_or_a_text_nothing_is_judged():
    heard = [user(1, 0), *speaks(1500, 3500), Marks(1, {}), over(1, 4500)]
    assert answered(None, heard, 4500) == AnswerRecord(verdict="not_judged", why=NOTHING_EXPECTED)
    nothing_said = answered(expects(forbid=["x"]), heard, 4500)
    assert nothing_said == AnswerRecord(verdict="not_judged", why=NO_TEXT)


# --- tools ------------------------------------------------------------------------------------

CLOCK = {"name": "clock"}


def expecting(**what: object) -> Expectation:
    return Expectation.model_validate(what)


def called(*names: str | None, said: str = "It is nine.", end: TurnEnd = "reply_done"):
    """A turn in which these tools were called; None: of which the agent does not tell."""
    calls = None if None in names else tuple(ToolCall(str(name), {}) for name in names)
    marks = Marks(1, {"sent": ms_to_ns(1400)}, calls=calls)
    spoken = [text(1300, said)] if said else []
    return [user(1, 0), *spoken, marks, *speaks(1500, 1900), over(1, 2000, end)]


def test_an_answer_is_right_where_both_the_reply_and_the_calls_are():
    expected = expecting(reply={"any_of": ["nine"]}, tools={"all_of": [CLOCK]})
    assert answered(expected, called("clock"), 2000).verdict == "right"
    wrong = answered(expected, called(), 2000)
    assert (wrong.verdict, wrong.heard) == ("wrong", "It is nine.")
    assert wrong.failed == ("tools: clock() was not called, but nothing",)
    both = answered(expected, called(said="It is ten."), 2000)
    assert both.failed == ('expected one of: "nine"', *wrong.failed)


def test_calls_that_the_agent_does_not_tell_of_are_not_judged_but_a_wrong_reply_is():
    expected = expecting(reply={"any_of": ["nine"]}, tools={"none": True})
    record = answered(expected, called(None), 2000)
    assert (record.verdict, record.why) == ("not_judged", NO_CALLS)
    assert answered(expected, called(None, said="It is ten."), 2000).verdict == "wrong"


def test_calls_alone_can_be_expected_of_an_agent_that_reports_no_text():
    expected = expecting(tools={"all_of": [CLOCK]})
    assert answered(expected, called("clock", said=""), 2000).verdict == "right"
    assert answered(expected, called("weather", said=""), 2000).verdict == "wrong"


def test_a_call_that_is_missing_from_an_answer_that_was_broken_off_is_nobodys_fault():
    expected = expecting(tools={"all_of": [CLOCK]})
    for said in ("It is nine.", ""):
        record = answered(expected, called(said=said, end="interrupted"), 1600)
        assert (record.verdict, record.why) == ("not_judged", BROKEN_OFF)
    forbidden = expecting(tools={"none": True})
    assert answered(forbidden, called("clock", end="interrupted"), 1600).verdict == "wrong"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*a){25}b", r"(\w+\s?)*!"])
def test_a_pattern_cannot_hang(pattern: str):
    # Python's `re` takes longer than anybody lives for each of them.
    reply = "a" * MOST_SEARCHED
    heard = Hearing(reply[:-1] + ",", whole=True)
    assert judge(ReplyExpectation(regex=pattern), heard).verdict == "wrong"


def test_a_reply_too_long_to_search_is_not_judged():
    expected = ReplyExpectation(regex="a", forbid=("b",))
    long = "a " * (MOST_SEARCHED // 2)
    assert judge(expected, Hearing(long, whole=True)).verdict == "right"
    record = judge(expected, Hearing(long + "a", whole=True))
    assert (record.verdict, record.why) == ("not_judged", TOO_LONG)
    assert judge(expected, Hearing(long + "b", whole=True)).verdict == "wrong"


def test_a_pattern_knows_letters_of_all_languages_and_no_case():
    expected = ReplyExpectation(regex=r"^caf\u00c9 \w+\b|\d{2}:30")
    for text, verdict in (("Caf\u00e9 \u00fcber", "right"), ("at 17:30", "right"), ("x", "wrong")):
        assert judge(expected, Hearing(text, whole=True)).verdict == verdict
