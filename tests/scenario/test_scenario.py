import pytest
from pydantic import ValidationError

from turngap.core.cue import AFTER_REPLY_MS, SpeechBounds, When
from turngap.scenario.expectation import Call, Expectation, ReplyExpectation, ToolsExpectation
from turngap.scenario.model import Backchannel, Scenario, UserTurn

TURN = {"say": "hello", "audio": "a/1.flac"}


def reason_of(excinfo: pytest.ExceptionInfo[ValidationError]) -> str:
    (problem,) = excinfo.value.errors()
    return problem["msg"]


def test_a_turn_waits_for_the_reply_and_has_the_conversational_budget_unless_it_says_otherwise():
    turn = UserTurn.model_validate(TURN)

    assert turn.when == When(after_reply_ms=AFTER_REPLY_MS)
    assert turn.expect.budget_ms == 800
    assert turn.speech is None
    assert turn.reply is None


def test_a_scenario_needs_a_turn():
    with pytest.raises(ValidationError, match="at least 1 item"):
        Scenario.model_validate({"name": "a", "turns": []})


@pytest.mark.parametrize("name", ["", "Coffee", "coffee order", "-coffee", "../coffee", "café"])
def test_a_name_is_a_plain_file_stem(name: str):
    with pytest.raises(ValidationError, match="should match pattern"):
        Scenario.model_validate({"name": name, "turns": [TURN]})


@pytest.mark.parametrize(
    "model",
    [
        *(SpeechBounds, ReplyExpectation, Call, ToolsExpectation, Expectation, When),
        *(Backchannel, UserTurn, Scenario),
    ],
)
def test_no_model_takes_an_unknown_key(model: type):
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        model.model_validate({"colour": "red"})


@pytest.mark.parametrize(
    "when",
    [
        {},
        {"after_reply_ms": 100, "at_ms": 100},
        {"barge_in_ms": 100, "at_ms": 100},
        {"after_reply_ms": 0, "barge_in_ms": 0, "at_ms": 0},
    ],
)
def test_when_is_exactly_one_of_three(when: dict[str, float]):
    with pytest.raises(ValidationError) as excinfo:
        When.model_validate(when)
    assert "exactly one of after_reply_ms, barge_in_ms, at_ms" in reason_of(excinfo)


@pytest.mark.parametrize("key", ["after_reply_ms", "barge_in_ms", "at_ms"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "soon"])
def test_when_is_a_finite_time_from_zero_up(key: str, value: object):
    with pytest.raises(ValidationError):
        When.model_validate({key: value})


def test_the_first_turn_cannot_barge_in_and_a_later_one_can():
    barging = {**TURN, "when": {"barge_in_ms": 500}}

    assert Scenario.model_validate({"name": "a", "turns": [TURN, barging]})
    with pytest.raises(ValidationError) as excinfo:
        Scenario.model_validate({"name": "a", "turns": [barging]})
    assert "no reply to barge into" in reason_of(excinfo)


@pytest.mark.parametrize(
    "audio", ["/etc/passwd", "../a.flac", "a/../../b.flac", "a\\..\\b.flac", ".."]
)
@pytest.mark.parametrize("model", [UserTurn, Backchannel])
def test_audio_stays_inside_the_folder(audio: str, model: type):
    with pytest.raises(ValidationError, match="inside the scenario's folder"):
        model.model_validate({**TURN, "audio": audio})


@pytest.mark.parametrize(
    "pauses",
    [[(400, 700), (600, 900)], [(50, 300)], [(800, 1000)]],
    ids=["overlap", "lead", "tail"],
)
def test_pauses_lie_apart_inside_the_speech(pauses: list[tuple[float, float]]):
    spans = [{"start_ms": start, "end_ms": end} for start, end in pauses]
    with pytest.raises(ValidationError, match="pause from"):
        UserTurn.model_validate(
            TURN | {"speech": {"start_ms": 100, "end_ms": 1000}, "pauses": spans}
        )


@pytest.mark.parametrize(
    ("start_ms", "end_ms"), [(5, 5), (6, 5), (-1, 5), (0, 0), (0, float("inf"))]
)
def test_speech_lies_forward_in_time(start_ms: float, end_ms: float):
    with pytest.raises(ValidationError):
        SpeechBounds(start_ms=start_ms, end_ms=end_ms)


def test_an_expected_regular_expression_must_compile():
    assert ReplyExpectation(regex=r"\b(ten|10)\b")
    with pytest.raises(ValidationError, match="not a regular expression"):
        ReplyExpectation(regex="(ten")


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        ({}, "expects nothing: give any_of, all_of, forbid or regex"),
        ({"any_of": []}, "expects nothing"),
        ({"any_of": ["ten", "?!"]}, "'?!' holds no word"),
        ({"all_of": ["large oat latte"], "forbid": ["large"]}, "'large' is forbidden, and part of"),
        ({"any_of": ["at ten", "at 10 sharp"], "forbid": ["10"]}, "'10' is forbidden, and part of"),
    ],
)
def test_an_expectation_that_says_nothing_or_cannot_be_met_is_refused(
    expected: dict[str, list[str]], reason: str
):
    with pytest.raises(ValidationError) as excinfo:
        ReplyExpectation.model_validate(expected)
    assert reason in reason_of(excinfo)


def test_what_is_forbidden_may_be_part_of_one_of_several_ways_to_be_right():
    assert ReplyExpectation(any_of=("small", "not large"), forbid=("large",))


@pytest.mark.parametrize("budget_ms", [0, -800])
def test_a_budget_is_positive(budget_ms: float):
    with pytest.raises(ValidationError, match="greater than 0"):
        Expectation(budget_ms=budget_ms)
