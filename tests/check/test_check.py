"""`turngap check` beside an agent at hand, around made-up turns: order, verdicts, what is kept."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS
from fake_agents import ENOUGH, NEW, OLD, FakeAgents, checked, stored
from made_records import MARKS_MS, make_turn

from turngap.check import play as checking
from turngap.check.plan import CONVERSATIONS, CheckPlan
from turngap.check.play import budgets_of, noise_of
from turngap.check.report import check_text, read_check, write_reports
from turngap.check.words import to_decide
from turngap.core.results import Turn
from turngap.core.stored import PacingRecord
from turngap.play.calibrate import Calibration
from turngap.play.plan import Progress
from turngap.play.target import AgentChoice

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


async def test_by_default_a_clear_shift_is_decided(agents: FakeAgents, plan: CheckPlan) -> None:
    agents.slower[NEW] = lambda _: 81.0
    by_default = replace(plan, rounds=0)
    assert by_default.rounds == 5  # ten conversations of three turns
    record = (await checked(by_default)).record
    assert (record.verdict, record.pairs, record.moved_stage) == (
        "regressed",
        30,
        "llm_first_token",
    )


async def test_the_progress_shows_the_verdict_so_far(agents: FakeAgents, plan: CheckPlan) -> None:
    agents.slower[NEW] = lambda _: 81.0
    steps: list[str] = []
    await checking.check(replace(plan, rounds=3), Progress(on_step=steps.append))
    assert "so far" not in "".join(steps[:-2])
    assert steps[-1].endswith(" (so far: undecided, gap p50 +80 ms)")


async def test_where_nothing_is_beyond_its_limit_the_advice_is_what_all_metrics_need(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    record = (await checked(replace(plan, rounds=5))).record
    assert record.verdict == "undecided"
    assert f"about {max(m.turns_needed or 0 for m in record.metrics)} more" in to_decide(record)


@pytest.mark.parametrize(
    ("scenarios", "beside", "rounds"), [(1, True, 5), (1, False, 10), (2, True, 3), (20, True, 2)]
)
def test_a_default_plan_has_ten_conversations_and_two_rounds_at_least(
    plan: CheckPlan, scenarios: int, beside: bool, rounds: int
) -> None:
    reference = plan.reference if beside else None
    many = [plan.scenarios[0]] * scenarios
    kept = None if beside else Path("base.json")
    planned = replace(plan, rounds=0, reference=reference, baseline=kept, scenarios=many)
    assert planned.rounds == rounds
    assert (
        replace(planned, rounds=0, reference=None, baseline=None).rounds == 2
    )  # nothing is paired
    assert planned.rounds * scenarios * (2 if beside else 1) >= CONVERSATIONS == 10


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


async def test_a_run_without_a_turn_bears_no_verdict(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    agents.dies_after = 0
    done = await checked(replace(plan, save=tmp_path / "base.json"))
    assert (done.record.verdict, done.record.pairs) == ("cannot_compare", 0)
    assert not (tmp_path / "base.json").exists()


async def test_a_caller_that_was_always_starved_bears_no_verdict(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    agents.starved = lambda _url, _nth: True
    done = await checked(replace(plan, save=tmp_path / "base.json"))
    assert done.record.verdict == "cannot_compare"
    assert done.record.why[0].startswith(
        "the caller was starved in 108 of 108 pairs of turns; its "
    )
    assert not (tmp_path / "base.json").exists()


@pytest.mark.parametrize(("slower_ms", "verdict"), [(0.0, "pass"), (40.0, "regressed")])
async def test_a_caller_that_was_starved_now_and_then_leaves_the_verdict(
    agents: FakeAgents, plan: CheckPlan, slower_ms: float, verdict: str
) -> None:
    agents.slower[NEW] = lambda _: slower_ms
    agents.starved = lambda _url, nth: nth % 9 == 0  # 8 of 72 conversations: either run is invalid
    done = await checked(plan)
    record = done.record
    assert record.verdict == verdict, record
    assert record.starvation is not None
    assert (record.starvation.pairs, record.starvation.of) == (24, 108)
    assert record.starvation.error_ms == 22.0
    assert record.starvation.reference == record.reference.starved  # type: ignore[union-attr]
    assert record.starvation.candidate == record.candidate.starved
    # By itself no percentile of such a run holds, as ever.
    assert not done.candidate.record.valid
    assert "starved in 12 of 108 turns" in done.candidate.record.why_invalid[0]
    text = check_text(record)
    assert "starved in 24 of 108 pairs" in text


async def test_an_agent_that_takes_the_processor_from_the_caller_is_not_compared(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    agents.starved = lambda url, nth: url == NEW and nth % 4 == 2 and nth > 15
    done = await checked(replace(plan, save=tmp_path / "base.json"))
    assert done.record.starvation is not None
    assert done.record.starvation.reference == 0
    assert done.record.verdict == "cannot_compare"
    assert "starved in 42 turns of the candidate and in 0 of the reference" in done.record.why[0]
    assert "the candidate takes the processor" in done.record.why[0]
    assert not (tmp_path / "base.json").exists()


async def test_until_decided_plays_on_where_the_caller_was_starved_at_first(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    agents.starved = lambda _url, nth: nth <= 32
    record = (await checked(replace(plan, rounds=16, until_decided=True))).record
    assert record.verdict == "pass"
    assert record.rounds > 16


async def test_a_run_whose_last_line_was_cut_off_is_read_as_far_as_it_goes(
    agents: FakeAgents, plan: CheckPlan
) -> None:
    done = await checked(replace(plan, rounds=1))
    write_reports(done.record, done.path, done.candidate, done.reference)
    file = done.path / str(done.record.candidate.run) / "turns.jsonl"
    file.write_bytes(file.read_bytes()[:-100])
    record, candidate, _ = read_check(done.path)
    assert record.verdict == "cannot_compare"
    assert record.why == ("the candidate's run holds 5 of the 6 turns that were judged",)
    assert len(candidate.turns) == 5
    assert "cut off" in str(candidate.problems)


# --- budgets ----------------------------------------------------------------------------------


def turns(*gaps_ms: float | None) -> list[Turn]:
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


def test_a_budget_is_judged_by_calls_which_are_lost_whole() -> None:
    kept = [make_turn(turn=n, repeat=call) for call in range(1, 13) for n in range(1, 9)]
    (budget,) = budgets_of(kept, {"gap": 500.0}, 0.95)
    assert (budget.share, budget.n, budget.verdict) == (1.0, 96, "undecided")


def test_a_stages_budget_counts_the_turns_that_did_not_have_it_as_over() -> None:
    (budget,) = budgets_of([*turns(*[400.0] * 99), *turns(None)], {"llm_first_token": 200.0}, 0.9)
    assert budget.share == 0.99
    (tight,) = budgets_of(turns(*[400.0] * 99), {"llm_first_token": 10.0}, 0.9)
    assert (tight.share, tight.verdict) == (0.0, "regressed")


def test_what_a_starved_caller_may_have_added_breaks_no_budget_and_keeps_none() -> None:
    late = PacingRecord(packets=9, late_ms_p50=0.1, late_ms_max=60.0, starved=True)
    over = [t.model_copy(update={"pacing": late}) for t in turns(*[540.0] * 20)]
    (doubtful,) = budgets_of([*turns(*[400.0] * 80), *over], {"gap": 500.0}, 0.95)
    assert (doubtful.share, doubtful.verdict) == (0.8, "undecided")
    far = [t.model_copy(update={"pacing": late}) for t in turns(*[600.0] * 20)]
    (surely,) = budgets_of([*turns(*[400.0] * 80), *far], {"gap": 500.0}, 0.95)
    assert surely.verdict == "regressed"
    # As read it was within: so it was without the caller's part.
    within = [t.model_copy(update={"pacing": late}) for t in turns(*[400.0] * 100)]
    assert budgets_of(within, {"gap": 500.0}, 0.95)[0].verdict == "pass"


def test_noise_pairs_odd_repeats_with_even_ones() -> None:
    played = [make_turn(repeat=r, marks_ms={"agent_onset": 400.0 + 3 * r}) for r in range(1, 8)]
    noise = noise_of(played)
    assert noise is not None
    assert (noise.n, noise.shift_p50_ms) == (3, pytest.approx(3.0))
    assert noise_of(played[:1]) is None


# --- how the two are spoken to ----------------------------------------------------------------


async def test_agents_of_two_dialects_are_both_calibrated_and_the_report_says_so(
    agents: FakeAgents, plan: CheckPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.lines[NEW] = {"dialect": "twilio", "line_rate_hz": 8000}
    agents.lines[OLD] = {"dialect": "pipecat", "line_rate_hz": 16_000}
    asked: list[str] = []

    async def calibrated(turns: int, *, dialect: str, log: Path) -> Calibration:
        asked.append(dialect)
        return Calibration(dialect, 8000, None, (), turns)

    monkeypatch.setattr("turngap.play.rounds.calibrate", calibrated)
    phone = replace(plan.candidate, choice=AgentChoice(NEW, dialect="twilio"))
    done = await checked(replace(plan, candidate=phone, calibration_turns=3))
    assert sorted(asked) == ["pipecat", "twilio"]
    assert done.reference is not None
    for run, dialect in ((done.candidate, "twilio"), (done.reference, "pipecat")):
        assert run.record.calibration is not None
        assert run.record.calibration.dialect == dialect
    says = "the reference is spoken to in pipecat at 16000 Hz, the candidate in twilio at 8000 Hz"
    assert says in " ".join(check_text(done.record).split())


@pytest.mark.parametrize(
    ("against", "dialect", "headers"),
    [
        ("wss://bot.example:8443/old", "twilio", ("Authorization: Bearer mine",)),
        ("ws://bot.example/old", "twilio", ()),
        ("wss://other.example/old", "twilio", ()),
        ("wss://api.openai.com/v1/realtime", "", ()),
    ],
)
def test_a_header_goes_to_no_other_host(
    against: str, dialect: str, headers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    own = AgentChoice(
        "wss://bot.example/new", dialect="twilio", headers=("Authorization: Bearer mine",)
    )
    reference = planned(own, against).reference
    assert reference is not None
    assert (reference.choice.dialect, reference.choice.headers) == (dialect, headers)


def test_the_reference_has_a_dialect_and_headers_of_its_own() -> None:
    own = AgentChoice("wss://bot.example/new", dialect="twilio", headers=("X-Key: mine",))
    asked = {"against_dialect": "pipecat", "against_headers": ("X-Key: its",)}
    reference = planned(own, "wss://bot.example/old", **asked).reference
    assert reference is not None
    assert (reference.choice.dialect, reference.choice.headers) == ("pipecat", ("X-Key: its",))


def planned(choice: AgentChoice, against: str, **asked: Any) -> CheckPlan:
    return CheckPlan.of(
        choice,
        ["quick-questions"],
        None,
        SCENARIOS,
        against=against,
        against_sets=(),
        baseline=None,
        save=None,
        budgets={},
        **asked,
    )
