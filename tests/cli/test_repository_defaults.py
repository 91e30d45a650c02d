"""`turngap.toml` and `[tool.turngap]`: what commands take from it, and what wins over it."""

from pathlib import Path
from typing import Any

import pytest
from commandline import Finished, turngap_here
from typer.main import get_command

from turngap.cli import app
from turngap.play.defaults import SHARED, TABLES, read_defaults
from turngap.play.target import AgentChoice

Capsys = pytest.CaptureFixture[str]
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
FILE = """
agent = "ws://127.0.0.1:9/ws"
start = "python bot.py"
header = ["X-Key: ${MY_KEY}"]
scenarios = "quick-questions"

[check]
rounds = 12
until-decided = true
budget = { gap = 800, llm_first_token = 450 }
target = 0.9
"""

# Not for a file: these differ from one call to the next, or would let a repository's file write
# anywhere, open this machine to others, spend money on a judge, or call a cluster.
NEVER = {
    "json_", "verbose", "quiet", "label", "save", "resume", "vary", "virtual", "on", "ray_address",
    "judge", "otlp", "self_test", "help",
}  # fmt: skip


class Planned(Exception):  # noqa: N818
    """A command's options, in place of playing it."""

    def __init__(self, choice: AgentChoice, asked: dict[str, Any]) -> None:
        self.choice = choice
        self.asked = asked


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TURNGAP_AGENT", raising=False)
    monkeypatch.delenv("TURNGAP_CONFIG", raising=False)
    return tmp_path


def planned(monkeypatch: pytest.MonkeyPatch, capsys: Capsys, *arguments: str) -> Planned:
    """Return what `turngap check` would play."""
    from turngap.check.plan import CheckPlan

    found: list[Planned] = []

    def of(choice: AgentChoice, names: Any, tag: Any, library: Any, **asked: Any) -> None:
        found.append(Planned(choice, {"names": tuple(names), "tag": tag, **asked}))
        raise found[0]

    with monkeypatch.context() as patch:
        patch.setattr(CheckPlan, "of", of)
        done = turngap_here(capsys, "check", *arguments)
    assert found, done.err
    return found[0]


def refused(repository: Path, capsys: Capsys, text: str, *arguments: str) -> Finished:
    (repository / "turngap.toml").write_text(text)
    done = turngap_here(capsys, *(arguments or ("check",)))
    assert done.code == 2, done.err
    return done


def test_a_check_needs_no_flags(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (repository / "turngap.toml").write_text(FILE)
    asked = planned(monkeypatch, capsys)
    assert asked.choice == AgentChoice(
        "ws://127.0.0.1:9/ws",
        start="python bot.py",
        headers=("X-Key: ${MY_KEY}",),
    )
    assert asked.asked["names"] == ("quick-questions",)
    assert asked.asked["budgets"] == {"gap": 800, "llm_first_token": 450}
    assert (asked.asked["rounds"], asked.asked["target"]) == (12, 0.9)
    assert asked.asked["until_decided"] is True


def test_pyproject_says_the_same(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (repository / "turngap.toml").write_text(FILE)
    wanted = planned(monkeypatch, capsys)
    (repository / "turngap.toml").unlink()
    text = FILE.replace("[check]", "[tool.turngap.check]")
    (repository / "pyproject.toml").write_text(f"[tool.turngap]\n{text}")
    found = planned(monkeypatch, capsys)
    assert (found.choice, found.asked) == (wanted.choice, wanted.asked)


def test_flags_and_variables_win(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (repository / "turngap.toml").write_text(FILE)
    flags = ("--rounds", "3", "--budget", "gap=700", "--no-until-decided", "coffee-order")
    asked = planned(monkeypatch, capsys, *flags).asked
    assert (asked["rounds"], asked["budgets"]) == (3, {"gap": 700})
    assert (asked["until_decided"], asked["names"]) == (False, ("coffee-order",))
    monkeypatch.setenv("TURNGAP_AGENT", "ws://127.0.0.1:8/")
    assert planned(monkeypatch, capsys).choice.agent == "ws://127.0.0.1:8/"


def test_what_the_file_says_of_its_agent_is_left_out_for_another(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (repository / "turngap.toml").write_text(FILE)
    for named in ("--agent", "TURNGAP_AGENT"):
        arguments = (named, "embedded") if named == "--agent" else ()
        with monkeypatch.context() as patch:
            if not arguments:
                patch.setenv(named, "embedded")
            choice = planned(monkeypatch, capsys, *arguments).choice
        assert (choice.agent, choice.start, choice.headers) == ("embedded", None, ())


def test_another_reference_replaces_that_of_the_file(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (repository / "turngap.toml").write_text('[check]\nbaseline = "base.json"\n')
    asked = planned(monkeypatch, capsys, "--against", "ws://127.0.0.1:8/").asked
    assert (asked["against"], asked["baseline"]) == ("ws://127.0.0.1:8/", None)
    asked = planned(monkeypatch, capsys, "--save", "base.json").asked
    assert asked["baseline"] is None
    asked = planned(monkeypatch, capsys, "--save", "other.json").asked
    assert asked["baseline"] == Path("base.json")
    (repository / "turngap.toml").write_text(
        '[check]\nagainst = "ws://127.0.0.1:7/"\nstart-against = "python old.py"\n'
    )
    asked = planned(monkeypatch, capsys, "--baseline", "base.json").asked
    assert (asked["against"], asked["start_against"]) == (None, None)
    asked = planned(monkeypatch, capsys, "--against", "", "--budget", "gap=800").asked
    assert (asked["against"], asked["start_against"]) == (None, None)


def test_a_command_is_told_before_it_is_run(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    from turngap.play import target

    monkeypatch.setenv("MY_KEY", "secret")
    (repository / "turngap.toml").write_text(FILE)
    told: list[str] = []

    def require_free(command: str, url: str) -> None:
        told.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr(target, "argv_of", lambda command: [command])
    monkeypatch.setattr(target, "require_free", require_free)
    turngap_here(capsys, "check")
    assert "turngap.toml starts the agent with this command: python bot.py" in told[0]
    assert "turngap.toml sends what these environment variables hold: MY_KEY" in told[0]
    assert "--agent ws://127.0.0.1:9/ws --start 'python bot.py'" in told[0]


def test_a_key_in_the_file_is_not_shown(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    key = "sk-abcdefgh12345678abcdefgh"
    (repository / "turngap.toml").write_text(
        f'agent = "ws://a.invalid/"\nheader = "Authorization: Bearer {key}"\n[check]\n'
        "budget = { gap = 800 }\n"
    )
    done = turngap_here(capsys, "check", "no-such-folder")
    assert "turngap.toml adds" in done.err
    assert key not in done.err


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('agnet = "a"\n', 1, "unknown key; did you mean agent?"),
        ("repeat = 3\n", 1, "unknown key; it belongs below [replay]"),
        ("[check]\nuntil_decided = true\n", 2, "did you mean until-decided?"),
        ("[chekc]\nrounds = 3\n", 1, "did you mean check?"),
        ('\n[check]\nrounds = "many"\n', 3, "expected a whole number, found the text 'many'\n"),
        ('[check]\nrounds = "12"\n', 2, "found the text '12': write 12 without quotes"),
        ("[check]\nrounds = 1.5\n", 2, "expected a whole number, found 1.5"),
        ('[check]\nuntil-decided = "true"\n', 2, "found the text 'true': write true without"),
        ("[check]\nbudget = 800\n", 2, "expected a table, as { gap = 800 }, found 800"),
        ("[check]\nrounds = 0\n", 2, "expected a whole number from 1 to 1000000, found 0"),
        ("[check]\n\nbudget = { gap = true }\n", 3, "expected a number, found true"),
        ('[check.budget]\ngap = 800\nllm = "x"\n', 3, "number"),
        ('agent = ""\n', 1, "at least 1 character"),
        ('note = """\nagent = 3\n"""\nagent = 4\n', 4, "expected a text in quotes, found 4"),
        ('agent = 4\nnote = """\nagent = 3\n"""\n', 1, "expected a text in quotes, found 4"),
        ('llm = 3\nset = [\n "llm=sim",\n]\n', 1, "expected a text in quotes, found 3"),
        ("scenarios = [3]\n", 1, "expected a text in quotes, found 3"),
        ("calibration = 1e400\n", 1, "not TOML"),
        ("agent = \n", 1, "not TOML"),
        ('out = "../elsewhere"\n', 1, "leads out of the file's folder"),
    ],
)
def test_what_cannot_be_used_is_refused_with_file_and_line(
    repository: Path, capsys: Capsys, text: str, line: int, words: str
) -> None:
    err = refused(repository, capsys, text).err
    assert words in err
    if words not in ("not TOML", "leads out of the file's folder"):
        assert f"turngap.toml:{line}: " in err


def test_each_wrong_key_gets_its_own_hint(repository: Path, capsys: Capsys) -> None:
    err = refused(repository, capsys, 'scenario = "x"\nqqq = 1\n[chek]\n[check]\nwww = 1\n').err
    assert [line.removeprefix("error: ") for line in err.splitlines()[:4]] == [
        "turngap.toml:1: scenario: unknown key; did you mean scenarios?",
        "turngap.toml:2: qqq: unknown key",
        "turngap.toml:3: chek: unknown key; did you mean check?",
        "turngap.toml:5: check.www: unknown key",
    ]
    hints = [line.partition(":")[0] for line in err.splitlines()[4:]]
    assert sorted(hints) == ["  keys at the top", "  keys below [check]"]


def test_a_file_that_is_none_is_refused(repository: Path, capsys: Capsys) -> None:
    (repository / "turngap.toml").mkdir()
    done = turngap_here(capsys, "check")
    assert (done.code, "turngap.toml: cannot be read" in done.err) == (2, True)


def test_two_files_are_refused(repository: Path, capsys: Capsys) -> None:
    (repository / "pyproject.toml").write_text('[tool.turngap]\nagent = "stock"\n')
    assert "both have defaults" in refused(repository, capsys, 'agent = "stock"\n').err


def test_help_works_beside_a_broken_file(repository: Path, capsys: Capsys) -> None:
    (repository / "turngap.toml").write_text("agent = \n")
    assert turngap_here(capsys, "check", "--help").code == 0


def test_a_pyproject_that_says_nothing_of_turngap_is_left_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (repository / "pyproject.toml").write_text("no TOML at all")
    assert read_defaults() is None
    (repository / "pyproject.toml").write_text('[project]\ndependencies = ["turngap"]\n')
    assert read_defaults() is None


def test_a_repository_ends_at_its_git_folder(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = repository / "checkout" / "src"
    inner.mkdir(parents=True)
    (repository / "turngap.toml").write_text('agent = "stock"\n')
    monkeypatch.chdir(inner)
    assert read_defaults() is None  # no repository: only the working directory counts
    (repository / "checkout" / ".git").mkdir()
    assert read_defaults() is None
    (repository / "checkout" / "turngap.toml").write_text('agent = "local"\n')
    assert (found := read_defaults()) is not None
    assert found.shared["agent"] == "local"


def test_a_variable_names_the_file_or_none(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    (repository / "turngap.toml").write_text('agent = "stock"\n')
    (repository / "other.toml").write_text('agent = "local"\n')
    monkeypatch.setenv("TURNGAP_CONFIG", "other.toml")
    assert (found := read_defaults()) is not None
    assert found.shared["agent"] == "local"
    monkeypatch.setenv("TURNGAP_CONFIG", "none")
    assert read_defaults() is None
    monkeypatch.setenv("TURNGAP_CONFIG", "missing.toml")
    assert "missing.toml: cannot be read" in turngap_here(capsys, "check").err


def test_a_run_is_continued_as_it_began(repository: Path, capsys: Capsys) -> None:
    (repository / "turngap.toml").write_text(f'out = "measured"\n{FILE}')
    done = turngap_here(capsys, "replay", "--resume", "latest")
    assert "python bot.py" not in done.err
    assert "measured" in done.err  # where runs are looked for


def test_a_served_agent_is_no_url(repository: Path, capsys: Capsys) -> None:
    (repository / "turngap.toml").write_text(FILE)
    done = turngap_here(capsys, "serve", "--record", "x", "--no-keep")
    assert "serve takes a stack" not in done.err
    assert "turngap.toml adds" not in done.err


@pytest.mark.parametrize("name", TABLES)
def test_the_keys_of_a_table_are_the_options_of_its_command(name: str) -> None:
    options = {param.name for param in COMMANDS[name].params}
    shared = {option.name for option in SHARED}
    assert set(TABLES[name].model_fields) - shared | (options & shared) == options - NEVER


def test_what_all_share_is_known_to_replay_or_check() -> None:
    known = {param.name for name in ("replay", "check") for param in COMMANDS[name].params}
    assert {option.name for option in SHARED} <= known
