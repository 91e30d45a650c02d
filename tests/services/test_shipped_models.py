"""The models in the repository: whole, of a kind, and what the recipe says they are."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from training.recipe import Recipe, Shape
from training.tokens import CHAT_TEMPLATE, SPECIAL, VOCABULARY
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.held_out import read_held_out

MODELS = Path(__file__).parents[2] / "models"
SHIPPED = Path(SmallSettings().directory).parent
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


def test_both_and_what_ships_of_them_talk_in_the_same_tokens() -> None:
    directories = [root / name for root in (MODELS, SHIPPED) for name in SHAPES]
    assert len({(d / "tokenizer.json").read_bytes() for d in directories}) == 1
    assert len({(d / "tokenizer_config.json").read_bytes() for d in directories}) == 1
    for name in SHAPES:
        shipped = SHIPPED / name
        assert read(shipped / "tokenizer_config.json")["chat_template"] == CHAT_TEMPLATE
        assert len(read(shipped / "vocabulary.json")) == VOCABULARY


@EACH
def test_what_a_shipped_model_says_of_itself_is_about_this_file_and_as_in_the_whole_table(
    name: str,
) -> None:
    told = read(SHIPPED / name / "held_out.json")
    weights = (SHIPPED / name / "model.bin").read_bytes()
    assert told["sha256"] == hashlib.sha256(weights).hexdigest()
    known = read_held_out(SHIPPED / name)
    assert known is not None
    assert (known.model, known.dialogues) == (name, 600)
    table = read(MODELS / "models.json")[f"{name}-int8"]["held_out"]
    assert known.right.n == table["turns"]["n"]
    assert known.right.value == pytest.approx(table["turns"]["right"], abs=1e-4)
    assert known.right.hits < known.right.n


def test_they_are_as_small_as_was_promised() -> None:
    assert size_mb(SHIPPED / "student") < 3
    assert size_mb(SHIPPED / "teacher") < 5
    assert size_mb(MODELS / "student") < 5
    assert size_mb(MODELS / "teacher") < 40


def test_what_is_told_of_them_comes_of_the_recipe_that_is_in_the_code() -> None:
    told = read(MODELS / "models.json")
    assert told["recipe"] == json.loads(json.dumps(Recipe().as_json()))
    assert told["steps_done"] == {name: Recipe().course(name).steps for name in SHAPES}
    for name in ("teacher", "student", "teacher-int8", "student-int8"):
        assert told[name]["held_out"]["turns"]["n"] > 1000
