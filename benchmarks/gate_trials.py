"""Measure how often the regression gate is right, on made-up runs with a machine's noise.

No audio is played: `made_pairs` makes the pairs of turns, `turngap.check.verdict` judges
them. Every share comes with its 95 % interval (Clopper and Pearson). Deterministic.

    python benchmarks/gate_trials.py [--trials 300] [--only null,shift,…]
"""

import argparse
from collections.abc import Callable, Iterable

import numpy as np
from made_pairs import QUIET, ROUGH, SHARED, Injected, Noise, simulated_pairs
from scipy.stats import binomtest

from turngap.check.verdict import Judgement, judge
from turngap.store.checks import MetricVerdict

MACHINES = {"quiet": QUIET, "rough": ROUGH}
STAGE = "llm_first_token"


def judged(n: int, noise: Noise, injected: Injected, seed: tuple[int, ...]) -> Judgement:
    return judge(simulated_pairs(n, noise, injected, np.random.default_rng(seed)))


def metric(judgement: Judgement, name: str) -> MetricVerdict:
    return next(m for m in judgement.metrics if m.name == name)


def regressed(name: str) -> Callable[[Judgement], bool]:
    return lambda judgement: metric(judgement, name).verdict == "regressed"


def share(found: Iterable[bool]) -> str:
    hits = list(found)
    ends = binomtest(sum(hits), len(hits)).proportion_ci(method="exact")
    return f"{np.mean(hits):6.1%} [{ends.low:.1%}, {ends.high:.1%}]"


def null(trials: int) -> None:
    print("nothing injected: verdict `regressed` (claimed: at most 1 %), and `pass`")
    for machine, noise in MACHINES.items():
        for n in (20, 60, 200):
            found = [judged(n, noise, Injected(), (1, n, i)).verdict for i in range(5 * trials)]
            alarms, passes = (share(v == word for v in found) for word in ("regressed", "pass"))
            print(f"  {machine} n={n:<4} alarms {alarms}   pass {passes}", flush=True)


def shift(trials: int) -> None:
    print(f"every turn slower in {STAGE}: `regressed`, and with that stage named")
    for machine, noise in MACHINES.items():
        for ms in (10.0, 20.0, 30.0, 50.0):
            for n in (30, 45, 60):
                injected = Injected(STAGE, ms)
                found = [judged(n, noise, injected, (2, n, i)) for i in range(trials)]
                caught = share(j.verdict == "regressed" for j in found)
                named = share(j.moved_stage == STAGE for j in found)
                print(f"  {machine} +{ms:g} ms n={n:<3} {caught}   named {named}", flush=True)


def tail(trials: int) -> None:
    print("5 % of turns slower by 200 ms: which verdicts move")
    for machine, noise in MACHINES.items():
        for n in (60, 120, 200, 300, 400, 600):
            injected = Injected(STAGE, 200.0, 0.05)
            found = [judged(n, noise, injected, (3, n, i)) for i in range(trials // 2)]
            moved = [share(map(regressed(name), found)) for name in ("gap p95", "gap p50")]
            print(f"  {machine} n={n:<4} p95 {moved[0]}   p50 {moved[1]}", flush=True)


def detectable(trials: int) -> None:
    print("exactly what a first comparison says it would have caught, injected into a second")
    for machine, noise in MACHINES.items():
        for n in (45, 60, 120):
            for name in ("gap p50", "gap p95"):
                found: list[bool] = []
                for i in range(trials):
                    claimed = metric(judged(n, noise, Injected(), (4, n, i)), name).detectable
                    if claimed is not None:
                        second = judged(n, noise, Injected(STAGE, claimed), (5, n, i))
                        found.append(metric(second, name).verdict == "regressed")
                print(f"  {machine} n={n:<4} {name} caught {share(found)}", flush=True)


def starved(trials: int) -> None:
    print(
        "the machine stands still for 11 to 22 ms in 7 % of turns: the verdicts, and those refused"
    )
    for n in (60, 90, 200):
        for injected in (Injected(), Injected(STAGE, 30.0), Injected(starves=0.15)):
            found = [judged(n, SHARED, injected, (7, n, i)) for i in range(trials)]
            refused = [j.starvation.why_not_judged is not None for j in found]
            words = ["refused" if no else j.verdict for j, no in zip(found, refused, strict=True)]
            shares = "   ".join(
                f"{word} {share(w == word for w in words)}"
                for word in ("regressed", "pass", "refused")
            )
            hogs = ", and in 15 % more beside the candidate" if injected.starves else ""
            print(f"  shared +{injected.ms:g} ms n={n:<4} {shares}{hogs}", flush=True)


PARTS = {
    "null": null,
    "shift": shift,
    "tail": tail,
    "detectable": detectable,
    "starved": starved,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--only", default=",".join(PARTS))
    arguments = parser.parse_args()
    for name in arguments.only.split(","):
        PARTS[name](arguments.trials)


if __name__ == "__main__":
    main()
