"""Real LLM engines side by side on held-out spoken dialogues.

    python benchmarks/held_out_talk.py held-out --dialogues 48
    python benchmarks/real_engines.py held-out --vllm "$(tools/vllm-env)" --estimate
    python benchmarks/real_engines.py held-out --vllm "$(tools/vllm-env)" --backends teacher,student
    python benchmarks/real_engines.py held-out --vllm "$(tools/vllm-env)" --streams 16 \
      --served weights/SmolLM2-135M-Instruct --backends vllm,low-batch,smollm2,teacher
    python benchmarks/real_engines.py --table --write docs/speed-wars.md

- `teacher` and `student`: the project's own models, in the agent's process;
- `smollm2`: SmolLM2-135M-Instruct, in the agent's process (`tools/published-weights`);
- `vllm`: the model `--served` on a server, in one batch with other people's requests (`--streams`);
- `low-batch`: the same on a server of its own, which makes two replies at a time and has no load;
- `route` and `opener`: the student and the teacher combined, in process.

`turngap compare` plays them in turns on this machine. The load runs only while `vllm` is played,
which comes first in each dialogue, as if each server had a machine of its own. The agent begins no
answer early and speaks quickly, which is the same for all. What is played goes to `--out`; play a
few backends at a time, and `--table` is of all that lies there. Right is what the grammar of the
dialogues calls right (docs/models.md).
"""

import argparse
import asyncio
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, pairwise
from multiprocessing.synchronize import Event
from pathlib import Path

import aiohttp
from backends_table import SERVE_ARGS, SERVE_ENV, STUDENT, TEACHER, Model, Pieces, collect, table
from endings import errors_told
from pages import write

from turngap.backends import BackendChoice
from turngap.compare import words
from turngap.compare.play import ComparePlan, compare
from turngap.compare.report import write_reports
from turngap.core.budget import STARVED_MS
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.play.plan import Progress
from turngap.play.target import AgentChoice
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths
from turngap_services.llm.vllm import VllmSettings
from turngap_services.llm.vllm.service import Server

BEGIN = "<!-- made by benchmarks/real_engines.py -->"
IN_PROCESS = Model("teacher", "small", {"model": "teacher"})
NEED_A_SERVER: tuple[str, ...] = ("vllm", "low-batch")
NAMES = ("teacher", "student", "smollm2", *NEED_A_SERVER, "route", "opener")
# What others are told meanwhile: about as long as a reply of these models.
LOAD_TOKENS = 32
SYSTEM = "You are on a phone call. Answer in one or two short spoken sentences."
# The wait for the model shows only if no answer is begun early; quick speech saves time.
SETS = ("turn.speculate=false", "tts.speed_wpm=300")


def contenders(
    names: Sequence[str], urls: Mapping[str, str], served: Path = TEACHER, streams: int = 0
) -> list[BackendChoice]:
    """Return the backends of these names; `urls` are the servers', by name, the first with a load.

    Raises:
        InputError: there is no such backend, or it needs a server and there is none.
    """
    if unknown := [name for name in names if name not in NAMES]:
        raise InputError(
            "real_engines.unknown", f"no backend {unknown[0]!r}", hint=f"known: {', '.join(NAMES)}"
        )
    if lacking := [name for name in names if name in NEED_A_SERVER and name not in urls]:
        raise InputError(
            "real_engines.no_server", f"{lacking[0]} needs a server", hint="give --vllm PYTHON"
        )
    pair = (
        *("fast=small", f"fast_settings={STUDENT.table}"),
        *("full=small", f"full_settings={IN_PROCESS.table}"),
    )
    known = {
        "teacher": IN_PROCESS.contender(),
        "student": STUDENT.contender(),
        "smollm2": Model("smollm2", "llama", {}).contender(),
        "route": BackendChoice("route", "route", pair),
        # The teacher follows no instructions: it is not told what was said before it.
        "opener": BackendChoice("opener", "opener", (*pair, "told=false")),
        **{
            name: Model(
                f"{name}, {streams} other streams" if name == "vllm" and streams else name,
                "vllm",
                {"base_url": url, "model": str(served)},
            ).contender()
            for name, url in urls.items()
        },
    }
    return [known[name] for name in names]


@contextmanager
def served(vllm: str | None, model: Path, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run a server of the model for each of `names` that needs one; yield their URLs.

    Raises:
        AgentError: vLLM does not start.
    """
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        more = {"vllm": (), "low-batch": ("--max-num-seqs", "2")}
        for name in [name for name in names if name in more] if vllm else ():
            settings = VllmSettings(
                model=str(model),
                command=vllm or "",
                serve_args=(*SERVE_ARGS, "--max-model-len", "1024", *more[name]),
                serve_env=SERVE_ENV,
            )
            server = Server(settings, str(model))
            stack.callback(server.stop)
            server.wait_until_healthy()
            urls[name] = server.base_url
        yield urls


class Load:
    """Other people's requests to a server, from a process of its own, so that no caller is late.

    It runs from each dialogue's beginning until `vllm`, which is played first, has had its turns.
    """

    def __init__(self, url: str, model: str, streams: int, plan: ComparePlan) -> None:
        context = multiprocessing.get_context("spawn")
        self._runs = context.Event()
        self._turns = {s.scenario.name: len(s.scenario.turns) for s in plan.scenarios}
        self._left = 0
        self.process = context.Process(
            target=_ask_on, args=(url, model, streams, self._runs), daemon=True
        )

    def on_step(self, step: str) -> None:
        print(f"  {step}", flush=True)
        if step in self._turns:
            self._left = self._turns[step]
            self._runs.set()

    def on_turn(self, _: Turn) -> None:
        self._left -= 1
        if self._left == 0:
            self._runs.clear()


def _ask_on(url: str, model: str, streams: int, runs: Event) -> None:
    os.nice(10)  # as the servers are

    async def ask(client: aiohttp.ClientSession) -> None:
        for text in cycle(("what's the weather like today", "a large oat latte please")):
            body = {
                "model": model,
                "messages": [
                    {"role": "system", "content": SYSTEM},
                    {"role": "user", "content": text},
                ],
                "max_tokens": LOAD_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            async with client.post(f"{url}/chat/completions", json=body) as response:
                response.raise_for_status()
                await response.read()

    async def while_it_runs() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=streams)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
            asking = [asyncio.create_task(ask(client)) for _ in range(streams)]
            failed: set[asyncio.Task[None]] = set()
            while runs.is_set() and not failed:
                failed, _ = await asyncio.wait(asking, timeout=0.05, return_when="FIRST_EXCEPTION")
            for task in asking:
                task.cancel()
            for end in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(end, Exception):
                    raise end

    while True:
        runs.wait()
        asyncio.run(while_it_runs())


def plan_of(arguments: argparse.Namespace, chosen: Sequence[BackendChoice]) -> ComparePlan:
    """Read the library that is played.

    Raises:
        InputError: there is no such library.
    """
    folder: Path = arguments.library
    prompt = folder / "prompt.txt"
    if not prompt.is_file():
        raise InputError(
            "real_engines.library",
            f"{folder} has no {prompt.name}",
            hint=f"make it: python benchmarks/held_out_talk.py {folder} --dialogues 48",
        )
    said = prompt.read_text(encoding="utf-8").strip()
    scenarios = load_scenarios(scenario_paths(folder))[: arguments.dialogues]
    return ComparePlan(
        choice=AgentChoice("embedded", sets=(*SETS, f"pipeline.system_prompt={said}")),
        library=folder,
        contenders=chosen,
        scenarios=scenarios,
        out=arguments.out,
        starved_ms=arguments.starved_ms,
    )


def pairs(pieces: Pieces) -> str:
    """Write what each piece says of each backend and the next, as a list in Markdown."""
    said: list[str] = []
    for record in pieces.records:
        names = [backend.name for backend in record.backends]
        neighbours = set(pairwise(names))
        said += [words.pair(pair) for pair in record.pairs if (pair.one, pair.other) in neighbours]
    return "\n".join(f"- {each}" for each in said)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", type=Path, nargs="?", default=Path("held-out"))
    parser.add_argument("--vllm", default=os.environ.get("TURNGAP_VLLM"), metavar="PYTHON")
    parser.add_argument("--backends", default="teacher,student", help=f"of {','.join(NAMES)}")
    parser.add_argument("--served", type=Path, default=TEACHER, metavar="DIR", help="the model")
    parser.add_argument("--dialogues", type=int, help="at most so many (48 hold 201 turns)")
    parser.add_argument("--streams", type=int, default=0, help="others' requests at a time")
    parser.add_argument("--starved-ms", type=float, default=STARVED_MS)
    parser.add_argument("--out", type=Path, default=Path("runs/real-engines"))
    parser.add_argument("--estimate", action="store_true", help="say how long it takes, and stop")
    parser.add_argument("--table", action="store_true", help="play nothing")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    arguments = parser.parse_args()
    with errors_told():
        if not arguments.table:
            names = arguments.backends.split(",")
            if arguments.streams and names[0] != "vllm":
                raise InputError(
                    "real_engines.streams", "--streams loads vllm", hint="name vllm first"
                )
            somewhere = {name: "http://127.0.0.1/v1" for name in NEED_A_SERVER if arguments.vllm}
            plan = plan_of(arguments, contenders(names, somewhere))
            print(f"{plan.turns} turns, {len(names)} backends in turns: {plan.minutes:.0f} minutes")
            if arguments.estimate:
                return
            with served(arguments.vllm, arguments.served, names) as urls:
                chosen = contenders(names, urls, arguments.served, arguments.streams)
                plan = plan_of(arguments, chosen)
                progress = Progress(on_step=lambda step: print(f"  {step}", flush=True))
                if arguments.streams:
                    load = Load(urls["vllm"], str(arguments.served), arguments.streams, plan)
                    progress = Progress(on_step=load.on_step, on_turn=load.on_turn)
                    load.process.start()
                record, folder, failure = asyncio.run(compare(plan, progress))
            write_reports(record, folder)
            if failure is not None:
                raise failure
        pieces = collect(arguments.out)
        text = f"{table(pieces)}\n\n{pairs(pieces)}"
    print(text)
    if arguments.write is not None:
        write(arguments.write, BEGIN, text)


if __name__ == "__main__":
    main()
