"""How fast the LLM was: per turn, over a run, and how it is said."""

from made_records import make_run, make_turn

from turngap.core.results import Turn
from turngap.core.summary import summarise
from turngap.core.tokens import token_figures
from turngap.report.console import turn_block
from turngap.report.run import summary_block


def told(turn: int, ttft_ms: float, per_s: float | None, window: float) -> Turn:
    counts = {"llm_ttft_ms": ttft_ms, "llm_window_tokens": window}
    counts |= {} if per_s is None else {"llm_tokens_per_s": per_s}
    return make_turn(turn=turn, counts=counts)


THREE = [told(1, 100, 60, 20), told(2, 150, 80, 18), told(3, 500, None, 0), make_turn(turn=4)]


def test_medians_are_over_the_turns_that_have_them() -> None:
    figures = token_figures(THREE)
    assert figures is not None
    assert figures.n == 3
    assert (figures.ttft_ms, figures.per_s, figures.in_window) == (150, 70, 18)
    assert figures.ttft_p95_ms.value is None  # of three there is none
    assert summarise(THREE).as_json()["llm"] == {
        "n": 3,
        "ttft_ms": {"p50": 150, "p95": None},
        "tokens_per_s": {"p50": 70},
        "window_tokens": {"p50": 18},
        "server_ms": {},
        "cold": {"n": 0, "ttft_ms": {"p50": None}},
    }


def test_an_agent_that_tells_nothing_has_none() -> None:
    assert token_figures([make_turn()]) is None
    assert summarise([make_turn()]).as_json()["llm"] is None
    text = turn_block(make_turn(), 100).plain + summary_block(make_run([make_turn()]), 100).plain
    assert "tokens/s" not in text


def test_the_console_says_it_of_a_turn_and_of_the_run() -> None:
    assert "first token after 100 ms · 60 tokens/s · 20 tokens within 450 ms" in (
        turn_block(THREE[0], 100).plain
    )
    one_token = turn_block(THREE[2], 100).plain
    assert "first token after 500 ms · 0 tokens within 450 ms" in one_token
    text = " ".join(summary_block(make_run(THREE), 100).plain.split())
    assert (
        "llm first token p50 150 ms · p50 70 tokens/s · p50 18 tokens within 450 ms (n=3)"
    ) in text


def test_what_a_turns_llm_thought_before_its_first_token_is_said_beside_that() -> None:
    thought = {"llm_thought_tokens": 9, "llm_thought_ms": 200}
    turn = THREE[0].model_copy(update={"counts": {**THREE[0].counts, **thought}})
    text = " ".join(turn_block(turn, 200).plain.split())
    assert (
        "first token after 100 ms · before that it thought for 200 ms, 9 pieces that nobody heard"
    ) in text


def test_an_llms_first_turn_is_labelled_and_kept_apart() -> None:
    cold = told(1, 900, 5, 1)
    cold = cold.model_copy(update={"counts": {**cold.counts, "llm_cold": 1}})
    figures = token_figures([cold, *THREE])
    assert figures is not None
    assert (figures.n, figures.ttft_ms) == (3, 150)
    assert (figures.cold_n, figures.cold_ttft_ms) == (1, 900)
    assert "cold: its first turn since the agent began" in " ".join(
        turn_block(cold, 100).plain.split()
    )
    text = " ".join(summary_block(make_run([cold, *THREE]), 100).plain.split())
    assert "(n=3); cold: first token 900 ms (n=1)" in text
    alone = " ".join(summary_block(make_run([cold]), 100).plain.split())
    assert "llm cold: first token 900 ms (n=1)" in alone
    assert "p50 5 tokens/s" not in alone


def test_what_the_llms_server_took_says_why_a_turn_was_slow() -> None:
    took = {"llm_queue_ms": 312.0, "llm_prefill_ms": 41.0, "llm_decode_ms": 200.0}
    alone, beside = ({**took, "llm_others": others} for others in (0, 3))
    turns = [t.model_copy(update={"counts": {**t.counts, **alone}}) for t in THREE]
    words = " ".join(turn_block(turns[0], 100).plain.split())
    assert (
        "20 tokens within 450 ms · at the server queue 312, prefill 41, decode 200 heard" in words
    )
    shared = THREE[0].model_copy(update={"counts": {**THREE[0].counts, **beside}})
    words = " ".join(turn_block(shared, 100).plain.split())
    assert "decode 200 (means, with 3 more that ended meanwhile)" in words
    assert "p50 at the server queue 312, prefill 41, decode 200 ms (n=3)" in " ".join(
        summary_block(make_run(turns), 100).plain.split()
    )
