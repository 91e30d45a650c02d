"""The commands' flags: grouped alike, few, and completed by the shell."""

from typing import Any

import pytest
from command_lines import parse
from commandline import turngap_here
from typer.main import get_command

from turngap.backends import AGENT
from turngap.cli import app
from turngap.cli.options import PANELS
from turngap.play.options import OUTPUT

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


def groups(command: Any) -> list[tuple[str, str]]:
    """Each option's group and name, in the order in which the help shows them."""
    return [
        (option.rich_help_panel, option.opts[0])
        for option in command.params
        if option.param_type_name == "option"
    ]


# Commands and those below them, as they are typed.
BELOW = {name: getattr(command, "commands", {}) for name, command in COMMANDS.items()}
ALL = [*COMMANDS, *(f"{name} {inner}" for name, found in BELOW.items() for inner in found)]


@pytest.mark.parametrize("name", ALL)
def test_help_ends_with_examples_of_the_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = turngap_here(capsys, *name.split(), "--help").out
    assert f"turngap {name}" in shown.partition("Example")[2]
    assert "--json" in shown  # each of them prints one document for scripts, too
    assert "<bool>" not in shown  # a flag takes no value
    assert "list[" not in shown  # nor is it told in Python's words what one takes


@pytest.mark.parametrize("name", BELOW)
def test_the_help_has_one_group_with_help_and_json_in_it(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = turngap_here(capsys, name, "--help").out.partition(f"─ {OUTPUT} ─")[2]
    assert "--help" in output
    assert "--json" in output


@pytest.mark.parametrize("name", COMMANDS)
def test_a_paragraph_of_a_help_is_broken_only_where_the_terminal_is(name: str) -> None:
    paragraphs = COMMANDS[name].help.split("\n\n")
    assert not any("\n" in each for each in paragraphs if not each.startswith("Example"))


@pytest.mark.parametrize("name", ["replay", "check", "compare", "turns", "load", "simulate"])
def test_options_stand_in_the_same_groups_and_order(name: str) -> None:
    shown = [group for group, _ in groups(COMMANDS[name])]
    order = [panel for panel in PANELS if panel in shown]
    assert list(dict.fromkeys(shown)) == order
    assert shown == sorted(shown, key=order.index)


def test_an_option_of_several_commands_is_in_one_group() -> None:
    found: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for group, option in groups(command):
            found.setdefault(option, set()).add(group)
    # The settings of an agent are other things than those of a simulated fleet, and the most
    # sessions that a server takes another than the most that a search tries.
    other_things = {"--set", "--max-sessions"}
    assert {option for option, g in found.items() if len(g) > 1} <= other_things


def test_what_few_people_turn_is_behind_help_all(capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = (turngap_here(capsys, "check", each).out for each in ("--help", "--help-all"))
    assert "--quiet-ms" not in short
    assert "more options: turngap check --help-all" in short
    assert "--quiet-ms" in whole
    assert "--help-all" not in whole
    assert len(short.splitlines()) <= 130
    help_lines = short.splitlines()
    assert [line.strip() for line in help_lines].index("Examples:") < 6
    panels = [line.strip("╭╮─ ") for line in help_lines if "╭─ " in line]
    assert panels[:2] == ["Arguments", "Your bot"]


def test_engines_that_are_not_here_have_no_options_in_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(type(AGENT), "met", lambda _: False)
    assert "--llm" not in turngap_here(capsys, "replay", "--help").out.partition("Exit:")[2]
    assert "--llm" in turngap_here(capsys, "compare", "--help").out.partition("Exit:")[2]


@pytest.mark.parametrize(
    ("old", "new", "command"),
    [
        ("--rounds", "--repeat", "replay"),
        ("--repeat", "--rounds", "check"),
        ("--scenarios", "--library", "serve"),
    ],
)
def test_an_older_flag_is_still_taken(old: str, new: str, command: str) -> None:
    value = {"--library": "mine"}.get(new, "7")
    assert parse([command, old, value]) == parse([command, f"{new}={value}"])


def test_a_backend_shows_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    out = turngap_here(capsys, "backends", "sim").out
    assert "settings of llm backend sim" in out
    (row,) = turngap_here(capsys, "backends", "sim", "--json").document()
    settings = {setting["setting"]: setting for setting in row["settings"]}
    assert settings["ttft_ms"]["default"] == "150.0"
    assert "ms" in settings["ttft_ms"]["about"]
    assert all(setting["about"] for setting in row["settings"])
    done = turngap_here(capsys, "backends", "simm")
    assert (done.code, "did you mean sim?" in done.err) == (2, True)
