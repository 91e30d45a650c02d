"""`turngap check` around made-up turns: order, verdicts, what is kept, exit codes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commandline import SCENARIOS, Finished, turngap_here
from made_records import MARKS_MS, make_turn

from turngap.caller.pipecat import PipecatDialect
from turngap.core.checks import CheckRecord
from turngap.core.errors import AgentError
from turngap.core.results import TurnRecord
from turngap.core.verdict import Limits
from turngap.harness import check as checking
from turngap.harness.check import Checked, CheckPlan, CheckProgress, check
from turngap.harness.check_figures import budgets_of, noise_of
from turngap.harness.run import RunInProgress
from turngap.harness.target import AgentChoice, Target, resolve
from turngap.library import load_scenarios, scenario_paths
from turngap.report.check_files import read_check, write_reports

OLD, NEW = "ws://127.0.0.1:9/old", "ws://127.0.0.1:9/new"
ENOUGH = 13  # rounds of 6 pairs: more than the 72 that p95 needs
Capsys = pytest.CaptureFixture[str]


class FakeAgents:
    """Stands in for audio: `marks` of a turn by agent, with noise; and notes what was played."""

    def __init__(self) -> None:
        self.played: list[tuple[str, int, int]] = []
        self.slower: dict[str, Callable[[int], float]] = {}
        self.starved = False
        self.dies_after: int | None = None
        self._rng = np.random.default_rng(1)

    def turn(self, url: str, scenario: str, number: int, repeat: int, phase: int) -> TurnRecord:
        late = self._rng.normal(0, 5) + self.slower.get(url, lambda _: 0.0)(len(self.played))
        marks = {k: at + (late if at > 300 else 0.0) for k, at in MARKS_MS.items()}
        return make_turn(
            scenario=scenario,
            turn=number,
            repeat=repeat,
            phase_ms=phase / 16,
            marks_ms=marks,
            starved=self.starved,
        )


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> FakeAgents:
    fake = FakeAgents()

    async def play(self: Any, scenario: Any, url: str, *, repeat: int = 1, phase: int = 0) -> None:
        fake.played.append((url, repeat, phase))
        if fake.dies_after is not None and len(fake.played) > fake.dies_after:
            raise AgentError("line.lost", "the line was lost")
        for number, _ in enumerate(scenario.scenario.turns, start=1):
            turn = fake.turn(url, scenario.scenario.name, number, repeat, phase)
            self._writer.append_turn(turn)
            self.turns.append(turn)
            self._on_turn(turn)

    monkeypatch.setattr(RunInProgress, "play", play)
    return fake


@pytest.fixture
def plan(tmp_path: Path) -> CheckPlan:
    return CheckPlan(
        candidate=target(NEW),
        reference=target(OLD),
        scenarios=load_scenarios(scenario_paths(SCENARIOS, ["quick-questions"])),
        dialect=PipecatDialect(),
        rounds=ENOUGH,
        calibration_turns=0,
        out=tmp_path / "runs",
    )


def target(agent: str) -> Target:
    return resolve(AgentChoice(agent), SCENARIOS)


async def checked(plan: CheckPlan) -> Checked:
    return await check(plan, CheckProgress())


def stored(done: Checked) -> CheckRecord:
    return CheckRecord.model_validate_json((done.path / "check.json").read_text(encoding="utf-8"))


# --- against an agent at hand -----------------------------------------------------------------


async def test_each_scenario_is_played_a_b_b_a_at_the_same_phase(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    await checked(replace(plan, rounds=3, phases=2))
    assert [(url[-3:], repeat, phase) for url, repeat, phase in agents.played] == [
        *(("old", 1, 0), ("new", 1, 0), ("new", 2, 0), ("old", 2, 0)),
        *(("old", 3, 256), ("new", 3, 256), ("new", 4, 256), ("old", 4, 256)),
        *(("old", 5, 0), ("new", 5, 0), ("new", 6, 0), ("old", 6, 0)),
    ]


async def test_the_same_agent_twice_passes_and_is_stored_with_both_runs(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    done = await checked(plan)
    record = stored(done)
    assert record == done.record
    assert (record.verdict, record.why, record.pairs) == ("pass", (), 6 * ENOUGH)
    assert record.reference is not None
    assert record.reference.turns == record.candidate.turns == 6 * ENOUGH
    assert record.noise is not None
    assert record.noise.n == 3 * ENOUGH
    assert record.noise.verdict != "regressed"
    again, candidate, reference = read_check(done.path)
    assert again == record
    assert reference is not None
    assert len(candidate.turns) == len(reference.turns) == 6 * ENOUGH


async def test_a_slower_candidate_is_regressed_and_its_stage_is_named(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    agents.slower[NEW] = lambda _: 40.0
    record = (await checked(replace(plan, rounds=5))).record
    assert record.verdict == "regressed"
    assert record.moved_stage == "llm_first_token"
    assert "gap p50" in record.why[0]


async def test_one_round_of_one_scenario_is_undecided_and_asks_for_more(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    record = (await checked(replace(plan, rounds=1))).record
    assert record.verdict == "undecided"
    assert all(m.turns_needed for m in record.metrics)


async def test_until_decided_plays_on_and_no_longer(agents: FakeAgents, plan: CheckPlan) -> None:
    record = (await checked(replace(plan, rounds=4, until_decided=True))).record
    assert record.verdict == "pass"
    assert record.rounds == 32  # a fourth look at p95 needs 127 pairs, and 8 rounds hold 48


async def test_until_decided_ends_with_its_time(
    agents: FakeAgents, plan: CheckPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = (await checked(replace(plan, rounds=1, until_decided=True, max_minutes=0.0))).record
    assert (record.verdict, record.rounds) == ("undecided", 1)
    monkeypatch.setattr(checking, "LOOKS", 2)
    agents.played.clear()
    record = (await checked(replace(plan, rounds=1, until_decided=True))).record
    assert (record.verdict, record.rounds) == ("undecided", 2)


async def test_limits_are_heeded(agents: FakeAgents, plan: CheckPlan) -> None:
    record = (await checked(replace(plan, limits=Limits(p50_ms=0.5)))).record
    assert record.verdict == "undecided"
    assert "a regression of 0.5 ms is not excluded" in str(record.metrics[0].why)


async def test_an_agent_that_dies_ends_it_without_a_verdict_and_without_a_loss(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    agents.dies_after = 30
    done = await checked(replace(plan, save=tmp_path / "base.json"))
    assert done.failure is not None
    assert done.record.verdict == "cannot_compare"
    assert done.record.why == ("it ended early: the line was lost",)
    assert len(done.candidate.turns) + done.record.reference.turns == 90  # type: ignore[union-attr]
    assert not (tmp_path / "base.json").exists()


async def test_a_caller_that_was_starved_bears_no_verdict(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    agents.starved = True
    done = await checked(replace(plan, save=tmp_path / "base.json"))
    assert done.record.verdict == "cannot_compare"
    assert "starved" in done.record.why[0]
    assert not (tmp_path / "base.json").exists()


async def test_a_run_whose_last_line_was_cut_off_is_read_as_far_as_it_goes(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    done = await checked(replace(plan, rounds=1))
    write_reports(done.record, done.path, done.candidate, done.reference)
    file = done.path / str(done.record.candidate.run) / "turns.jsonl"
    file.write_bytes(file.read_bytes()[:-100])
    record, candidate, _ = read_check(done.path)
    assert record == done.record
    assert len(candidate.turns) == 5
    assert "cut off" in str(candidate.problems)


# --- against a baseline -----------------------------------------------------------------------


async def saved(plan: CheckPlan, path: Path) -> CheckPlan:
    """A plan that compares with what the candidate of `plan` has just been saved as."""
    done = await checked(replace(plan, reference=None, save=path, rounds=2 * ENOUGH))
    assert done.record.verdict == "pass"
    return replace(plan, reference=None, baseline=path, rounds=2 * ENOUGH)


def spoil(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document | changes), encoding="utf-8")


async def test_a_baseline_of_the_same_passes_and_of_a_faster_one_does_not(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    later = await saved(plan, tmp_path / "base.json")
    record = (await checked(later)).record
    assert (record.verdict, record.pairs, record.noise) == ("pass", 6 * ENOUGH, None)
    agents.slower[NEW] = lambda _: 40.0
    record = (await checked(later)).record
    assert (record.verdict, record.moved_stage) == ("regressed", "llm_first_token")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metrics_version": 99}, "metrics version 99"),
        ({"scenario_hashes": {}}, "it has no scenario quick-questions"),
        ({"scenario_hashes": {"quick-questions": "0"}}, "has changed since"),
        ({"turns": []}, "holds no turns"),
    ],
)
async def test_a_baseline_of_something_else_plays_nothing_and_passes_nothing(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = tmp_path / "base.json"
    later = await saved(plan, path)
    spoil(path, **changes)
    agents.played.clear()
    done = await checked(replace(later, save=tmp_path / "next.json"))
    assert done.record.verdict == "cannot_compare"
    assert says in str(done.record.why)
    assert agents.played == []
    assert not (tmp_path / "next.json").exists()
    write_reports(done.record, done.path, done.candidate, done.reference)


async def test_a_baseline_of_another_machine(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    path = tmp_path / "base.json"
    later = await saved(plan, path)
    machine = json.loads(path.read_text(encoding="utf-8"))["machine"]
    spoil(path, machine=machine | {"fingerprint": "f00", "cpu": "Another CPU"})
    record = (await checked(later)).record
    assert record.verdict == "cannot_compare"
    assert "another machine (Another CPU" in record.why[0]


async def test_a_short_baseline_is_undecided(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    path = tmp_path / "base.json"
    short = replace(plan, reference=None, rounds=3)
    await checked(replace(short, save=path))
    record = (await checked(replace(short, baseline=path))).record
    assert (record.verdict, record.pairs) == ("undecided", 9)
    assert record.metrics[1].why == "n=9, needs 20"


# --- budgets ----------------------------------------------------------------------------------


def turns(*gaps_ms: float | None) -> list[TurnRecord]:
    scaled = [
        None if gap is None else {k: at * gap / 398.25 for k, at in MARKS_MS.items()}
        for gap in gaps_ms
    ]
    return [make_turn(turn=1, repeat=i, marks_ms=m, ended="reply_done" if m else "timeout")
            for i, m in enumerate(scaled, start=1)]  # fmt: skip


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ([400.0] * 100, "pass"),
        ([400.0] * 20, "undecided"),
        ([400.0] * 80 + [700.0] * 20, "regressed"),
        ([400.0] * 80 + [None] * 20, "regressed"),
        ([], "undecided"),
    ],
)
def test_a_budget_holds_only_beyond_doubt(gaps: Sequence[float | None], verdict: str) -> None:
    (budget,) = budgets_of(turns(*gaps), {"gap": 500.0}, 0.95)
    assert budget.verdict == verdict
    assert budget.n == len(gaps)


def test_a_stages_budget_counts_the_turns_that_did_not_have_it_as_over() -> None:
    (budget,) = budgets_of([*turns(*[400.0] * 99), *turns(None)], {"llm_first_token": 200.0}, 0.9)
    assert budget.share == 0.99
    (tight,) = budgets_of(turns(*[400.0] * 99), {"llm_first_token": 10.0}, 0.9)
    assert (tight.share, tight.verdict) == (0.0, "regressed")


def test_noise_pairs_odd_repeats_with_even_ones() -> None:
    played = [make_turn(repeat=r, marks_ms={"agent_onset": 400.0 + 3 * r}) for r in range(1, 8)]
    noise = noise_of(played)
    assert noise is not None
    assert (noise.n, noise.shift_p50_ms) == (3, pytest.approx(3.0))
    assert noise_of(played[:1]) is None


# --- the command line -------------------------------------------------------------------------


def run(capsys: Capsys, tmp_path: Path, *arguments: str | Path) -> Finished:
    plain = ("check", "quick-questions", "--calibration", "0", "--out", tmp_path / "runs")
    return turngap_here(capsys, *plain, *arguments)


def test_exit_codes_follow_the_verdict(agents: FakeAgents, tmp_path: Path, capsys: Capsys) -> None:
    both = ("--agent", NEW, "--against", OLD)
    done = run(capsys, tmp_path, *both, "--rounds", "13", "--json")
    assert (done.code, done.document()["verdict"]) == (0, "pass")
    done = run(capsys, tmp_path, *both, "--rounds", "1", "--json")
    assert (done.code, done.document()["verdict"]) == (3, "undecided")
    agents.slower[NEW] = lambda _: 60.0
    done = run(capsys, tmp_path, *both, "--rounds", "5")
    assert done.code == 1
    assert "REGRESSED" in done.out
    assert "llm_first_token" in done.out
    agents.dies_after = len(agents.played) + 3
    done = run(capsys, tmp_path, *both, "--json")
    assert (done.code, done.document()["verdict"]) == (4, "cannot_compare")
    assert "the line was lost" in done.err


def test_a_baseline_on_the_command_line(agents: FakeAgents, tmp_path: Path, capsys: Capsys) -> None:
    base = tmp_path / "base.json"
    agent = ("--agent", NEW, "--rounds", "26")
    assert run(capsys, tmp_path, *agent, "--save", base).code == 0
    done = run(capsys, tmp_path, *agent, "--baseline", base, "--budget", "gap=800", "--json")
    assert (done.code, done.document()["verdict"]) == (0, "pass")
    spoil(base, metrics_version=99)
    done = run(capsys, tmp_path, *agent, "--baseline", base)
    assert done.code == 3
    assert "CANNOT COMPARE" in done.out
    base.write_bytes(base.read_bytes()[:-9])
    done = run(capsys, tmp_path, *agent, "--baseline", base)
    assert (done.code, done.out) == (2, "")
    assert "cut short" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to compare with"),
        (["--against", OLD, "--baseline", "x"], "not both"),
        (["--budget", "gap"], "expected NAME=MS"),
        (["--budget", "nap=3"], "names: gap, endpoint"),
        (["--budget", "gap=-1"], "expected NAME=MS"),
        (["--budget", "gap=nan"], "expected NAME=MS"),
        (["--baseline", "none.json"], "none.json: cannot be read"),
        (["--against", "nobody"], "known: embedded"),
        (["--against", "tests"], "is no checkout of turngap"),
        (["--against", "nowhere#stock"], "is no checkout of turngap"),
        (["--against", OLD, "--rounds", "0"], "--rounds"),
        (["--budget", "gap=1", "--target", "2"], "--target"),
    ],
)
def test_bad_flags(
    agents: FakeAgents, tmp_path: Path, capsys: Capsys, arguments: list[str], says: str
) -> None:
    done = run(capsys, tmp_path, *arguments)
    assert done.code == 2
    assert says in done.err
    assert agents.played == []
    assert not (tmp_path / "runs").exists()


def test_a_checkout_that_was_not_set_up_says_how(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "old" / "pipeline" / "turngap").mkdir(parents=True)
    done = run(capsys, tmp_path, "--against", tmp_path / "old")
    assert done.code == 2
    assert "no environment of its own" in done.err
    assert "./run setup" in done.err


def test_a_checkout_that_is_too_old_says_so(tmp_path: Path, capsys: Capsys) -> None:
    python = tmp_path / "old" / ".venv" / "bin" / "python"
    (tmp_path / "old" / "pipeline" / "turngap").mkdir(parents=True)
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho No such option: --scenarios >&2\nexit 2\n")
    python.chmod(0o755)
    done = run(capsys, tmp_path, "--against", f"{tmp_path / 'old'}#stock")
    assert done.code == 4
    assert "does not serve its stack 'stock'" in done.err
    assert "No such option: --scenarios" in done.err
