"""The steps of action.yml, with a stand-in for turngap and for GitHub."""

import json
import re
import shutil
from pathlib import Path

import pytest
from action_job import Job, git
from command_lines import parse
from fake_github import TOKEN
from gate import measure as measuring
from gate.github import PullRequest
from made_checks import make_check, regressed_check, undecided_check


def test_both_versions_are_started_in_their_own_folder_environment_and_port(job: Job) -> None:
    job.finds(make_check(), 0)
    out = job.measure()
    new, old = job.asked["--start"], job.asked["--start-against"]
    assert (new[0], old[0]) == ("slow", "quick")
    words = job.asked["words"]
    for side, (_, port, venv) in (("--agent", new), ("--against", old)):
        assert words[words.index(side) + 1] == f"ws://127.0.0.1:{port}/ws"
        assert venv.endswith("/venv")
    assert new[1:] != old[1:]
    assert new[2] != old[2]
    parse(words)
    assert out["verdict"] == "pass"
    assert out["exit-code"] == "0"
    # The base is the first parent of the merge, not what main was when the event was sent.
    state = json.loads((Path(out["folder"]) / "gate.json").read_text())
    assert (state["base"], state["base_name"]) == (job.main, "main")
    assert not list((job.folder / "temp/turngap").glob("*-work"))
    assert git(job.checkout, "worktree", "list").count("\n") == 0


def test_a_regression_fails_the_job_and_is_told_in_one_comment(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(130):
        job.github.add(f"comment {n}", {"login": "somebody", "type": "User"})
    job.finds(regressed_check(), 1)
    for round_ in (1, 2):
        out = job.measure()
        code, summary = job.tell(out)
        assert code == 1
        assert "## turngap check: ✗ REGRESSED" in summary
        (comment,) = job.github.comments[130:]
        body = comment["body"]
        assert body.startswith("<!-- turngap: turngap -->\n## turngap check: ✗ REGRESSED\n")
        assert (
            f"Commit {job.change[:12]}, merged into main, against main ({job.main[:12]})." in body
        )
        assert "(https://example.invalid/artifacts/7)" in body
        assert "41 ms slower" in body
        assert body.count("B, the candidate") == 3
        assert sum(a.startswith("POST") for a in job.github.asked) == 1
        assert sum(a.startswith("PATCH") for a in job.github.asked) == round_ - 1
    job.finds(make_check(), 0)
    assert job.tell(job.measure())[0] == 0
    assert len(job.github.comments) == 131
    assert "✓ PASS" in job.github.comments[130]["body"]
    shown = capsys.readouterr().out
    assert "::error title=turngap%3A regressed::The typical turn is 41 ms slower" in shown


def test_what_was_not_merged_is_not_called_so(job: Job) -> None:
    job.finds(make_check(), 0)
    job.env["GITHUB_SHA"] = "0" * 40  # somebody checked another commit out
    summary = job.tell(job.measure())[1]
    assert f"Commit {job.head[:12]} against main (" in summary


def test_two_gates_in_a_workflow_have_a_comment_each(job: Job) -> None:
    job.finds(make_check(), 0)
    for name in ("desk", "phone", "desk"):
        job.tell(job.measure(GATE_NAME=name), GATE_NAME=name)
    bodies = [comment["body"] for comment in job.github.comments]
    assert [re.findall(r"turngap: (\w+) -->", body) for body in bodies] == [["desk"], ["phone"]]
    assert "**phone**: Commit" in bodies[1]


def test_a_comment_that_somebody_else_marked_as_ours_is_left_alone(job: Job) -> None:
    forged = job.github.add("<!-- turngap: turngap -->\nPASS", {"login": "x", "type": "User"})
    job.finds(regressed_check(), 1)
    job.tell(job.measure())
    assert forged["body"].endswith("PASS")
    assert "REGRESSED" in job.github.comments[1]["body"]


@pytest.mark.parametrize(("refuses", "token"), [(403, TOKEN), (None, ""), (None, "another")])
def test_a_fork_gets_its_summary_and_verdict_without_a_comment(
    job: Job, refuses: int | None, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job.github.refuses = refuses
    job.finds(make_check(), 0)
    code, summary = job.tell(job.measure(), GATE_TOKEN=token)
    assert code == 0
    assert "✓ PASS" in summary
    assert job.github.comments == []
    assert "::notice title=turngap%3A no comment::" in capsys.readouterr().out


def test_no_comment_where_none_is_wanted_or_there_is_no_pull_request(job: Job) -> None:
    job.finds(make_check(), 0)
    job.tell(job.measure(), GATE_COMMENT="false")
    job.event({"before": job.main})
    push = {"GITHUB_EVENT_NAME": "push"}
    job.tell(job.measure(**push), **push)
    assert job.github.asked == []


def test_what_is_inconclusive_fails_unless_it_is_only_to_warn(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.finds(undecided_check(), 3)
    out = job.measure()
    assert (out["verdict"], out["exit-code"]) == ("undecided", "3")
    assert job.tell(out)[0] == 3
    assert job.tell(out, GATE_INCONCLUSIVE="warn")[0] == 0
    assert "::warning title=turngap%3A undecided::" in capsys.readouterr().out


def test_a_version_that_cannot_be_installed_fails_the_job_with_its_name(job: Job) -> None:
    job.finds(make_check(), 0)
    out = job.measure(GATE_INSTALL="grep -q slow bot.py")
    assert (out["verdict"], out["exit-code"]) == ("failed", "4")
    code, summary = job.tell(out)
    assert code == 4
    assert "the base version could not be installed" in summary
    assert "## turngap: FAILED" in job.github.comments[0]["body"]


def test_a_check_that_leaves_nothing_fails_the_job(job: Job) -> None:
    (job.turngap / "code").write_text("2")
    out = job.measure()
    assert (out["verdict"], out["exit-code"]) == ("failed", "2")
    assert job.tell(out)[0] == 2
    assert job.tell({"folder": str(job.folder / "nothing")})[0] == 4


def test_what_an_agent_says_is_no_command_for_the_runner(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.finds(make_check(), 0)
    job.measure()
    shown = capsys.readouterr().out
    token = re.findall(r"^::stop-commands::(\w{32})$", shown, re.MULTILINE)[-1]
    assert shown.index(token) < shown.index("::set-env name=OWNED") < shown.rindex(f"::{token}::")


def test_no_step_that_runs_the_bot_can_tell_the_runner_anything(job: Job) -> None:
    job.finds(make_check(), 0)
    install = 'test -z "${GITHUB_OUTPUT-}${GITHUB_ENV-}${GITHUB_PATH-}"'
    assert job.measure(GATE_INSTALL=install)["verdict"] == "pass"


def test_a_push_keeps_what_passed_and_pull_requests_are_compared_with_it(job: Job) -> None:
    job.finds(make_check(), 0)
    (job.turngap / "saves").write_text("what passed")
    baseline = job.folder / "kept" / "main.json"
    given = {"GATE_BASELINE": str(baseline), "GATE_ROUNDS": "9"}
    # None is there yet: the base version is started.
    job.measure(**given)
    assert "--against" in job.asked["words"]
    assert not baseline.exists()
    pull_request = (job.folder / "event.json").read_text()
    push = {"before": job.main, "repository": {"default_branch": "main"}}
    job.event(push)
    # Nobody merged what another branch has.
    job.measure(**given, GITHUB_EVENT_NAME="push", GITHUB_REF="refs/heads/change")
    assert not baseline.exists()
    pushed = {"GITHUB_EVENT_NAME": "push", "GITHUB_REF": "refs/heads/main"}
    job.measure(**given, **pushed)
    assert "--against" in job.asked["words"]
    assert baseline.read_text() == "what passed"
    (job.folder / "event.json").write_text(pull_request)
    out = job.measure(**given)
    words = job.asked["words"]
    assert words[words.index("--baseline") + 1] == str(baseline)
    assert "--against" not in words
    assert words[words.index("--rounds") + 1] == "18"
    assert "against the baseline" in job.tell(out)[1]


def test_budgets_alone_start_one_version(job: Job) -> None:
    job.finds(make_check(reference=None), 0)
    out = job.measure(GATE_BASE="none", GATE_BUDGETS="gap=800 llm_first_token=450")
    words = job.asked["words"]
    assert "--start-against" not in words
    assert [words[i + 1] for i, w in enumerate(words) if w == "--budget"] == [
        "gap=800",
        "llm_first_token=450",
    ]
    assert out["verdict"] == "pass"


def test_a_baseline_that_cannot_be_kept_loses_no_measurement(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job.finds(make_check(), 0)
    (job.turngap / "saves").write_text("what passed")
    (job.folder / "a-file").write_text("")
    job.event({"before": job.main, "repository": {"default_branch": "main"}})
    pushed = {"GITHUB_EVENT_NAME": "push", "GITHUB_REF": "refs/heads/main"}
    out = job.measure(**pushed, GATE_BASELINE=str(job.folder / "a-file/main.json"))
    assert out["verdict"] == "pass"
    assert "::warning title=turngap%3A the baseline could not be kept" in capsys.readouterr().out
    assert "✓ PASS" in job.tell(out)[1]


def test_a_machine_that_gives_up_leaves_what_was_measured_to_be_found(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measuring, "free_ports", full)
    out = job.measure()
    assert (out["verdict"], out["exit-code"]) == ("failed", "4")
    code, summary = job.tell(out)
    assert code == 4
    assert "No space left on device" in summary


def test_the_folder_is_told_before_anything_is_measured(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "free_ports", killed)
    with pytest.raises(KeyboardInterrupt):
        job.measure()
    out = {"folder": str(job.folder / "temp/turngap/turngap")}
    assert out["folder"] in (job.folder / "output").read_text()
    assert job.tell(out)[0] == 4


@pytest.mark.parametrize("verdict", ["cannot_compare", "undecided", "regressed"])
def test_only_a_pass_is_green_whatever_turngap_ends_with(job: Job, verdict: str) -> None:
    job.finds(make_check(verdict=verdict), 0)
    out = job.measure()
    assert (out["verdict"], out["exit-code"]) == (verdict, "3")
    assert job.tell(out)[0] == 3
    state = Path(out["folder"]) / "gate.json"
    state.write_text(state.read_text().replace('"exit_code": 3', '"exit_code": 0'))
    assert job.tell(out)[0] == 3


def test_what_the_repository_calls_a_result_is_none(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.finds(make_check(), 0)
    left = job.measure()
    shutil.copytree(left["folder"], job.checkout, dirs_exist_ok=True)
    monkeypatch.chdir(job.checkout)
    code, summary = job.tell({"folder": ""})
    assert code == 4
    assert "FAILED" in summary
    assert "FAILED" in job.github.comments[0]["body"]


@pytest.mark.parametrize("check", ["..", "../elsewhere", "/etc", ".hidden", "a\nb", 7, None])
def test_a_result_names_a_folder_beside_it_and_no_other(job: Job, check: object) -> None:
    job.finds(make_check(), 0)
    out = job.measure()
    state = Path(out["folder"]) / "gate.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "check": check}))
    assert job.tell(out)[0] == 4


@pytest.mark.parametrize("part", ["<details>\n<summary>More</summary>\n\n", "", "a line\n"])
def test_a_long_comment_is_cut_and_found_again(job: Job, part: str) -> None:
    pull_request = PullRequest(job.github.url, "you/bot", 12, TOKEN)
    for text in ("first", "second"):
        pull_request.comment("<!-- ours -->", f"## {text}\n" + (part + "x" * 90) * 900)
    (comment,) = job.github.comments
    assert comment["body"].startswith("<!-- ours -->\n## second\n")
    assert comment["body"].endswith("\n\nThe rest is in the job's summary.\n")
    assert 50 < len(comment["body"]) < 65_536
    if "<details>" in part:
        assert comment["body"].count("<details>") == comment["body"].count("x" * 90)
