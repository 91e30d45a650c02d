"""The gate from end to end: whole conversations, a regression planted in one of two agents."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from virtual_agents import VirtualAgents

from turngap.check.baseline import pairs_of, readings
from turngap.check.plan import CheckPlan
from turngap.check.play import check
from turngap.check.verdict import judge
from turngap.core.budget import MAX_STARVED_MS
from turngap.core.paired import Reading
from turngap.core.results import TurnKey
from turngap.play.target import AgentChoice, resolve
from turngap.play.virtual import play_virtually
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths
from turngap.store.checks import CheckRecord
from turngap.testing import in_virtual_time
from turngap.testing.agent import Reply, Script

SCENARIOS = Path(__file__).parents[2] / "scenarios"

ONE_TURN = """
name: {name}
turns:
  - say: "what time is it"
    audio: {name}/1.flac
    speech: {{start_ms: 120, end_ms: 925.1}}
    reply: "Ten past nine, sir."
"""


def library_in(folder: Path, conversations: int) -> Path:
    """Conversations of one short turn: each two pieces of evidence a round."""
    for number in range(conversations):
        name = f"time-{number}"
        (folder / name).mkdir(parents=True)
        shutil.copy(SCENARIOS / "quick-questions" / "1.flac", folder / name)
        (folder / f"{name}.yaml").write_text(ONE_TURN.format(name=name), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library_in(tmp_path_factory.mktemp("library"), 5)


async def checked(
    library: Path,
    out: Path,
    candidate: AgentChoice,
    old: AgentChoice,
    *,
    rounds: int = 1,
    # What is planted is large; whether the machine is busy is not.
    starved_ms: float = MAX_STARVED_MS,
) -> CheckRecord:
    plan = CheckPlan(
        candidate=resolve(candidate, library),
        reference=resolve(old, library),
        scenarios=load_scenarios(scenario_paths(library)),
        rounds=rounds,
        calibration_turns=0,
        out=out,
        starved_ms=starved_ms,
    )
    return (await check(plan)).record


@pytest.fixture
def scripted(
    request: pytest.FixtureRequest, virtual_agents: VirtualAgents
) -> Callable[[float], AgentChoice]:
    """Agents that answer so many ms after the person's last word.

    The parameter, where there is one, says during which conversations the machine stands still
    again and again.
    """
    virtual_agents.stalled = getattr(request, "param", virtual_agents.stalled)

    def agent(delay_ms: float) -> AgentChoice:
        script = Script(replies=(Reply(delay_ms=delay_ms, speech_ms=100),))
        return AgentChoice(virtual_agents.url_of(script))

    return agent


def test_80_ms_more_are_regressed_within_a_round_and_the_same_twice_is_not(
    library: Path, tmp_path: Path, scripted: Callable[[float], AgentChoice]
) -> None:
    record = in_virtual_time(checked(library, tmp_path, scripted(330), scripted(250)))
    assert record.verdict == "regressed", record
    assert record.metrics[0].verdict == "regressed"
    assert record.metrics[0].difference == pytest.approx(80, abs=0.1)
    assert record.moved_stage == "unattributed"  # a scripted agent has no marks in between
    # The reference beside itself, of the same run.
    assert record.noise is not None
    assert (record.noise.n, record.noise.verdict) == (5, "undecided")
    assert record.noise.shift_p50_ms == pytest.approx(0, abs=0.1)


def seldom(nth: int) -> bool:
    """One conversation of each side in ten; the order is A B B A."""
    return nth % 40 in (1, 8, 23, 30)


def hogged(nth: int) -> bool:
    """Every second conversation of the candidate."""
    return nth % 4 == 1


@pytest.mark.parametrize("scripted", [seldom], indirect=True)
@pytest.mark.parametrize(("delay_ms", "verdict"), [(330, "regressed"), (250, "pass")])
def test_a_machine_that_stands_still_now_and_then_does_not_keep_the_gate_from_its_verdict(
    library: Path,
    tmp_path: Path,
    scripted: Callable[[float], AgentChoice],
    delay_ms: float,
    verdict: str,
) -> None:
    record = in_virtual_time(
        checked(library, tmp_path, scripted(delay_ms), scripted(250), rounds=8, starved_ms=10)
    )
    assert record.verdict == verdict, record
    assert record.starvation is not None
    assert record.starvation.pairs == 16
    assert record.starvation.reference == record.starvation.candidate == 8
    assert 22 <= record.starvation.error_ms < 60
    p50 = record.metrics[0]
    assert p50.low is not None
    assert p50.high is not None
    assert p50.low <= delay_ms - 250 <= p50.high  # whatever the stalls added


@pytest.mark.parametrize("scripted", [hogged], indirect=True)
def test_an_agent_beside_which_the_machine_stands_still_is_not_compared(
    library: Path, tmp_path: Path, scripted: Callable[[float], AgentChoice]
) -> None:
    record = in_virtual_time(
        checked(library, tmp_path, scripted(330), scripted(250), rounds=4, starved_ms=10)
    )
    assert record.verdict == "cannot_compare", record
    assert "the candidate takes the processor" in record.why[0]


def test_an_agent_that_is_as_fast_as_the_other_is_not_regressed(
    library: Path, tmp_path: Path, scripted: Callable[[float], AgentChoice]
) -> None:
    record = in_virtual_time(checked(library, tmp_path, scripted(250), scripted(250)))
    assert record.verdict == "undecided", record  # a round is too little to say that it passes
    assert record.metrics[0].difference == pytest.approx(0, abs=0.1)


def test_a_tts_that_waits_for_the_whole_reply_is_caught_and_named(library: Path) -> None:
    # At 125 ms each, a word and a full stop that a first clause does not wait for. `adaptive` text
    # would, from so slow a model, and an answer begun early would hide some of it.
    plain = ("text.aggregation=clause", "turn.speculate=false")
    sets = ("llm.tokens_per_s=8", "tts.speed_wpm=400", *plain)
    scenarios = load_scenarios(scenario_paths(library))

    def played(*more: str) -> dict[TurnKey, Reading]:
        choice = AgentChoice(backends={"llm": "sim"}, sets=(*sets, *more), seed=3)
        return readings(play_virtually(choice.stack(), library, scenarios, repeats=2))

    judgement = judge(pairs_of(played(), played("text.aggregation=reply")))
    assert judgement.verdict == "regressed", judgement
    assert judgement.moved_stage == "tts_request"
    shifts = {stage.name: stage.shift_ms for stage in judgement.stages}
    assert shifts["tts_request"] > 150
    assert abs(shifts["llm_first_token"]) < 100
