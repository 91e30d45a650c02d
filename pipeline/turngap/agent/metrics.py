"""What `turngap serve` tells Prometheus at `/metrics`: the figures of one agent, or of its workers.

Every label has a small, fixed set of values, and none comes from a client. A turn is counted when
it is over, so that nothing here is part of a gap.

With one process, the figures are in its memory. With several, each process keeps its own in files
of one folder, which prometheus_client adds up for whichever process is asked: make the folder with
`shared_folder`, and start each process with the variable that it returns.
"""

import asyncio
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turngap import __version__
from turngap.backends import Kind
from turngap.core.budget import GAP_BUCKETS_S
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.telemetry.names import STAGE_S

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from turngap.marks.turn import AgentTurn

# prometheus_client reads it once, as it is imported.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"

# Why a conversation is refused: `access` is a missing token or a foreign page, `begins` too many of
# one address within a short time.
REASONS: Final = ("full", "begins", "draining", "access", "other")
# What became of a turn: `unheard` has neither a voice nor a failure, as where it was withdrawn.
OUTCOMES: Final = ("answered", "unheard", "failed")
ENGINES: Final[tuple[Kind, ...]] = ("stt", "llm", "tts", "turn")

LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
LAG_EVERY_MS = 100.0


class Metrics:
    """The figures of this process; make one a process.

    Args:
        clock: tells how late the event loop is.
    """

    def __init__(self, clock: Clock) -> None:
        import prometheus_client as of

        # When each series began: twice as many lines, which no rule of Prometheus needs.
        of.disable_created_metrics()
        self._clock = clock
        self._registry = registry = of.CollectorRegistry()
        self._watching: asyncio.Task[None] | None = None
        self._running = 0

        def counter(name: str, words: str, *labels: str) -> of.Counter:
            return of.Counter(f"turngap_{name}", words, labels, registry=registry)

        def histogram(name: str, words: str, buckets: Iterable[float], *labels: str):
            name = f"turngap_{name}_seconds"
            return of.Histogram(name, words, labels, registry=registry, buckets=tuple(buckets))

        self._build = of.Gauge(
            "turngap_build_info",
            "Always 1; the labels say what runs",
            ("version", "python"),
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._build.labels(__version__, platform.python_version()).set(1)
        self._sessions = of.Gauge(
            "turngap_sessions",
            "Conversations that run now",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._seats = of.Gauge(
            "turngap_seats",
            "Conversations that may run at the same time",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._begun = counter("sessions_begun", "Conversations that have begun")
        self._refused = counter("sessions_refused", "Conversations refused, by reason", "reason")
        self._failed = counter("sessions_failed", "Conversations that ended with a failure of ours")
        self._turns = counter("turns", "Turns of the agent, by what became of them", "outcome")
        self._interruptions = counter("interruptions", "Replies that the person spoke into")
        self._errors = counter("engine_errors", "Errors of the engines, by kind", "engine")
        self._gap = histogram(
            "agent_gap",
            "From the person's last sound to the first audible sample written to the line, as the "
            "agent knows it: without the line, and not what the caller hears",
            GAP_BUCKETS_S,
        )
        self._engines = histogram(
            "engine_wait",
            "Waits for an engine in a turn, queueing included. stt: from the end of the turn to "
            "its transcript, 0 if that was there; llm: from the request to the first token; tts: "
            "from the first text to the first audio",
            STAGE_S,
            "engine",
        )
        self._lag = histogram(
            "event_loop_lag", "How much later than asked for the event loop woke", LAG_S
        )
        # Series that exist from the beginning, so that a rate does not miss their first step.
        for reason in REASONS:
            self._refused.labels(reason)
        for outcome in OUTCOMES:
            self._turns.labels(outcome)
        for engine in ENGINES:
            self._errors.labels(engine)
        if FOLDER_VARIABLE not in os.environ:
            of.ProcessCollector(registry=registry)

    # --- sessions: call these in the event loop -------------------------------------------------

    def seats(self, most: int) -> None:
        """Note how many conversations may run at once, in all processes together."""
        self._seats.set(most)

    @contextmanager
    def session(self) -> Iterator[Callable[[], None]]:
        """Count a conversation until it is over, or until what this yields is called before."""
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self._change(-1)

        self._begun.inc()
        self._change(1)
        try:
            yield leave
        finally:
            leave()

    def refused(self, reason: str) -> None:
        """Count a refused conversation; a reason that is none of `REASONS` counts as "other"."""
        self._refused.labels(reason if reason in REASONS else "other").inc()

    def session_failed(self) -> None:
        self._failed.inc()

    def _change(self, by: int) -> None:
        self._running += by
        self._sessions.set(self._running)
        if self._running and self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        elif not self._running and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        """Measure how late the event loop is, as long as there is a conversation."""
        every_ns = ms_to_ns(LAG_EVERY_MS)
        while True:
            due_ns = self._clock.now_ns() + every_ns
            await self._clock.sleep_until_ns(due_ns)
            self._lag.observe(max(self._clock.now_ns() - due_ns, 0) / NS_PER_S)

    # --- turns ----------------------------------------------------------------------------------

    def turn_over(self, turn: "AgentTurn") -> None:
        """Count a turn and what it took, from its marks."""
        heard = "sent" in turn.marks
        outcome = "failed" if turn.failure else "answered" if heard else "unheard"
        self._turns.labels(outcome).inc()
        if turn.interrupted:
            self._interruptions.inc()
        if heard and turn.silent_ns is not None:
            gap_ns = turn.marks["sent"] - turn.silent_ns
            self._gap.observe(max(gap_ns, 0) / NS_PER_S)  # 0: it spoke before they were silent
        for engine, waited_ns in engine_waits(turn.marks):
            self._engines.labels(engine).observe(max(waited_ns, 0) / NS_PER_S)

    def engine_failed(self, kind: Kind) -> None:
        self._errors.labels(kind).inc()

    # --- the page -------------------------------------------------------------------------------

    @property
    def content_type(self) -> str:
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

        return CONTENT_TYPE_PLAIN_0_0_4

    def page(self) -> bytes:
        """Return the figures in Prometheus' text format: of all processes, if there are several."""
        from prometheus_client import generate_latest

        folder = os.environ.get(FOLDER_VARIABLE)
        return generate_latest(self._registry if folder is None else _added_up(Path(folder)))


def engine_waits(marks: Mapping[str, int]) -> list[tuple[Kind, int]]:
    """Return how long a turn waited for each engine, in ns, where its marks tell."""
    of: tuple[tuple[Kind, str, str], ...] = (
        ("stt", "endpoint", "transcript"),
        # With tools, the answer is the reply to the request that carries their results.
        ("llm", "tool_result" if "tool_result" in marks else "llm_request", "llm_first_token"),
        ("tts", "tts_request", "tts_first_audio"),
    )
    return [(kind, marks[b] - marks[a]) for kind, a, b in of if a in marks and b in marks]


def metrics(clock: Clock) -> Metrics | None:
    """Return the figures of this process, or None without prometheus_client (the extra `agent`)."""
    return Metrics(clock) if _has_prometheus() else None


def _has_prometheus() -> bool:
    return importlib.util.find_spec("prometheus_client") is not None


@contextmanager
def shared_folder() -> Iterator[dict[str, str]]:
    """Make the folder of several processes' figures; it is removed at the end.

    Yields:
        Environment variables that each process must have as it starts.
    """
    folder = tempfile.mkdtemp(prefix="turngap-metrics-")
    try:
        yield {FOLDER_VARIABLE: folder}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def process_gone(folder: str, pid: int) -> None:
    """Take what a process that has ended says of now off the page; its counts stay."""
    if not _has_prometheus():
        return
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid, folder)


def _added_up(folder: Path) -> "CollectorRegistry":
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    registry.register(_Processes(folder))
    return registry


class _Processes:
    """CPU, memory and descriptors of all processes that keep figures in a folder, added up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> "Iterable[Metric]":
        from prometheus_client import ProcessCollector

        # A process that has ended has no such file, see `process_gone`.
        pids = {file.stem.rpartition("_")[2] for file in self._folder.glob("gauge_livesum_*.db")}
        summed: dict[str, Metric] = {}
        for pid in sorted(pids):
            for metric in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():
                if metric.name in _SUMMED and metric.name in summed:
                    sample = summed[metric.name].samples[0]
                    value = sample.value + metric.samples[0].value
                    summed[metric.name].samples[0] = sample._replace(value=value)
                elif metric.name in _SUMMED:
                    summed[metric.name] = metric
        return summed.values()

    def describe(self) -> "Iterable[Metric]":
        return ()


_SUMMED = frozenset({"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"})
