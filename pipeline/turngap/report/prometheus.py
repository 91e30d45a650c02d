"""A run in Prometheus' text format: for node_exporter's textfile collector, or a push gateway.

They are gauges of one run, and the next run of the same agent takes their place. What grows over
many calls is `/metrics` of `turngap serve`, and what turngap sends by OpenTelemetry.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal

from turngap.core.budget import GAP_BUCKETS_S, OUTCOMES
from turngap.core.errors import InputError
from turngap.core.instants import instant
from turngap.core.stats import Percentile, Proportion
from turngap.core.summary import counted_turns, due_ms
from turngap.core.untrusted import printable
from turngap.store.runs import Run
from turngap.store.tables import agent_name

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

Samples = Iterator[tuple[Mapping[str, str], float | None]]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a run; each has the label `agent`, too.

    Attributes:
        of: yields each sample with its labels; one without a value is left out, and so is a label.
        of_any_run: whether an invalid run has it, too. It has none of those that would be taken for
            a measurement of the agent.
    """

    name: str
    about: str
    of: Callable[[Run], Samples]
    labels: tuple[str, ...] = ()
    type: Literal["gauge", "histogram"] = "gauge"
    of_any_run: bool = False


def _one(of: Callable[[Run], float | None]) -> Callable[[Run], Samples]:
    return lambda run: iter([({}, of(run))])


def _share(name: str, about: str, of: Callable[[Run], Proportion]) -> Sequence[Metric]:
    return (
        Metric(name, about, _one(lambda run: of(run).value)),
        Metric(f"{name}_low", f"Lower 95 % bound of {name}", _one(lambda run: of(run).low)),
        Metric(f"{name}_high", f"Upper 95 % bound of {name}", _one(lambda run: of(run).high)),
    )


def _gaps(of: Callable[[Percentile], float | None]) -> Callable[[Run], Samples]:
    def samples(run: Run) -> Samples:
        for name, found in run.summary.gap_ms.items():
            yield {"percentile": name}, _seconds(of(found))

    return samples


def _stages(run: Run) -> Samples:
    for stage in run.summary.stages:
        yield {"stage": stage.name}, stage.p50_ms / 1000


def _outcomes(run: Run) -> Samples:
    for outcome in OUTCOMES:
        yield {"outcome": outcome}, run.summary.outcomes.get(outcome, 0)


def _told(run: Run) -> Samples:
    told = {
        "run": run.path.name,
        "commit": run.record.measured_commit,
        "machine": run.record.machine.fingerprint,
        "version": run.record.turngap_version,
    }
    yield told, 1


def _buckets(run: Run) -> Samples:
    """How many turns that a reply was due in had it by then, bucket by bucket."""
    gaps_s = [ms / 1000 for t in counted_turns(run.turns) if (ms := due_ms(t)) is not None]
    for end_s in (*GAP_BUCKETS_S, inf):
        yield {"le": "+Inf" if end_s == inf else f"{end_s}"}, sum(gap <= end_s for gap in gaps_s)
    yield {}, sum(gap for gap in gaps_s if isfinite(gap))


METRICS: Sequence[Metric] = (
    Metric(
        "turngap_run_info",
        "Always 1; the labels say which run of the agent this is",
        _told,
        ("run", "commit", "machine", "version"),
        of_any_run=True,
    ),
    Metric(
        "turngap_run_valid",
        "1 if the run's figures can be used, else 0, and then they are left out",
        _one(lambda run: int(run.valid)),
        of_any_run=True,
    ),
    Metric(
        "turngap_run_started_timestamp_seconds",
        "When the run began, in seconds since 1970",
        _one(lambda run: _instant(run.record.started_utc)),
        of_any_run=True,
    ),
    Metric(
        "turngap_run_finished_timestamp_seconds",
        "When the run ended, in seconds since 1970",
        _one(lambda run: _instant(run.record.finished_utc)),
        of_any_run=True,
    ),
    Metric("turngap_run_turns", "Turns of the run, by outcome", _outcomes, ("outcome",)),
    *_share(
        "turngap_run_hit_ratio",
        "Share of the turns that were answered within the budget",
        lambda run: run.hit_rate,
    ),
    *_share(
        "turngap_run_cut_in_ratio",
        "Share of the turns in which the agent spoke before the person had finished",
        lambda run: run.cut_ins,
    ),
    *_share(
        "turngap_run_right_ratio",
        "Share of the judged replies that were right",
        lambda run: run.summary.right,
    ),
    Metric(
        "turngap_run_turn_gap_percentile_seconds",
        "Percentiles of the turn gap; a reply that was due and did not come is slower than any",
        _gaps(lambda found: found.value),
        ("percentile",),
    ),
    Metric(
        "turngap_run_turn_gap_percentile_seconds_low",
        "Lower 95 % bound of turngap_run_turn_gap_percentile_seconds",
        _gaps(lambda found: found.low),
        ("percentile",),
    ),
    Metric(
        "turngap_run_turn_gap_percentile_seconds_high",
        "Upper 95 % bound of turngap_run_turn_gap_percentile_seconds",
        _gaps(lambda found: found.high),
        ("percentile",),
    ),
    Metric(
        "turngap_run_turn_gap_seconds",
        "The turn gaps of the run as a histogram; a reply that was due and did not come is in the "
        "last bucket alone, and not in the sum. It begins anew with each run: do not use rate()",
        _buckets,
        type="histogram",
    ),
    Metric(
        "turngap_run_stage_seconds",
        "Median of each stage of the gap, over the answered turns that have it",
        _stages,
        ("stage",),
    ),
    Metric(
        "turngap_run_budget_seconds",
        "The budget of the run",
        _one(lambda run: run.record.budget_ms / 1000),
        of_any_run=True,
    ),
    Metric(
        "turngap_run_starved_turns",
        "Turns in which turngap itself was later than the run accepts",
        _one(lambda run: run.summary.starved),
        of_any_run=True,
    ),
)


def prometheus_text(run: Run) -> bytes:
    """The run's metrics.

    Raises:
        InputError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError as e:
        raise InputError(
            "extra.missing",
            "Prometheus' text format is written by prometheus_client, which is not installed here",
            hint="pip install 'turngap[prometheus]'",
        ) from e
    registry = CollectorRegistry()
    _register(registry, run)
    return generate_latest(registry)


def _register(registry: "CollectorRegistry", run: Run) -> None:
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

    agent = {"agent": printable(agent_name(run))}

    class Figures:
        def collect(self) -> Iterator[GaugeMetricFamily | HistogramMetricFamily]:
            for metric in METRICS:
                if not (run.valid or metric.of_any_run):
                    continue
                if metric.type == "histogram":
                    *buckets, (_, total) = metric.of(run)
                    ends = [(labels["le"], n or 0) for labels, n in buckets]
                    family = HistogramMetricFamily(metric.name, metric.about, labels=list(agent))
                    family.add_metric(list(agent.values()), ends, total)
                    yield family
                    continue
                gauge = GaugeMetricFamily(metric.name, metric.about)
                for labels, value in metric.of(run):
                    if value is not None:
                        # To Prometheus an empty label is none, and to a reader it says nothing.
                        known = {n: printable(text) for n, text in labels.items() if text}
                        gauge.add_sample(metric.name, agent | known, value)
                if gauge.samples:
                    yield gauge

    registry.register(Figures())


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _instant(utc: str | None) -> float | None:
    """Seconds since 1970; None where a stored instant is none."""
    try:
        return None if utc is None else instant(utc).timestamp()
    except ValueError:
        return None
