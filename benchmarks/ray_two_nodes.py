"""Kill one of two Ray nodes in the middle of a load test, and see that every turn is accounted for.

    .venv/bin/python benchmarks/ray_two_nodes.py [--sessions 64] [--seconds 40]

Both nodes are processes of this machine, on loopback, and call a scripted agent. The second one is
killed in the middle of the measured window. Then all of this has to hold: every planned turn that
counts is stored exactly once; those of the lost node are missed for this reason, with its name;
calls of the other node go on; the stored figures are those of the raw turns. Exit 1 where it does
not. The step is void, as it should be, and how late the caller was is another matter.
"""

import argparse
import asyncio
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from turngap.load.export import read_load_turns
from turngap.load.figures import figures_of
from turngap.load.plan import LoadPlan
from turngap.load.play import Loaded, load
from turngap.load.progress import LoadProgress, Now
from turngap.play.process import running
from turngap.play.target import AgentChoice
from turngap.testing.agent import Reply, Script, script_to_json

WARM_UP_S = 10.0
# Set before Ray is imported: loopback, and no token in the user's home.
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
CALLERS = 4


async def play(cluster: Any, doomed: Any, sessions: int, seconds: float, out: Path) -> Loaded:
    killing: list[asyncio.Task[None]] = []
    begun: list[float] = []

    def watch(now: Now) -> None:
        if now.phase == "measured":
            begun.append(now.done_s)
            if not killing and now.done_s - begun[0] >= seconds / 2:
                print(f"killing the second node, {now.turns} turns after the beginning")
                kill = asyncio.to_thread(cluster.remove_node, doomed, allow_graceful=False)
                killing.append(asyncio.create_task(kill))

    script = script_to_json(Script(replies=(Reply(delay_ms=300),)))
    async with running(["turngap.testing.agent", script], out / "agent.log") as url:
        plan = LoadPlan.of(
            AgentChoice(agent=url),
            [],
            None,
            None,
            sessions=sessions,
            duration_s=seconds,
            warm_up_s=WARM_UP_S,
            executor="ray",
            ray_address=cluster.address,
            callers=CALLERS,
            calibration_turns=0,
            out=out,
        )
        loaded = await load(plan, LoadProgress(on_now=watch))
    if not killing:
        raise SystemExit("the node was not killed: the test ended before that")
    await killing[0]
    check(plan, loaded, sessions)
    return loaded


def check(plan: LoadPlan, loaded: Loaded, sessions: int) -> None:
    turns = list(read_load_turns(loaded.path))
    (figures,) = loaded.record.steps
    step = plan.level_step(1, sessions)
    planned = Counter(
        (call.number, turn)
        for call in step.calls
        for turn, counted in enumerate(call.counted, start=1)
        if counted
    )
    counted = [turn for turn in turns if turn.counted]
    stored = Counter((turn.call, turn.turn) for turn in counted)
    lost = [turn for turn in counted if turn.missed == "worker_lost"]
    again = replace(
        figures_of(
            step,
            counted,
            budget_ms=plan.pass_ms,
            target=plan.target,
            at_once=figures.at_once,  # of instants that are not stored with the turns
            caller_late_ms=figures.caller_late_ms,  # of packets that are not stored
        ),
        void=figures.void,
        confirms=figures.confirms,
    )
    print(f"{len(planned)} turns planned, {len(stored)} stored, {len(lost)} lost with the node")
    print(f"outcomes: {figures.outcomes}; void: {figures.void}")
    print(f"caller late by {figures.caller_late_ms} ms (p99)")
    problems = {
        "a planned turn is missing, or stored twice": planned != stored,
        "no turn was lost": not lost,
        "a lost turn does not name its node": any("on right" not in (t.why or "") for t in lost),
        "nothing was played by the other node": not any(
            turn.played is not None and turn.node.endswith("on left") for turn in counted
        ),
        "the figures are not those of the raw turns": again != figures,
    }
    for problem in (text for text, holds in problems.items() if holds):
        print(f"FAILED: {problem}")
    if any(problems.values()):
        raise SystemExit(1)
    print("every turn is accounted for")


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill one of two Ray nodes in a load test.")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=40.0)
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    from ray.cluster_utils import Cluster

    few = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster()
    try:
        cluster.add_node(node_name="left", **few)
        doomed = cluster.add_node(node_name="right", **few)
        with tempfile.TemporaryDirectory() as out:
            asyncio.run(play(cluster, doomed, arguments.sessions, arguments.seconds, Path(out)))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
