"""A check of the gate itself: would it catch a planted fault, and pass the unchanged agent?

A scripted agent takes each scenario of the plan in virtual time: as it is, 80 ms slower, cutting
in, and losing the call. The caller hears each as in a real check. The rounds of the plan are then
drawn by chance from what it heard, with gaps that vary from play to play, and judged as `check`
does, in several seeded trials.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from turngap.check import baseline as baselines
from turngap.check.plan import CheckPlan
from turngap.check.play import LOOKS, budgets_of, refusals, verdict_of
from turngap.check.verdict import POWER, judge
from turngap.core.budget import NO_REPLY_MS, REPLIED, Outcome, outcome_of
from turngap.core.clock import NS_PER_S
from turngap.core.errors import ExitCode
from turngap.core.results import Turn
from turngap.play.plan import GAP_MS, PlayPlan
from turngap.play.run import RunInProgress, kept
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import LoadedScenario, content_hashes
from turngap.store.checks import BaselineRecord, CheckVerdict
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time, virtual_clocks

TRIALS = 20
SLOWER_MS = 80.0
# A call is lost, or cut into once, in one call of this many.
EVERY = 3
# Noise of the same turn played again on a quiet machine, as in docs/methodology.md: a standard
# deviation, and a share of plays that are longer, exponentially with this mean.
PLAY_MS, TAIL_SHARE, TAIL_MS = 15.0, 0.03, 120.0
# Fewer stored calls of a scenario do not show how much its gaps vary.
FEWEST_CALLS = 5
# More rounds, and slower agents, that are tried where a fault is missed, and the trials of a first
# look at more rounds.
MORE_ROUNDS, MORE_MS, MORE_TRIALS, MOST_TURNS = (2, 4, 8, 16, 32), (160, 320, 640, 1280), 5, 2000

# The scripted agent answers so late that it cuts into no pause; trials know the delay.
_DELAY_MS = 2100.0


def _answers(delay_ms: float) -> Script:
    replies = (Reply(delay_ms=delay_ms, speech_ms=1500),)
    return Script(hold_ms=2000, replies=replies, marks=False)


# What is planted, in words, and the agent that does it.
_PLANTED = {
    "nothing": ("nothing", _answers(_DELAY_MS)),
    "slower": (f"every reply {SLOWER_MS:g} ms later", _answers(_DELAY_MS + SLOWER_MS)),
    "cut_in": (
        f"a cut-in in one call of {EVERY}",
        Script(hold_ms=30, replies=(Reply(delay_ms=60, speech_ms=200),), marks=False),
    ),
    "lost": (
        f"one call of {EVERY} lost",
        Script(replies=(Reply(action="die"),), marks=False),
    ),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """A planted fault, and how many trials of it ended with each verdict."""

    planted: str
    verdicts: Mapping[CheckVerdict, int]
    ok: bool


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The result of a self-test.

    Attributes:
        exit_code: 0 if every fault was caught and the unchanged agent passed (in half of the trials
            or more), 1 if a fault was missed or the unchanged agent failed, 3 if it stayed
            undecided, or the plan's baseline cannot be compared.
        slower_ms: the smallest slow-down that is caught, if 80 ms are missed; None if none of those
            tried is.
        rounds_needed: the rounds with which everything would be right; None if those tried do not.
        notes: what was assumed, what was not tried, and why the baseline cannot be compared.
    """

    exit_code: ExitCode
    rounds: int
    conversations: int
    trials: tuple[Trial, ...]
    slower_ms: float | None
    rounds_needed: int | None
    notes: tuple[str, ...]


def self_test(plan: CheckPlan) -> SelfTest:
    """Try the gate of a plan; nothing is played in real time, and no agent is needed.

    Raises:
        InputError: the plan's baseline cannot be read.
    """
    stored = None if plan.baseline is None else baselines.load(plan.baseline)
    conversations = plan.rounds * len(plan.scenarios) * (1 if plan.reference is None else 2)
    if refused := refusals(plan, stored, content_hashes(plan.scenarios)):
        code = ExitCode.INCONCLUSIVE
        return SelfTest(code, plan.rounds, conversations, (), None, None, tuple(refused))
    heard = {name: _heard(plan, script) for name, (_, script) in _PLANTED.items()}
    gate = _Gate(plan, stored, heard)
    trials = {name: gate.trial(name, TRIALS) for name in _PLANTED}
    missed = [name for name, trial in trials.items() if not trial.ok]
    slower_ms: float | None = SLOWER_MS
    if "slower" in missed:
        slower_ms = next((ms for ms in MORE_MS if gate.trial("slower", TRIALS, ms).ok), None)
    code = ExitCode.OVER_BUDGET if missed else ExitCode.PASS
    if missed == ["nothing"] and trials["nothing"].verdicts.get("regressed", 0) <= 1:
        code = ExitCode.INCONCLUSIVE
    needed = gate.rounds_needed() if missed else plan.rounds
    every = tuple(trials.values())
    return SelfTest(code, plan.rounds, conversations, every, slower_ms, needed, gate.notes())


def lines_of(result: SelfTest) -> list[str]:
    """Write the result for a terminal: a line for each fault, then what the gate would need."""
    lines = [
        f"self-test of this gate, with a scripted agent in virtual time (rounds: {result.rounds}, "
        f"conversations on each side: {result.conversations})"
    ]
    for trial in result.trials:
        found = ", ".join(f"{verdict} {n}" for verdict, n in trial.verdicts.items())
        unchanged = trial.planted == "nothing"
        good, bad = ("passes", "DOES NOT PASS") if unchanged else ("caught", "MISSED")
        lines.append(f"  {trial.planted:<28} {found:<28} {good if trial.ok else bad}")
    if result.slower_ms is None and result.trials:
        lines.append(f"no slow-down up to {MORE_MS[-1]} ms is caught")
    elif result.slower_ms is not None and result.slower_ms > SLOWER_MS:
        lines.append(f"the smallest slow-down tried that is caught: {result.slower_ms:g} ms")
    if result.rounds_needed is not None and result.rounds_needed > result.rounds:
        lines.append(f"--rounds {result.rounds_needed} would catch all, and pass the unchanged")
    elif result.trials and result.rounds_needed is None:
        lines.append("no number of rounds that was tried catches all and passes the unchanged")
    return [*lines, *result.notes]


def _heard(plan: CheckPlan, script: Script) -> dict[str, tuple[Turn, ...]]:
    """Play each scenario once against a script, in virtual time."""
    with TemporaryDirectory(prefix="turngap-self-test-") as folder:
        wait_ms = max(plan.no_reply_ms, NO_REPLY_MS)
        waits = {"budget_ms": plan.budget_ms, "no_reply_ms": wait_ms}
        target = Target(AgentChoice("ws://scripted/"), Path(folder), None)
        heard: dict[str, tuple[Turn, ...]] = {}
        for scenario in plan.scenarios:
            playing = PlayPlan(scenarios=[scenario], out=Path(folder), **waits)
            run = RunInProgress(playing, target, scenario.scenario.name)

            async def call(run: RunInProgress = run, scenario: LoadedScenario = scenario) -> None:
                clock = LoopClock()
                await clock.sleep_until_ns(NS_PER_S)
                async with line_to(script) as line:
                    await run.play_over(line, clock, scenario, watch=clock)

            with kept(run.finish), virtual_clocks():
                in_virtual_time(call())
            heard[scenario.scenario.name] = run.finish().turns
        return heard


# One turn as it is drawn, before the caller hears it.
_Drawn = tuple[Outcome, float | None]


class _Gate:
    """A plan and what was heard, from which any number of checks can be drawn."""

    def __init__(
        self,
        plan: CheckPlan,
        stored: BaselineRecord | None,
        heard: Mapping[str, Mapping[str, tuple[Turn, ...]]],
    ) -> None:
        self._plan, self._stored, self._heard = plan, stored, heard
        self._budgets = {name: ms for name, ms in plan.budgets.items() if name == "gap"}
        # A check that only saves is meant for a later one that pairs.
        self._paired = plan.reference or stored or not plan.budgets
        # The stored calls of each scenario by phase and round.
        self._calls: dict[str, dict[tuple[float, int], list[_Drawn]]] = {}
        for name, turns in heard["nothing"].items():
            calls: dict[tuple[float, int], list[_Drawn]] = {}
            for t in stored.turns if stored else ():
                if t.scenario == name:
                    calls.setdefault((t.phase_ms, t.repeat), []).append((t.outcome, t.gap_ms))
            whole = {key: call for key, call in calls.items() if len(call) == len(turns)}
            self._calls[name] = whole

    def trial(
        self,
        planted: str,
        trials: int,
        slower_ms: float = SLOWER_MS,
        plan: CheckPlan | None = None,
    ) -> Trial:
        """Plant a fault in several checks; `plan` replaces the rounds, and any baseline's turns."""
        verdicts: dict[CheckVerdict, int] = {}
        for seed in range(trials):
            verdict = self._verdict(planted, seed, slower_ms - SLOWER_MS, plan)
            verdicts[verdict] = verdicts.get(verdict, 0) + 1
        failed, passed = verdicts.get("regressed", 0), verdicts.get("pass", 0)
        ok = failed >= POWER * trials
        if planted == "nothing":
            ok = failed <= (1 - POWER) * trials + 1e-9 and passed >= trials / 2
        return Trial(_PLANTED[planted][0], verdicts, ok)

    def rounds_needed(self) -> int | None:
        """Return with how many rounds all trials would be right; None if not found."""
        for factor in MORE_ROUNDS:
            more = replace(self._plan, rounds=self._plan.rounds * factor)
            if more.turns > MOST_TURNS:
                return None
            trials = ((name, n) for n in (MORE_TRIALS, TRIALS) for name in _PLANTED)
            if all(self.trial(name, n, plan=more).ok for name, n in trials):
                return more.rounds
        return None

    def notes(self) -> tuple[str, ...]:
        """Say how the gaps vary, and what was not tried."""
        notes: list[str] = []
        own = [name for name, calls in self._calls.items() if len(calls) >= FEWEST_CALLS]
        if own:
            off = [ms for name in own for ms in _from_median(self._calls[name].values())]
            notes.append(
                f"gaps vary as in the stored calls of {len(own)} of {len(self._calls)} scenarios: "
                f"half of them are within {median(off):.0f} ms of their turn's median"
            )
        if len(own) < len(self._calls):
            notes.append(
                f"{'the others' if own else 'gaps'} vary by {PLAY_MS:g} ms (standard deviation) "
                f"around {GAP_MS:g} ms or the baseline's median, and {TAIL_SHARE:.0%} are longer "
                f"by {TAIL_MS:g} ms on average, as on a quiet machine; a baseline with "
                f"{FEWEST_CALLS} calls or more of each scenario shows how much your agent's vary"
            )
        if stages := [name for name in self._plan.budgets if name != "gap"]:
            notes.append(f"not tried: the budgets of stages ({', '.join(stages)})")
        for name, turns in self._heard["cut_in"].items():
            if not any(turn.outcome == "cut_in" for turn in turns):
                notes.append(f"{name}: the scripted agent found no pause to cut into")
        return tuple(notes)

    def _verdict(
        self, planted: str, seed: int, more_ms: float, replaced: CheckPlan | None
    ) -> CheckVerdict:
        plan = replaced or self._plan
        verdict: CheckVerdict = "undecided"
        for look in range(LOOKS if plan.until_decided else 1):
            due = replace(plan, rounds=plan.rounds * 2**look)
            if look and due.minutes > plan.max_minutes:
                break
            turns, reference = self._drawn_check(due, planted, seed, more_ms)
            judgement = None
            if self._paired:
                mine, theirs = baselines.readings(turns), baselines.readings(reference)
                pairs = baselines.pairs_of(theirs, mine)
                if self._stored and replaced is None:
                    pairs = baselines.matched(self._stored, turns).pairs
                share = 0.5 ** (look + 1) if plan.until_decided else 1.0
                judgement = judge(pairs, plan.limits, share=share)
            verdict, _ = verdict_of(judgement, budgets_of(turns, self._budgets, plan.target))
            if verdict != "undecided":
                break
        return verdict

    def _drawn_check(
        self, plan: CheckPlan, planted: str, seed: int, more_ms: float
    ) -> tuple[list[Turn], list[Turn]]:
        """Draw the turns of the candidate, and of a reference that has no fault."""
        rng = np.random.default_rng((1, seed))
        turns: list[Turn] = []
        reference: list[Turn] = []
        nth = count(seed)
        for number in range(plan.rounds):
            repeats = (number + 1,) if plan.reference is None else (2 * number + 1, 2 * number + 2)
            for scenario in plan.scenarios:
                for repeat in repeats:
                    name, at = scenario.scenario.name, (plan.phase_ms_of(number), repeat)
                    faulty = planted if next(nth) % EVERY == 0 or planted == "slower" else "nothing"
                    turns += self._call(faulty, name, at, rng, more_ms)
                    reference += self._call("nothing", name, at, rng)
        return turns, reference

    def _draw(self, name: str, at: tuple[float, int], rng: np.random.Generator) -> Sequence[_Drawn]:
        """Draw a call: another of the stored ones, or one whose gaps vary as usual."""
        calls = self._calls[name]
        if len(calls) >= FEWEST_CALLS:
            others = [call for key, call in calls.items() if key != at]
            return others[rng.integers(len(others))]
        n = len(self._heard["nothing"][name])
        levels = [median(_gaps(turn) or [GAP_MS]) for turn in zip(*calls.values(), strict=True)]
        late = rng.exponential(TAIL_MS, n) * (rng.random(n) < TAIL_SHARE)
        return [("answered", float(ms)) for ms in rng.normal(levels or GAP_MS, PLAY_MS, n) + late]

    def _call(
        self,
        planted: str,
        name: str,
        at: tuple[float, int],
        rng: np.random.Generator,
        more_ms: float = 0.0,
    ) -> list[Turn]:
        """Draw a call as the caller would hear it, with the fault.

        A gap is off by as much as the caller misread the played one; that of a slower agent also by
        how much slower it was.
        """
        heard, drawn = self._heard[planted][name], self._draw(name, at, rng)
        cut = [i for i, turn in enumerate(heard) if turn.outcome == "cut_in"]
        faulty = range(len(heard)) if planted == "lost" else ()
        if planted == "cut_in" and cut:
            faulty = (cut[rng.integers(len(cut))],)
        usual = heard if planted == "slower" else self._heard["nothing"][name]
        turns: list[Turn] = []
        for i, (turn, (outcome, ms)) in enumerate(zip(usual, drawn, strict=True)):
            changes: dict[str, object] = {"outcome": outcome, "gap_ms": ms}
            if i in faulty:
                changes = {"outcome": heard[i].outcome, "gap_ms": heard[i].gap_ms}
            elif outcome in REPLIED and ms is not None and turn.gap_ms is not None:
                gap_ms = ms + turn.gap_ms - _DELAY_MS + more_ms
                outcome_then = outcome_of(gap_ms, turn.budget_ms, "reply_done")
                changes = {"outcome": outcome_then, "gap_ms": gap_ms}
            turns.append(turn.model_copy(update={"phase_ms": at[0], "repeat": at[1], **changes}))
        return turns


def _gaps(turns: Iterable[_Drawn]) -> list[float]:
    return [ms for _, ms in turns if ms is not None]


def _from_median(calls: Iterable[Sequence[_Drawn]]) -> list[float]:
    """List how far each gap is from the median of its turn, ms."""
    by_turn = [_gaps(turn) for turn in zip(*calls, strict=True)]
    return [abs(ms - median(gaps)) for gaps in by_turn for ms in gaps]
