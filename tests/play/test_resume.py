"""A run that was interrupted is continued: the same settings, the same folder, two pieces."""

import asyncio
import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS, turngap_here

from turngap.core.errors import InputError, TurngapError
from turngap.core.secrets import REMOVED
from turngap.play import rounds as playing
from turngap.play.plan import PlayPlan, Progress, ReplayPlan
from turngap.play.resume import command_to_resume, continued
from turngap.play.rounds import replay
from turngap.play.run import RunInProgress, all_kept
from turngap.play.target import AgentChoice
from turngap.report.run import write_html
from turngap.store.runs import Run, read_run
from turngap.testing import LoopClock, in_virtual_time
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to

Capsys = pytest.CaptureFixture[str]
URL = "ws://127.0.0.1:9/ws"
SCRIPT = Script(replies=(Reply(speech_ms=40),))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the library that is taken by default."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "scenarios"
    folder.mkdir()
    shutil.copy(SCENARIOS / "quick-questions.yaml", folder)
    shutil.copytree(SCENARIOS / "quick-questions", folder / "quick-questions")
    return folder


class LineLostError(TurngapError):
    pass


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play against a scripted agent in memory, as `play_in_turns` does over sockets."""

    async def play(
        runs: Sequence[RunInProgress], plan: PlayPlan, progress: Progress
    ) -> TurngapError | None:
        assert isinstance(plan, ReplayPlan)
        (run,) = runs

        async def converse() -> None:
            clock = LoopClock()
            for scenario, repeat, phase in plan.conversations():
                if run.lacks(scenario, repeat, phase):
                    async with line_to(SCRIPT) as line:
                        await run.play_over(
                            line, clock, scenario, repeat=repeat, phase=phase, watch=clock
                        )

        try:
            with all_kept(runs):
                await asyncio.to_thread(in_virtual_time, converse())
        except TurngapError as e:
            return e
        return None

    monkeypatch.setattr(playing, "play_in_turns", play)


def plan_of(library: Path, out: Path, agent: str = URL, sets: tuple[str, ...] = ()) -> ReplayPlan:
    return ReplayPlan.of(
        AgentChoice(agent, sets=sets), (), None, library, {"repeat": 2}, rounds=2, out=out
    )


def interrupted(plan: ReplayPlan, after: int) -> Run:
    """A run that ended early, with so many of its six turns."""
    kept: list[object] = []

    def stop(turn: object) -> None:
        kept.append(turn)
        if len(kept) == after:
            raise LineLostError("line.lost", "the line was lost")

    run, failure = asyncio.run(replay(plan, Progress(on_turn=stop)))
    assert failure is not None
    assert len(run.turns) == after
    return run


def test_what_is_missing_is_played_into_the_same_folder(library: Path, tmp_path: Path) -> None:
    before = interrupted(plan_of(library, tmp_path / "runs"), after=4)
    assert not before.valid
    assert "ended after 4 of 6 turns: the line was lost" in before.record.why_invalid[0]
    begun = (before.path / "turns.jsonl").read_bytes()
    run, failure = asyncio.run(replay(continued(read_run(before.path))))
    assert failure is None
    assert run.path == before.path
    assert run.valid
    assert run.complete
    stored = read_run(before.path)
    assert [(t.repeat, t.turn) for t in stored.turns] == [(r, t) for r in (1, 2) for t in (1, 2, 3)]
    assert (before.path / "turns.jsonl").read_bytes().startswith(begun)
    first, second = stored.record.pieces
    assert (first.turns, second.turns) == (4, 2)
    assert first.failure == "the line was lost"
    assert (second.failure, stored.record.failure) == (None, None)
    assert first.started_utc == stored.record.started_utc <= second.started_utc
    assert all(p.clock_offset and p.machine == before.record.machine for p in (first, second))
    assert stored.record.settings == before.record.settings
    assert len(list((run.path / "audio").iterdir())) == 6


def test_a_continued_run_says_in_every_report_that_it_has_two_pieces(
    library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    path = interrupted(plan_of(library, tmp_path / "runs"), after=2).path
    before = turngap_here(capsys, "report", path)
    assert "ended after 2 of 6 turns" in before.out
    done = turngap_here(capsys, "replay", "--resume", path)
    assert done.code == 0, done.err
    assert "4 of 6 turns are missing" in done.err
    assert "piece 1" in done.out
    assert "piece 2" in done.out
    document = turngap_here(capsys, "report", path, "--json").document()
    assert document["valid"] is True
    assert [piece["turns"] for piece in document["pieces"]] == [2, 4]
    page = write_html(read_run(path)).read_text(encoding="utf-8")
    assert "piece 1" in page
    again = turngap_here(capsys, "replay", "--resume", path, "--json")
    assert again.code == 0
    assert "nothing is missing: all 6 turns" in again.err
    assert len(again.document()["turns"]) == 6
    assert len(read_run(path).record.pieces) == 2


def test_a_turn_is_compared_with_the_others_once_all_are_played(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the first two turns one is much quicker, of all six it is one of four.
    replies = tuple(Reply(delay_ms=ms, speech_ms=900) for ms in (250, 1500, 250))
    monkeypatch.setitem(globals(), "SCRIPT", Script(replies=replies, marks=False))
    before = interrupted(plan_of(library, tmp_path / "runs"), after=2)
    assert [(t.gap_ms, t.ambiguous) for t in before.turns] == [(250, False), (1500, False)]
    run, failure = asyncio.run(replay(continued(read_run(before.path))))
    assert failure is None
    whole, _ = asyncio.run(replay(plan_of(library, tmp_path / "whole")))
    assert [t.notes for t in run.turns] == [t.notes for t in whole.turns]
    assert not any(t.ambiguous for t in run.turns)


def test_pieces_of_other_versions_are_named(library: Path, tmp_path: Path) -> None:
    path = interrupted(plan_of(library, tmp_path / "runs"), after=2).path
    document = json.loads((path / "run.json").read_text())
    began = "2999-01-01T00:00:00.000+00:00"  # as if the clock had been set back
    changed = document | {"turngap_version": "0.0.1", "started_utc": began}
    (path / "run.json").write_text(json.dumps(changed))
    run, _ = asyncio.run(replay(continued(read_run(path))))
    assert (run.valid, run.record.finished_utc) == (True, began)
    assert any("2 versions of turngap" in problem for problem in read_run(path).problems)


def test_a_run_without_a_turn_is_played_from_its_start(library: Path, tmp_path: Path) -> None:
    path = interrupted(plan_of(library, tmp_path / "runs"), after=1).path
    (path / "turns.jsonl").write_bytes((path / "turns.jsonl").read_bytes()[:100])
    run, _ = asyncio.run(replay(continued(read_run(path, empty=True))))
    assert run.complete
    assert len(read_run(path).turns) == 6
    assert read_run(path).record.pieces == ()


def test_a_run_that_is_being_played_is_left_alone(library: Path, tmp_path: Path) -> None:
    path = interrupted(plan_of(library, tmp_path / "runs"), after=1).path
    plan = continued(read_run(path))
    run = RunInProgress(plan, plan.target, "x", continues=plan.continues)
    with pytest.raises(InputError, match="is being played") as error:
        RunInProgress(plan, plan.target, "x", continues=plan.continues)
    assert error.value.kind == "run.in_use"
    run.finish("stopped")


def test_changed_scenarios_are_refused(library: Path, tmp_path: Path) -> None:
    run = interrupted(plan_of(library, tmp_path / "runs"), after=1)
    file = library / "quick-questions.yaml"
    file.write_text(file.read_text().replace("about: ", "about: other ", 1))
    with pytest.raises(InputError, match="changed since") as error:
        continued(run)
    assert error.value.kind == "resume.changed"


def test_another_agent_is_refused(library: Path, tmp_path: Path) -> None:
    run = interrupted(plan_of(library, tmp_path / "runs"), after=1)
    with pytest.raises(InputError, match="url differs") as error:
        continued(run, agent="ws://127.0.0.1:10/ws")
    assert error.value.kind == "resume.agent"


def test_a_setting_more_is_refused(library: Path, tmp_path: Path) -> None:
    run = interrupted(plan_of(library, tmp_path / "runs"), after=1)
    with pytest.raises(InputError, match=r"--set llm\.ttft_ms"):
        continued(run, sets=["llm.ttft_ms=80"])


def test_secrets_are_given_again(library: Path, tmp_path: Path) -> None:
    url = f"{URL}?token=Zx81Spectrum"
    run = read_run(interrupted(plan_of(library, tmp_path / "runs", url), after=1).path)
    assert run.record.plan is not None
    assert run.record.plan.agent == f"{URL}?token={REMOVED}"
    with pytest.raises(InputError) as error:
        continued(run)
    assert error.value.kind == "resume.typed"
    assert f"--agent '{URL}?token={REMOVED}'" in error.value.hint
    assert continued(run, agent=url).target.choice.agent == url


def test_a_dialect_that_was_found_out_is_kept(library: Path, tmp_path: Path) -> None:
    run = read_run(interrupted(plan_of(library, tmp_path / "runs"), after=2).path)
    assert run.record.plan is not None
    assert run.record.plan.dialect == ""
    assert run.record.agent["dialect"] == "pipecat"
    assert continued(run).target.choice.dialect == "pipecat"


def test_another_rate_than_before_ends_a_continued_run(library: Path, tmp_path: Path) -> None:
    run = read_run(interrupted(plan_of(library, tmp_path / "runs"), after=2).path)
    agent = run.record.agent | {"line_rate_hz": 8000}
    run = replace(run, record=run.record.model_copy(update={"agent": agent}))
    played, failure = asyncio.run(replay(continued(run)))
    assert failure is not None
    assert failure.kind == "agent.another_line"
    assert "line_rate_hz=16000, but was dialect=pipecat, line_rate_hz=8000" in failure.message
    assert (len(played.turns), played.valid) == (2, False)


# What a stored plan may say, and the words with which only the user may say it.
ACTING = [
    ({"agent": "theirs"}, "--agent theirs"),
    ({"agent": "theirs#embedded"}, "--agent 'theirs#embedded'"),
    ({"agent": "theirs.toml"}, "--agent theirs.toml"),
    ({"agent": "ws://127.0.0.1:9/${AWS_SECRET}"}, "--agent 'ws://127.0.0.1:9/${AWS_SECRET}'"),
    ({"agent": "POST http://127.0.0.1:9/ {}"}, "--agent 'POST http://127.0.0.1:9/ {}'"),
    ({"agent": "GET http://127.0.0.1:9/"}, "--agent 'GET http://127.0.0.1:9/'"),
    ({"agent": "http://127.0.0.1:9/"}, "--agent http://127.0.0.1:9/"),
    ({"agent": "wss://api.elevenlabs.io/v1/x"}, "--agent wss://api.elevenlabs.io/v1/x"),
    ({"sets": ("llm.command=['sh']",)}, """--set 'llm.command=['"'"'sh'"'"']'"""),
    ({"sets": ("llm.base_url=http://x",)}, "--set llm.base_url=http://x"),
    ({"sets": ("llm.api_key_env=AWS_SECRET",)}, "--set llm.api_key_env=AWS_SECRET"),
    ({"sets": (" llm.serve_env={A='b'}",)}, """--set 'llm.serve_env={A='"'"'b'"'"'}'"""),
    ({"sets": ("llm.model=a\n\u202e",)}, "--set llm.model=a"),
    ({"backends": {"llm": "openai"}}, "--set llm=openai"),
    ({"headers": ("X-A: a", "X-B: ${AWS}")}, "--header 'X-A: a' --header 'X-B: ${AWS}'"),
    ({"dialect": "openai-realtime,model=x"}, "--dialect openai-realtime,model=x"),
    ({"library": "/theirs", "files": ("/theirs/quick-questions.yaml",)}, "/theirs"),
    ({"files": ("/theirs/quick-questions.yaml",)}, "/theirs/quick-questions.yaml"),
    ({"library": "/\0", "files": ("/\0", "")}, "/ ''"),
]


@pytest.mark.parametrize(("stored", "words"), ACTING)
def test_what_acts_is_not_taken_from_a_stored_run(
    stored: dict[str, Any],
    words: str,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "theirs" / "pipeline" / "turngap").mkdir(parents=True)
    run = foreign(interrupted(plan_of(library, tmp_path / "runs"), after=1), **stored)
    monkeypatch.delattr(subprocess, "Popen")  # no process is started, not even git
    with pytest.raises(InputError) as error:
        continued(run)
    assert error.value.kind == "resume.typed"
    # With whatever is typed, so is where it goes.
    url = "" if "agent" in stored else f"--agent {URL} "
    assert error.value.hint.endswith(f"turngap replay --resume {run.path} {url}{words}")


def foreign(run: Run, **plan: Any) -> Run:
    assert run.record.plan is not None
    update = {"plan": run.record.plan.model_copy(update=plan)}
    return replace(run, record=run.record.model_copy(update=update))


def test_the_command_that_an_interruption_prints_works_as_it_is(
    library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    sets = ("pipeline.system_prompt=Be brief.", "llm.ttft_ms=80", "seed=3")
    choice = AgentChoice.of("embedded", sets, "sim")
    plan = ReplayPlan.of(choice, (), None, library, {}, rounds=2, out=tmp_path / "runs")
    run = read_run(interrupted(plan, after=4).path)
    command = command_to_resume(run)
    assert "prompt" in command
    assert "ttft_ms" not in command
    done = turngap_here(capsys, *shlex.split(command)[1:])
    assert (done.code, read_run(run.path).complete) == (0, True), done.err


def test_the_url_of_a_stored_run_is_shown_first(
    library: Path, tmp_path: Path, capsys: Capsys
) -> None:
    path = interrupted(plan_of(library, tmp_path / "runs"), after=2).path
    done = turngap_here(capsys, "replay", "--resume", path, "--json")
    assert f"continues with --agent {URL} --dialect pipecat" in done.err


def test_what_no_replay_stored_cannot_be_continued(library: Path, tmp_path: Path) -> None:
    run = interrupted(plan_of(library, tmp_path / "runs"), after=1)
    with pytest.raises(InputError, match="does not say how it was played") as error:
        continued(Run(run.record.model_copy(update={"plan": None}), run.turns, run.path))
    assert error.value.kind == "resume.no_plan"


def test_other_options_are_refused(library: Path, tmp_path: Path, capsys: Capsys) -> None:
    path = interrupted(plan_of(library, tmp_path / "runs"), after=1).path
    for more in (["--repeat", "5"], ["quick-questions"], ["--tag", "pause"]):
        done = turngap_here(capsys, "replay", "--resume", path, *more)
        assert done.code == 2
        assert "with its own settings" in done.err


def test_scenarios_in_subfolders_are_found_in_a_library_that_moved(
    library: Path, tmp_path: Path
) -> None:
    inside = library / "more"
    inside.mkdir()
    for path in (library / "quick-questions.yaml", library / "quick-questions"):
        path.rename(inside / path.name)
    file = str(inside / "quick-questions.yaml")
    plan = ReplayPlan.of(
        AgentChoice(URL), (file,), None, library, {}, rounds=2, out=tmp_path / "runs"
    )
    run = interrupted(plan, after=4)
    moved = library.rename(tmp_path / "moved")
    (scenario,) = continued(read_run(run.path), agent=URL, scenarios=[str(moved)]).scenarios
    assert scenario.path == moved / "more" / "quick-questions.yaml"


def test_two_scenarios_of_one_name_are_not_played_in_one_run(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(library, other)
    files = [str(folder / "quick-questions.yaml") for folder in (library, other)]
    with pytest.raises(InputError, match="have the same name") as error:
        ReplayPlan.of(AgentChoice(URL), files, None, library, {})
    assert error.value.kind == "scenario.twice"
