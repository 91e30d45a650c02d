"""Write examples/grafana.json, the dashboard of docs/dashboard.md.

    python tools/grafana_dashboard.py           # write it
    python tools/grafana_dashboard.py --check   # exit 1 if the file is not what would be written

Change the dashboard here: what is changed in Grafana alone is lost. `benchmarks/dashboard.py` asks
each of its queries of a real Prometheus.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "examples" / "grafana.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
# That of Grafana 11, whose types the file is checked against (tests/packaging/test_dashboard.py).
SCHEMA_VERSION = 39
BUDGET_S = 0.8
WIDTH = 24

# What turngap sends by OpenTelemetry. Each process that measures is a series of its own, and counts
# from its beginning: the highest value in a window is what it has measured.
TOLD = '{gen_ai_agent_name=~"$agent"}'
ASKED = '{gen_ai_agent_name=~"$agent", turngap_outcome!=""}'
RUN = '{agent=~"$run_agent"}'
SERVED = '{job=~"$job"}'


@dataclass(frozen=True)
class Panel:
    """A panel: `queries` are PromQL, each with the name of its lines."""

    title: str
    about: str
    queries: Sequence[tuple[str, str]]
    unit: str = "s"
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    budget: bool = False
    stacked: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    instant: bool = False
    form: str = "time_series"
    top: float | None = None
    # What stands in its place where there is no value; Grafana's own words for it say no reason.
    empty: str = ""


def measured(metric: str, labels: str = TOLD, window: str = "$window") -> str:
    """What all processes have counted in a window."""
    return f"max_over_time({metric}{labels}[{window}])"


def quantile(q: float, metric: str) -> str:
    """A quantile of what was measured, an agent each."""
    by = "le, gen_ai_agent_name"
    return f"histogram_quantile({q}, sum by ({by}) ({measured(f'{metric}_bucket')}))"


def share(outcome: str) -> str:
    """The share of turns with an outcome, of all turns in the range of the dashboard."""
    one = f'{{gen_ai_agent_name=~"$agent", turngap_outcome="{outcome}"}}'
    hits = f"sum(max_over_time(turngap_turn_outcomes_total{one}[$__range])) or vector(0)"
    every = f"sum(max_over_time(turngap_turn_outcomes_total{ASKED}[$__range]))"
    return f"({hits}) / {every}"


def rate(metric: str, by: str, labels: str = SERVED) -> str:
    """How much a counter of `turngap serve` grows in a second."""
    return f"sum by ({by}) (rate({metric}{labels}[$__rate_interval]))"


def served(q: float, metric: str, by: str = "") -> str:
    """A quantile of what `turngap serve` tells."""
    grown = rate(f"{metric}_bucket", ", ".join(filter(None, ("le", by))))
    return f"histogram_quantile({q}, {grown})"


def bounds(metric: str, labels: str = RUN) -> list[tuple[str, str]]:
    """A figure of the last run, between the ends of its 95 % interval."""
    return [
        (f"{metric}{labels}", "{{agent}}"),
        (f"{metric}_low{labels}", "{{agent}}, lower bound"),
        (f"{metric}_high{labels}", "{{agent}}, upper bound"),
    ]


MEAN_STAGES = (
    f"sum by (turngap_stage) ({measured('turngap_stage_duration_seconds_sum')})"
    f" / scalar(sum({measured('turngap_turn_gap_seconds_count')}))"
)
P50_RUN = '{agent=~"$run_agent", percentile="p50"}'
P95_RUN = '{agent=~"$run_agent", percentile="p95"}'

HEARD: Sequence[Panel] = (
    Panel(
        "Hit rate",
        "Turns answered within the budget, of all turns in the range of the dashboard.",
        [(share("answered"), "hit rate")],
        unit="percentunit",
        kind="stat",
        width=4,
        height=6,
    ),
    Panel(
        "Cut-ins",
        "Turns in which the agent spoke before the person had finished. A short gap bought with "
        "cut-ins is not fast.",
        [(share("cut_in"), "cut-ins")],
        unit="percentunit",
        kind="stat",
        width=4,
        height=6,
    ),
    Panel(
        "Turns by outcome",
        "Each turn has one outcome and stays in every denominator.",
        [
            (
                f"sum by (turngap_outcome) ({measured('turngap_turn_outcomes_total', ASKED)})",
                "{{turngap_outcome}}",
            )
        ],
        unit="none",
        width=16,
        height=6,
        stacked=True,
    ),
    Panel(
        "Turn gap, as heard",
        "From the person's last word to the agent's first, at the caller's ear. Turns without a "
        "reply are not in it: read it beside the outcomes.",
        [
            (quantile(0.5, "turngap_turn_gap_seconds"), "{{gen_ai_agent_name}}, p50"),
            (quantile(0.95, "turngap_turn_gap_seconds"), "{{gen_ai_agent_name}}, p95"),
        ],
        budget=True,
    ),
    Panel(
        "Heard, and what the agent claims",
        "The median gap at the caller's ear, and the one that the agent itself tells. The "
        "difference is what its own telemetry does not see.",
        [
            (quantile(0.5, "turngap_turn_gap_seconds"), "{{gen_ai_agent_name}}, heard"),
            (quantile(0.5, "turngap_turn_agent_gap_seconds"), "{{gen_ai_agent_name}}, claimed"),
        ],
        budget=True,
    ),
    Panel(
        "Where the gap goes",
        "The mean of each stage over the turns with a reply. Together they are the mean gap.",
        [(MEAN_STAGES, "{{turngap_stage}}")],
        stacked=True,
    ),
    Panel(
        "Distribution of the gap",
        "Turns by their gap.",
        [(f"sum by (le) ({measured('turngap_turn_gap_seconds_bucket')})", "{{le}}")],
        kind="heatmap",
        form="heatmap",
        width=16,
    ),
    Panel(
        "Barge-in: time to silence",
        "From the person's first sound to the agent's silence, in the median.",
        [(quantile(0.5, "turngap_turn_yield_seconds"), "{{gen_ai_agent_name}}")],
    ),
)

# An invalid run has none of the figures drawn here (`turngap.report.prometheus`).
INVALID = "No value: the last run is not valid (see the table of runs), or there is none yet."
RUNS: Sequence[Panel] = (
    Panel(
        "Hit rate of the last run",
        "With its 95 % interval. Nothing is drawn of an invalid run.",
        bounds("turngap_run_hit_ratio"),
        unit="percentunit",
        top=1.0,
        empty=INVALID,
    ),
    Panel(
        "p50 of the last run",
        "With its 95 % interval; a reply that did not come is slower than any. Nothing is drawn of "
        "an invalid run, nor of fewer than 5 turns.",
        bounds("turngap_run_turn_gap_percentile_seconds", P50_RUN),
        budget=True,
        empty=f"{INVALID} A p50 also needs 5 turns.",
    ),
    Panel(
        "p95 of the last run",
        "With its 95 % interval. Nothing is drawn of an invalid run, nor of fewer than 20 turns.",
        bounds("turngap_run_turn_gap_percentile_seconds", P95_RUN),
        budget=True,
        empty=f"{INVALID} A p95 also needs 20 turns.",
    ),
    Panel(
        "Cut-ins of the last run",
        "With their 95 % interval. Nothing is drawn of an invalid run.",
        bounds("turngap_run_cut_in_ratio"),
        unit="percentunit",
        top=1.0,
        empty=INVALID,
    ),
    Panel(
        "Stages of the last run",
        "The median of each. Nothing is drawn of an invalid run.",
        [(f"turngap_run_stage_seconds{RUN}", "{{agent}}, {{stage}}")],
        empty=f"{INVALID} An agent without marks has no stages.",
    ),
    Panel(
        "Runs",
        "The last run of each agent, and whether it is valid. Of one that is not, no panel here "
        "draws a figure, since none can be used.",
        [
            (
                f"turngap_run_info{RUN} * on (agent) group_left () turngap_run_valid{RUN}",
                "{{agent}}",
            )
        ],
        unit="none",
        kind="table",
        form="table",
        instant=True,
        empty="No run yet: turngap report --prometheus FILE writes one.",
    ),
)

AGENT: Sequence[Panel] = (
    Panel(
        "Conversations",
        "Those that run now, and how many may.",
        [
            (f"sum(turngap_sessions{SERVED})", "now"),
            (f"max(turngap_seats{SERVED})", "at most"),
        ],
        unit="none",
    ),
    Panel(
        "Refused",
        "Conversations that were refused, by reason.",
        [(rate("turngap_sessions_refused_total", "reason"), "{{reason}}")],
        unit="ops",
    ),
    Panel(
        "Turns",
        "Turns of the agent by what became of them, and replies that the person spoke into.",
        [
            (
                rate("turngap_turns_total", "outcome"),
                "{{outcome}}",
            ),
            (f"sum(rate(turngap_interruptions_total{SERVED}[$__rate_interval]))", "interrupted"),
        ],
        unit="ops",
    ),
    Panel(
        "Gap, as the agent knows it",
        "Up to the first audible sample that it writes to the line. The caller hears it later.",
        [
            (served(0.5, "turngap_agent_gap_seconds"), "p50"),
            (served(0.95, "turngap_agent_gap_seconds"), "p95"),
        ],
        budget=True,
    ),
    Panel(
        "Waits for the engines, p95",
        "Queueing included.",
        [(served(0.95, "turngap_engine_wait_seconds", "engine"), "{{engine}}")],
    ),
    Panel(
        "Lag of the event loop, p99",
        "How much later than asked for it woke. Above some 10 ms the machine carries too much.",
        [(served(0.99, "turngap_event_loop_lag_seconds"), "p99")],
    ),
    Panel(
        "Failures",
        "Conversations that ended with a failure of the agent, and errors of its engines.",
        [
            (f"sum(rate(turngap_sessions_failed_total{SERVED}[$__rate_interval]))", "sessions"),
            (rate("turngap_engine_errors_total", "engine"), "{{engine}}"),
        ],
        unit="ops",
    ),
    Panel(
        "Processors",
        "How many cores its processes keep busy.",
        [
            (
                f"sum(rate(process_cpu_seconds_total{SERVED}[$__rate_interval])"
                " and on (job, instance) turngap_build_info)",
                "cores",
            )
        ],
        unit="none",
    ),
    Panel(
        "Memory",
        "Of all its processes.",
        [
            (
                f"sum(process_resident_memory_bytes{SERVED}"
                " and on (job, instance) turngap_build_info)",
                "resident",
            )
        ],
        unit="bytes",
    ),
)

ROWS = (
    ("What callers hear (turngap's commands with --otlp)", HEARD),
    ("The last run of each agent (turngap report --prometheus)", RUNS),
    ("The agent (/metrics of turngap serve)", AGENT),
)


def _names(label: str, metric: str) -> dict[str, str]:
    return {"query": f"label_values({metric}, {label})", "refId": "names"}


def _variable(name: str, label: str, query: dict[str, str]) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def variables() -> list[dict[str, Any]]:
    """What can be chosen at the top."""
    window = ["15m", "1h", "6h", "1d", "7d"]
    return [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        _variable("agent", "Agent", _names("gen_ai_agent_name", "turngap_turn_outcomes_total")),
        {
            "name": "window",
            "label": "Measured within",
            "type": "custom",
            "query": ",".join(window),
            "current": {"selected": True, "text": "1h", "value": "1h"},
            "options": [{"text": w, "value": w, "selected": w == "1h"} for w in window],
        },
        _variable("run_agent", "Agent of the last run", _names("agent", "turngap_run_info")),
        _variable("job", "Served as job", _names("job", "turngap_build_info")),
    ]


def _field_defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0.0}
    if panel.top is not None:
        defaults["max"] = panel.top
    if panel.empty:
        defaults["noValue"] = panel.empty
    if panel.kind == "timeseries":
        custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 30 if panel.stacked else 0}
        custom |= {"showPoints": "auto", "spanNulls": False}
        if panel.stacked:
            custom["stacking"] = {"mode": "normal", "group": "A"}
        if panel.budget:
            custom["thresholdsStyle"] = {"mode": "line"}
        defaults["custom"] = custom
    if panel.budget:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": BUDGET_S}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return defaults


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    """In the table of runs, the value is a verdict."""
    if panel.kind != "table":
        return []
    words = {"1": {"text": "valid", "color": "green"}, "0": {"text": "not valid", "color": "red"}}
    shown = [
        {"id": "displayName", "value": "figures"},
        {"id": "mappings", "value": [{"type": "value", "options": words}]},
        {"id": "custom.cellOptions", "value": {"type": "color-text"}},
    ]
    hidden = [{"id": "custom.hidden", "value": True}]
    matched = [("Value", shown), *((name, hidden) for name in ("Time", "instance", "job"))]
    return [
        {"matcher": {"id": "byName", "options": name}, "properties": properties}
        for name, properties in matched
    ]


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "stat":
            return {"reduceOptions": {"calcs": ["lastNotNull"], "values": False, "fields": ""}}
        case "heatmap":
            return {"calculate": False, "yAxis": {"unit": "s", "axisPlacement": "left"}}
        case "timeseries":
            return {
                "legend": {
                    "displayMode": "list",
                    "placement": "bottom",
                    "showLegend": True,
                    "calcs": [],
                },
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
    return {}


def _made(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": query,
            "legendFormat": legend,
            "format": panel.form,
            "instant": panel.instant,
            "range": not panel.instant,
            "editorMode": "code",
        }
        for index, (query, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": targets,
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": _overrides(panel)},
        "options": _options(panel),
    }


def panels() -> Iterable[dict[str, Any]]:
    """All panels, row by row, from left to right."""
    number, y = 0, 0
    for title, row in ROWS:
        number += 1
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place}
        x, y, tall = 0, y + 1, 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y, tall = 0, y + tall, 0
            number += 1
            yield _made(panel, number, x, y)
            x, tall = x + panel.width, max(tall, panel.height)
        y += tall


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    return {
        "title": "turngap",
        "uid": "turngap",
        "description": "The turn gap of voice agents: what callers hear, and what the agent says.",
        "tags": ["turngap", "voice"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables()},
        "annotations": {"list": []},
        "panels": list(panels()),
    }


# --- for the tests and for benchmarks/dashboard.py ------------------------------------------------

LABEL_IN_A_LEGEND = re.compile(r"\{\{(\w+)\}\}")
# In place of what Grafana puts into a query: everything, within a minute.
_CHOSEN = {
    "$agent": ".*",
    "$run_agent": ".*",
    "$job": ".*",
    "$window": "1m",
    "$__rate_interval": "10s",
    "$__range": "1m",
}


def substituted(query: str) -> str:
    """The query as Prometheus gets it."""
    for name in sorted(_CHOSEN, key=len, reverse=True):
        query = query.replace(name, _CHOSEN[name])
    return query


def prometheus_names(told: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """How Prometheus names the series of OpenTelemetry's metrics, by name: its unit and kind."""
    for name, (unit, kind, *_) in told.items():
        base = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("_total",)
        yield from (base + end for end in ends)


def main(arguments: Sequence[str]) -> int:
    """Write the file, or look whether it is up to date."""
    wanted = json.dumps(dashboard(), indent=2) + "\n"
    if FILE.exists() and FILE.read_text(encoding="utf-8") == wanted:
        return 0
    if "--check" in arguments:
        sys.stderr.write(
            "examples/grafana.json is out of date: run python tools/grafana_dashboard.py\n"
        )
        return 1
    FILE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
