"""examples/grafana.json: as its script writes it, as Grafana knows it, and of metrics there are."""

import json
from collections.abc import Iterator
from typing import Any

import grafana_dashboard as script
import promql_parser as promql
import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families

from turngap.agent.metrics import Metrics
from turngap.report.prometheus import METRICS as OF_A_RUN
from turngap.telemetry.names import METRIC_ATTRIBUTES
from turngap.telemetry.names import METRICS as TOLD
from turngap.testing import ManualClock

DASHBOARD = json.loads(script.FILE.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}-{target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]
# What Prometheus adds to whatever it scrapes.
OF_A_TARGET = {"job", "instance"}


def known_metrics() -> dict[str, set[str]]:
    """Each metric that turngap has, as Prometheus names it, with its labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(Metrics(ManualClock()).page().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
        if family.type == "histogram":  # one with labels has no sample before it is first used
            for end in ("_bucket", "_sum", "_count"):
                found.setdefault(family.name + end, {"engine"})
            found[f"{family.name}_bucket"].add("le")
    for metric in OF_A_RUN:
        found[metric.name] = {"agent", *metric.labels}
    labels = {name.replace(".", "_") for name in METRIC_ATTRIBUTES}
    for name in script.prometheus_names(TOLD):
        found.setdefault(name, set()).update(
            labels | ({"le"} if name.endswith("_bucket") else set())
        )
    return found


KNOWN = known_metrics()


def selectors(expression: Any) -> Iterator[promql.VectorSelector]:
    """Every metric that a query names."""
    match expression:
        case promql.VectorSelector():
            yield expression
        case promql.MatrixSelector():
            yield expression.vector_selector
        case promql.Call():
            for argument in expression.args:
                yield from selectors(argument)
        case promql.BinaryExpr():
            yield from selectors(expression.lhs)
            yield from selectors(expression.rhs)
        case promql.AggregateExpr() | promql.ParenExpr():
            yield from selectors(expression.expr)
        case promql.NumberLiteral() | promql.StringLiteral():
            return
        case _:
            raise AssertionError(f"{type(expression).__name__} is not looked into")


def groups(expression: Any) -> Iterator[tuple[set[str], set[str]]]:
    """The labels that each aggregation keeps, and the metrics under it."""
    match expression:
        case promql.AggregateExpr():
            under = {s.name for s in selectors(expression.expr) if s.name}
            if expression.modifier is not None:
                yield set(expression.modifier.labels), under
            yield from groups(expression.expr)
        case promql.Call():
            for argument in expression.args:
                yield from groups(argument)
        case promql.BinaryExpr():
            yield from groups(expression.lhs)
            yield from groups(expression.rhs)
        case promql.ParenExpr():
            yield from groups(expression.expr)


def test_the_file_is_what_the_script_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0, capsys.readouterr().err


def through_grafanas_types(document: dict[str, Any]) -> Any:
    """What is left of a dashboard when Grafana's own types have read it; they drop what is none."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(document)))


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield f"{path}.{key}"
            else:
                yield from lost(value, after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


def test_grafanas_own_types_hold_every_part_of_it() -> None:
    assert list(lost(DASHBOARD, through_grafanas_types(DASHBOARD))) == []


def test_what_grafana_does_not_know_would_be_told() -> None:
    broken = json.loads(json.dumps(DASHBOARD))
    broken["panels"][1]["queries"] = []
    broken["panels"][1]["targets"][0]["expression"] = "up"
    assert list(lost(broken, through_grafanas_types(broken))) == [
        ".panels[1].targets[0].expression",
        ".panels[1].queries",
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_metrics_and_labels_that_there_are(query: str) -> None:
    asked = promql.parse(script.substituted(query))
    found = list(selectors(asked))
    assert found
    for selector in found:
        assert selector.name in KNOWN
        labels = {m.name for m in selector.matchers.matchers}
        assert labels <= KNOWN[selector.name] | OF_A_TARGET, selector.name
    for kept, metrics in groups(asked):
        for metric in metrics:
            assert kept <= KNOWN[metric] | OF_A_TARGET, (kept, metric)


def test_the_names_of_lines_are_labels_that_their_query_keeps() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            asked = promql.parse(script.substituted(target["expr"]))
            every = set[str]().union(*(KNOWN[s.name] for s in selectors(asked) if s.name))
            named = set(script.LABEL_IN_A_LEGEND.findall(target["legendFormat"]))
            assert named <= every, panel["title"]
            if kept := [labels for labels, _ in groups(asked)]:
                assert named <= set[str]().union(*kept), panel["title"]


def test_each_metric_of_ours_is_drawn_or_left_out_on_purpose() -> None:
    drawn = {
        s.name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for query in QUERIES
        for s in selectors(promql.parse(script.substituted(str(query.values[0]))))
        if s.name
    }
    ours = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for name in KNOWN
        if name.startswith("turngap_")
    }
    assert ours - drawn == {
        "turngap_sessions_begun_total",
        *("turngap_run_started_timestamp_seconds", "turngap_run_finished_timestamp_seconds"),
        *("turngap_run_budget_seconds", "turngap_run_starved_turns", "turngap_run_turns"),
        *("turngap_run_right_ratio", "turngap_run_right_ratio_low", "turngap_run_right_ratio_high"),
        "turngap_run_turn_gap_seconds",
    }


def test_no_two_panels_lie_upon_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= script.WIDTH
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_a_panel_of_the_last_run_says_why_it_is_empty() -> None:
    titles = {panel.title for panel in script.RUNS}
    shown = [panel for panel in PANELS if panel["title"] in titles]
    assert len(shown) == len(titles)
    for panel in shown:
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
