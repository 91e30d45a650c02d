"""Play the built-in agents over lines and without one, and put the table into docs/line.md.

    python benchmarks/lines.py --virtual                       # in memory
    python benchmarks/lines.py --jobs 4                        # over sockets, in real time
    python benchmarks/lines.py --profile lte --profile 3g-bad --agent embedded --rounds 1
    python benchmarks/lines.py --table --write docs/line.md    # of what was played so far

Both agents hear the same recordings over the same lines: a line's chances depend on its seed, which
is the round's number, and on the conversation. What was played lies in `--out`; a second call
continues, and plays again what had failed.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import pages

from turngap.core.errors import TurngapError
from turngap.core.paired import exchanges, resampled_quantiles
from turngap.core.results import Turn
from turngap.core.stages import LINE_MARKS
from turngap.core.stats import percentile
from turngap.core.summary import due_gaps, due_percentile, summarise
from turngap.store.runs import Run, read_run

BEGIN = "<!-- made by benchmarks/lines.py -->"
PROFILES = (
    *("g1050-d", "g1050-f", "g1050-h", "lte-good", "lte", "lte-bad"),
    *("lte-moving", "3g", "3g-bad", "3g-atc", "starlink", "geo-satellite"),
)
AGENTS = ("embedded", "stock")
# 22 turns: questions, orders, pauses within a turn, and interruptions.
SCENARIOS = (
    *("quick-questions", "coffee-order", "smart-home"),
    *("thinking-aloud", "table-booking", "soup-recipe"),
)
NO_LINE = "no line"
CHANCE = (0.025, 0.975)
LEAST_CALLS = 6
COMPARED = (
    "line|gap, ms|hit rate, points|cut-ins, points|holes, ms a turn|gap without holes, ms|turns"
    "|worse beyond chance"
)


# --- playing --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """The plays of one process; `profile` may be `NO_LINE`."""

    agent: str
    profile: str
    round: int
    scenarios: tuple[str, ...]

    def folder(self, out: Path) -> Path:
        what = self.scenarios[0] if len(self.scenarios) == 1 else "all"
        return out / self.agent / re.sub(r"[^\w=.,-]", "-", self.profile) / f"{self.round}-{what}"

    @property
    def line(self) -> str:
        return "" if self.profile == NO_LINE else f"{self.profile},seed={self.round}"


def pieces_of(
    agents: Sequence[str],
    profiles: Sequence[str],
    rounds: int,
    scenarios: Sequence[str],
    *,
    virtual: bool,
) -> list[Piece]:
    """List the pieces so that what is compared is played one after the other."""
    sets = [tuple(scenarios)] if virtual else [(name,) for name in scenarios]
    lines = (NO_LINE, *profiles)
    found: list[Piece] = []
    for number, (turn, names) in enumerate(product(range(1, rounds + 1), sets)):
        turned = lines[::-1] if number % 2 else lines
        for at, profile in enumerate(turned):
            order = agents[::-1] if (number + at) % 2 else agents
            found += [Piece(agent, profile, turn, names) for agent in order]
    return found


def stored(folder: Path) -> Run | None:
    """Return the finished run of a piece; None if there is none."""
    for file in sorted(folder.glob("*/run.json")):
        run = read_run(file.parent, empty=True)
        if run.record.finished_utc and run.record.failure is None and run.turns:
            return run
    return None


def play(piece: Piece, out: Path, *, virtual: bool) -> None:
    """Play one piece in this process.

    Raises:
        TurngapError: the agent failed.
    """
    folder = piece.folder(out)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if virtual:
        play_virtually(piece, folder)
        return
    import turngap

    turngap.replay(
        piece.agent,
        scenarios=list(piece.scenarios),
        line=piece.line,
        unpaired=True,
        calibration=0,
        out=folder,
        progress=False,
    )


def play_virtually(piece: Piece, folder: Path) -> None:
    """Play one piece in memory and virtual time."""
    from loguru import logger

    from turngap.caller.line.spec import parse_line
    from turngap.play.plan import PlayPlan
    from turngap.play.run import RunInProgress
    from turngap.play.target import AgentChoice, resolve
    from turngap.play.virtual import play_in_virtual_time
    from turngap.scenario.library import load_scenarios
    from turngap.scenario.model import library_dir, scenario_paths

    logger.remove()
    library = library_dir()
    plan = PlayPlan(
        scenarios=load_scenarios(scenario_paths(library, list(piece.scenarios))),
        line=parse_line(piece.line) if piece.line else None,
        out=folder,
    )
    run = RunInProgress(plan, resolve(AgentChoice(agent=piece.agent), library), piece.agent)
    failure = play_in_virtual_time([run], plan)
    run.finish(str(failure) if failure else None)
    if failure is not None:
        raise failure


def play_all(pieces: Sequence[Piece], out: Path, jobs: int, *, virtual: bool) -> list[str]:
    """Play what is missing, each piece in a process of its own; return what failed."""
    left = [piece for piece in pieces if stored(piece.folder(out)) is None]
    print(f"{len(pieces) - len(left)} of {len(pieces)} pieces are there", flush=True)
    begun, failed = time.monotonic(), list[str]()

    def one(piece: Piece) -> str:
        command = [
            sys.executable,
            __file__,
            "--out",
            str(out),
            "--piece",
            json.dumps(asdict(piece)),
        ]
        done = subprocess.run(
            [*command, *(["--virtual"] if virtual else [])],
            capture_output=True,
            text=True,
            check=False,
        )
        return "" if done.returncode == 0 else (done.stderr.strip() or "failed").splitlines()[-1]

    with ThreadPoolExecutor(jobs) as pool:
        waited = {pool.submit(one, piece): piece for piece in left}
        for n, future in enumerate(as_completed(waited), start=1):
            piece, why = waited[future], future.result()
            name = f"{piece.agent}, {piece.profile}, round {piece.round}, {piece.scenarios[0]}"
            minutes = (time.monotonic() - begun) / n * (len(left) - n) / 60
            print(f"{n}/{len(left)} {name} {why} · {minutes:.1f} min left", flush=True)
            failed += [f"{name}: {why}"] if why else []
    return failed


# --- figures --------------------------------------------------------------------------------------


# A value, and the ends of its 95 % interval.
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Row:
    """One agent over one line. Times in ms; None where nothing was measured."""

    agent: str
    profile: str
    n: int
    p50: float | None
    p95: float | None
    line_p50: float | None
    agent_p50: float | None
    holes: int
    holes_ms: float
    in_word: int
    whole_p50: float | None
    recovery_p50: float | None
    recovery_n: int
    hits: int
    cut_ins: int
    lost: int


@dataclass(frozen=True)
class Difference:
    """One agent less another over the same turns, each with its 95 % interval."""

    profile: str
    n: int
    gap_ms: Interval | None
    of: int
    hit_rate: Interval | None
    cut_ins: Interval | None
    holes_ms: Interval | None
    whole_ms: Interval | None

    @property
    def worse(self) -> str:
        """Name what is worse beyond chance: its interval lies on the wrong side of 0."""
        rising = {
            "gap": self.gap_ms,
            "cut-ins": self.cut_ins,
            "holes": self.holes_ms,
            "gap without holes": self.whole_ms,
        }
        found = [name for name, at in rising.items() if at is not None and at[1] > 0]
        found += ["hit rate"] if self.hit_rate is not None and self.hit_rate[2] < 0 else []
        return ", ".join(found) or ("nothing" if self.hit_rate is not None else "not known")


def whole_ms(turn: Turn) -> float | None:
    """Return the gap behind the buffer that hides all holes of the reply; None if not known."""
    if turn.gap_ms is None or not turn.replied:
        return None
    if turn.line is None:
        return turn.gap_ms
    return None if turn.line.buffer_ms is None else turn.gap_ms + turn.line.buffer_ms


def row_of(agent: str, profile: str, turns: Sequence[Turn]) -> Row:
    """Compute an agent's figures over a line."""
    due = due_gaps(turns)
    replied = [t for t in turns if t.replied and t.gap_ms is not None]
    parts = [sum(t.stage_ms.get(name, 0.0) for name in LINE_MARKS) for t in replied]
    own = [(t.gap_ms or 0.0) - part for t, part in zip(replied, parts, strict=True)]
    crossed = [t.line for t in turns if t.line is not None]
    holes = [hole for line in crossed for hole in line.dry]
    recovered = [s.recovered_ms for line in crossed for s in line.stalls]
    times = [ms for ms in recovered if ms is not None]
    summary = summarise(turns)
    return Row(
        agent,
        profile,
        n=len(turns),
        p50=due_percentile(due, 0.5).value,
        p95=due_percentile(due, 0.95).value,
        line_p50=percentile(parts, 0.5).value,
        agent_p50=percentile(own, 0.5).value,
        holes=len(holes),
        holes_ms=sum(hole.ms for hole in holes),
        in_word=sum(hole.in_word for hole in holes),
        whole_p50=percentile([ms for t in replied if (ms := whole_ms(t)) is not None], 0.5).value,
        recovery_p50=median(times) if times else None,
        recovery_n=len(times),
        hits=summary.hit_rate.hits,
        cut_ins=summary.cut_ins.hits,
        lost=summary.lost_calls,
    )


def difference_of(profile: str, ours: Iterable[Turn], theirs: Iterable[Turn]) -> Difference:
    """Compare the same turns of two agents; intervals resample whole conversations."""
    other = {turn.key: turn for turn in theirs}
    both = [(turn, other[turn.key]) for turn in ours if turn.key in other]
    gaps = [
        ((a.gap_ms or 0.0) - (b.gap_ms or 0.0), a.call) for a, b in both if a.replied and b.replied
    ]

    whole = [(whole_ms(a), whole_ms(b), a.call) for a, b in both]

    def mean_of(value: Callable[[Turn], float]) -> Interval | None:
        return _interval([(value(a) - value(b), a.call) for a, b in both], mean=True)

    return Difference(
        profile,
        n=len(gaps),
        gap_ms=_interval(gaps, mean=False),
        of=len(both),
        hit_rate=mean_of(lambda turn: turn.outcome == "answered"),
        cut_ins=mean_of(lambda turn: turn.outcome == "cut_in"),
        holes_ms=mean_of(lambda turn: sum(h.ms for h in turn.line.dry) if turn.line else 0.0),
        whole_ms=_interval(
            [(a - b, call) for a, b, call in whole if a is not None and b is not None], mean=False
        ),
    )


def _interval(pairs: Sequence[tuple[float, Hashable]], *, mean: bool) -> Interval | None:
    """Return the median or the mean of paired differences, and its interval.

    None with fewer conversations than `LEAST_CALLS`, which say too little about others.
    """
    values = np.array([value for value, _ in pairs], dtype=np.float64)
    drawn = exchanges([call for _, call in pairs], np.random.default_rng(1))
    if drawn.conversations < LEAST_CALLS:
        return None
    if mean:
        n = drawn.counts @ drawn.sums(np.ones_like(values))
        found = (drawn.counts @ drawn.sums(values)) / np.maximum(n, 1)
        value = float(values.mean())
    else:
        found, value = resampled_quantiles(values, 0.5, drawn), float(np.median(values))
    low, high = np.quantile(found, CHANCE).tolist()
    return value, low, high


def played(pieces: Sequence[Piece], out: Path) -> dict[tuple[str, str], list[Turn]]:
    """Read the turns of each agent and profile, with the round as `repeat`."""
    found: dict[tuple[str, str], list[Turn]] = {}
    for piece in pieces:
        if (run := stored(piece.folder(out))) is not None:
            turns = [turn.model_copy(update={"repeat": piece.round}) for turn in run.turns]
            found.setdefault((piece.agent, piece.profile), []).extend(turns)
    return found


def tables(turns: Mapping[tuple[str, str], Sequence[Turn]], *, virtual: bool) -> str:
    """Write the figures of every line and agent as Markdown, and the differences below."""
    rows = [row_of(agent, profile, each) for (agent, profile), each in turns.items()]
    order = {profile: n for n, profile in enumerate((NO_LINE, *PROFILES))}
    rows.sort(key=lambda row: (order.get(row.profile, len(order)), row.agent))
    head = "line|agent|gap p50 / p95|line's part|agent's part|holes (ms, in words)"
    head += "|gap without holes|recovery|hit rate|cut-ins|n"
    time_of = "in virtual time, so gaps are a few ms short" if virtual else "over sockets"
    blocks = [
        f"Played {time_of}: ms, medians. Simulated LLM, closed-domain recogniser, synthetic "
        "voices. Gap without holes: behind the playout buffer that hides all holes of the reply, "
        "because a reply that comes early has less slack than a late one. Recovery: from the end "
        "of a stall until what comes out is less than 50 ms late.",
        _table(head.split("|"), [_cells(row) for row in rows]),
    ]
    ours, theirs = AGENTS
    differences = [
        difference_of(profile, turns[ours, profile], turns[theirs, profile])
        for profile in order
        if (ours, profile) in turns and (theirs, profile) in turns
    ]
    if differences:
        blocks += [
            f"The same turns, `{ours}` less `{theirs}`, with 95 % intervals; the gap is the median "
            "over the turns that both answered. By chance 1 interval in 40 lies on the wrong side:",
            _table(
                [*COMPARED.split("|")],
                [
                    [
                        d.profile,
                        f"{_signed(d.gap_ms)}, n={d.n}",
                        _signed(d.hit_rate, 100),
                        _signed(d.cut_ins, 100),
                        _signed(d.holes_ms),
                        _signed(d.whole_ms),
                        str(d.of),
                        d.worse or "nothing",
                    ]
                    for d in differences
                ],
            ),
        ]
    return "\n\n".join(blocks)


def _cells(row: Row) -> list[str]:
    return [
        row.profile,
        f"`{row.agent}`",
        f"{_ms(row.p50)} / {_ms(row.p95)}",
        _ms(row.line_p50) if row.profile != NO_LINE else "–",
        _ms(row.agent_p50),
        f"{row.holes} ({row.holes_ms:,.0f}, {row.in_word})",
        _ms(row.whole_p50),
        f"{_ms(row.recovery_p50)} (n={row.recovery_n})" if row.recovery_n else "–",
        f"{100 * row.hits / row.n:.0f} %" if row.n else "–",
        str(row.cut_ins),
        f"{row.n}" + (f", {row.lost} calls lost" if row.lost else ""),
    ]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _signed(found: Interval | None, scale: float = 1.0) -> str:
    if found is None:
        return "–"
    value, low, high = (f"{scale * each:+,.0f}" for each in found)
    return f"{value} ({low} to {high})"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--agent", action="append", default=[], help="embedded and stock by default"
    )
    parser.add_argument(
        "--profile", action="append", default=[], help="any --line; twelve by default"
    )
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=2, help="2 by default: 44 turns")
    parser.add_argument("--jobs", type=int, default=2, help="conversations at once")
    parser.add_argument("--virtual", action="store_true", help="in memory and virtual time")
    parser.add_argument("--out", type=Path, default=Path("runs/lines"))
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into a page")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    virtual: bool = arguments.virtual
    if arguments.piece:
        values = json.loads(arguments.piece)
        piece = Piece(**(values | {"scenarios": tuple(values["scenarios"])}))
        try:
            play(piece, arguments.out, virtual=virtual)
        except TurngapError as e:
            sys.exit(str(e))
        return
    out: Path = arguments.out / ("virtual" if virtual else "real")
    pieces = pieces_of(
        arguments.agent or AGENTS,
        arguments.profile or PROFILES,
        arguments.rounds,
        arguments.scenario or SCENARIOS,
        virtual=virtual,
    )
    failed = [] if arguments.table else play_all(pieces, out, arguments.jobs, virtual=virtual)
    text = tables(played(pieces, out), virtual=virtual)
    print(text)
    if arguments.write is not None:
        pages.write(arguments.write, BEGIN, text)
    if failed:
        sys.exit("\n".join(["failed:", *failed]))


if __name__ == "__main__":
    main()
