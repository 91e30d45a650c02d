"""Whole built-in agents in memory and virtual time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from turngap.agent.stack import load_stack, override
from turngap.core.errors import TurngapError
from turngap.core.results import Turn
from turngap.play import virtual
from turngap.play.plan import PlayPlan
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, resolve
from turngap.scenario.library import LoadedScenario, load_scenarios
from turngap.scenario.model import library_dir, scenario_paths
from turngap.store.runs import Run, read_run

pytest.importorskip("pocketsphinx")
pytest.importorskip("espeakng_loader")


@pytest.fixture(scope="module")
def question() -> LoadedScenario:
    """One turn, which smart turn finds complete or does not: either will do."""
    library = library_dir()
    (loaded,) = load_scenarios(scenario_paths(library, ["quick-questions"]))
    turn = loaded.scenario.turns[1].model_copy(update={"when": loaded.scenario.turns[0].when})
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"turns": (turn,)}))


Play = Callable[[str], Turn]


@pytest.fixture
def play(question: LoadedScenario) -> Play:
    def of(agent: str) -> Turn:
        (turn,) = virtual.play_virtually(load_stack(agent), library_dir(), [question])
        return turn

    return of


def test_embedded_answers_after_its_hold_and_reports_every_mark(play: Play) -> None:
    turn = play("embedded")
    assert turn.outcome in ("answered", "late")
    assert turn.answer is not None
    assert turn.answer.verdict == "right"
    assert turn.gap_ms is not None
    assert turn.gap_ms >= turn.counts["hold_ms"] > 0
    assert sum(stage.ms for stage in turn.stages) == pytest.approx(turn.gap_ms)
    assert turn.pacing.late_ms_max == turn.pacing.loop_lag_ms_max == 0


def test_two_plays_are_alike(play: Play) -> None:
    a, b = play("embedded"), play("embedded")
    # espeak-ng goes on from where it was: its speech may be a sample longer.
    assert a.gap_ms == pytest.approx(b.gap_ms, abs=0.1)
    assert [s.name for s in a.stages] == [s.name for s in b.stages]
    assert (a.outcome, a.answer, a.counts) == (b.outcome, b.answer, b.counts)


def test_a_lead_in_of_150_ms_moves_the_gap_and_is_a_stage(question: LoadedScenario) -> None:
    # As it is, the agent cuts such a lead-in off, and has the answer spoken before the turn ends.
    # Adaptive pieces count a lead-in as audio that covers the next words, and ask the TTS earlier.
    # Whole clauses and one hold leave the lead-in as the only difference.
    bare = [
        *("audio.cut_lead_in=false", "turn.speculate=false"),
        *("turn.certainty=0", "text.aggregation=clause"),
    ]

    def played(*more: str) -> Turn:
        stack = override(load_stack("embedded"), {}, [*bare, *more])
        (turn,) = virtual.play_virtually(stack, library_dir(), [question])
        return turn

    plain, padded = played(), played("tts.lead_in_ms=150")
    assert plain.gap_ms is not None
    assert padded.gap_ms == pytest.approx(plain.gap_ms + 150, abs=1)
    stages = {stage.name: stage.ms for stage in padded.stages}
    assert stages["tts_first_audible"] == pytest.approx(150, abs=5)
    assert padded.lead_ms == pytest.approx(150, abs=5)


def test_smart_turn_takes_the_time_that_it_is_given(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = play("stock")
    monkeypatch.setattr(virtual, "SMART_TURN_MS", virtual.SMART_TURN_MS + 100)
    slow = play("stock")
    assert usual.gap_ms is not None
    assert slow.gap_ms is not None
    assert slow.gap_ms - usual.gap_ms == pytest.approx(100, abs=1)


def test_a_phase_shifts_the_turn_on_the_grid(question: LoadedScenario) -> None:
    turns = virtual.play_virtually(
        load_stack("embedded"), library_dir(), [question], phases_ms=(0, 8), repeats=2
    )
    assert [(t.repeat, t.phase_ms) for t in turns] == [(1, 0.0), (1, 8.0), (2, 0.0), (2, 8.0)]


def test_a_run_is_stored_as_replay_stores_it(question: LoadedScenario, tmp_path: Path) -> None:
    run, failure = run_of("embedded", PlayPlan(scenarios=[question], rounds=2, out=tmp_path))
    assert failure is None
    assert run.record.valid
    stored = read_run(run.path)
    assert [t.key for t in stored.turns] == [("quick-questions", 1, 0.0, n) for n in (1, 2)]
    audio = stored.turns[0].audio
    assert audio is not None
    assert (run.path / audio.file).is_file()


def test_somebodys_agent_keeps_no_virtual_time(question: LoadedScenario, tmp_path: Path) -> None:
    plan = PlayPlan(scenarios=[question], out=tmp_path)
    run, failure = run_of("ws://127.0.0.1:1/ws", plan)
    assert failure is not None
    assert failure.kind == "virtual.not_ours"
    assert "no built-in agent" in str(run.record.failure)


def run_of(agent: str, plan: PlayPlan) -> tuple[Run, TurngapError | None]:
    run = RunInProgress(plan, resolve(AgentChoice(agent), library_dir()), "run")
    failure = virtual.play_in_virtual_time([run], plan)
    return run.finish(failure and str(failure)), failure
