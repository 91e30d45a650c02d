"""The steps of action.yml, with a stand-in for turngap and for GitHub."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import parse
from fake_github import TOKEN, FakeGitHub, served
from gate import measure as measuring
from gate import versions
from gate.inputs import GateError, Inputs
from gate.measure import measure
from gate.report import tell
from gate.versions import NO_COMMIT, Repository, base_of
from made_checks import make_check, make_side, make_turns, regressed_check, store, undecided_check

from turngap.check.files import write_reports
from turngap.check.record import CHECK_FILE, CheckRecord
from turngap.store.documents import write_document

# Says what it was asked, starts both versions as turngap does, and leaves a check behind.
TURNGAP = f"""#!{sys.executable}
import json, pathlib, shlex, shutil, subprocess, sys
here = pathlib.Path(__file__).parents[1]
words = sys.argv[1:]
said = {{"words": words}}
for name in ("--start", "--start-against"):
    if name in words:
        start = shlex.split(words[words.index(name) + 1])
        said[name] = subprocess.run(start, capture_output=True, text=True).stdout.splitlines()
(here / "asked.json").write_text(json.dumps(said))
out = pathlib.Path(words[words.index("--out") + 1])
if (here / "check").is_dir():
    shutil.copytree(here / "check", out / "20261123T100000Z-check")
if (here / "saves").is_file():
    shutil.copy(here / "saves", words[words.index("--save") + 1])
print("::set-env name=OWNED::by what an agent said")
sys.exit(int((here / "code").read_text()))
"""
BOT = 'import os; print("{}"); print(os.environ["PORT"]); print(os.environ["VIRTUAL_ENV"])'


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=you", "-c", "user.email=you@example.invalid"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a bot, a pull request that changes it, and GitHub's merge of both."""
    folder = tmp_path_factory.mktemp("origin") / "bot"
    (folder / "app").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for branch, version in (("main", "quick"), ("change", "slow")):
        if branch == "change":
            git(folder, "checkout", "-q", "-b", branch)
        (folder / "app/bot.py").write_text(BOT.format(version))
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", version)
    git(folder, "checkout", "-q", "main")
    (folder / "unrelated").write_text("main went on")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "main went on")
    git(folder, "checkout", "-q", "-b", "merge")
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "change")
    return folder


@pytest.fixture
def job(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Job"]:
    def bare_venv(folder: Path) -> Path:
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/python").symlink_to(sys.executable)
        return folder

    monkeypatch.setattr(versions, "made_venv", bare_venv)
    with served() as github:
        job = Job(origin, tmp_path, github)
        monkeypatch.setattr(measuring, "installed_turngap", lambda *_: job.turngap / "bin/turngap")
        yield job


class Job:
    """A job of a workflow on a pull request, with the variables and files that GitHub gives it."""

    def __init__(self, origin: Path, folder: Path, github: FakeGitHub) -> None:
        self.folder, self.github = folder, github
        self.turngap = folder / "turngap"
        (self.turngap / "bin").mkdir(parents=True)
        (self.turngap / "bin/turngap").write_text(TURNGAP)
        (self.turngap / "bin/turngap").chmod(0o755)
        self.checkout = folder / "checkout"
        # As actions/checkout does: the merge alone, without its history.
        git(folder, "clone", "-q", "--depth=1", "-b", "merge", f"file://{origin}", "checkout")
        self.head, self.change = (
            git(self.checkout, "rev-parse", "HEAD"),
            git(origin, "rev-parse", "change"),
        )
        self.main = git(origin, "rev-parse", "main")
        self.env = {
            "PATH": "/usr/bin:/bin",
            "GITHUB_WORKSPACE": str(self.checkout),
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_SHA": self.head,
            "GITHUB_REPOSITORY": "you/bot",
            "GITHUB_API_URL": github.url,
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
            "RUNNER_TEMP": str(folder / "temp"),
            "GATE_FOLDER": "app",
            "GATE_START": f"{shlex.quote(sys.executable)} bot.py",
        }
        base = {"sha": git(origin, "rev-parse", "main~1"), "ref": "main"}
        self.event({"pull_request": {"number": 12, "base": base, "head": {"sha": self.change}}})

    def event(self, event: dict[str, Any]) -> None:
        (self.folder / "event.json").write_text(json.dumps(event))

    def finds(self, record: CheckRecord, code: int) -> None:
        """What the check is to leave behind."""
        check = self.turngap / "check"
        shutil.rmtree(check, ignore_errors=True)
        check.mkdir()
        sides = [
            store(check, n, make_turns(6, slower_ms=ms)) for n, ms in (("new", 41), ("old", 0))
        ]
        new, old = (make_side(run.path.name, turns=6) for run in sides)
        record = record.model_copy(update={"candidate": new, "reference": old})
        write_document(check / CHECK_FILE, record)
        write_reports(record, check, sides[0], sides[1])
        (self.turngap / "code").write_text(str(code))

    @property
    def asked(self) -> dict[str, Any]:
        return json.loads((self.turngap / "asked.json").read_text())

    def measure(self, **inputs: str) -> dict[str, str]:
        """The first step; its outputs."""
        (self.folder / "output").write_text("")
        shutil.rmtree(self.folder / "temp", ignore_errors=True)
        assert measure({**self.env, **inputs}) == 0
        text = (self.folder / "output").read_text()
        return dict(re.findall(r"^([\w-]+)<<(?:end-\w+)\n(.*)\nend-\w+$", text, re.MULTILINE))

    def tell(self, outputs: dict[str, str], **inputs: str) -> tuple[int, str]:
        """The last step: its exit code, and the summary."""
        (self.folder / "summary").write_text("")
        told = {"GATE_TOKEN": TOKEN, "GATE_PAGES": "https://example.invalid/artifacts/7"}
        code = tell({**self.env, "GATE_OUT": outputs["folder"], **told, **inputs})
        return code, (self.folder / "summary").read_text()


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
        assert f"Commit {job.change[:12]} against main ({job.main[:12]})." in body
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
    job.event({"before": job.main})
    job.measure(**given, GITHUB_EVENT_NAME="push")
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


@pytest.mark.parametrize("file", ["turngap.toml", "pyproject.toml"])
def test_what_the_repository_says_itself_is_not_said_again(job: Job, file: str) -> None:
    assert Inputs.of(job.env).scenarios == ("quick-questions",)
    (job.checkout / file).write_text('[tool.turngap]\nscenarios = ["coffee-order"]\n')
    assert Inputs.of(job.env).scenarios == ()
    Inputs.of({**job.env, "GATE_BASE": "none"})
    assert Inputs.of({**job.env, "GATE_SCENARIOS": "cough"}).scenarios == ("cough",)


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


def test_a_base_that_is_here_needs_no_token_to_be_fetched(job: Job) -> None:
    git(job.checkout, "fetch", "-q", "--unshallow", "origin", "+refs/heads/*:refs/remotes/origin/*")
    git(job.checkout, "remote", "set-url", "origin", str(job.folder / "gone"))
    assert base(job) == job.main
    assert base(job, "change") == job.change
    out = job.folder / "base-files"
    with Repository(job.checkout / "app").checked_out(job.main, out) as files:
        assert "quick" in (files / "bot.py").read_text()
    assert not out.exists()


@pytest.mark.parametrize(
    ("asked", "kind", "why"),
    [
        ("", "workflow_dispatch", "nothing to compare with"),
        ("", "pull_request_target", "the code of a fork would get your secrets"),
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
        ("BASE", "none", "nothing to check"),
        ("NAME", "../../etc", "letters, digits"),
        ("NAME", "a --> b", "letters, digits"),
        ("TURNGAP", "1.0; rm -rf", "is no version"),
        ("SCENARIOS", "'open", "cannot be split"),
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
