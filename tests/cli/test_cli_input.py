"""Bad input: one clear line, the right exit code, nothing played, nothing stored."""

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import ROOT, SCENARIOS, turngap_here
from made_records import make_record, make_turn

from turngap.core.errors import InputError
from turngap.fleet.files import build_fleet, read_fleet
from turngap.scenario.model import library_for
from turngap.store.writer import RunWriter

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    copy = tmp_path / "library"
    copy.mkdir()
    shutil.copy(SCENARIOS / "quick-questions.yaml", copy)
    shutil.copytree(SCENARIOS / "quick-questions", copy / "quick-questions")
    return copy


def wrong_key(text: str) -> str:
    return text.replace("turns:", "trunes: 1\nturns:", 1)


def missing_file(text: str) -> str:
    return text.replace("quick-questions/1.flac", "quick-questions/99.flac", 1)


def outside(text: str) -> str:
    return text.replace("quick-questions/1.flac", "../secret.wav", 1)


def zero_turns(text: str) -> str:
    return text[: text.index("turns:")] + "turns: []\n"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (wrong_key, "unknown key; allowed here: name, about, topic, tags, voices, voice, turns"),
        (missing_file, "no such recording"),
        (outside, "inside the scenario's folder"),
        (zero_turns, "turns"),
    ],
)
def test_a_bad_scenario_is_refused_before_anything_is_played(
    library: Path, tmp_path: Path, spoil: Callable[[str], str], says: str, capsys: Capsys
) -> None:
    file = library / "quick-questions.yaml"
    file.write_text(spoil(file.read_text(encoding="utf-8")), encoding="utf-8")
    done = turngap_here(capsys, "replay", library, "--out", tmp_path / "runs")
    assert done.code == 2
    assert "quick-questions.yaml:" in done.err
    assert says in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["replay", "no-such-scenario"], 2, "known: coffee-order"),
        (["replay", "cofee-order"], 2, "did you mean coffee-order?\n"),
        (["replay", "cofee-order"], 2, " more; `turngap scenarios` lists all"),
        (["replay", "--agent", "nobody"], 2, "no agent named 'nobody'"),
        (["replay", "--agent", "embeded"], 2, "did you mean embedded?"),
        (["replay", "--llm", "simm"], 2, "did you mean sim?"),
        (["replay", "--llm", "openai,model=x"], 2, "--set llm=openai --set llm.model=x"),
        (["replay", "README.md"], 2, "README.md is a file and no scenario"),
        (["turns", "--vary", "stt=a,b"], 2, "stt is an engine"),
        (["turns", "--vary", "turn.hold_ms=1"], 2, "1 value for turn.hold_ms"),
        (["replay", "--llm", "nobody"], 2, "no llm backend named 'nobody'"),
        (["replay", "--set", "llm.nonsense=1"], 2, "allowed:"),
        (["replay", "--set", "nonsense"], 2, "TABLE.KEY=VALUE"),
        (["replay", "--set", "stt=nobody"], 2, "no stt backend named 'nobody'"),
        (["replay", "--set", "tts=espeek"], 2, "did you mean espeak?"),
        (["replay", "--set", "seed=often"], 2, "expected a whole number"),
        (["replay", "--set", "marks=0"], 2, "expected true or false"),
        (["replay", "--agent", "ws://127.0.0.1:9/ws", "--llm", "sim"], 2, "running agent"),
        (["replay", "--agent", "ws://127.0.0.1:9/ws", "--set", "marks=false"], 2, "running agent"),
        (["replay", "--agent", "ftp://127.0.0.1:9/"], 2, "not a WebSocket URL"),
        (
            ["replay", "--agent", "https://a.example/ws", "--dialect", "twilio"],
            2,
            "did you mean wss://a.example/ws?",
        ),
        (["replay", "--agent", "127.0.0.1:9/ws"], 2, "did you mean ws://127.0.0.1:9/ws?"),
        (["replay", "--agent", "ws://127.0.0.1:9/", "--dialect", "klingon"], 2, "no dialect"),
        (["replay", "--dialect", "twilio"], 2, "embedded is not a URL"),
        (["replay", "--agent", "ws://127.0.0.1:9/", "--header", "x"], 2, "no HTTP header"),
        (["replay", "--agent", "ws://h/${NOT_SET_ANYWHERE}"], 2, "NOT_SET_ANYWHERE is not set"),
        (["replay", "--repeat", "0"], 2, "--repeat"),
        (["replay", "--tag", "no-such-tag"], 2, "no-such-tag"),
        (["report", "no-such-run"], 2, "no-such-run"),
        (["label", "no-such-file.yaml"], 2, "no-such-file.yaml"),
        (["serve", "--log-level", "loud"], 2, "known: TRACE"),
    ],
)
def test_a_bad_flag_says_what_is_allowed(
    tmp_path: Path, arguments: list[str], code: int, says: str, capsys: Capsys
) -> None:
    extra = ["--out", str(tmp_path)] if arguments[0] == "replay" else []
    done = turngap_here(capsys, *arguments, *extra)
    assert done.code == code, done.err
    assert says in done.err + done.out


def test_the_library_that_ships_is_named_without_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    done = turngap_here(capsys, "replay", "cofee-order")
    assert "no scenario 'cofee-order' in the library that ships" in done.err
    assert "Traceback" not in done.err


def test_a_scenario_from_elsewhere_is_played_with_its_own_library(
    library: Path, capsys: Capsys
) -> None:
    file = library / "quick-questions.yaml"
    done = turngap_here(capsys, "replay", file, "coffee-order")
    assert done.code == 2
    assert "lies outside the library" in done.err
    assert library_for([str(file)]) == library


def test_an_error_is_a_json_document_where_json_was_asked_for(capsys: Capsys) -> None:
    done = turngap_here(capsys, "replay", "no-such-scenario", "--json")
    assert done.code == 2
    assert done.document()["error"]["kind"] == "library.unknown"


def test_a_port_in_use_is_one_line_and_exit_code_4(capsys: Capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = turngap_here(capsys, "serve", "--port", str(port))
    assert done.code == 4
    assert f"cannot listen on 127.0.0.1:{port}" in done.err
    assert "Traceback" not in done.err


def test_backends_and_scenarios_are_listed_as_json(capsys: Capsys) -> None:
    kinds = {
        (row["kind"], row["name"]) for row in turngap_here(capsys, "backends", "--json").document()
    }
    assert {("stt", "pocketsphinx"), ("llm", "sim"), ("tts", "espeak"), ("turn", "vad")} <= kinds
    names = {row["name"] for row in turngap_here(capsys, "scenarios", "--json").document()}
    assert "coffee-order" in names


def test_a_folder_without_scenarios_says_so(tmp_path: Path, capsys: Capsys) -> None:
    for command in (("scenarios",), ("replay",)):
        done = turngap_here(capsys, *command, tmp_path)
        assert (done.code, done.out) == (2, "")
        assert f"no scenario in {tmp_path}: no *.yaml file" in done.err
        assert "docs/scenarios.md" in done.err


def test_a_picture_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: Capsys) -> None:
    record = make_record()
    with RunWriter.create(tmp_path, "x", record) as writer:
        writer.append_turn(make_turn())
        writer.finish(record)
    picture = tmp_path / "nowhere" / "out.svg"
    done = turngap_here(capsys, "report", writer.path, "--svg", picture)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines() == [f"error: cannot write {picture}: No such file or directory"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.yaml", "none.yaml: cannot be read: No such file or directory"),
        ("", "cannot be read: Is a directory"),
        ("1.flac", "1.flac: not a text file"),
    ],
)
def test_what_is_no_scenario_is_not_labelled(
    library: Path, name: str, says: str, capsys: Capsys
) -> None:
    done = turngap_here(capsys, "label", library / "quick-questions" / name)
    assert done.code == 2
    first, hint = done.err.splitlines()
    assert first.endswith(says)
    assert hint == "  give a scenario's .yaml file, which names its recordings"


def test_the_fleet_file_of_the_docs_describes_a_fleet(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    file = tmp_path / "fleet.toml"
    file.write_text(guide.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    (pool,) = build_fleet(read_fleet(file), context=1000).pools
    assert (pool.replicas, pool.server.parts) == (3, 2)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hardware = {name = 'x'}", ["hardware memory_gb: missing", "hardware tflops: missing"]),
        ("hardware = 3", ["hardware: expected a valid string"]),
        ("model = {layers = 2.5}", ["model heads: missing", "model layers: expected a valid int"]),
        ("speculation = 3", ["speculation: expected a dictionary"]),
        ("weights = 'fp3'", ["weights: expected 'bf16', 'fp16'"]),
    ],
)  # fmt: skip
def test_a_fleet_file_is_told_what_is_wrong_with_what_it_says_and_no_more(
    tmp_path: Path, line: str, says: list[str]
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(f"[[pool]]\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError) as e:
        read_fleet(file)
    for expected in says:
        assert f"{file}: pool 1 {expected}" in e.value.message
    assert "Accelerator" not in e.value.message
    assert "Model" not in e.value.message
    assert " str: " not in e.value.message
