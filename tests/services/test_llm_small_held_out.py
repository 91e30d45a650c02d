"""A model's share of right answers on held-out dialogues, in runs and reports."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from turngap.agent.stack import held_out_of, load_stack, override, resolved
from turngap.core.errors import AgentError
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.held_out import FILE, read_held_out


def known_of(llm: str, *sets: str) -> list[str]:
    stack = override(load_stack("embedded"), {"llm": llm}, list(sets))
    return [known.model for known in held_out_of(resolved(stack, None))]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the shipped student, to be spoilt."""
    return Path(shutil.copytree(SmallSettings(model="student").directory, tmp_path / "model"))


def rewrite(model: Path, **changed: Any) -> None:
    told = json.loads((model / FILE).read_text(encoding="utf-8"))
    (model / FILE).write_text(json.dumps({**told, **changed}), encoding="utf-8")


def test_the_default_agent_knows_its_teachers_share() -> None:
    assert known_of("small") == ["teacher"]
    assert known_of("small", "llm.model=student") == ["student"]


def test_a_simulated_model_has_none() -> None:
    assert known_of("sim") == []
    assert known_of("race") == []


def test_a_combined_model_has_its_parts_each_once() -> None:
    both = ("llm.fast=small", "llm.fast_settings={model = 'student'}", "llm.full=small")
    assert known_of("route", *both) == ["student", "teacher"]
    assert known_of("best-of", 'llm.candidates=["small", "small"]') == ["teacher"]


@pytest.mark.parametrize(
    "other", ["compute_type=float32", "device=auto", "temperature=1", "max_tokens=5"]
)
def test_other_arithmetic_than_was_counted_with_has_none(other: str) -> None:
    assert known_of("small", f"llm.{other}") == []


def test_a_model_without_the_file_has_none(model: Path) -> None:
    (model / FILE).unlink()
    assert read_held_out(model) is None
    assert read_held_out(model / "nothing") is None


def test_the_figures_of_another_file_are_refused(model: Path) -> None:
    with (model / "model.bin").open("ab") as weights:
        weights.write(b"x")
    with pytest.raises(AgentError, match="about another model") as e:
        read_held_out(model)
    assert "training.ship" in e.value.hint


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"dialogues": 0}, "dialogues"),
        ({"right": 0.9}, "right"),
        ({"more": 1}, "more: unknown key"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(model: Path, changed: Any, why: str) -> None:
    rewrite(model, **changed)
    with pytest.raises(AgentError, match=why):
        read_held_out(model)


def test_a_file_that_is_no_json_is_refused(model: Path) -> None:
    (model / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(AgentError, match="held_out"):
        read_held_out(model)
