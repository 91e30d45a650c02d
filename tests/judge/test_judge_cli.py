"""`turngap judge` as its user runs it."""

from pathlib import Path

import pytest
from commandline import SCENARIOS, turngap_here
from made_records import make_record, make_turn

from turngap.judge import PROMPT
from turngap.scenario.library import load_scenario
from turngap.store.runs import read_run
from turngap.store.writer import RunWriter

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one turn of which no sound was kept."""
    played = load_scenario(SCENARIOS / "coffee-order.yaml").content_hash()
    record = make_record(scenario_hashes={"coffee-order": played})
    with RunWriter.create(tmp_path, "x", record) as writer:
        writer.append_turn(make_turn(audio=None))
        writer.finish(record)
    return writer.path


def test_the_prompt_of_the_judge_is_shown(capsys: Capsys) -> None:
    done = turngap_here(capsys, "judge", "--show-judge-prompt")
    assert (done.code, done.out) == (0, PROMPT + "\n")


def test_without_anything_to_judge_with_it_says_what_there_is(capsys: Capsys, run: Path) -> None:
    done = turngap_here(capsys, "judge", run)
    assert done.code == 2
    assert "nothing to judge with" in done.err


def test_a_run_without_sound_is_not_judged_and_says_so(capsys: Capsys, run: Path) -> None:
    arguments = ("judge", run, "--transcribe", "pocketsphinx", "--scenarios", SCENARIOS)
    done = turngap_here(capsys, *arguments, "--json")
    assert done.code == 0
    (turn,) = done.document()["turns"]
    assert turn["transcribed"]["why"] == "no sound of it was recorded"
    assert done.document()["summary"]["transcribed"]["n"] == 0
    stored = read_run(run)
    assert stored.record.transcribed_with is not None
    assert (run / "report.html").exists()
    text = " ".join(turngap_here(capsys, *arguments).out.split())
    assert "by sound – pocketsphinx, closed domain; 1 not judged" in text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--transcribe", "nobody"), "no stt backend named 'nobody'"),
        (("--transcribe", ""), "'' is no [LABEL=]BACKEND"),
        (("--llm", ""), "'' is no [LABEL=]BACKEND"),
        (("--llm", "openai,model"), "'model' is no KEY=VALUE"),
        (("--llm", "sim"), "llm backend 'sim' can give no verdict on an answer"),
        (("--llm", "sim:full"), "those that can: anthropic, cerebras, groq, openai, vllm;"),
        (("--llm", "race"), "llm backend 'race' can give no verdict on an answer"),
    ],
)
def test_bad_input_is_one_line(
    capsys: Capsys, run: Path, flags: tuple[str, ...], told: str
) -> None:
    done = turngap_here(capsys, "judge", run, *flags, "--scenarios", SCENARIOS)
    assert done.code == 2
    assert told in done.err
    assert done.out == ""


def test_a_run_that_is_not_there_is_said(capsys: Capsys) -> None:
    done = turngap_here(capsys, "judge", "runs/none", "--transcribe", "pocketsphinx")
    assert done.code == 2
    assert "no run 'runs/none'" in done.err
