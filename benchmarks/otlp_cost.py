"""What `--otlp` costs: the caller that measures, the agent that it measures, and your time.

    python benchmarks/otlp_cost.py                            # six to seven minutes
    python benchmarks/otlp_cost.py --write docs/telemetry.md

One question at a time is played to `embedded`, round after round. Each round plays the same
question in each way, in a random order: without `--otlp`, and with it to a collector that answers
at once, to one that takes 400 ms, to one that is not there, and to one that takes everything and
never answers. A second process of the same agent has the collector in its environment, and makes
and sends its own spans where the caller asks for them: it is compared with itself, untraced. The
figures are differences within a round. Each question is a run of its own, since after the first
time that a collector is slow or refuses, a run sends nothing more until it ends.

Run it on a quiet machine. If the caller was late too often, nothing is written, and the exit code
is 3.
"""

import argparse
import asyncio
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time

import numpy as np
import pages
import psutil
from endings import errors_told
from session_cost import all_gone, cpu_s

from turngap.caller.endpoint import Endpoint
from turngap.clocks import MonotonicClock
from turngap.core.clock import ns_to_ms
from turngap.core.paired import Limits, exchanges, shift, shift_interval
from turngap.core.results import Turn
from turngap.core.stats import CONFIDENCE
from turngap.core.summary import summarise
from turngap.play.plan import ReplayPlan
from turngap.play.process import running
from turngap.play.quiet import undisturbed
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice
from turngap.play.validity import why_invalid
from turngap.scenario.library import LoadedScenario
from turngap.store.provenance import this_machine
from turngap.telemetry.destination import ENDPOINT
from turngap.telemetry.telemetry import OFF, telemetry_to

BEGIN = "<!-- made by benchmarks/otlp_cost.py -->"
SLOW_S = 0.4
# Nobody listens there.
GONE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Way:
    """How a question is played.

    Attributes:
        collector: what `--otlp` names: a key of `collectors`; None: nothing.
        traced: whether the agent is the one whose environment names a collector.
        against: the way that it is compared with; None: it is one of those.
    """

    name: str
    collector: str | None = None
    traced: bool = False
    against: str | None = None


WAYS = (
    Way("without"),
    Way("a collector that answers at once", "quick", against="without"),
    Way(f"a collector that takes {SLOW_S * 1000:.0f} ms", "slow", against="without"),
    Way("a collector that is not there", "gone", against="without"),
    Way("a collector that never answers", "silent", against="without"),
    Way("untraced", traced=True),
    Way(
        "one that answers at once, and the agent traces, too",
        "quick",
        traced=True,
        against="untraced",
    ),
)


@dataclass(frozen=True)
class Played:
    """What a conversation of one turn took; CPU is of the whole process, all threads.

    Attributes:
        wall_ms: from dialling until the next conversation may begin.
    """

    turn: Turn
    wall_ms: float
    caller_cpu_ms: float
    agent_cpu_ms: float


@dataclass(frozen=True)
class Cost:
    """A figure's differences from without, by pair: their shift and its 95 % interval, in ms."""

    n: int
    shift_ms: float | None
    interval_ms: tuple[float, float] | None

    @classmethod
    def of(cls, pairs: Sequence[tuple[float | None, float | None]]) -> "Cost":
        """Of (with, without) in each round; rounds that lack one of them are left out."""
        known = [a - b for a, b in pairs if a is not None and b is not None]
        if not known:
            return cls(0, None, None)
        differences, limit = np.array(known), Limits().p50_ms
        each_its_own = exchanges(range(len(known)), np.random.default_rng(1))
        share = (1 - CONFIDENCE) / 2
        interval = shift_interval(differences, differences, limit, each_its_own, share)
        return cls(len(known), shift(differences, limit), interval)

    def words(self, unit_ms: float = 1.0) -> str:
        """The difference and its interval, in units of so many ms."""
        if self.shift_ms is None:
            return "none"
        digits = 1 if unit_ms == 1 else 2
        bounds = self.interval_ms and [f"{b / unit_ms:+.{digits}f}" for b in self.interval_ms]
        interval = f" ({bounds[0]} to {bounds[1]})" if bounds else " (too few for an interval)"
        return f"{self.shift_ms / unit_ms:+.{digits}f}{interval}"


def costs(ours: Sequence[Played], theirs: Sequence[Played]) -> dict[str, Cost]:
    """What each figure differs by, round by round."""
    both = list(zip(ours, theirs, strict=True))
    return {
        "gap": Cost.of([(a.turn.gap_ms, b.turn.gap_ms) for a, b in both]),
        "late": Cost.of([(a.turn.pacing.late_ms_max, b.turn.pacing.late_ms_max) for a, b in both]),
        "wall": Cost.of([(a.wall_ms, b.wall_ms) for a, b in both]),
        "caller": Cost.of([(a.caller_cpu_ms, b.caller_cpu_ms) for a, b in both]),
        "agent": Cost.of([(a.agent_cpu_ms, b.agent_cpu_ms) for a, b in both]),
    }


MEASURED = ("`--otlp` to", "pairs", "heard gap, ms", "the caller's latest packet, ms")
TAKEN = (
    "`--otlp` to",
    "a conversation takes, s",
    "CPU of turngap, ms",
    "CPU of the agent, ms",
    "the end of the run, s",
)


def tables(played: dict[str, list[Played]], ends_s: dict[str, float]) -> str:
    """What is measured, and what it takes: a row a way that has something to be compared with."""
    measured: list[Sequence[str]] = [MEASURED]
    taken: list[Sequence[str]] = [TAKEN]
    for way in WAYS:
        if way.against is None:
            continue
        found = costs(played[way.name], played[way.against])
        gaps, pairs = found["gap"].n, found["wall"].n
        n = f"{pairs}" if gaps == pairs else f"{pairs}, of which {gaps} with a gap"
        measured.append((way.name, n, found["gap"].words(), found["late"].words()))
        cells = [found["wall"].words(1000), found["caller"].words(), found["agent"].words()]
        taken.append((way.name, *cells, f"{ends_s[way.name]:.2f}"))
    return (
        f"What it changes in what is measured:\n\n{_table(measured)}\n\n"
        "What it takes. The last column is no difference: it is how long turngap sent at the end "
        f"of one run.\n\n{_table(taken)}"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def about(played: dict[str, list[Played]]) -> str:
    """What was played, where, and how late the caller was."""
    turns = [each.turn for own in played.values() for each in own]
    starved, machine = sum(turn.pacing.starved for turn in turns), this_machine()
    rounds = len(next(iter(played.values())))
    return (
        f"There were {rounds} rounds. Each played one recorded question to `embedded` in "
        f"{len(WAYS)} ways, in a random order. Each time was a run of its own, since a run whose "
        "collector was slow or refused once sends nothing more until it ends. Each figure is the "
        "difference from the same question without `--otlp`, with its 95 % interval (by exchanging "
        "the sides of pairs). In the last row, the agent has the collector in its environment, "
        "too; there the difference is from the same agent, played without `--otlp`. The agent's "
        "models are small and its voice is synthetic. "
        f"turngap was late in {starved} of {len(turns)} turns. Machine: {machine.cpu}, "
        f"{machine.cores} cores."
    )


# --- collectors ---------------------------------------------------------------------------------


def collect(port: Connection, waits_s: float | None) -> None:
    """Be a collector in a process of its own, which takes everything after a while; None: never."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            threading.Event().wait(waits_s)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def collectors() -> Iterator[dict[str, str]]:
    """The URL of each collector."""
    context = multiprocessing.get_context("spawn")
    urls, processes = {"gone": GONE}, []
    try:
        for name, waits_s in (("quick", 0.0), ("slow", SLOW_S), ("silent", None)):
            ours, theirs = context.Pipe()
            process = context.Process(target=collect, args=(theirs, waits_s), daemon=True)
            process.start()
            processes.append(process)
            urls[name] = f"http://127.0.0.1:{ours.recv()}"
        yield urls
    finally:
        for process in processes:
            process.terminate()
            process.join()


# --- playing ------------------------------------------------------------------------------------


@dataclass
class Agent:
    """A process of `turngap serve`."""

    url: str
    process: psutil.Process


@asynccontextmanager
async def agents(collector: str) -> AsyncIterator[dict[bool, Agent]]:
    """The agent that traces nothing, and the one that may."""
    served = ["turngap", "serve", "--port", "0", "--json", "--no-keep"]
    async with running(served, Path(os.devnull)) as plain:
        ours = _servers()
        os.environ[ENDPOINT] = collector
        async with running(served, Path(os.devnull)) as traced:
            del os.environ[ENDPOINT]
            (other,) = _servers() - ours
            yield {False: Agent(plain, *ours), True: Agent(traced, other)}


def _servers() -> set[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return {child for child in children if "serve" in child.cmdline()}


class Player:
    """Plays questions in one way, each as a run of its own."""

    def __init__(self, way: Way, agent: Agent, collector: str | None, out: Path) -> None:
        self.way, self._agent, self._collector = way, agent, collector
        self._telemetry = OFF
        self._plan = ReplayPlan.of(
            AgentChoice(agent.url, {}, (), None),
            ["quick-questions"],
            None,
            None,
            {},
            greeting_ms=0.0,
            out=out,
        )
        (whole,) = self._plan.scenarios
        self.questions = [_alone(whole, number) for number, _ in enumerate(whole.scenario.turns)]
        self._endpoint = Endpoint(agent.url, dialect="pipecat")

    async def play(self, number: int) -> Played:
        """Play the question of this round."""
        self._telemetry = telemetry_to(self._collector)
        plan = replace(self._plan, telemetry=self._telemetry)
        run = RunInProgress(plan, plan.target, f"way-{WAYS.index(self.way)}-{number}")
        clock = MonotonicClock()
        await all_gone(self._agent.url)
        before = process_time(), cpu_s(self._agent.process)
        since_ns = clock.now_ns()
        question = self.questions[number % len(self.questions)]
        await run.play(question, self._endpoint, repeat=number + 1)
        wall_ms = ns_to_ms(clock.now_ns() - since_ns)
        await all_gone(self._agent.url)  # its spans are sent when the conversation is over
        after = process_time(), cpu_s(self._agent.process)
        ours_ms, theirs_ms = (1000 * (b - a) for a, b in zip(before, after, strict=True))
        run.finish()
        return Played(run.turns[-1], wall_ms, ours_ms, theirs_ms)

    def end(self) -> float:
        """End the last run; returns how long the rest took to send, in seconds."""
        clock = MonotonicClock()
        since_ns = clock.now_ns()
        words = self._telemetry.close()
        seconds = ns_to_ms(clock.now_ns() - since_ns) / 1000
        print(f"{self.way.name}: {words}")
        return seconds


def _alone(whole: LoadedScenario, number: int) -> LoadedScenario:
    """One turn of a scenario as a scenario."""
    turn = whole.scenario.turns[number]
    return replace(whole, scenario=whole.scenario.model_copy(update={"turns": (turn,)}))


async def measure(rounds: int, out: Path) -> tuple[dict[str, list[Played]], dict[str, float]]:
    """Play all ways in turn; returns what was played, and what the end of each run took."""
    played: dict[str, list[Played]] = {way.name: [] for way in WAYS}
    with collectors() as urls:
        async with agents(urls["quick"]) as served:
            players: list[Player] = []
            for way in WAYS:
                where = None if way.collector is None else urls[way.collector]
                players.append(Player(way, served[way.traced], where, out))
            for player in players:  # the first conversation of each warms up
                await player.play(0)
            order = np.random.default_rng(1)
            with undisturbed():
                for number in range(rounds):
                    for player in [players[index] for index in order.permutation(len(players))]:
                        played[player.way.name].append(await player.play(number + 1))
                    gaps = [own[-1].turn.gap_ms for own in played.values()]
                    shown = ", ".join("none" if gap is None else f"{gap:.0f}" for gap in gaps)
                    print(f"round {number + 1} of {rounds}: {shown} ms", flush=True)
            ends_s = {player.way.name: player.end() for player in players}
    return played, ends_s


def main() -> None:
    """Measure, print the table, and put it into a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8, help="about 45 s each")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    arguments = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    with errors_told(), tempfile.TemporaryDirectory() as out:
        played, ends_s = asyncio.run(measure(arguments.rounds, Path(out)))
    text = f"{about(played)}\n\n{tables(played, ends_s)}"
    print(f"\n{text}")
    turns = [each.turn for own in played.values() for each in own]
    if why_invalid(summarise(turns)):
        print("the caller was late too often: quiet the machine and run again", file=sys.stderr)
        sys.exit(3)
    if arguments.write is not None:
        pages.write(arguments.write, BEGIN, text)


if __name__ == "__main__":
    main()
