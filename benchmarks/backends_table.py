"""The table of LLM backends: each over the same recordings, in turns with the others, a row each.

Plays every LLM backend that this machine has, by what `turngap compare` plays with:

- the simulated profiles, and what combines them (race, route, opener, best-of);
- the project's student in the agent's process, and its teacher there too;
- where vLLM is installed (--vllm, or TURNGAP_VLLM, names the Python of its environment), the
  teacher on a server of its own, over one connection a session and over one a request;
- what combines these two.

Models of providers cost money: they are played where --llm names them, as any other.

    python benchmarks/backends_table.py --write PAGE.md  # between its two marks
    python benchmarks/backends_table.py --vllm "$(tools/vllm-env)" --rounds 2
    python benchmarks/backends_table.py --only sim:full --only student --scenario quick-questions
    python benchmarks/backends_table.py --waiting     # the same agent, waiting for a turn's end
    python benchmarks/backends_table.py --table       # play nothing; the table of what there is

Everything is played into `--out`, and the table is of all pieces that lie there. An agent that
begins its answer early hides a slow model behind the hold that ends the turn; one that waits
shows it, so that its gap has columns of its own. An opener's clause ends the gap: when the answer
itself began is beside it.
"""

import argparse
import asyncio
import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from endings import errors_told
from half_gap.table import ms, share
from pages import write

from turngap.backends import BackendChoice
from turngap.compare.figures import first_answer
from turngap.compare.play import ComparePlan, compare
from turngap.compare.report import read_comparison, write_reports
from turngap.core.budget import LLM_WINDOW_MS, STARVED_MS
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.summary import counted_turns, summarise
from turngap.play.plan import Progress
from turngap.play.target import AgentChoice
from turngap.report.words import recorded_words
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import library_dir, scenario_paths
from turngap.store.comparisons import COMPARISON_FILE, ComparisonRecord
from turngap.store.runs import read_run
from turngap_services.llm.vllm import VllmSettings
from turngap_services.llm.vllm.service import Server

BEGIN = "<!-- made by benchmarks/backends_table.py -->"
TEACHER = Path(__file__).parents[1] / "models" / "teacher"
# Of its own accord vLLM takes every core; the agent and the caller need one.
SERVE_ARGS = ("--dtype", "bfloat16", "--max-model-len", "512", "--enforce-eager")
SERVE_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0"}

# What is behind the name of a backend whose agent begins no answer early.
WAITING = ", waiting"

HEAD = (
    "LLM backend", "n", "gap p50, ms", "gap p95, ms", "cut into", "first answer p50, ms",
    "within budget", "first token p50, ms", "tokens/s", f"tokens in {LLM_WINDOW_MS:.0f} ms",
    "right answers",
)  # fmt: skip
HEAD_WAITING = (
    "n, waiting", "gap p50, waiting", "gap p95, waiting", "cut into, waiting",
    "first answer p50, waiting",
)  # fmt: skip


RATES = (
    "Tokens/s as the agent's event loop gets them: a model in its process makes a short reply in "
    "milliseconds, several tokens come at once, and its rate here says little."
)


@dataclass(frozen=True)
class Model:
    """The larger of two real models: what it is called, its backend, and the settings of that."""

    name: str
    llm: str
    settings: dict[str, str]

    def contender(self, name: str = "", **more: str) -> BackendChoice:
        """Return it alone, with `more` settings."""
        sets = {**self.settings, **more}
        return BackendChoice(
            name or self.name, self.llm, tuple(f"{k}={v}" for k, v in sets.items())
        )

    @property
    def table(self) -> str:
        """Its settings as TOML's inline table."""
        return f"{{{', '.join(f'{k} = {json.dumps(v)}' for k, v in self.settings.items())}}}"


def simulated() -> list[BackendChoice]:
    """Return the served profiles, and what combines them by default."""
    return [
        *(
            BackendChoice(name, name)
            for name in ("sim:full", "sim:full-low-batch", "sim:distilled")
        ),
        BackendChoice("race (simulated)", "race"),
        BackendChoice("route (simulated)", "route"),
        # A simulated model is told nothing.
        BackendChoice("opener (simulated)", "opener", ("told=false",)),
        BackendChoice("best-of (simulated)", "best-of"),
    ]


STUDENT = Model("student", "small", {"model": "student"})


def real(larger: Model) -> list[BackendChoice]:
    """Return the student, and its combinations with a larger model."""
    fast = ("fast=small", f"fast_settings={STUDENT.table}")
    pair = (*fast, f"full={larger.llm}", f"full_settings={larger.table}")
    candidates = (
        f'candidates=["{larger.llm}", "small"]',
        f"candidate_settings=[{larger.table}, {STUDENT.table}]",
    )
    both = f"student and {larger.name}"
    return [
        STUDENT.contender(),
        larger.contender(),
        *(
            [larger.contender(f"{larger.name}, a connection a request", keep_alive="false")]
            if larger.llm == "vllm"
            else []
        ),
        BackendChoice(f"race: {both}", "race", pair),
        BackendChoice(f"route: {both}", "route", pair),
        # The teacher follows no instructions: it is not told what was said before it.
        BackendChoice(f"opener: {both}", "opener", (*pair, "told=false")),
        BackendChoice(f"best-of: {both}", "best-of", candidates),
    ]


@contextmanager
def larger_model(vllm: str | None) -> Iterator[Model]:
    """Serve the teacher by a vLLM for as long as this lasts, or in the agents' process.

    Raises:
        AgentError: vLLM does not start.
    """
    if vllm is not None:
        model = str(TEACHER)
        settings = VllmSettings(
            model=model, command=vllm, serve_args=SERVE_ARGS, serve_env=SERVE_ENV
        )
        server = Server(settings, model)
        try:
            server.wait_until_healthy()
            yield Model("vllm: teacher", "vllm", {"base_url": server.base_url, "model": model})
        finally:
            server.stop()
    else:
        yield Model("teacher", "small", {"model": "teacher"})


def chosen(everybody: Sequence[BackendChoice], only: Sequence[str]) -> list[BackendChoice]:
    """Those that are named, or all.

    Raises:
        InputError: there is none of that name here.
    """
    names = [c.name for c in everybody]
    if unknown := [name for name in only if name not in names]:
        raise InputError(
            "backends_table.unknown",
            f"no backend {unknown[0]!r} here",
            hint=f"there are: {'; '.join(names)}",
        )
    return [c for c in everybody if not only or c.name in only]


def play(contenders: Sequence[BackendChoice], arguments: argparse.Namespace) -> None:
    """Play one piece and keep it; with `--waiting`, of agents that begin no answer early.

    Raises:
        TurngapError: an agent failed; what was played before is kept.
    """
    library = library_dir()
    if arguments.waiting:
        contenders = [dataclasses.replace(c, name=c.name + WAITING) for c in contenders]
    sets = ("turn.speculate=false",) if arguments.waiting else ()
    plan = ComparePlan(
        choice=AgentChoice(arguments.agent, sets=sets),
        library=library,
        contenders=contenders,
        scenarios=load_scenarios(scenario_paths(library, arguments.scenario)),
        rounds=arguments.rounds,
        phases=arguments.phases,
        out=arguments.out,
        starved_ms=arguments.starved_ms,
        most=len(contenders),
    )
    print(f"{plan.turns} turns, {len(contenders)} backends in turns, in real time", flush=True)
    record, folder, failure = asyncio.run(
        compare(plan, Progress(on_step=lambda step: print(f"  {step}", flush=True)))
    )
    write_reports(record, folder)
    if failure is not None:
        raise failure


@dataclass
class Pieces:
    """All that was played: turns by backend, what they rest on, and what was left out of them."""

    records: list[ComparisonRecord] = field(default_factory=list[ComparisonRecord])
    turns: dict[str, list[Turn]] = field(default_factory=dict[str, list[Turn]])
    left_out: list[str] = field(default_factory=list[str])


def collect(out: Path) -> Pieces:
    """Every piece that is kept in a folder; runs that judged themselves invalid are left out.

    Raises:
        InputError: there is none, or they are not of one machine and one agent.
    """
    pieces = Pieces()
    for file in sorted(out.glob(f"*/{COMPARISON_FILE}")):
        record = read_comparison(file.parent)
        pieces.records.append(record)
        for backend in record.backends:
            turns = pieces.turns.setdefault(backend.name, [])
            if not backend.valid:
                why = f"`{backend.name}`, {backend.turns} turns: {backend.why_invalid}"
                pieces.left_out.append(why)
            elif backend.turns:
                turns += read_run(file.parent / backend.run).turns
    if not pieces.records:
        raise InputError(
            "backends_table.nothing", f"nothing was played in {out}", hint="leave out --table"
        )
    if len({(r.machine.fingerprint, r.agent) for r in pieces.records}) > 1:
        raise InputError(
            "backends_table.mixed",
            f"the pieces in {out} are of several machines or agents, which do not compare",
            hint="play them into a folder each: --out DIR",
        )
    return pieces


def table(pieces: Pieces) -> str:
    """Write the rows, and the runs behind them, as Markdown."""
    played = pieces.turns.items()
    early = {name: turns for name, turns in played if not name.endswith(WAITING)}
    late = {n.removesuffix(WAITING): turns for n, turns in played if n.endswith(WAITING)}
    head = HEAD + (HEAD_WAITING if late else ())
    lines = [head, ("---",) * len(head)]
    for name in dict.fromkeys((*early, *late)):
        cells = row(name, early.get(name, ()))
        lines.append(cells + (gaps(late.get(name, ())) if late else ()))
    blocks = ["\n".join(f"| {' | '.join(cells)} |" for cells in lines)]
    blocks.append(f"{basis(pieces)}. {RATES}")
    notes = [f"- left out as invalid: {why}" for why in pieces.left_out]
    if not all(alike(list(group.values())) for group in (early, late)):
        notes.append("- not all of them played the same turns: compare those whose n is the same")
    blocks.append("\n".join(notes))
    return "\n\n".join(block for block in blocks if block)


def alike(everybody: Sequence[Sequence[Turn]]) -> bool:
    """Check whether all played the same turns, each as often."""
    played = [Counter((turn.scenario, turn.turn) for turn in turns) for turns in everybody]
    return not played or all(counted == played[0] for counted in played)


def row(name: str, turns: Sequence[Turn]) -> tuple[str, ...]:
    """One backend's cells; in brackets 95 % intervals, and n where it is not that of the row."""
    summary = summarise(turns)
    llm = summary.llm
    # An LLM's first turn since its agent began is kept apart.
    of = f" (n={llm.n})" if llm and llm.n < summary.hit_rate.n else ""
    return (
        f"`{name}`",
        *gaps(turns),
        share(summary.hit_rate),
        f"{llm.ttft_ms:.0f}{of}" if llm and llm.ttft_ms is not None else "–",
        "–" if llm is None or llm.per_s is None else f"{llm.per_s:.0f}",
        "–" if llm is None or llm.in_window is None else f"{llm.in_window:.3g}",
        share(summary.right),
    )


def gaps(turns: Sequence[Turn]) -> tuple[str, ...]:
    """Write the turns, their gap and cut-ins, and the time to the answer's own first audio."""
    summary = summarise(turns)
    return (
        f"{summary.turns}{recorded_words(summary.hit_rate.n, summary.hit_rate.recorded)}",
        ms(summary.gap_ms["p50"]),
        ms(summary.gap_ms["p95"]),
        share(summary.cut_ins),
        ms(first_answer(counted_turns(turns))),
    )


def basis(pieces: Pieces) -> str:
    """Describe the runs behind the table."""
    first, *_ = pieces.records
    scenarios = {name for record in pieces.records for name in record.scenarios}
    rounds = sum(record.rounds for record in pieces.records)
    commits = sorted({_short(record.commit or "unknown") for record in pieces.records})
    return (
        f"`{first.agent}` agent, {many(len(scenarios), 'scenario')}, each in turns with the rest, "
        f"{many(rounds, 'round')} in {many(len(pieces.records), 'piece')}; {first.machine.cpu}, "
        f"{first.machine.cores} cores; commit {', '.join(commits)}"
    )


def _short(commit: str) -> str:
    return f"{commit[:8]}{'-dirty' * commit.endswith('-dirty')}"


def many(n: int, what: str) -> str:
    """`n` of something, in words."""
    return f"{n} {what}{'s' * (n != 1)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", default=os.environ.get("TURNGAP_VLLM"), metavar="PYTHON")
    parser.add_argument("--llm", action="append", default=[], help="one more: [LABEL=]BACKEND,…")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--agent", default="embedded")
    parser.add_argument("--waiting", action="store_true", help="an agent that begins nothing early")
    parser.add_argument("--scenario", action="append", default=[], help="instead of the library")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--phases", type=int, default=1, help="positions on the 32 ms grid")
    parser.add_argument("--starved-ms", type=float, default=STARVED_MS)
    parser.add_argument("--out", type=Path, default=Path("runs/backends"))
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    arguments = parser.parse_args()
    with errors_told():
        if not arguments.table:
            with larger_model(arguments.vllm) as larger:
                more = [BackendChoice.parse(text) for text in arguments.llm]
                everybody = [*simulated(), *real(larger), *more]
                found = chosen(everybody, arguments.only)
                play(found, arguments)
        text = table(collect(arguments.out))
    print(text)
    if arguments.write is not None:
        write(arguments.write, BEGIN, text)


if __name__ == "__main__":
    main()
