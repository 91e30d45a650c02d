"""A judge model's verdicts in a comparison: asked for, in a column of their own, never mixed in."""

from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS, Finished, turngap_here
from fake_agents import FakeAgents, stand_in
from fake_openai import FakeOpenAI, serving
from made_records import make_turn

from turngap.compare.report import MARKDOWN_FILE, read_comparison
from turngap.core.results import Turn
from turngap.core.stored import AnswerRecord
from turngap.store.runs import read_run

Capsys = pytest.CaptureFixture[str]
GOOD, QUICK = "sim:full", "sim:distilled"
TEXT = {".json", ".jsonl", ".md", ".html"}
SAID = "right by the judge alone 1, by the rules 0"


class Heard(FakeAgents):
    """Agents whose words are known; the quick one's third answer is wrong by the rules."""

    def turn(self, url: str, scenario: str, number: int, repeat: int, phase: int) -> Turn:
        wrong = url == QUICK and number == 3
        answer = AnswerRecord(
            verdict="wrong" if wrong else "right", heard="It may.", failed=("x",) * wrong
        )
        return make_turn(scenario=scenario, turn=number, repeat=repeat, answer=answer)


@pytest.fixture(autouse=True)
def agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    stand_in(monkeypatch, Heard(), lambda target: target.choice.backends["llm"] or "")


def compared(capsys: Capsys, out: Path, *flags: str) -> Finished:
    backends = ("--llm", GOOD, "--llm", QUICK, "--out", out)
    return turngap_here(capsys, "compare", "quick-questions", *backends, *flags)


def model(server: FakeOpenAI) -> str:
    return f"openai,base_url={server.base_url},model=m"


def judge(whole: str = "RIGHT\nIt says so.", **does: Any) -> FakeOpenAI:
    return FakeOpenAI(key="the key", whole=whole, **does)


def without_judge(document: dict[str, Any]) -> dict[str, Any]:
    """Return the figures that must be the same whether or not a judge was asked."""
    kept = {key: document[key] for key in ("pairs", "chain", "crossings")}
    shares = [(b["correct"], b["price"], b["hit_rate"]) for b in document["backends"]]
    return kept | {"shares": shares}


def test_a_judge_has_a_column_of_its_own_and_says_where_it_and_the_rules_disagree(
    capsys: Capsys, tmp_path: Path
) -> None:
    plain = compared(capsys, tmp_path, "--json").document()
    assert plain["judged_with"] is None
    assert {backend["judged"] for backend in plain["backends"]} == {None}
    with serving(judge()) as server:
        done = compared(capsys, tmp_path, "--json", "--judge", model(server))
    assert done.code == 0
    document = done.document()
    assert without_judge(document) == without_judge(plain)
    good, quick = (backend["judged"] for backend in document["backends"])
    assert (quick["right"]["hits"], quick["right"]["n"], quick["both"]) == (3, 3, 3)
    assert (quick["alone"], quick["rule_alone"], good["alone"]) == (1, 0, 0)
    assert document["judged_with"]["backend"] == "openai"
    folder = Path(document["path"])
    assert "the key" not in "".join(
        file.read_text("utf-8") for file in folder.rglob("*") if file.suffix in TEXT
    )
    assert all(t.judged for b in (GOOD, QUICK) for t in of_backend(folder, b))
    page = (folder / MARKDOWN_FILE).read_text("utf-8")
    assert "| right by the rules | right by judge openai m |" in page
    assert f"sim:distilled (simulated): judge and rules disagree in 1 of 3 turns ({SAID})" in page
    assert "sim:full (simulated): judge and rules disagree in 0 of 3 turns\n" in page
    assert "right by judge openai m" in (folder / "report.html").read_text("utf-8")


def of_backend(folder: Path, name: str) -> tuple[Turn, ...]:
    (run,) = (b.run for b in read_comparison(folder).backends if b.name == name)
    return read_run(folder / run).turns


def test_a_stored_comparison_is_judged_and_printed_again(capsys: Capsys, tmp_path: Path) -> None:
    folder = compared(capsys, tmp_path, "--json").document()["path"]
    assert "judge" not in turngap_here(capsys, "report", folder).out
    with serving(judge("WRONG\nIt does not.")) as server:
        asked = ("judge", folder, "--llm", model(server), "--scenarios", SCENARIOS)
        text = " ".join(turngap_here(capsys, *asked).out.split())
    assert "right by judge openai m 0 % (no interval) of 3 0 % (no interval) of 3" in text
    assert "disagree in 3 of 3 turns (right by the judge alone 0, by the rules 3)" in text
    for page in (MARKDOWN_FILE, "report.html"):
        assert "right by judge openai m" in Path(folder, page).read_text("utf-8")
    assert " ".join(turngap_here(capsys, "report", folder).out.split()) in text


def test_a_judge_out_of_reach_leaves_the_comparison_and_says_how_to_ask_again(
    capsys: Capsys, tmp_path: Path
) -> None:
    with serving(judge()) as server:
        gone = model(server)
    done = compared(capsys, tmp_path, "--judge", gone)
    assert done.code == 4
    assert "right answers" in done.out
    (folder,) = tmp_path.iterdir()
    assert f"not judged; turngap judge {folder} --llm LLM asks again" in done.err
    assert read_comparison(folder).judged_with is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--judge", "nobody"), "no llm backend named 'nobody'"),
        (("--judge", ""), "'' is no [LABEL=]BACKEND"),
        (("--judge", "openai,model"), "'model' is no KEY=VALUE"),
        (("--judge", "small"), "llm backend 'small' can give no verdict on an answer"),
    ],
)
def test_a_judge_that_is_none_is_refused_before_anything_is_played(
    capsys: Capsys, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    done = compared(capsys, tmp_path, *flags)
    assert done.code == 2
    assert said in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_has_no_sound_of_one_agent(capsys: Capsys, tmp_path: Path) -> None:
    folder = compared(capsys, tmp_path, "--json").document()["path"]
    done = turngap_here(
        capsys, "judge", folder, "--transcribe", "pocketsphinx", "--scenarios", SCENARIOS
    )
    assert done.code == 2
    assert "is a comparison, which a model judges (--llm), not a recogniser" in done.err
