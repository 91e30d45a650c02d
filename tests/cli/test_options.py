"""The commands' flags: grouped alike, few, and completed by the shell."""

from typing import Any

import pytest
from commandline import turngap_here
from typer.main import get_command

from turngap.cli import app
from turngap.cli.commands import OUTPUT
from turngap.cli.options import AGENT, LIMITS, PLAYED

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
    assert "\n" not in COMMANDS[name].help.replace("\n\n", "")


@pytest.mark.parametrize("name", ["replay", "check", "compare", "turns", "load", "simulate"])
def test_options_stand_in_the_same_groups_and_order(name: str) -> None:
    shown = [group for group, _ in groups(COMMANDS[name])]
    order = [g for g in ("Fleet", AGENT, PLAYED, LIMITS, OUTPUT) if g in shown]
    assert list(dict.fromkeys(shown)) == order
    assert shown == sorted(shown, key=order.index)


def test_an_option_of_several_commands_is_in_one_group() -> None:
    found: dict[str, set[str]] = {}
    for command in COMMANDS.values():
        for group, option in groups(command):
            found.setdefault(option, set()).add(group)
    # The settings of an agent are other things than those of a simulated fleet, the
    # most sessions that a server takes another than the most that a search tries, and processes
    # that serve others than those that simulate.
    other_things = {"--set", "--max-sessions", "--workers"}
    assert {option for option, g in found.items() if len(g) > 1} <= other_things


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
