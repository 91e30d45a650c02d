"""The models in the repository: whole, of a kind, and what the recipe says they are."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from training.recipe import Recipe, Shape
from training.tokens import CHAT_TEMPLATE, SPECIAL, VOCABULARY
from turngap_services.llm.small.model import SHIPPED

MODELS = Path(__file__).parents[2] / "models"
SHAPES: dict[str, Shape] = {name: Recipe().course(name).shape for name in ("teacher", "student")}
EACH = pytest.mark.parametrize("name", list(SHAPES))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def tensors(directory: Path) -> dict[str, Any]:
    """The header of a safetensors file: each tensor's type and shape."""
    with (directory / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def size_mb(directory: Path) -> float:
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()) / 1e6


@EACH
def test_a_model_has_the_shape_that_the_recipe_says(name: str) -> None:
    config = read(MODELS / name / "config.json")
    shape = SHAPES[name]
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["hidden_size"], config["num_hidden_layers"]) == (shape.width, shape.layers)
    assert (config["intermediate_size"], config["vocab_size"]) == (shape.hidden, VOCABULARY)
    assert config["eos_token_id"] == SPECIAL.index("<|end|>")
    assert {t["dtype"] for t in tensors(MODELS / name).values()} == {"BF16"}
    inside = shape.layers * (4 * shape.width**2 + 3 * shape.width * shape.hidden + 2 * shape.width)
    count = inside + VOCABULARY * shape.width + shape.width
    stored = (t["shape"] for t in tensors(MODELS / name).values())
    assert sum(s[0] * (s[1] if len(s) > 1 else 1) for s in stored) == count
    assert read(MODELS / "models.json")[name]["parameters"] == count


def test_both_and_the_converted_student_talk_in_the_same_tokens() -> None:
    directories = [MODELS / "teacher", MODELS / "student", SHIPPED]
    assert len({(d / "tokenizer.json").read_bytes() for d in directories}) == 1
    assert len({(d / "tokenizer_config.json").read_bytes() for d in directories}) == 1
    assert read(SHIPPED / "tokenizer_config.json")["chat_template"] == CHAT_TEMPLATE
    assert len(read(SHIPPED / "vocabulary.json")) == VOCABULARY


def test_they_are_as_small_as_was_promised() -> None:
    assert size_mb(SHIPPED) < 3
    assert size_mb(MODELS / "student") < 5
    assert size_mb(MODELS / "teacher") < 40


def test_what_is_told_of_them_comes_of_the_recipe_that_is_in_the_code() -> None:
    told = read(MODELS / "models.json")
    assert told["recipe"] == json.loads(json.dumps(Recipe().as_json()))
    assert told["steps_done"] == {name: Recipe().course(name).steps for name in SHAPES}
    for name in ("teacher", "student", "student-int8"):
        assert told[name]["held_out"]["turns"]["n"] > 1000
