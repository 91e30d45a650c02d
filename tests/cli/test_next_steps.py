"""The line that a command ends with: chosen from what was found, on stderr, never with `--json`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import turngap_here
from made_checks import make_check
from made_records import make_record, make_turn

from turngap.cli.next_steps import LATE, NO_REPLIES, after_check, after_doctor, after_run
from turngap.core.run_record import PlanRecord
from turngap.core.stages import Stage
from turngap.store.runs import Run
from turngap.store.writer import RunWriter


def a_run(turn: Any, **changes: Any) -> Run:
    record = make_record().model_copy(update={"valid": True, **changes})
    return Run(record, (turn,) * 8, Path("runs/x"))


def unexplained() -> Any:
    """A turn of an agent that reports no marks: all of its gap is unattributed."""
    made = make_turn()
    (onset, *_) = [mark for mark in made.marks if mark.name == "agent_onset"]
    assert made.gap_ns is not None
    assert made.gap_ms is not None
    stage = Stage("unattributed", made.gap_ns, made.gap_ms)
    ends = [mark for mark in made.marks if mark.name == "user_end"]
    return made.model_copy(update={"stages": (stage,), "marks": (*ends, onset)})


def test_a_bot_without_marks_is_told_how_to_get_them() -> None:
    bot = after_run(a_run(unexplained(), agent={"url": "ws://127.0.0.1:1/ws"}))
    assert bot is not None
    assert "are unattributed: add MarksObserver to your bot: two lines" in bot
    assert "--no-marks" in (after_run(a_run(unexplained())) or "")
    received = unexplained()  # the caller's own mark tells nothing of the agent
    last = Stage("agent_onset", 300_000, 0.3)
    received = received.model_copy(update={"stages": (*received.stages, last)})
    bot = after_run(a_run(received, agent={"url": "ws://127.0.0.1:1/ws"}))
    assert "add MarksObserver" in (bot or "")


def test_the_stage_that_takes_the_most_time_says_what_to_try() -> None:
    turn = make_turn()
    slow = [
        replace(stage, ms=900.0, ns=900_000_000) if stage.name == "llm_first_token" else stage
        for stage in turn.stages
    ]
    step = after_run(a_run(turn.model_copy(update={"stages": tuple(slow)})))
    assert step is not None
    assert step.startswith("llm_first_token takes the most time, 900 ms: compare LLMs")


def test_a_run_whose_caller_was_late_says_nothing_else() -> None:
    assert after_run(a_run(make_turn(), valid=False)) == LATE


def test_a_run_without_any_reply_asks_for_the_dialect_first() -> None:
    silent = make_turn().model_copy(update={"outcome": "no_reply"})
    assert after_run(a_run(silent, valid=False)) == NO_REPLIES
    answered = Run(make_record(), (silent, make_turn()), Path("runs/x"))
    assert after_run(answered) != NO_REPLIES


def test_a_run_that_failed_is_not_blamed_on_the_caller() -> None:
    assert after_run(a_run(make_turn(), valid=False, failure="the agent died")) is None


def test_the_step_is_the_last_line_and_no_part_of_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = make_record(planned_turns=8)
    with RunWriter.create(tmp_path, "replay", record) as writer:
        for number in range(1, 9):
            writer.append_turn(make_turn(turn=number))
        writer.finish(record)
    done = turngap_here(capsys, "report", writer.path)
    assert done.err.splitlines()[-1].startswith("next: ")
    assert "next: " not in done.out
    assert "next: " not in turngap_here(capsys, "report", writer.path, "--json").err
    assert turngap_here(capsys, "scenarios").err == ""


def test_the_check_of_an_agent_is_given_what_reached_it() -> None:
    plan = PlanRecord(
        agent="ws://127.0.0.1:1/ws?key=${K}",
        dialect="twilio",
        headers=("X-Api-Key: ${K}",),
        library="x",
        files=(),
        rounds=1,
    )
    step = after_run(a_run(make_turn(), agent={"url": plan.agent}, plan=plan, planned_turns=8))
    assert step == (
        "keep it from getting slower: turngap check --agent 'ws://127.0.0.1:1/ws?key=${K}' "
        "--dialect twilio --header 'X-Api-Key: ${K}' --save base.json"
    )


@pytest.mark.parametrize(
    ("file", "flags"),
    [
        ("agent = 'ws://127.0.0.1:1/ws'\nstart = 'python bot.py'\ndialect = 'twilio'\n", ""),
        ("agent = 'ws://127.0.0.1:2/ws'\n", "--start 'python bot.py' --agent ws://127.0.0.1:1/ws"),
        ("agent = 'ws://127.0.0.1:1/ws'\n", "--start 'python bot.py' --agent ws://127.0.0.1:1/ws"),
        ("agent = 3", "--start 'python bot.py' --agent ws://127.0.0.1:1/ws"),
    ],
)
def test_the_check_of_the_agent_in_the_repositorys_file_needs_no_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, flags: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "turngap.toml").write_text(file)
    plan = PlanRecord(
        agent="ws://127.0.0.1:1/ws", dialect="twilio", library="x", files=(), rounds=1
    )
    agent = {"url": plan.agent, "start": "python bot.py"}
    step = after_run(a_run(make_turn(), agent=agent, plan=plan, planned_turns=8))
    flags = f"{flags} --dialect twilio " if flags else ""
    assert step == f"keep it from getting slower: turngap check {flags}--save base.json"


def test_a_check_offers_a_workflow_only_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "turngap init writes the workflow" in str(after_check(make_check()))
    workflow = tmp_path / ".github" / "workflows" / "turn-gap.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text("name: turn gap")
    assert "turngap history" in str(after_check(make_check()))


def test_doctor_names_the_agent_of_the_repositorys_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "the built-in agent" in after_doctor(built_in=True)
    assert "--agent ws://HOST:PORT/PATH" in after_doctor(built_in=False)
    (tmp_path / "turngap.toml").write_text("agent = 'ws://127.0.0.1:1/ws'")
    expected = "measure ws://127.0.0.1:1/ws, the agent of turngap.toml: turngap replay"
    assert after_doctor(built_in=True) == expected
