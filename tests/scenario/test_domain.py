from pathlib import Path

from turngap.scenario.library import Domain, domain_of
from turngap.scenario.model import library_dir, library_paths, read_scenario

EXAMPLES = ("make me a tea", "call a taxi")
TOPICS = {
    "tea": "make me a tea",
    "taxis": "call a taxi",
    "the weather": "is it dry",
    "alarms": "wake me",
}
DOMAIN = Domain(TOPICS, EXAMPLES)


def test_the_first_offer_is_one_short_phrase_and_names_topics() -> None:
    assert DOMAIN.offer(0) == "I can help with tea, taxis, the weather and more."


def test_the_next_ones_name_others_and_a_sentence_to_try() -> None:
    second, third = DOMAIN.offer(1), DOMAIN.offer(2)
    assert second == "I can help with alarms, tea, taxis and more. Try: wake me."
    assert third == "I can help with the weather, alarms, tea and more. Try: is it dry."


def test_without_topics_it_is_a_sentence_to_try_at_once() -> None:
    domain = Domain({}, ("call a taxi",))
    assert domain.offer(0) == "I can help with a few things only. Try: call a taxi."


def test_the_library_has_topics_and_its_openers_are_examples(tmp_path: Path) -> None:
    domain = domain_of(None)
    assert {"coffee orders", "the weather", "table bookings"} <= set(domain.topics)
    every = [read_scenario(path) for path in library_paths(library_dir())]
    assert set(domain.examples) == {scenario.turns[0].say for scenario in every}
    assert len(domain.examples) == len(set(domain.examples))
    # What only some plays have comes last.
    assert list(domain.topics)[-1] == "alarms"


def test_what_is_near_no_sentence_of_the_library_is_not_known() -> None:
    domain = domain_of(None)
    assert all(map(domain.knows, domain.sentences))
    assert domain.knows("Where's my order?")
    assert domain.knows("set a timer for 10 minutes")
    for text in ("what is the capital of France?", "capital of france", "x", ""):
        assert not domain.knows(text)
    lists = Path(__file__).parents[2] / "services/training/unknown"
    judged = (lists / "judge.txt").read_text().splitlines()
    others = [line for line in judged if line and not line.startswith("#")]
    assert len(others) == 50
    assert sum(map(domain.knows, others)) <= 5
