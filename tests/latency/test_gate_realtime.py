"""The gate for real: agents as processes, audio in real time, a regression planted in one."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from turngap.caller.pipecat import PipecatDialect
from turngap.core.checks import CheckRecord
from turngap.harness.check import CheckProgress, check
from turngap.harness.check_plan import CheckPlan
from turngap.harness.process import running
from turngap.harness.target import AgentChoice, resolve
from turngap.library import load_scenarios, scenario_paths
from turngap.testing.agent import Reply, Script, script_to_json

SCENARIOS = Path(__file__).parents[2] / "scenarios"
pytestmark = pytest.mark.realtime

ONE_TURN = """
name: {name}
turns:
  - say: "what time is it"
    audio: {name}/1.flac
    speech: {{start_ms: 120, end_ms: 925.1}}
    reply: "Ten past nine, sir."
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five conversations of one short turn: ten pieces of evidence a round."""
    folder = tmp_path_factory.mktemp("library")
    for number in range(5):
        name = f"time-{number}"
        (folder / name).mkdir()
        shutil.copy(SCENARIOS / "quick-questions" / "1.flac", folder / name)
        (folder / f"{name}.yaml").write_text(ONE_TURN.format(name=name), encoding="utf-8")
    return folder


async def checked(
    library: Path, out: Path, candidate: AgentChoice, old: AgentChoice
) -> CheckRecord:
    plan = CheckPlan(
        candidate=resolve(candidate, library),
        reference=resolve(old, library),
        scenarios=load_scenarios(scenario_paths(library)),
        dialect=PipecatDialect(),
        rounds=1,
        calibration_turns=0,
        out=out,
    )
    return (await check(plan, CheckProgress())).record


@asynccontextmanager
async def scripted(delay_ms: float, log: Path) -> AsyncIterator[AgentChoice]:
    script = Script(replies=(Reply(delay_ms=delay_ms, speech_ms=100),))
    async with running(["turngap.testing.agent", script_to_json(script)], log) as url:
        yield AgentChoice(url)


def verdict_of(record: CheckRecord) -> str:
    """What the turns say, also where the machine was too busy for the check to stand by it."""
    if record.verdict == "cannot_compare":
        assert all("starved" in why for why in record.why), record.why
        found = {m.verdict for m in record.metrics}
        return "regressed" if "regressed" in found else "undecided"
    return record.verdict


def shift_ms(record: CheckRecord, stage: str) -> float:
    return next(s.shift_ms for s in record.stages if s.name == stage)


async def test_80_ms_more_are_regressed_within_a_round_and_the_same_twice_is_not(
    library: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with scripted(250, log) as old, scripted(330, log) as new:
        record = await checked(library, tmp_path, new, old)
    assert verdict_of(record) == "regressed", record
    assert record.metrics[0].verdict == "regressed"
    assert record.metrics[0].difference == pytest.approx(80, abs=20)
    assert record.moved_stage == "unattributed"  # a scripted agent has no marks in between
    # The reference beside itself, of the same run.
    assert record.noise is not None
    assert (record.noise.n, record.noise.verdict) == (5, "undecided")
    assert record.noise.shift_p50_ms == pytest.approx(0, abs=20)


async def test_a_tts_that_waits_for_the_whole_reply_is_caught_and_named(
    library: Path, tmp_path: Path
) -> None:
    old = AgentChoice(sets=("llm.tokens_per_s=10",), seed=3)
    slow = AgentChoice(sets=(*old.sets, "text.aggregation=reply"), seed=3)
    record = await checked(library, tmp_path, slow, old)
    assert verdict_of(record) == "regressed", record
    assert record.moved_stage == "tts_request"
    # At 100 ms each, a word and a full stop that the first clause does not wait for.
    assert shift_ms(record, "tts_request") > 80
    assert abs(shift_ms(record, "llm_first_token")) < 50
