"""Problems of a file, in words for its author."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngap.core.untrusted import problems, reason


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Literal["small", "large"] = "small"
    count: Annotated[int, Field(ge=1)] = 1


class Order(BaseModel):
    items: Annotated[tuple[Item, ...], Field(min_length=1)]
    names: Annotated[tuple[str, ...], Field(min_length=2)] = ("a", "b")


def said(values: object) -> list[str]:
    with pytest.raises(ValidationError) as e:
        Order.model_validate(values)
    return [f"{'.'.join(map(str, p['loc']))}: {reason(p)}" for p in problems(e.value)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["items: missing"]),
        ({"items": 3}, ['items: expected a list, as ["one", "two"]']),
        ({"items": []}, ["items: expected at least 1 item"]),
        ({"items": [{}], "names": []}, ["names: expected at least 2 items"]),
        ({"items": [{"weight": 1}]}, ["items.0.weight: unknown key"]),
        # One bad item of one leaves no good one: that is no second mistake.
        ({"items": [{"size": "huge"}]}, ["items.0.size: expected 'small' or 'large'"]),
        ({"items": [{"count": 0}]}, ["items.0.count: expected greater than or equal to 1"]),
    ],
)
def test_each_mistake_is_said_once_and_with_what_was_expected(
    values: object, words: list[str]
) -> None:
    assert said(values) == words
