"""`turngap check` beside a stored baseline, and what becomes one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_agents import ENOUGH, NEW, FakeAgents, checked, spoil, stored

from turngap.check import baseline
from turngap.check.plan import CheckPlan
from turngap.check.report import write_reports
from turngap.check.words import to_decide
from turngap.core.errors import InputError
from turngap.store.checks import BaselineUse, SaveRecord

# --- against a baseline -----------------------------------------------------------------------


async def saved(plan: CheckPlan, path: Path) -> CheckPlan:
    """A plan that compares with what the candidate of `plan` has just been saved as."""
    done = await checked(replace(plan, reference=None, save=path, rounds=2 * ENOUGH))
    assert done.record.saved == SaveRecord(file=str(path), done=True)
    return replace(plan, reference=None, baseline=path, rounds=2 * ENOUGH)


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


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"dialect": "twilio", "line_rate_hz": 8000}, "spoken to in twilio at 8000 Hz"),
        ({"dialect": "pipecat", "line_rate_hz": 8000}, "the candidate in pipecat at 16000 Hz"),
    ],
)
async def test_a_baseline_of_another_line(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path, line: dict[str, Any], says: str
) -> None:
    path = tmp_path / "base.json"
    agents.lines[NEW] = line
    later = await saved(plan, path)
    agents.lines[NEW] = {"dialect": "pipecat", "line_rate_hz": 16_000}
    agents.played.clear()
    record = (await checked(later)).record
    assert record.verdict == "cannot_compare"
    assert says in record.why[0]
    if line["dialect"] == "twilio":  # which is known before anything is played
        assert agents.played == []


async def test_saving_alone_is_no_verdict(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    done = await checked(replace(plan, reference=None, save=tmp_path / "base.json", rounds=1))
    assert done.record.verdict == "cannot_compare"
    assert done.record.why == ("nothing was compared: neither a reference nor a budget was given",)
    assert (tmp_path / "base.json").exists()
    write_reports(done.record, done.path, done.candidate, done.reference)


@pytest.mark.parametrize(
    ("by", "verdict"),
    [((0.0, ENOUGH), "pass"), ((60.0, ENOUGH), "regressed"), ((0.0, 1), "undecided")],
)
async def test_only_what_passed_is_saved_beside_a_reference(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path, by: tuple[float, int], verdict: str
) -> None:
    slower_ms, rounds = by
    agents.slower[NEW] = lambda _: slower_ms
    path = tmp_path / "base.json"
    record = (await checked(replace(plan, save=path, rounds=rounds))).record
    assert record.verdict == verdict
    assert path.exists() is (verdict == "pass")
    assert record.saved is not None
    assert record.saved.done is path.exists()
    why_not = None if verdict == "pass" else f"the verdict is {verdict}"
    assert record.saved.why_not == why_not


async def test_what_misses_its_budget_is_not_saved(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    path = tmp_path / "base.json"
    alone = replace(plan, reference=None, save=path)
    record = (await checked(replace(alone, budgets={"gap": 100.0}))).record
    assert record.verdict == "regressed"
    assert not path.exists()
    record = (await checked(replace(alone, budgets={"gap": 800.0}, target=0.9, rounds=36))).record
    assert record.verdict == "pass"
    assert path.exists()


async def test_a_baseline_that_cannot_be_written_is_an_error_and_the_check_is_kept(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise InputError("baseline.unwritable", "no room on the disk")

    monkeypatch.setattr(baseline, "save", full)
    done = await checked(replace(plan, save=tmp_path / "base.json"))
    assert done.failure is not None
    assert stored(done).verdict == "pass"
    assert stored(done).saved == SaveRecord(
        file=str(tmp_path / "base.json"), done=False, why_not="no room on the disk"
    )


async def test_until_decided_ends_where_the_baseline_does(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    path = tmp_path / "base.json"
    await checked(replace(plan, reference=None, rounds=6, save=path))
    later = replace(plan, reference=None, baseline=path, rounds=4, until_decided=True)
    agents.played.clear()
    record = (await checked(later)).record
    assert (record.verdict, record.rounds, record.pairs) == ("undecided", 6, 18)
    assert len(agents.played) == 6
    assert record.baseline == BaselineUse(unmatched=0, more_pairs=0, rejudged=0)


async def test_a_baseline_with_turns_left_says_which_rounds_would_use_them(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    later = replace(await saved(plan, tmp_path / "base.json"), rounds=30)
    record = (await checked(later)).record
    assert record.verdict == "undecided"
    assert record.baseline == BaselineUse(unmatched=0, more_pairs=18, rejudged=0)
    assert to_decide(record) == "about 18 more pairs of turns, which the baseline has: --rounds 36"
    record = (await checked(replace(later, until_decided=True))).record
    assert record.rounds == 2 * ENOUGH


async def test_a_baseline_whose_caller_might_be_later_does_not_compare(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    later = await saved(replace(plan, starved_ms=200.0), tmp_path / "base.json")
    assert (await checked(later)).record.verdict == "pass"
    record = (await checked(replace(later, starved_ms=10.0))).record
    assert record.verdict == "cannot_compare"
    assert "its caller might be 200 ms late, this one 10" in record.why[0]


async def test_a_short_baseline_is_undecided(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    path = tmp_path / "base.json"
    short = replace(plan, reference=None, rounds=3)
    await checked(replace(short, save=path))
    record = (await checked(replace(short, baseline=path))).record
    assert (record.verdict, record.pairs) == ("undecided", 9)
    assert record.metrics[1].why == "n=9, needs 20"
