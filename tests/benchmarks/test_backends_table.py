"""benchmarks/backends_table.py: who is compared, and what becomes of what was played."""

from pathlib import Path
from typing import Any

import backends_table
import pytest
from backends_table import (
    BEGIN,
    Model,
    chosen,
    collect,
    larger_model,
    main,
    real,
    row,
    simulated,
    table,
)
from fake_agents import FakeAgents, spoil, stand_in
from made_records import make_turn
from pages import END

from turngap.compare.play import ComparePlan
from turngap.core.errors import ExitCode, InputError
from turngap.core.results import AnswerRecord, Turn
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import library_dir

PAGE = Path(__file__).parents[2] / "docs/backends.md"
SERVED = Model("vllm: teacher", "vllm", {"base_url": "http://127.0.0.1:9/v1", "model": "a b"})


class Told(FakeAgents):
    """Agents that say how fast their LLM was, but for the second turn, and are right but there."""

    def turn(self, url: str, scenario: str, number: int, repeat: int, phase: int) -> Turn:
        made = make_turn(scenario=scenario, turn=number, repeat=repeat)
        counts = {"llm_ttft_ms": 120.0, "llm_tokens_per_s": 64.0, "llm_window_tokens": 9.0}
        verdict, failed = ("wrong", ("x",)) if number == 2 else ("right", ())
        answer = AnswerRecord.model_validate({"verdict": verdict, "failed": failed})
        return made.model_copy(update={"answer": answer, "counts": {} if number == 2 else counts})


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.delenv("TURNGAP_VLLM", raising=False)
    fake = Told()
    stand_in(monkeypatch, fake, lambda target: target.choice.backends["llm"] or "")
    return fake


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["backends_table.py", *map(str, arguments)])
    main()


def played(monkeypatch: pytest.MonkeyPatch, out: Path, *arguments: object) -> None:
    names = ("--only", "sim:full", "--only", "student", "--scenario", "quick-questions")
    run_main(monkeypatch, "--out", out, *names, *arguments)


def test_each_contender_is_a_backend_with_settings_that_it_takes() -> None:
    everybody = [*simulated(), *real(SERVED)]
    assert {c.backend for c in everybody} >= {
        "sim:full",
        "small",
        "vllm",
        "race",
        "route",
        "opener",
    }
    plan = ComparePlan(
        choice=AgentChoice(),
        library=library_dir(),
        contenders=everybody,
        scenarios=[],
        most=len(everybody),
    )
    stacks = [target.stack for target in plan.targets()]  # names apart, settings checked
    settings = {c.name: s.llm.settings for c, s in zip(everybody, stacks, strict=True) if s}
    assert settings["vllm: teacher, a connection a request"]["keep_alive"] is False
    both = "student and vllm: teacher"
    assert settings["student"] == settings[f"race: {both}"]["fast_settings"] == {"model": "student"}
    assert settings[f"race: {both}"]["full_settings"] == SERVED.settings
    assert settings[f"best-of: {both}"]["candidate_settings"] == [
        SERVED.settings,
        {"model": "student"},
    ]


def test_in_the_agents_process_there_is_no_connection_to_compare() -> None:
    in_process = Model("teacher", "small", {"model": "teacher"})
    assert [c.backend for c in real(in_process)] == [
        *("small", "small", "race", "route", "opener", "best-of")
    ]


def test_the_larger_model_is_served_while_it_is_played_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    did: list[str] = []

    class FakeServer:
        base_url = "http://127.0.0.1:9/v1"

        def __init__(self, settings: Any, model: str) -> None:
            did.append(f"{settings.command} serves {Path(model).name}")

        def wait_until_healthy(self) -> None:
            did.append("healthy")

        def stop(self) -> None:
            did.append("stopped")

    monkeypatch.setattr(backends_table, "Server", FakeServer)
    with pytest.raises(KeyboardInterrupt), larger_model("py") as larger:
        assert larger is not None
        assert larger.settings["base_url"] == FakeServer.base_url
        did.append("played")
        raise KeyboardInterrupt
    assert did == ["py serves teacher", "healthy", "played", "stopped"]
    with larger_model(None) as larger:
        assert larger == Model("teacher", "small", {"model": "teacher"})


def test_pieces_add_up_to_a_table_between_the_marks_of_a_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, agents: Told
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n", encoding="utf-8")
    played(monkeypatch, tmp_path / "runs", "--rounds", 7)
    assert [url for url, *_ in agents.played[:4]] == ["sim:full", "small", "small", "sim:full"]
    played(monkeypatch, tmp_path / "runs", "--rounds", 1, "--write", page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n\n{BEGIN}\n\n| LLM backend |")
    assert text.endswith(f"\n\n{END}\n\nafter\n")
    assert "old" not in text
    # 7 rounds and one of three turns; two of the three say how fast the model was.
    cells = (
        "| 24 (3 different) | 398 | 398 | 0/24 (0% to 56%) | 398 | 24/24 (44% to 100%) "
        "| 120 (n=16) | 64 | 9 | 16/24 (21% to 94%) |"
    )
    for name in ("sim:full", "student"):
        assert f"| `{name}` {cells}" in text
    assert "8 rounds in 2 pieces" in text
    assert "says little" in text
    run_main(monkeypatch, "--out", tmp_path / "runs", "--table", "--write", page)
    assert page.read_text(encoding="utf-8") == text


def test_an_agent_that_waits_has_its_gap_beside_the_other_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, agents: Told
) -> None:
    speculates: list[bool] = []
    of = ComparePlan.targets

    def targets(plan: ComparePlan) -> list[Target]:
        found = of(plan)
        speculates.extend(t.stack.turn.settings.get("speculate", True) for t in found if t.stack)
        return found

    monkeypatch.setattr(ComparePlan, "targets", targets)
    played(monkeypatch, tmp_path, "--rounds", 7)
    played(monkeypatch, tmp_path, "--waiting", "--rounds", 4)
    assert speculates == [True, True, False, False]
    text = table(collect(tmp_path))
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split(" | ")[0] for row in rows] == ["| `sim:full`", "| `student`"]
    assert all("| 21 (3 different) | 398 |" in row for row in rows)
    waiting = "| 12 (3 different) | 398 | – (n=12, needs 20) | 0/12 (0% to 56%) | 398 |"
    assert all(row.endswith(waiting) for row in rows)
    assert "not all of them" not in text


def test_what_is_invalid_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, agents: Told
) -> None:
    played(monkeypatch, tmp_path)
    (file,) = tmp_path.glob("*/compare.json")
    record = collect(tmp_path).records[0]
    bad = record.backends[1].model_copy(update={"valid": False, "why_invalid": "caller starved"})
    changed = record.model_copy(update={"backends": (record.backends[0], bad)})
    file.write_text(changed.model_dump_json(), encoding="utf-8")
    text = table(collect(tmp_path))
    assert "- left out as invalid: `student`, 3 turns: caller starved" in text
    assert "| `student` | 0 | – (n=0, needs 5) |" in text
    assert "not all of them played the same turns" in text


def test_a_row_without_figures_of_the_model_has_none() -> None:
    cells = row("x", [make_turn(turn=n) for n in range(1, 21)])
    assert cells[7:10] == ("–", "–", "–")


def test_pieces_of_several_machines_are_no_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, agents: Told
) -> None:
    played(monkeypatch, tmp_path)
    played(monkeypatch, tmp_path)
    file, _ = tmp_path.glob("*/compare.json")
    machine = collect(tmp_path).records[0].machine.model_dump() | {"fingerprint": "another"}
    spoil(file, machine=machine)
    with pytest.raises(InputError, match="several machines"):
        collect(tmp_path)


def test_bad_input_is_one_line_that_says_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    agents: Told,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(InputError, match="no backend 'sim:fll' here") as e:
        chosen(simulated(), ["sim:fll"])
    assert "sim:full-low-batch" in e.value.hint
    with pytest.raises(SystemExit) as ended:
        run_main(monkeypatch, "--table", "--out", tmp_path)
    assert ended.value.code == ExitCode.BAD_INPUT
    said = f"backends_table: nothing was played in {tmp_path} (leave out --table)\n"
    assert capsys.readouterr() == ("", said)
    played(monkeypatch, tmp_path)
    page = tmp_path / "page.md"
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(SystemExit, match="nothing was written"):
        run_main(monkeypatch, "--table", "--out", tmp_path, "--write", page)
    assert page.read_text(encoding="utf-8") == "no marks"


def test_the_page_has_the_marks() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert END in text.partition(BEGIN)[2]
