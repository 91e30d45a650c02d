"""Inputs of the action, and the commit that it compares with."""

import json
import re
from pathlib import Path

import pytest
from action_job import Job, git
from command_lines import parse
from gate.inputs import GateError, Inputs
from gate.versions import NO_COMMIT, Repository, base_of
from made_checks import make_check


@pytest.mark.parametrize(
    ("said", "given", "names"),
    [
        ((), {}, ["quick-questions"]),
        (("agent",), {}, ["quick-questions"]),
        (("scenarios",), {}, []),
        (("tag",), {}, []),
        ((), {"GATE_OPTIONS": "--tag pause"}, []),
        (("scenarios",), {"GATE_SCENARIOS": "cough"}, ["cough"]),
    ],
)
def test_what_the_repositorys_file_says_is_not_said_again(
    job: Job, said: tuple[str, ...], given: dict[str, str], names: list[str]
) -> None:
    job.finds(make_check(), 0)
    job.file_says(*said)
    job.measure(**given)
    words = job.asked["words"]
    assert words[1 : words.index("--agent")] == names


def test_budgets_of_the_file_are_enough_and_its_reference_is_left_out(job: Job) -> None:
    job.finds(make_check(reference=None), 0)
    job.file_says("budget", "against")
    assert job.measure(GATE_BASE="none")["verdict"] == "pass"
    words = job.asked["words"]
    assert words[words.index("--against") + 1] == ""
    parse(words)


@pytest.mark.parametrize("said", [(), ("agent",), ("scenarios",)])
def test_without_a_base_and_a_budget_nothing_is_played(job: Job, said: tuple[str, ...]) -> None:
    job.finds(make_check(), 0)
    job.file_says(*said)
    # What only looks like a budget of the repository.
    (job.checkout / "turngap.toml").write_text("[check]\nbudget = { gap = 800 }\n")
    out = job.measure(GATE_BASE="none")
    assert (out["verdict"], out["exit-code"]) == ("failed", "2")
    assert "there is nothing to check" in job.tell(out)[1]
    assert not (job.turngap / "asked.json").exists()


def test_a_file_that_turngap_refuses_is_named(job: Job) -> None:
    job.finds(make_check(), 0)
    refused = {"error": "turngap.toml:3: budgett: unknown key"}
    (job.turngap / "defaults.json").write_text(json.dumps(refused))
    out = job.measure()
    assert out["exit-code"] == "2"
    assert "turngap.toml:3: budgett: unknown key" in job.tell(out)[1]


def test_the_port_may_be_written_in_braces(job: Job) -> None:
    job.finds(make_check(), 0)
    job.measure(GATE_URL="ws://127.0.0.1:${PORT}/ws")
    words = job.asked["words"]
    assert re.fullmatch(r"ws://127\.0\.0\.1:\d+/ws", words[words.index("--agent") + 1])


@pytest.mark.parametrize("kind", ["pull_request_target", "workflow_run"])
@pytest.mark.parametrize(
    "given", [{}, {"BASE": "none", "BUDGETS": "gap=800"}, {"BASELINE": "kept"}]
)
def test_a_fork_never_gets_the_secrets_whatever_is_compared(
    job: Job, kind: str, given: dict[str, str]
) -> None:
    job.finds(make_check(), 0)
    (job.checkout / "kept").write_text("{}")
    inputs = {f"GATE_{name}": value for name, value in given.items()}
    out = job.measure(**inputs, GITHUB_EVENT_NAME=kind)
    assert out["exit-code"] == "2"
    assert "the code of a fork would get your secrets" in job.tell(out)[1]
    assert not (job.turngap / "asked.json").exists()


# Which commit is compared with.


def base(job: Job, asked: str = "", **changes: str) -> str:
    inputs = Inputs.of({**job.env, "GATE_BASE": asked})
    event = json.loads((job.folder / "event.json").read_text())
    found = base_of(inputs, Repository(inputs.folder), event, {**job.env, **changes})
    assert found is not None
    return found.commit


def test_the_base_is_found_and_fetched_for_each_event(job: Job, origin: Path) -> None:
    assert base(job) == job.main
    older = git(origin, "rev-parse", "main~1")
    # Somebody checked another commit out than GitHub's merge.
    assert base(job, GITHUB_SHA="0" * 40) == older
    assert base(job, "change") == job.change
    assert base(job, older) == older
    job.event({"before": older})
    assert base(job, GITHUB_EVENT_NAME="push") == older
    job.event({"before": NO_COMMIT})
    assert base(job, GITHUB_EVENT_NAME="push") == job.main
    job.event({"merge_group": {"base_sha": older, "base_ref": "refs/heads/main"}})
    assert base(job, GITHUB_EVENT_NAME="merge_group") == older


def test_a_base_that_is_here_needs_no_token_to_be_fetched(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    git(job.checkout, "fetch", "-q", "--unshallow", "origin", "+refs/heads/*:refs/remotes/origin/*")
    git(job.checkout, "remote", "set-url", "origin", str(job.folder / "gone"))
    assert base(job) == job.main
    assert base(job, "change") == job.change
    # It may be an old one, so which one it is is told.
    told = f"change cannot be fetched; origin/change is {job.change[:12]} here"
    assert told in capsys.readouterr().out
    out = job.folder / "base-files"
    with Repository(job.checkout / "app").checked_out(job.main, out) as files:
        assert "quick" in (files / "bot.py").read_text()
    assert not out.exists()


def test_a_version_is_not_compared_with_itself(job: Job, origin: Path) -> None:
    git(job.checkout, "fetch", "-q", "origin", "main")
    git(job.checkout, "checkout", "-q", "--detach", job.main)
    with pytest.raises(GateError, match="is the same as the version at hand"):
        base(job, "main", GITHUB_EVENT_NAME="push")
    # Another commit with the same files shows no more.
    git(job.checkout, "commit", "-q", "--allow-empty", "-m", "nothing")
    with pytest.raises(GateError, match="is the same as the version at hand"):
        base(job, "main")
    # On your own machine the files may be changed.
    (job.checkout / "app/bot.py").write_text("")
    assert base(job, "main") == job.main
    with pytest.raises(GateError, match="is the same as the version at hand"):
        base(job, "main", GITHUB_ACTIONS="true")


@pytest.mark.parametrize(
    ("asked", "kind", "why"),
    [
        ("", "workflow_dispatch", "nothing to compare with"),
        ("no-such-branch", "pull_request", "neither here nor can it be fetched"),
        ("f" * 40, "pull_request", "neither here nor can it be fetched"),
        ("--upload-pack=touch owned", "pull_request", "is no branch, tag or commit"),
    ],
)
def test_a_base_that_cannot_be_had_is_refused(job: Job, asked: str, kind: str, why: str) -> None:
    with pytest.raises(GateError, match=why):
        base(job, asked, GITHUB_EVENT_NAME=kind)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("START", "", "start is empty"),
        ("URL", "ws://127.0.0.1:8765/ws", "leaves no room for a port"),
        ("ROUNDS", "many", "rounds 'many'"),
        ("ROUNDS", "0", "rounds '0'"),
        ("ROUNDS", "٣", "rounds"),
        ("MAX_MINUTES", "nan", "max-minutes 'nan'"),
        ("FOLDER", "nowhere", "there is no folder"),
        ("NAME", "../../etc", "letters, digits"),
        ("NAME", "a --> b", "letters, digits"),
        ("TURNGAP", "1.0; rm -rf", "is no version"),
        ("SCENARIOS", "'open", "cannot be split"),
        ("COMMENT", "no", "neither true nor false"),
        ("INCONCLUSIVE", "ignore", "neither fail nor warn"),
    ],
)
def test_wrong_inputs_are_told_in_the_summary_with_exit_code_2(
    job: Job, name: str, value: str, why: str
) -> None:
    with pytest.raises(GateError, match=re.escape(why)):
        Inputs.of({**job.env, f"GATE_{name}": value})
    out = job.measure(**{f"GATE_{name}": value})
    code, summary = job.tell(out)
    assert (out["verdict"], code) == ("failed", 2)
    assert "FAILED" in summary
    assert job.folder / "temp" in Path(out["folder"]).resolve().parents
