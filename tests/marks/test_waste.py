"""The cost of discarded answers."""

from turngap.marks.turn import Waste


def test_a_guess_that_was_right_costs_nothing() -> None:
    waste = Waste()
    waste.begun(400)
    waste.piece()
    waste.used(90, 12)
    waste.confirmed()
    assert waste.take(None) == {"speculations": 1}


def test_what_the_service_says_is_what_is_counted() -> None:
    waste = Waste()
    waste.begun(400)
    waste.piece()
    waste.withdrawn()
    waste.used(90, 12)  # a service tells a cancelled request's use once it is cancelled
    assert waste.take((1.0, 2.0)) == {
        "speculations": 1,
        "speculations_wasted": 1,
        "wasted_prompt_tokens": 90,
        "wasted_completion_tokens": 12,
        "wasted_usd": (90 * 1.0 + 12 * 2.0) / 1e6,
    }


def test_a_service_that_was_done_has_said_it_before() -> None:
    waste = Waste()
    waste.begun(400)
    waste.used(90, 30)
    waste.withdrawn()
    counts = waste.take(None)
    assert (counts["wasted_prompt_tokens"], counts["wasted_completion_tokens"]) == (90, 30)
    assert "wasted_estimated" not in counts
    assert "wasted_usd" not in counts


def test_a_service_that_says_nothing_is_estimated_and_the_next_ones_use_is_not_its() -> None:
    waste = Waste()
    waste.begun(401)
    waste.answered()
    for _ in range(7):
        waste.piece()
    waste.withdrawn()
    waste.begun(800)
    waste.answered()  # the next answer begins: nothing more will be said of the first
    waste.used(200, 20)
    waste.confirmed()
    assert waste.take(None) == {
        "speculations": 2,
        "speculations_wasted": 1,
        "wasted_estimated": 1,
        "wasted_prompt_tokens": 101,
        "wasted_completion_tokens": 7,
        "unreported_prompt_tokens": 101,
        "unreported_completion_tokens": 7,
    }


def test_it_adds_up_until_it_is_taken() -> None:
    waste = Waste()
    for _ in range(3):
        waste.begun(4)
        waste.withdrawn()
    assert waste.take(None)["speculations_wasted"] == 3
    assert waste.take(None) == {}


def test_withdrawing_what_was_not_asked_is_no_waste() -> None:
    waste = Waste()
    waste.withdrawn()
    waste.used(5, 5)
    assert waste.take(None) == {}


def test_what_was_withdrawn_before_the_llm_came_to_it_was_never_asked() -> None:
    waste = Waste()
    waste.begun(400)
    waste.withdrawn()
    waste.begun(400)
    waste.answered()
    waste.used(100, 5)
    waste.confirmed()
    assert waste.take((1.0, 2.0)) == {"speculations": 2, "speculations_wasted": 1}


def test_an_answer_that_begins_while_it_is_withdrawn_was_asked() -> None:
    waste = Waste()
    waste.begun(400)
    waste.withdrawn()
    waste.answered()
    assert waste.take(None)["unreported_prompt_tokens"] == 100
