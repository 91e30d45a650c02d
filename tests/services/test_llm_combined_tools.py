"""Tools through the combined backends: who calls, that it runs once, what it costs."""

import json
from typing import Any

import pytest
from combined_line import (
    ALL_MS,
    CALLS,
    FAST,
    FULL,
    ORDER,
    TOKEN_MS,
    TOOL_MS,
    TYPES,
    Actor,
    actors,
    box,
    casting,
    combined,
    paid,
    tool_turn,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pipecat.frames.frames import EagerEndOfTurnCancelFrame
from running_line import InstantClock
from scripted_line import conversing

from turngap.agent.stack import TOOLS
from turngap.agent.tools import toolbox, tools
from turngap.clocks import MonotonicClock
from turngap.core.voice import LETTER_MS, letters
from turngap.marks.observer import MarksObserver
from turngap.testing import LoopClock
from turngap_services.llm.combine import SPECS
from turngap_services.llm.combine.part import is_about, texts_of
from turngap_services.llm.combine.service import (
    CHOSEN,
    FULL_WON,
    NO_TIME,
    OPENER_FOR_TOOL,
    OPENER_MS,
    ROUTE_FOR_TOOL,
    TO_FULL,
    create,
)

__all__ = ["actors"]

NAMES = tuple(spec.name for spec in SPECS)
SMALL_TALK = "thank you very much"


# --- one call, by the part that is kept --------------------------------------------------------


@pytest.mark.parametrize("which", NAMES)
def test_a_tool_runs_once_and_its_caller_answers_from_the_result(
    actors: dict[str, Actor], which: str
):
    # Everybody wants to call it.
    heard = tool_turn(combined(which, FULL, {**FULL, "ttft_ms": 20}))
    assert heard.ran == [ORDER]
    assert (heard.text, heard.errors, heard.replies) == ("It is there.", [], 2)
    assert heard.roles == ["user", "assistant", "tool", "assistant"]
    assert {"order", "weather"} == set.union(*actors["large"].offered)
    assert actors["large"].contexts[-1][-1]["role"] == "tool"
    stages = heard.stages
    assert stages["result"] - stages["call"] == pytest.approx(TOOL_MS)
    assert stages["text"] > stages["result"]
    paid(heard, actors)


@pytest.mark.parametrize("which", NAMES)
def test_a_turn_without_a_call_runs_nothing(actors: dict[str, Actor], which: str):
    heard = tool_turn(combined(which, {"text": "You are welcome."}), SMALL_TALK)
    assert (heard.ran, heard.errors, heard.replies) == ([], [], 1)
    assert heard.text
    paid(heard, actors)


@pytest.mark.parametrize("which", NAMES)
def test_several_calls_of_one_reply_all_run(actors: dict[str, Actor], which: str):
    both = (ORDER, ("weather", {"day": "today"}))
    heard = tool_turn(combined(which, {**FULL, "calls": both}, {**FULL, "calls": both}))
    assert heard.ran == list(both)
    assert (heard.text, heard.replies) == ("It is there.", 2)


def test_in_the_next_turn_another_part_may_call_the_same(actors: dict[str, Actor]):
    turns = ("where is my order", SMALL_TALK)  # the one is the full model's, the other is not
    heard = tool_turn(combined("route", FULL, {**CALLS, "after": "Still."}), *turns)
    assert (heard.ran, heard.errors) == ([ORDER, ORDER], [])
    assert (heard.text, heard.replies) == ("It is there. Still.", 4)


def test_the_calls_tokens_are_paid_by_whoever_made_them(actors: dict[str, Actor]):
    heard = tool_turn(combined("route"))
    # As long as the part does not say, by four characters a token.
    written = -(-len('order({"number": "7"})') // 4)
    assert heard.counts["combined_completion_tokens"] == written + 3  # "It is there."
    # The tools are part of what is read, both times; beside them are a few words.
    offered = box([], InstantClock()).standard_tools
    known = sum(len(json.dumps(tool.to_default_dict())) for tool in offered)
    assert 2 * known / 4 < heard.counts["combined_prompt_tokens"] < 2 * known / 4 + 80
    assert heard.counts["combined_usd"] == pytest.approx(
        (heard.counts["combined_prompt_tokens"] * 5 + (written + 3) * 50) / 1e6
    )


# --- `route` ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "full"), [("not order 6 but 7", 1), (SMALL_TALK, 0)])
def test_a_turn_that_looks_like_one_for_a_tool_goes_to_the_full_model(
    actors: dict[str, Actor], said: str, full: int
):
    # There is no time for it, though it is hard.
    heard = tool_turn(combined("route", full_ttft_ms=5000), said)
    assert (heard.counts[ROUTE_FOR_TOOL], heard.counts[TO_FULL]) == (full, full)
    assert heard.counts.get(NO_TIME, 0) == 0
    assert heard.ran == ([ORDER] if full else [])


@pytest.mark.parametrize(("who", "ran"), [("quick", [ORDER]), ("plain", [])])
def test_what_was_not_seen_to_need_one_may_be_called_by_a_fast_model_that_can(
    actors: dict[str, Actor], who: str, ran: list[Any]
):
    fast = {**FAST, **CALLS, "text": "Well,"}
    heard = tool_turn(combined("route", FULL, fast, who=who), SMALL_TALK)
    assert heard.ran == ran
    assert heard.text == ("Well, It is there." if ran else "Well,")
    assert actors["large"].asked == 0
    assert actors[who].offered[0] == ({"order", "weather"} if ran else set())


@pytest.mark.parametrize(
    ("said", "looks"),
    [
        ("do I need an umbrella tomorrow", True),
        ("where did order three zero five go", True),
        ("put lunch with Anna on Thursday at one", True),
        ("what else have I planned for that day", True),
        ("give me the hour and then today's forecast", True),
        ("what time is it", True),
        ("great that was all for now", False),
        ("a large oat latte please", False),
        ("", False),
    ],
)
def test_a_turn_looks_like_one_for_a_tool_by_the_tools_own_words(said: str, looks: bool):
    demo = toolbox(TOOLS, LoopClock(), among=tools()).standard_tools
    assert is_about(said, texts_of(demo)) is looks


@given(st.text(st.characters()), st.lists(st.text(st.characters()), max_size=4))
def test_no_text_and_no_tool_is_too_odd_to_be_scored(said: str, texts: list[str]):
    assert is_about(said, texts) in (True, False)


# --- `race` -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("full_ms", "won"), [(200, 1), (400, 0)])
def test_a_call_by_the_full_model_is_there_with_its_first_token(
    actors: dict[str, Actor], full_ms: float, won: int
):
    # Twenty tokens of 10 ms each: whole only after the deadline.
    full = {**FULL, "ttft_ms": full_ms}
    heard = tool_turn(combined("race", full, deadline_ms=300))
    assert heard.counts[FULL_WON] == won
    assert heard.ran == ([ORDER] if won else [])
    assert heard.text == ("It is there." if won else FAST["text"])
    if won:
        assert heard.stages["call"] == pytest.approx(full_ms + 19 * TOKEN_MS)


def test_a_call_that_never_gets_whole_is_no_win(actors: dict[str, Actor]):
    full = {**FULL, "hangs_at": 5}
    heard = tool_turn(combined("race", full, deadline_ms=300))
    assert (heard.text, heard.ran, heard.errors) == (FAST["text"], [], [])
    assert heard.counts["combined_fell_back"] == 1
    assert heard.over_ms == pytest.approx(200 + 500)


# --- `opener` -----------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
def test_the_opening_is_said_and_the_full_model_calls_and_goes_on(
    actors: dict[str, Actor], told: bool
):
    opening = "Let me see,"
    full = {**FULL, "after": "it is there." if told else "Let me see, it is there."}
    fast = {**FAST, "text": f"{opening} I think so."}
    heard = tool_turn(combined("opener", full, fast, told=told))
    assert (heard.text, heard.ran) == (f"{opening} it is there.", [ORDER])
    assert heard.stages["text"] < heard.stages["call"]
    # From the opening to the answer's first word, the tool and both requests between them: the
    # second one's first word is the full model's.
    waited = heard.stages["result"] + full["ttft_ms"] - heard.stages["text"]
    assert heard.counts[OPENER_MS] == pytest.approx(
        max(waited, LETTER_MS * letters(opening)), abs=1 if told else 40
    )
    roles = [message["role"] for message in actors["large"].contexts[-1]]
    assert roles == ["user", "assistant", "assistant", "tool", *(["system"] if told else [])]
    paid(heard, actors)


def test_one_that_knows_of_no_tools_has_no_opening_where_one_is_to_be_asked(
    actors: dict[str, Actor],
):
    simple = {**FAST, "text": "It is lost, I think."}
    heard = tool_turn(combined("opener", FULL, simple, who="plain"))
    assert (heard.text, heard.ran) == ("It is there.", [ORDER])
    assert heard.counts[OPENER_FOR_TOOL] == 1
    assert OPENER_MS not in heard.counts
    assert actors["plain"].asked == 0
    paid(heard, actors)
    heard = tool_turn(combined("opener", {"text": "Bye."}, simple, who="plain"), SMALL_TALK)
    assert heard.text.startswith("It is lost,")
    assert OPENER_FOR_TOOL not in heard.counts


def test_it_answers_itself_where_the_full_model_cannot(actors: dict[str, Actor]):
    heard = tool_turn(combined("opener", {"fails_after": 0}, FAST, who="plain"))
    assert (heard.text, heard.ran, heard.errors) == (FAST["text"], [], [])
    assert heard.counts["combined_fell_back"] == 1


def test_what_is_said_before_a_call_goes_on_from_the_opening_and_its_result_does_not(
    actors: dict[str, Actor],
):
    fast = {**FAST, "text": "Let me see, I think so."}
    heard = tool_turn(combined("opener", {**FULL, "text": "one moment."}, fast))
    assert (heard.text, heard.ran) == ("Let me see, one moment. It is there.", [ORDER])
    # To the full model's first word, and not once more to what it says of the result.
    waited, spoken = FULL["ttft_ms"], LETTER_MS * letters("Let me see,")
    assert heard.counts[OPENER_MS] == pytest.approx(max(waited, spoken))
    assert "system" not in [message["role"] for message in actors["large"].contexts[-1]]


def test_a_fast_model_that_would_call_a_tool_has_no_opening(actors: dict[str, Actor]):
    heard = tool_turn(combined("opener", FULL, {**FAST, **CALLS}))
    assert (heard.text, heard.ran) == ("It is there.", [ORDER])
    assert OPENER_MS not in heard.counts
    assert heard.counts["combined_requests"] == 3


def test_where_the_full_model_fails_the_fast_ones_call_is_run(actors: dict[str, Actor]):
    broken = {"fails_after": 0, "with_results": {"fails_after": 0}}
    heard = tool_turn(combined("opener", broken, {**FAST, **CALLS}))
    assert (heard.text, heard.ran, heard.errors) == ("It is there.", [ORDER], [])
    assert actors["large"].asked == 1


# --- `best-of` ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("third", "chosen", "text"),
    [(CALLS, 1, "It is there."), ({"text": "Two pizzas."}, 0, "Two pizzas.")],
)
def test_candidates_that_call_the_same_agree(
    actors: dict[str, Actor], third: dict[str, Any], chosen: int, text: str
):
    given_ = [{"text": "Two pizzas."}, CALLS, third]
    made = TYPES["best-of"].model_validate(
        {"candidates": ["quick", "large", "free"], "candidate_settings": given_}
    )
    heard = tool_turn(lambda clock: create("best-of", made, clock))
    assert (heard.counts[CHOSEN], heard.text) == (chosen, text)
    assert heard.ran == ([ORDER] if chosen else [])


def test_a_call_that_has_begun_in_the_window_is_waited_for(actors: dict[str, Actor]):
    heard = tool_turn(combined("best-of", window_ms=250))
    assert (heard.ran, heard.counts[CHOSEN]) == ([ORDER], 0)
    heard = tool_turn(combined("best-of", window_ms=150))
    assert (heard.ran, heard.counts[CHOSEN]) == ([], 1)


# --- parts that fail behind a tool --------------------------------------------------------------


@pytest.mark.parametrize("which", NAMES)
@pytest.mark.parametrize("fault", [{"fails_after": 0}, {"hangs_at": 0}])
def test_a_result_that_its_caller_does_not_answer_is_answered_by_the_other(
    actors: dict[str, Actor], which: str, fault: dict[str, Any]
):
    # The other one sees the result: it need not call anything.
    full = {**FULL, "with_results": fault}
    heard = tool_turn(combined(which, full, {**FAST, "after": "All is well."}))
    assert heard.ran == [ORDER]
    assert heard.text.endswith("All is well.")
    assert heard.errors == []
    assert heard.counts["combined_fell_back"] == 1
    paid(heard, actors)


@pytest.mark.parametrize("which", NAMES)
def test_what_one_part_has_called_no_other_calls_again(actors: dict[str, Actor], which: str):
    full = {**FULL, "with_results": {"fails_after": 0}}
    fast = {**FAST, "calls": (ORDER,), "insists": True, "text": "", "ttft_ms": 700}
    heard = tool_turn(combined(which, full, fast))
    assert heard.ran == [ORDER]
    (error,) = heard.errors
    assert error == 'quick: calls order({"number": "7"}), as large did before it'


def test_who_knows_of_no_tools_does_not_answer_their_results(actors: dict[str, Actor]):
    full = {**FULL, "with_results": {"fails_after": 0}}
    heard = tool_turn(combined("route", full, who="plain"))
    assert (heard.ran, heard.text, actors["plain"].asked) == ([ORDER], "", 0)
    assert heard.errors == ["large: out of order"]


# --- guesses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", NAMES)
async def test_a_guess_calls_nothing_and_its_turn_calls_once(actors: dict[str, Actor], which: str):
    ran: list[Any] = []
    quick = {**CALLS, "ttft_ms": 0, "call_tokens": 1, "after": "Underway."}
    llm = combined(which, quick, quick, first_token_ms=20_000)(MonotonicClock())
    async with conversing(llm=llm, tools=box(ran, InstantClock())) as c:
        await c.begins()
        await c.guess("where is my order")
        await c.until(lambda: bool(c.of(EagerEndOfTurnCancelFrame)))
        assert ran == []
        await c.is_read("where is my order")
        await c.ends(confirmed=False)
        await c.answered()
        assert c.memory[-1] == ("assistant", "Underway.")
    assert ran == [ORDER]


@pytest.mark.parametrize(
    ("which", "who"), [("race", FULL_WON), ("route", TO_FULL), ("best-of", CHOSEN)]
)
@pytest.mark.parametrize("guessed", [True, False])
async def test_a_turn_says_once_who_called_whether_it_was_guessed_or_not(
    actors: dict[str, Actor], which: str, who: str, guessed: bool
):
    quick = {**CALLS, "ttft_ms": 100, "call_tokens": 1, "after": "Underway."}
    llm = combined(which, quick, quick, first_token_ms=20_000)(MonotonicClock())
    tools_ = box([], InstantClock())
    async with conversing(llm=llm, tools=tools_, observer=MarksObserver()) as c:
        await c.begins()
        await c.is_read("where is my order")
        if guessed:
            await c.guess("where is my order")
        await c.ends(confirmed=guessed)
        await c.answered()
        await c.llm.broadcast_interruption()
        await c.until(lambda: bool(c.client_heard("server-message")))
    report = c.client_heard("server-message")[-1]
    assert report["counts"][who] == (0 if which == "best-of" else 1)
    assert report["counts"]["combined_requests"] == sum(a.asked for a in actors.values())
    assert {"tool_call", "tool_result"} <= report["marks"].keys()
    assert [call["name"] for call in report["calls"]] == ["order"]


# --- whatever the parts do ----------------------------------------------------------------------

FAULTS = st.sampled_from(
    [{}, {}, {"fails_after": 0}, {"fails_after": 2}, {"hangs_at": 0}, {"hangs_at": 2}]
)
PLAYS = st.builds(
    lambda play, fault, later, ttft_ms: {
        **play,
        **fault,
        "with_results": later,
        "ttft_ms": ttft_ms,
    },
    st.sampled_from(
        [
            {"text": "a word or two more."},
            {"text": ""},
            {"text": "", "calls": (ORDER,), "call_tokens": 4},
            {"text": "Well, let me see.", "calls": (ORDER,)},
        ]
    ),
    *(FAULTS, FAULTS),
    st.sampled_from([0, 50, 400, 900, 2000]),
)
# Of one request at most: to its first token, five more tokens, a stall.
ONE_MS = 1000 + 5 * TOKEN_MS + 500


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(NAMES), PLAYS, PLAYS, st.sampled_from(["quick", "plain"]))
def test_no_tool_runs_twice_nobody_waits_beyond_the_limits_and_all_is_paid(
    which: str, full: dict[str, Any], fast: dict[str, Any], who: str
):
    with casting() as cast:
        heard = tool_turn(combined(which, full, fast, who=who))
    assert heard.ran in ([], [ORDER])
    assert heard.text or heard.errors
    assert len(heard.errors) <= 1
    # The window, both parts one after the other, the tool, and both once more.
    assert heard.over_ms <= 450 + 4 * ONE_MS + TOOL_MS < ALL_MS
    paid(heard, cast)
    assert heard.counts.get("combined_completion_tokens", 0) >= len(heard.text.split())
