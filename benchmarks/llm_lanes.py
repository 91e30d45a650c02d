"""The LLM's part of a turn under load: a shared and a low-batch lane behind one vLLM.

Requests come in an open loop: the instants are drawn beforehand, and a request's times count from
its instant, whatever became of those before it. Each arrangement gets the same requests at the same
instants, in turns within each round:

- `shared`: all go to the vLLM at once; its batch grows as it likes;
- `low-batch`: all go to the same vLLM, which has no more than `--low-batch-seqs` of them at a time;
  the others wait in front of it;
- `both`: every second one by either way, side by side, those of the low-batch lane with a priority;
- `student`: all go to turngap's student in this process, one at a time.

    python benchmarks/llm_lanes.py --command "$(tools/vllm-env)" --serve-arg=--enforce-eager \
      --serve-arg=--dtype --serve-arg=bfloat16 --hour-price 0.10 --write docs/benchmarks.md

A reply has the same number of tokens in each. Which of them are right is no question here: what is
known of the models is what was stored when they were made.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from endings import errors_told
from lane_figures import TARGET, WINDOWS_MS, Cell, rates_table, worth_table
from lane_load import (
    ARRANGEMENTS,
    Due,
    Heard,
    Lane,
    ServerPath,
    SmallPath,
    arranged,
    played,
    requests,
)
from pages import write
from vllm_load import Asking, Running, add_server_arguments, kept_apart, started

from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.core.errors import InconclusiveError
from turngap.core.results import HeldOutRecord
from turngap.play.plan import expected_ms
from turngap.scenario.library import library_dir, load_scenario, scenario_paths
from turngap.store.provenance import git_commit, this_machine
from turngap_services.llm.small import SmallSettings, held_out_share
from turngap_services.llm.small.model import SmallModel

BEGIN = "<!-- made by benchmarks/llm_lanes.py -->"
RATES = (4.0, 6.0, 12.0, 24.0, 48.0)
ROUNDS, SECONDS = 2, 6.0
# Of fewer turns, all in time, 95 % is not sure: low rates last longer.
LEAST_TURNS = 100
TOKENS, OPENING, LOW_BATCH_SEQS = 64, 8, 2
# Where a lane is this far from its target, a higher rate is not tried in that round.
HOPELESS = 0.5
# How long a server may take to notice that a load was dropped, and how often it is asked.
IDLE_S, POLL_S = 30.0, 0.25
# What a server does once, it does before anything is counted.
WARM_UP = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Spoken:
    """What the library's calls are like: their texts, and in the mean how long they last.

    Attributes:
        texts: what people say in them.
        turn_s: from a turn to the next.
        call_s: a call.
    """

    texts: tuple[str, ...]
    turn_s: float
    call_s: float

    @classmethod
    def of_library(cls) -> "Spoken":
        loaded = [load_scenario(path) for path in scenario_paths(library_dir(), ())]
        texts = tuple(turn.say for each in loaded for turn in each.scenario.turns)
        whole_s = sum(map(expected_ms, loaded)) / 1000
        return cls(texts, whole_s / len(texts), whole_s / len(loaded))


async def phase(
    arrangement: str, dues: Sequence[Due], lanes: Mapping[str, Lane]
) -> dict[str, list[Heard]]:
    """Play one load; what each cell got of it."""
    ways = arranged(arrangement, dues, lanes)
    cell_of = {id(due): cell for due, _, cell in ways}
    got: dict[str, list[Heard]] = {cell: [] for _, _, cell in ways}
    for heard in await played([(due, lane) for due, lane, _ in ways], MonotonicClock()):
        got[cell_of[id(heard.due)]].append(heard)
    return got


class Measuring:
    """All that is measured: a cell for each lane and rate."""

    def __init__(
        self, lanes: Mapping[str, Lane], asking: Asking, chosen: argparse.Namespace, said: Spoken
    ) -> None:
        self._lanes, self._asking, self._chosen, self._said = lanes, asking, chosen, said
        self.cells: dict[tuple[str, float], Cell] = {}

    async def all(self) -> None:
        """Play every arrangement at every rate in each round, in another order each time."""
        await self._warmed_up()
        for round_ in range(self._chosen.rounds):
            hopeless: set[str] = set()
            for step, per_s in enumerate(sorted(self._chosen.rates)):
                seed = 1000 * round_ + step
                seconds = max(self._chosen.seconds, LEAST_TURNS / self._chosen.rounds / per_s)
                dues = requests(per_s, seconds, self._said.texts, seed)
                first = (round_ + step) % len(ARRANGEMENTS)
                for arrangement in ARRANGEMENTS[first:] + ARRANGEMENTS[:first]:
                    if arrangement not in hopeless and await self._one(arrangement, per_s, dues):
                        hopeless.add(arrangement)

    async def _warmed_up(self) -> None:
        for count in WARM_UP:
            dues = [Due(0.0, text, counted=True) for text in self._said.texts[:1] * count]
            await phase("shared", dues, self._lanes)

    async def _idle(self) -> None:
        """Wait until the server has nothing left of the load before.

        Raises:
            InconclusiveError: it still had after `IDLE_S`.
        """
        clock = MonotonicClock()
        for _ in range(round(IDLE_S / POLL_S)):
            now = await self._asking.metrics()
            if not sum(now[f"vllm:num_requests_{state}"] for state in ("running", "waiting")):
                return
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(POLL_S * 1000))
        raise InconclusiveError(
            "llm_lanes.busy",
            f"the server still had requests {IDLE_S:g} s after the last load was dropped",
            hint="somebody else uses it, or the machine is too busy",
        )

    async def _one(self, arrangement: str, per_s: float, dues: Sequence[Due]) -> bool:
        """Play one; returns whether a higher rate is hopeless."""
        await self._idle()
        opening, shares = self._chosen.opening, list[float]()
        for lane, heard in (await phase(arrangement, dues, self._lanes)).items():
            share = 0.5 if arrangement == "both" else 1.0
            cell = self.cells.setdefault((lane, per_s), Cell(lane, per_s * share))
            cell.rounds.append(heard)
            fits = Cell(lane, per_s, [heard]).fits(WINDOWS_MS[-1], opening).value
            shares.append(1.0 if fits is None else fits)
            told = "none counted" if fits is None else f"{fits:.0%} of {len(heard)} fit"
            print(f"{per_s:g} turns/s, {lane}: {told} {WINDOWS_MS[-1]:.0f} ms", flush=True)
        return max(shares) < HOPELESS


def page(measured: Measuring, chosen: argparse.Namespace, said: Spoken, vllm: str) -> str:
    """The tables, and what they rest on."""
    ordered = [measured.cells[key] for key in sorted(measured.cells, key=lambda k: (k[1], k[0]))]
    alone = [name for name in ARRANGEMENTS if name != "both"]
    lanes = {name: [cell for cell in ordered if cell.lane == name] for name in alone}
    teacher, student = (_right(name) for name in ("teacher", "student"))
    worth = worth_table(
        lanes,
        chosen.opening,
        turn_s=said.turn_s,
        call_s=said.call_s,
        hour_price=chosen.hour_price,
        right={"shared": teacher, "low-batch": teacher, "student": student},
    )
    machine = this_machine()
    where = "which ran already" if chosen.url else "its worker on the last core"
    rounds = f"{chosen.rounds} rounds of {chosen.seconds:g} s or more a load, in turns"
    failed = [f"{cell.lane} at {cell.per_s:g}: {cell.failed}" for cell in ordered if cell.failed]
    return "\n\n".join(
        [
            worth,
            rates_table(ordered, chosen.opening),
            f"{rounds}; open loop, Poisson arrivals, times in ms from the intended instant. A "
            f"reply has {chosen.tokens} tokens, the most that a window can show. A turn fits a "
            f"window if {chosen.opening} have come in it; a lane holds a rate if at least "
            f"{TARGET:.0%} of the turns fit, with 95 % confidence (turns of one second count as "
            f"linked). Behind vLLM {vllm} answers {Path(chosen.model).name}, "
            f"{where}; the low-batch lane has "
            f"{chosen.low_batch_seqs} replies at a time. Of two lanes beside each other each gets "
            f"half of the turns. A call has a turn every {said.turn_s:.1f} s and lasts "
            f"{said.call_s:.0f} s, as the library's do. The share of right answers was "
            "measured when the models were made (held-out dialogues in writing, int8), not here. "
            f"{machine.cpu}, {machine.cores} cores, which the client shares; commit "
            f"{git_commit() or 'unknown'}.",
            *(f"Failed: {line}." for line in failed),
        ]
    )


def _right(name: str) -> str:
    """The stored share of right answers of a shipped model."""
    found: HeldOutRecord | None = held_out_share(SmallSettings.model_validate({"model": name}))
    if found is None or found.right.value is None:
        return "not known"
    return f"{found.right.value:.1%} (n = {found.right.n})"


async def run(server: Running, small: SmallModel, chosen: argparse.Namespace) -> str:
    """Measure it; returns what is for a page."""
    said = Spoken.of_library()
    # A request waits for nothing but the server, which closes connections that rest for 5 s.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    with ThreadPoolExecutor(1) as threads:
        async with aiohttp.ClientSession(connector=connector) as client:
            async with client.get(server.base_url.removesuffix("/v1") + "/version") as response:
                version = (await response.json())["version"]
            lanes = {
                "shared": Lane(ServerPath(client, server, chosen.tokens, 0)),
                "low-batch": Lane(
                    ServerPath(client, server, chosen.tokens, -1), chosen.low_batch_seqs
                ),
                "student": Lane(SmallPath(small, chosen.tokens, threads)),
            }
            measured = Measuring(lanes, Asking(client, server), chosen, said)
            await measured.all()
    return page(measured, chosen, said, version)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_server_arguments(parser)
    parser.add_argument("--url", help="a running vLLM's, http://HOST:PORT/v1, with priorities")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="turns a second")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of each load in a round, at least"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each reply")
    parser.add_argument("--opening", type=int, default=OPENING, help="tokens until the TTS begins")
    parser.add_argument("--low-batch-seqs", type=int, default=LOW_BATCH_SEQS)
    parser.add_argument("--hour-price", type=float, help="of the whole machine, in any currency")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into a page")
    return parser


def checked(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """End with an error where a flag makes no sense."""
    if not all(0 < rate <= 1000 for rate in chosen.rates):
        parser.error("--rates: more than 0 and at most 1000 turns a second")
    if chosen.rounds < 1 or not 0 < chosen.seconds <= 600 or chosen.low_batch_seqs < 1:
        parser.error(
            "--rounds and --low-batch-seqs: 1 or more; --seconds: more than 0, at most 600"
        )
    if not 1 <= chosen.opening <= chosen.tokens <= 256:
        parser.error("--opening: 1 or more, at most --tokens; --tokens: at most 256")
    if chosen.hour_price is not None and not 0 <= chosen.hour_price < 1e6:
        parser.error("--hour-price: 0 or more")


def own(chosen: argparse.Namespace, stack: ExitStack) -> Running:
    """Start a server, with a core for its worker alone where there is one; it ends with the stack.

    Raises:
        AgentError: it did not start.
    """
    cores = sorted(os.sched_getaffinity(0))
    server = started(chosen, stack, core=cores[-1], serve_args=("--scheduling-policy", "priority"))
    os.sched_setaffinity(0, cores[:-1] or cores)
    server.wait_until_healthy()
    if len(cores) > 1:
        kept_apart(cores[-1], cores)
    return Running(server.base_url, server.model)


def main() -> None:
    parser = arguments()
    chosen = parser.parse_args()
    checked(parser, chosen)
    with errors_told(), ExitStack() as stack:
        # Before this thread keeps to some cores: the model's own threads may use them all.
        small = SmallModel(SmallSettings(model="student", max_tokens=chosen.tokens))
        small.warm_up()
        server = Running(chosen.url, chosen.model) if chosen.url else own(chosen, stack)
        text = asyncio.run(run(server, small, chosen))
    print(text)
    if chosen.write is not None:
        write(chosen.write, BEGIN, text)


if __name__ == "__main__":
    main()
