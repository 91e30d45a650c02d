import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from turngap.core.clock import LONGEST_MS
from turngap.core.results import Turn
from turngap.core.run_record import (
    METRICS_VERSION,
    CalibrationRecord,
    OffsetRecord,
    PlanRecord,
    Quantiles,
    RunRecord,
)
from turngap.core.stored import PacingRecord

_scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.floats(-1e9, 1e9)
)
JSON = st.recursive(
    _scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5
)


def models(model: type[Any]) -> st.SearchStrategy[Any]:
    """Any value of a stored model or dataclass, its every field drawn from its annotation."""
    hints = get_type_hints(model, include_extras=True)
    fields = {name: _of_type(annotation) for name, annotation in hints.items()}
    fields.pop("model_config", None)
    if "budget_ms" in fields and model is not PlanRecord:
        fields["budget_ms"] = st.floats(0, LONGEST_MS, exclude_min=True)
    return st.fixed_dictionaries(fields).map(lambda values: model(**values))


def _of_type(annotation: Any) -> st.SearchStrategy[Any]:
    if hasattr(annotation, "__metadata__") and annotation.__origin__ not in (float, int):
        annotation = annotation.__origin__
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        return models(annotation)
    if annotation is Any:
        return JSON
    if annotation is float or getattr(annotation, "__origin__", None) in (float, int):
        number = math.ceil if getattr(annotation, "__origin__", None) is int else float
        return _bounded(annotation).map(number)
    if annotation is str:  # a lone surrogate is not text that UTF-8 can hold
        return st.text(st.characters(exclude_categories=["Cs"]))
    arguments = get_args(annotation)
    if getattr(annotation, "__origin__", None) in (tuple, Sequence):
        return st.lists(_of_type(arguments[0]), max_size=2).map(tuple)
    if getattr(annotation, "__origin__", None) in (dict, Mapping):
        return st.dictionaries(_of_type(str), _of_type(arguments[1]), max_size=2)
    if type(None) in arguments:
        return st.one_of([_of_type(a) for a in arguments])
    return st.from_type(annotation)


def _bounded(annotation: Any) -> st.SearchStrategy[float]:
    """Any finite number within a field's bounds."""
    found = getattr(annotation, "__metadata__", ())
    bounds = [b for each in found for b in getattr(each, "metadata", ())]
    lows = [
        b.gt if hasattr(b, "gt") else b.ge for b in bounds if hasattr(b, "gt") or hasattr(b, "ge")
    ]
    highs = [b.le for b in bounds if hasattr(b, "le")]
    exclude = any(hasattr(b, "gt") for b in bounds)
    return st.floats(
        min(lows, default=None),
        max(highs, default=None),
        exclude_min=exclude,
        allow_nan=False,
        allow_infinity=False,
    )


@given(models(Turn))
def test_a_turn_is_read_back_as_it_was_written(turn: Turn) -> None:
    assert Turn.model_validate_json(turn.model_dump_json()) == turn
    as_line = json.dumps(turn.model_dump(mode="json"))
    assert Turn.model_validate(json.loads(as_line)) == turn


@given(models(RunRecord))
def test_a_run_is_read_back_as_it_was_written(run: RunRecord) -> None:
    assert RunRecord.model_validate_json(run.model_dump_json()) == run


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_json_cannot_hold_is_refused_before_it_is_written(value: float) -> None:
    with pytest.raises(ValidationError, match="late_ms_max"):
        PacingRecord(packets=1, late_ms_p50=0.0, late_ms_max=value, starved=False)


def test_a_missing_figure_is_none_not_left_out() -> None:
    unknown = Quantiles(n=0, p50=None, p95=None, p99=None, max=None)
    stored = CalibrationRecord(error_ms=unknown, signed_p50_ms=None).model_dump(mode="json")
    assert stored["error_ms"] == {"n": 0, "p50": None, "p95": None, "p99": None, "max": None}
    with pytest.raises(ValidationError, match="Field required"):
        OffsetRecord.model_validate({"n": 0})


@given(models(RunRecord), st.text(min_size=1))
def test_an_unknown_key_is_refused(run: RunRecord, key: str) -> None:
    if key in RunRecord.model_fields:
        return
    with pytest.raises(ValidationError, match="Extra inputs"):
        RunRecord.model_validate({**run.model_dump(), key: 1})


def test_records_carry_the_versions_that_readers_decide_by() -> None:
    assert Turn.current_version() == RunRecord.current_version() == 1
    assert RunRecord.model_fields["metrics_version"].default == METRICS_VERSION
