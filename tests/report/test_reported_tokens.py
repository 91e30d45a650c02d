"""Speed of the LLM in reports: per turn, and over a run."""

from made_records import make_run, make_turn

from turngap.core.results import Turn
from turngap.core.summary import summarise, token_figures
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


def test_an_llms_first_turn_is_labelled_and_kept_apart() -> None:
    cold = told(1, 900, 5, 1)
    cold = cold.model_copy(update={"counts": {**cold.counts, "llm_cold": 1}})
    figures = token_figures([cold, *THREE])
    assert figures is not None
    assert (figures.n, figures.ttft_ms) == (3, 150)
    assert (figures.cold_n, figures.cold_ttft_ms) == (1, 900)
    text = " ".join(summary_block(make_run([cold, *THREE]), 100).plain.split())
    assert "(n=3); cold: first token 900 ms (n=1)" in text
    alone = " ".join(summary_block(make_run([cold]), 100).plain.split())
    assert "llm cold: first token 900 ms (n=1)" in alone
    assert "p50 5 tokens/s" not in alone
