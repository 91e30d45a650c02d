"""The simulator held to a load test: the capacity it predicts from one call at a time, and ours.

1. Replays the library against the agent `embedded`, one call at a time. That gives the turns, and
   what a call takes of the processors: in the agent, in its busiest thread, and in the caller.
2. Times steps of the agent's LLM, which runs in the agent's process and makes one reply at a time,
   and fits a simulated server to them (`turngap.inference.fit`).
3. Simulates what such a server holds (`turngap simulate --from`), and no more calls than take all
   that there is of the processors.
4. Measures the capacity with `turngap load`.

    python benchmarks/simulator_check.py --write docs/simulate.md

Nothing of the load test enters the prediction.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event

import psutil
from call_cpu import Taken, Watch
from endings import errors_told
from pages import write
from vllm_calibration import memory_gb_s, model_of

import turngap
from turngap.fleet.files import build_fleet, read_fleet
from turngap.fleet.record import AgentCpu, SimulationRecord
from turngap.fleet.run import SimulationPlan, run_simulation, source_of, workload_of
from turngap.inference.fit import Fit, Measured, fit
from turngap.inference.hardware import Accelerator
from turngap.inference.model import Model
from turngap.inference.server import Server
from turngap.load.record import Certificate
from turngap.store.provenance import git_commit, this_machine
from turngap.store.runs import Run
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import SmallModel
from turngap_services.script import scenarios

BEGIN = "<!-- made by benchmarks/simulator_check.py -->"
# Of the prompts whose reading is timed, in turns of the library; and of the replies.
PROMPT_TURNS, REPLY_TOKENS, STEPS = (1, 6, 20), 48, 15
CONTEXT, MEMORY_GB = 512, 1.0


def llm_steps(model: SmallModel, texts: Sequence[str]) -> list[Measured]:
    """Time how long the model reads prompts of some lengths, and makes a token after each."""
    found: list[Measured] = []
    for turns in PROMPT_TURNS:
        # Without a system prompt, since the engine keeps what it has read of one.
        prompt = model.prompt([{"role": "user", "content": " ".join(texts[:turns])}])
        timed = [_timed(model, prompt) for _ in range(STEPS)]
        read_ms, token_ms = (median(each[i] for each in timed) for i in (0, 1))
        found.append(Measured(read_ms, prefill=len(prompt)))
        context = len(prompt) + REPLY_TOKENS / 2
        found.append(Measured(token_ms, sequences=1, context=context))
    return found


def _timed(model: SmallModel, prompt: list[str]) -> tuple[float, float]:
    """From the request to the first piece of text, and from one to the next, in ms."""
    at: list[float] = []
    began = time.perf_counter()
    model.say(prompt, lambda _: at.append(time.perf_counter()), Event(), least_tokens=REPLY_TOKENS)
    return (at[0] - began) * 1000, (at[-1] - at[0]) * 1000 / (len(at) - 1)


def fitted(shape: Model, steps: Sequence[Measured], bandwidth_gb_s: float) -> Fit:
    """The server that takes as long."""
    here = Accelerator(
        "the agent's process", memory_gb=MEMORY_GB, bandwidth_gb_s=bandwidth_gb_s,
        tflops={"bf16": 0.1},
    )  # fmt: skip
    server = Server(here, shape, weights="int8", context=CONTEXT)
    return fit(server, steps, bandwidth_gb_s=bandwidth_gb_s)


def fleet_file(found: Fit, agent: AgentCpu) -> str:
    """The fleet as a file, as `turngap simulate` reads it."""
    part, model = found.server.accelerator, found.server.model
    return f"""\
# Made by benchmarks/simulator_check.py: one process, whose LLM makes one reply at a time.
prefix_cache = false
agent = {{ cores = {agent.cores:g}, cores_per_call = {agent.cores_per_call:.4f} }}

[[pool]]
policy = "immediate"
max_batch = 1
weights = "int8"

[pool.hardware]
name = "{part.name}"
memory_gb = {part.memory_gb:g}
bandwidth_gb_s = {part.bandwidth_gb_s:.2f}
tflops = {{ bf16 = {part.tflops["bf16"]:.6g} }}
memory_efficiency = 1
compute_efficiency = 1
step_us = {part.step_us:.1f}

[pool.model]
name = "{model.name}"
params_b = {model.params_b:.6f}
layers = {model.layers}
heads = {model.heads}
kv_heads = {model.kv_heads}
head_dim = {model.head_dim}

[call]
system_tokens = 1 # the engine keeps what it has read of the system prompt
"""


def simulated(run: Run, file: Path, chosen: argparse.Namespace) -> SimulationRecord:
    """What `turngap simulate FILE --from RUN` finds."""
    described = read_fleet(file)
    source = source_of([run], described.turn)
    workload = workload_of(source, described.call)
    plan = SimulationPlan(
        fleet=build_fleet(described, workload.longest_tokens),
        workload=workload,
        source=source,
        agent=described.agent,
        budget_ms=chosen.budget_ms,
        target=chosen.target,
        out=chosen.out,
        settings={"fleet": file.name},
    )
    return run_simulation(plan)[0]


@dataclass(frozen=True)
class Predicted:
    """A prediction, and what it rests on.

    Attributes:
        run: one call at a time.
        taken: of the processors, meanwhile.
        cores: that there are.
        llm: the server that was fitted to the agent's LLM.
        simulation: what it holds.
    """

    run: Run
    taken: Taken
    cores: float
    llm: Fit
    simulation: SimulationRecord


def page(found: Predicted, certificate: Certificate) -> str:
    """Both figures, and what they rest on."""
    capacity, taken = found.simulation.capacity, found.taken
    assert capacity is not None, "no load was named"
    servers = capacity.held if capacity.of_llm is None else capacity.of_llm
    drawn = f"drawn from {found.simulation.workload.samples} turns"
    machine, thread = found.cores / (taken.agent + taken.caller), taken.thread
    rows = [
        ("", "sessions", "n"),
        ("---",) * 3,
        ("predicted", _sessions(capacity.held), drawn),
        ("measured by `turngap load`", _measured(certificate), f"{certificate.turns} turns"),
        ("predicted / measured", _ratio(capacity.held, certificate.sessions), ""),
        ("the LLM alone would hold", _sessions(servers), drawn),
        (f"{found.cores:g} cores at {taken.agent + taken.caller:.3f} a call (agent and caller)",
         f"{machine:.1f}", f"{taken.turns} turns"),
        (f"one core at {thread:.3f} a call (the agent's busiest thread)",
         f"{1 / thread:.1f}" if thread else "–", f"{taken.turns} turns"),
    ]  # fmt: skip
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"{table}\n\n{_basis(found)}"


def _basis(found: Predicted) -> str:
    hits, taken = found.run.summary.hit_rate, found.taken
    simulation, part = found.simulation, found.llm.server.accelerator
    machine = this_machine()
    return (
        f"Turns within {simulation.budget_ms:.0f} ms, at least {simulation.target:.0%} of them. "
        f"One call at a time: {hits.hits} of {hits.n} turns in time; in the mean a call takes "
        f"{taken.agent:.3f} cores of the agent, of which its busiest thread {taken.thread:.3f}, "
        f"and {taken.caller:.3f} of the caller. The LLM in the agent's process was fitted to "
        f"{2 * len(PROMPT_TURNS)} kinds of steps, medians of {STEPS}: a step "
        f"{part.step_us / 1000:.2f} ms and {part.tflops['bf16'] * 1000:.1f} GFLOP/s, at most "
        f"{found.llm.worst:.0%} off. {machine.cpu}, {machine.cores} cores; commit "
        f"{git_commit() or 'unknown'}."
    )


def _sessions(found: float | None) -> str:
    return "not one" if found is None else f"{found:.0f}"


def _measured(found: Certificate) -> str:
    if found.sessions is None:
        return f"none certified ({found.why})" if found.why else "none certified"
    beyond = "" if found.not_held is None else f" (not {found.not_held})"
    return f"{found.sessions}{beyond}"


def _ratio(predicted: float | None, measured: int | None) -> str:
    return f"{predicted / measured:.2f}" if predicted and measured else "none: one of them is none"


def predicted(chosen: argparse.Namespace) -> Predicted:
    """Replay one call at a time, and simulate what that predicts.

    Raises:
        TurngapError: the agent failed, or too few of the turns can be drawn from.
    """
    watch = Watch()
    run = turngap.replay("embedded", repeat=chosen.repeat, on_turn=watch, out=chosen.out)
    taken, cores = watch.taken(), float(len(psutil.Process().cpu_affinity()))
    model = SmallModel(SmallSettings(model="teacher", max_tokens=REPLY_TOKENS))
    model.warm_up()
    texts = [turn.say for scenario in scenarios(None) for turn in scenario.turns]
    llm = fitted(model_of(Path("models/teacher")), llm_steps(model, texts), memory_gb_s())
    file = run.path / "fleet.toml"
    file.write_text(fleet_file(llm, taken.bound(cores)), encoding="utf-8")
    print(f"predicted with: turngap simulate {file} --from {run.path.name}", flush=True)
    simulation = simulated(run, file, chosen)
    return Predicted(run, taken, cores, llm, simulation)


def check(chosen: argparse.Namespace) -> str:
    """Predict, then measure; returns what is for a page.

    Raises:
        TurngapError: as `predicted`; or the load test failed.
    """
    found = predicted(chosen)
    loaded = turngap.load(
        "embedded",
        max_sessions=chosen.max_sessions,
        budget_ms=chosen.budget_ms,
        target=chosen.target,
        out=chosen.out,
    )
    assert loaded.capacity is not None, "a search has a certificate"
    return page(found, loaded.capacity)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=2, help="how often the library is replayed")
    parser.add_argument("--max-sessions", type=int, default=32, help="of the load test's search")
    parser.add_argument("--budget-ms", type=float, default=800.0)
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where all is stored")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    chosen = parser.parse_args()
    if chosen.repeat < 1 or chosen.max_sessions < 1:
        parser.error("--repeat and --max-sessions: 1 or more")
    with errors_told():
        text = check(chosen)
    print(text)
    if chosen.write is not None:
        write(chosen.write, BEGIN, text)


if __name__ == "__main__":
    main()
