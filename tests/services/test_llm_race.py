"""`race`: who wins, who is cancelled, who pays; in virtual time."""

from collections.abc import Callable
from typing import Any

import pytest
from combined_line import (
    TOKEN_MS,
    Actor,
    actors,
    ask,
    counted,
    one_reply,
    passes,
    question,
    talk,
)
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    VADUserStoppedSpeakingFrame,
)
from running_line import Line

from turngap.backends import find
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap_services.llm.combine import RaceSettings
from turngap_services.llm.combine.service import FULL_WON, RaceLLMService

__all__ = ["actors"]

FAST, FULL = "the fast answer of many words in a row", "the full answer of many words in a row"


def race(
    fast_ms: float = 50, full_ms: float = 200, deadline_ms: float | None = 300, **settings: Any
) -> Callable[[Clock], RaceLLMService]:
    values: dict[str, Any] = {
        "fast": "quick",
        "full": "large",
        "deadline_ms": deadline_ms,
        "fast_settings": {"text": FAST, "ttft_ms": fast_ms},
        "full_settings": {"text": FULL, "ttft_ms": full_ms},
    }
    for role in ("fast_settings", "full_settings"):
        values[role] |= settings.pop(role, {})
    made = RaceSettings.model_validate(values | settings)
    return lambda clock: RaceLLMService(settings=made, clock=clock)


def test_the_full_model_wins_if_it_is_there_by_the_deadline(actors: dict[str, Actor]):
    said = one_reply(race())
    assert (said.text, said.counts[FULL_WON], said.first_ms) == (FULL, 1, 200)
    assert said.errors == []


def test_the_fast_one_speaks_at_the_deadline_and_not_before(actors: dict[str, Actor]):
    said = one_reply(race(full_ms=400))
    assert (said.text, said.counts[FULL_WON], said.first_ms) == (FAST, 0, 300)


def test_after_the_deadline_whoever_is_there_first_speaks(actors: dict[str, Actor]):
    said = one_reply(race(fast_ms=700, full_ms=500))
    assert (said.text, said.first_ms) == (FULL, 500)
    said = one_reply(race(fast_ms=500, full_ms=700))
    assert (said.text, said.first_ms) == (FAST, 500)


@pytest.mark.parametrize(
    ("full_ms", "loser", "most"),
    [
        (200.0, "quick", 1 + (200 - 50) / TOKEN_MS),
        (400.0, "large", 0),
    ],
)
def test_the_loser_costs_nothing_more_once_the_race_is_decided(
    actors: dict[str, Actor], full_ms: float, loser: str, most: float
):
    # Both have far more to say than can be said before the decision.
    long = {"text": "word " * 60}
    said = one_reply(race(full_ms=full_ms, fast_settings=long, full_settings=long))
    assert said.text.split() == ["word"] * 60
    # Within one token of the decision; the winner goes on for half a second behind it.
    assert actors[loser].made[1] <= most + 1
    assert all(actor.running == 0 for actor in actors.values())


def test_both_are_paid_for(actors: dict[str, Actor]):
    said = one_reply(race())
    fast, full = actors["quick"].made[1], actors["large"].made[1]
    prompt = -(-len("Be brief.hello") // 4)
    assert full == len(FULL.split())
    assert fast > 1
    assert said.counts["combined_requests"] == 2
    assert said.counts["combined_prompt_tokens"] == 2 * prompt
    assert said.counts["combined_completion_tokens"] == fast + full
    usd = (prompt * 1 + fast * 10 + prompt * 5 + full * 50) / 1e6
    assert said.counts["combined_usd"] == pytest.approx(usd)
    assert "combined_unpriced_tokens" not in said.counts


def test_a_price_given_for_a_part_is_the_one_that_counts(actors: dict[str, Actor]):
    said = one_reply(race(fast="free", fast_price=[2, 0], full_price=[0, 1000]))
    prompt, full = -(-len("Be brief.hello") // 4), actors["large"].made[1]
    assert said.counts["combined_usd"] == pytest.approx((prompt * 2 + full * 1000) / 1e6)
    assert "combined_unpriced_tokens" not in said.counts


def test_what_is_read_ahead_is_on_the_next_answers_bill(actors: dict[str, Actor]):
    made: list[RaceLLMService] = []

    def make(clock: Clock) -> RaceLLMService:
        made.append(race()(clock))
        return made[0]

    async def reads_ahead(line: Line, errors: list[str]) -> list[dict[str, float]]:
        async def one_token(*_: object) -> str:
            return "Well"

        made[0]._parts[1].service.run_inference = one_token  # type: ignore[method-assign]
        assert await made[0].run_inference(question().context, max_tokens=1) == "Well"
        return [(await ask(line, question(), errors)).counts for _ in range(2)]

    first, second = talk(make, reads_ahead)
    prompt = -(-len("Be brief.hello") // 4)
    assert (first["combined_requests"], second["combined_requests"]) == (3, 2)
    more = first["combined_usd"] - second["combined_usd"]
    assert more == pytest.approx((prompt * 5 + 1 * 50) / 1e6)


def test_what_has_no_price_is_not_free(actors: dict[str, Actor]):
    said = one_reply(race(fast="free"))
    assert said.counts["combined_unpriced_tokens"] == 4 + actors["free"].made[1]


@pytest.mark.parametrize(("broken", "left"), [("fast_settings", FULL), ("full_settings", FAST)])
def test_a_part_that_fails_is_replaced_by_the_other_and_this_is_said(
    actors: dict[str, Actor], broken: str, left: str
):
    said = one_reply(race(fast_ms=50, full_ms=100, deadline_ms=200, **{broken: {"fails_after": 0}}))
    assert (said.text, said.errors) == (left, [])
    fell_back = broken == "full_settings"  # the full model's winning is no falling back
    assert said.counts.get("combined_fell_back", 0) == float(fell_back)


def test_a_part_that_says_nothing_has_failed(actors: dict[str, Actor]):
    said = one_reply(race(full_settings={"text": ""}))
    assert (said.text, said.counts["combined_fell_back"]) == (FAST, 1)


def test_a_winner_that_fails_on_the_way_is_not_contradicted_by_the_other(actors: dict[str, Actor]):
    said = one_reply(race(full_settings={"fails_after": 2}))
    assert said.text == "the full"
    assert said.errors == ["large: out of order"]


def test_an_interruption_ends_both_requests(actors: dict[str, Actor]):
    async def main(line: Line, errors: list[str]) -> dict[str, int]:
        await line.send(question())
        await passes(100)  # the fast one has begun, and nobody has won
        await line.send(InterruptionFrame())
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        made = {name: actor.made[1] for name, actor in actors.items()}
        await passes(1000)
        assert line.of(LLMTextFrame) == []
        assert counted(line.frames)["combined_requests"] == 2
        assert made == {name: actor.made[1] for name, actor in actors.items()}
        return made

    made = talk(race(), main)
    assert made["quick"] == 1 + (100 - 50) / TOKEN_MS
    assert made["large"] == 0


def test_each_turn_is_a_race_of_its_own(actors: dict[str, Actor]):
    async def twice(line: Line, errors: list[str]) -> list[Any]:
        return [await ask(line, question(text), errors) for text in ("one", "and two")]

    first, second = talk(race(), twice)
    assert first.text == second.text == FULL
    assert first.counts["combined_requests"] == second.counts["combined_requests"] == 2
    assert actors["large"].contexts[1][-1]["content"] == "and two"


def test_without_a_deadline_it_is_what_is_left_of_the_turns_budget(actors: dict[str, Actor]):
    async def after_silence(line: Line, errors: list[str]) -> Any:
        # The VAD says after 200 ms that the person fell silent; 100 ms later the LLM is asked.
        await passes(1000)
        await line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await line.until(lambda: bool(line.of(VADUserStoppedSpeakingFrame)))
        await passes(100)
        return await ask(line, question(), errors)

    said = talk(race(full_ms=1000, deadline_ms=None), after_silence)
    assert said.text == FAST
    assert said.first_ms == pytest.approx(800 - 150 - 200 - 100, abs=0.01)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"fast": "nobody"}, "no llm backend named 'nobody'"),
        ({"full_settings": {"colour": "red"}}, "'sim:full': colour"),
        ({"deadline_ms": -1}, "deadline_ms"),
        ({"full_price": [1, -2]}, "full_price"),
        ({"speed": 1}, "speed"),
    ],
)
def test_a_part_or_setting_that_there_is_not_is_refused(values: dict[str, Any], reason: str):
    with pytest.raises(InputError, match=reason):
        find("llm", "race").settings(values)


def test_a_part_that_lacks_something_here_says_what(monkeypatch: pytest.MonkeyPatch):
    spec = find("llm", "race")
    settings = spec.settings({"full": "anthropic"})
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert spec.prepare is not None
    with pytest.raises(AgentError, match="anthropic"):
        spec.prepare(settings)
