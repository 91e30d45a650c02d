"""The library of benchmarks/held_out_talk.py: whole, and right where the grammar says so."""

import itertools
from pathlib import Path

import pytest
from held_out_talk import expectation, main, without_facts

from training.grammar.score import right
from training.grammar.turn import Turn, held_out
from turngap.scenario.answers import Hearing, judge
from turngap.scenario.library import library_paths, load_scenario
from turngap.scenario.model import ReplyExpectation

DIALOGUES = list(itertools.islice(without_facts(), 80))
JUDGED = [t for d in DIALOGUES for t in d.turns if t.content is not None]


def found_right(turn: Turn, reply: str) -> bool:
    expected = ReplyExpectation.model_validate(expectation(turn))
    return judge(expected, Hearing(reply, whole=True)).verdict == "right"


def test_the_grammars_own_reply_is_right() -> None:
    assert len(JUDGED) > 200
    assert all(found_right(turn, turn.reply) for turn in JUDGED)


def test_another_reply_is_right_where_the_grammar_says_so() -> None:
    pairs = list(itertools.pairwise(JUDGED))
    told = [(found_right(turn, other.reply), right(turn, other.reply)) for turn, other in pairs]
    assert sum(a == b for a, b in told) >= 0.99 * len(told)
    assert sum(not a for a, _ in told) > 0.9 * len(told)


def test_every_content_was_kept_out_of_training() -> None:
    # "person" repeats a name whose own content was drawn from the held-out side.
    assert all(held_out(t.content) for t in JUDGED if t.content and t.content[0] != "person")


def test_a_library_is_written_that_can_be_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path / "library"), "--dialogues", "3"])
    loaded = [load_scenario(path) for path in library_paths(tmp_path / "library")]
    turns = [turn for each in loaded for turn in each.scenario.turns]
    assert [turn.say for turn in turns] == [t.user for d in DIALOGUES[:3] for t in d.turns]
    assert all(turn.speech and turn.speech.start_ms == pytest.approx(120, abs=30) for turn in turns)
    assert f"3 scenarios, {len(turns)} turns" in capsys.readouterr().out
